"""Rows that arrive twice, out of order and late: each is in the table once, in the partition of its event time."""
