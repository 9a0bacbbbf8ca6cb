"""Resolve the source tables of a batch of change events."""

from __future__ import annotations

from collections.abc import Collection

from writer_jobs.errors import FeedError
from writer_jobs.merge.table_feed import has_name


def resolve_source_tables(names: Collection[str], tables: Collection[str]) -> tuple[str, ...] | None:
    """Return the source tables of a feed: the tables that the caller names, or the only table of the events.

    Args:
        names: Names from the caller of :func:`~writer_jobs.feeds.debezium.decode.decode`; empty: none.
        tables: Tables of the events, each as ``db.schema.table``; an empty name for events that do not name a table.

    Returns:
        Full names, and each given name that no event's table has; None if the events do not name their table.

    Raises:
        FeedError: The events are of several tables and the caller names none, or a name matches several tables.

    """
    if names:
        return tuple(sorted({_full_name(name, tables) for name in names}))
    if len(tables) > 1:
        several = ", ".join(sorted(name or "(source.table is missing)" for name in tables))
        raise FeedError(
            f"the events are of several tables, {several}, whose rows would overwrite each other: pass --source-table "
            "NAME (source_tables) for the table to apply, or for each of its leaf partitions"
        )
    return tuple(name for name in tables if name) or None


def _full_name(name: str, tables: Collection[str]) -> str:
    full_names = sorted(table for table in tables if has_name(table, name))
    if len(full_names) > 1:
        raise FeedError(
            f"the name {name} means several source tables, {', '.join(full_names)}, whose rows would overwrite each "
            "other: pass --source-table (source_tables) with the full name"
        )
    return full_names[0] if full_names else name
