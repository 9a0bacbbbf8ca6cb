"""The rule that decides whether a statement reads the table that it writes (``PlanReads.java`` lists its reads)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lock_manager.errors import ResourceError
from lock_manager.resources import canonical_table_uri


def own_read_reason(reads: Iterable[Mapping[str, Any]], table: str, table_id: str | None) -> str | None:
    """Return why a statement depends, or may depend, on the table that it writes; None if it does not.

    Args:
        reads: Reads of the statement, as ``PlanReads.java`` describes them.
        table: Canonical URI of the table.
        table_id: Delta's id of the table; None if there is no table. It identifies reads of the table under another
            name, such as an alias of its bucket.

    """
    for read in reads:
        if "unknown" in read:
            return f"the write may read the table: {read['unknown']}"
        is_table = table_id is not None and read.get("table_id") == table_id
        if is_table or any(_overlaps(root, table) for root in read["roots"]):
            return "the write reads the table itself"
    return None


def _overlaps(root: str, table: str) -> bool:
    """Return whether files below a root may be the table's, or the root may be another spelling of its location."""
    try:
        files = canonical_table_uri(root).rstrip("/")
    except ResourceError:
        return True
    return f"{files}/".startswith(f"{table}/") or f"{table}/".startswith(f"{files}/")
