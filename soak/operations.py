"""The operations of writers at the gate: APPEND, MERGE, DELETE and ``apply_rows`` in turn, by the ids of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from lock_manager import Hold
from writer_jobs import LockedDeltaWriter
from writer_jobs.late_rows.apply import apply_rows

Name = Literal["append", "merge", "delete", "apply_rows"]
"""The kinds of operation of a writer at the gate."""

# Not partitioned: apply_rows would lock partitions, and invariants are about the lock of the table.
COLUMNS = ("id", "timestamp_micros(id) AS at")
"""Columns of every table, as SQL over ``id``."""
_TURNS: tuple[Name, ...] = ("append", "merge", "delete", "apply_rows")


def rows_of(spark: SparkSession, ids: Sequence[int]) -> DataFrame:
    """Return the rows with these ids, which follow each other."""
    return spark.range(ids[0], ids[-1] + 1, 1, 1).selectExpr(*COLUMNS)


@dataclass(frozen=True)
class Operation:
    """One operation on a table.

    Attributes:
        name: its kind.
        ids: of the rows that it inserts.
        deletes: ids of the rows that it deletes.
        transaction: application and version of its ``txn``; None without one.

    """

    name: Name
    ids: Sequence[int]
    deletes: Sequence[int] = ()
    transaction: tuple[str, int] | None = None

    @classmethod
    def of(cls, ids: Sequence[int], app_id: str, deletable: Sequence[int]) -> Operation:
        """Choose the operation of a turn.

        Args:
            ids: new ids; they decide the kind.
            app_id: application of the writer's transactions.
            deletable: ids of rows that may be deleted; without any, a turn to delete is an append.

        """
        name = _TURNS[ids[0] // len(ids) % len(_TURNS)]
        if name == "delete" and deletable:
            return cls(name, (), deletable)
        if name == "apply_rows":
            # Ids rise from one process of a writer to the next, and so do its transactions.
            return cls(name, ids, transaction=(app_id, ids[0]))
        return cls("append" if name == "delete" else name, ids)

    @property
    def facts(self) -> dict[str, Any]:
        """The operation as the history describes it."""
        return {
            "operation": self.name,
            "ids": list(self.ids),
            "deletes": list(self.deletes),
            "transaction": self.transaction,
        }

    def run(self, spark: SparkSession, writer: LockedDeltaWriter, before_write: Callable[[Hold], None]) -> int | None:
        """Do it at the gate, and return the version; None if the writer reports that it made none."""
        if self.name == "delete":
            return writer.delete(_condition("", self.deletes), lock_during="commit", before_write=before_write).version
        rows = rows_of(spark, self.ids)
        if self.name == "append":
            return writer.append(rows, lock_during="commit", before_write=before_write).version
        if self.name == "merge":
            merge = writer.merge(rows.alias("s"), f"t.id = s.id AND {_condition('t.', self.ids)}", alias="t")
            merge = merge.whenNotMatchedInsertAll()
            return merge.execute(lock_during="commit", before_write=before_write).version
        return apply_rows(
            writer, rows, keys=["id"], event_time="at", txn=self.transaction, before_write=before_write
        ).version


def _condition(alias: str, ids: Sequence[int]) -> str:
    """Return the SQL predicate of rows with these ids, which spares reading files of other rows."""
    return f"{alias}id BETWEEN {ids[0]} AND {ids[-1]}"
