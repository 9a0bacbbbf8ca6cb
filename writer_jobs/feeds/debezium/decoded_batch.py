"""The changes that a batch of Debezium's messages contains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self, get_args

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.merge.materialized import MaterializedRows

OnTruncate = Literal["refuse", "delete", "ignore"]
"""Effect of a truncate of the source table."""
#: All values of :data:`OnTruncate`.
ON_TRUNCATE: tuple[OnTruncate, ...] = get_args(OnTruncate)

#: Column with the order of the changes.
ORDER = "__sluice_order"
#: Column that is true for a delete.
DELETES = "__sluice_deletes"
#: Column with the names of the columns whose value the connector did not receive.
UNAVAILABLE_COLUMNS = "__sluice_unavailable_columns"
#: Name of the default order of the changes.
POSITION = "position in the source database's log"


@dataclass(frozen=True, kw_only=True)
class DecodedBatch:
    """The changes and the dead letters of a batch. Its data frames are materialized until :meth:`close`.

    Attributes:
        changes: The columns of the source rows, plus :data:`ORDER`, :data:`DELETES` and, if a change lacks a value,
            :data:`UNAVAILABLE_COLUMNS`.
        keys: Columns that together identify a row; may be empty if there are no changes.
        count: Number of changes; 0 if there is nothing to apply.
        event_count: Number of decoded events. An update that changes a key is one event and two changes.
        dead_letters: Messages that cannot be decoded: ``key``, ``value``, ``origin``, ``reason``.
        dead_count: Number of rows of :attr:`dead_letters`.
        dead_reason: The most frequent reason; None without dead letters.
        filtered_count: Number of events of other source tables.
        source_tables: See :func:`~writer_jobs.feeds.debezium.envelopes.resolve_source_tables`.
        columns: Columns that the messages have.
        unavailable_columns: Columns whose value the connector did not receive in some changes.
        skipped_count: Number of messages that change no row: tombstones, heartbeats, logical decoding messages (``m``),
            markers of transactions, changes of the schema.
        newest_source_time: Latest ``source.ts_ms`` of the changes, in seconds since the epoch; None without one.
        truncate_count: Number of truncates of the source table to apply.
        truncated_at: Sequence of the last one; see :func:`writer_jobs.merge.truncate.sequence_text`.
        order: Name of the order of the changes: ``sequence_by``, or :data:`POSITION`.
        materialized: Local checkpoint that :meth:`close` releases.

    """

    changes: DataFrame
    keys: tuple[str, ...]
    count: int
    event_count: int
    dead_letters: DataFrame
    dead_count: int
    dead_reason: str | None
    filtered_count: int
    source_tables: tuple[str, ...] | None
    columns: tuple[str, ...]
    unavailable_columns: tuple[str, ...]
    skipped_count: int
    newest_source_time: float | None
    order: str
    truncate_count: int
    truncated_at: str | None
    materialized: MaterializedRows = field(repr=False)

    @property
    def apply_options(self) -> dict[str, Any]:
        """Arguments of ``apply_changes`` for :attr:`changes`."""
        return {
            "keys": self.keys,
            "sequence_by": ORDER,
            "sequence_name": self.order,
            "source_tables": self.source_tables,
            "source_columns": self.columns,
            "apply_as_deletes": DELETES,
            "except_column_list": (ORDER, DELETES, *([UNAVAILABLE_COLUMNS] if self.unavailable_columns else [])),
            "unchanged_columns": {
                name: F.array_contains(UNAVAILABLE_COLUMNS, name) for name in self.unavailable_columns
            },
        }

    def close(self) -> None:
        """Release the materialized rows."""
        self.materialized.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
