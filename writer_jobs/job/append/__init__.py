"""The job ``append.py``."""
