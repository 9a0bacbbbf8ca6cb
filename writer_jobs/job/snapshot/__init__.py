"""The job ``snapshot.py``."""
