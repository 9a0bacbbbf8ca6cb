"""Debezium's change events: decoded to changes of rows."""
