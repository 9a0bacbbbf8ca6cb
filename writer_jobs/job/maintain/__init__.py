"""The job ``maintain.py``."""
