"""Decode Debezium's change events and apply them to a Delta table."""
