"""Names as Spark's SQL reads them."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quote the name of a column, or of a table's folder."""
    return "`" + name.replace("`", "``") + "`"
