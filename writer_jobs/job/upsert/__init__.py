"""The job ``upsert.py``."""
