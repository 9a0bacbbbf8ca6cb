"""The job ``stream.py``."""
