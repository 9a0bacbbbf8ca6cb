"""The job ``overwrite.py``."""
