"""Read a Delta table that ``cdc.py`` feeds from HBase, without Spark."""

from __future__ import annotations

from pathlib import Path

from deltalake import DeltaTable


def visible_values(table: Path) -> dict[str, dict[str, str]]:
    """Return the values of a table, by row key and ``family:qualifier``."""
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert len({row["id"] for row in rows}) == len(rows), "a row key has two rows"
    return {
        row["id"]: {name.replace("_", ":"): value for name, value in row.items() if name != "id" and value is not None}
        for row in rows
    }
