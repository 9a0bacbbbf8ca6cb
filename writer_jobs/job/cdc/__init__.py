"""The job ``cdc.py``."""
