"""Decode cells of HBase and apply them to a Delta table."""
