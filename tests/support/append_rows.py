"""Rows for the append job, the header of their CSV file, and the statement that creates their table."""

from __future__ import annotations

HEADER = "id,name,amount"
ROWS = [(number, f"name {number}", number / 4) for number in range(40)]
EMPTY = "create table {t} (id int, name string, amount double) using delta"
