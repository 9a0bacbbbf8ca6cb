"""Formats of records in tables: the stamp of a commit, the adoption of a table, pins."""
