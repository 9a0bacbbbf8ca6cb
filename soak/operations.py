"""The operations of Spark writers at the gate: append, MERGE, DELETE and ``apply_rows`` in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import DataFrame, SparkSession

from lock_manager import Hold
from writer_jobs import CommitResult, LockedDeltaWriter
from writer_jobs.late_rows.apply import apply_rows

OperationName = Literal["append", "offered", "merge", "delete", "apply_rows"]
"""Kind of an operation. An ``offered`` append has no ``before_write``, so that a holder may commit it."""

#: Columns of every table, as SQL over ``id``. No table has partitions, because the invariants are about the lock of the
#: whole table, and apply_rows would lock partitions.
COLUMNS = ("id", "timestamp_micros(id) AS at")
_TURNS: tuple[OperationName, ...] = ("append", "merge", "delete", "apply_rows")
# Operations with group commits. Most are appends, because an operation of another kind ends a group.
_GROUP_TURNS: tuple[OperationName, ...] = (
    "offered", "offered", "merge", "offered", "offered", "append", "offered", "offered", "delete", "offered", "offered",
    "apply_rows",
)  # fmt: skip


def make_rows(spark: SparkSession, ids: Sequence[int]) -> DataFrame:
    """Return the rows with these consecutive ids."""
    return spark.range(ids[0], ids[-1] + 1, 1, 1).selectExpr(*COLUMNS)


@dataclass(frozen=True)
class Operation:
    """One operation on a table.

    Attributes:
        name: Kind of the operation.
        ids: Ids of the rows that it inserts.
        deletes: Ids of the rows that it deletes.
        transaction: Application and version of its ``txn``; None without a ``txn``.

    """

    name: OperationName
    ids: Sequence[int]
    deletes: Sequence[int] = ()
    transaction: tuple[str, int] | None = None

    @classmethod
    def choose(cls, ids: Sequence[int], app_id: str, deletable: Sequence[int], *, in_groups: bool = False) -> Operation:
        """Choose the next operation of a writer.

        Args:
            ids: New consecutive ids, which determine the kind.
            app_id: Application of the writer's ``txn``.
            deletable: Ids of rows that may be deleted. If there are none, an append takes the turn of the delete.
            in_groups: Whether holders may commit appends of other writers.

        """
        number, turns = ids[0] // len(ids), _GROUP_TURNS if in_groups else _TURNS
        name = turns[number % len(turns)]
        if name == "delete" and deletable:
            return cls(name, (), deletable)
        if name == "apply_rows" or (name == "offered" and number % 2):
            # Ids rise from one process of a writer to the next, and so do the versions of its txn.
            return cls(name, ids, transaction=(app_id, ids[0]))
        return cls("append" if name == "delete" else name, ids)

    @property
    def facts(self) -> dict[str, Any]:
        """The fields that describe the operation in the history."""
        return {
            "operation": self.name,
            "ids": list(self.ids),
            "deletes": list(self.deletes),
            "transaction": self.transaction,
        }

    def run(
        self, spark: SparkSession, writer: LockedDeltaWriter, before_write: Callable[[Hold], None]
    ) -> CommitResult | None:
        """Execute the operation at the gate; return its result, None if there was nothing to commit."""
        if self.name == "delete":
            return writer.delete(_condition("", self.deletes), lock_during="commit", before_write=before_write)
        rows = make_rows(spark, self.ids)
        if self.name == "offered":
            return writer.append(rows, lock_during="commit", txn=self.transaction)
        if self.name == "append":
            return writer.append(rows, lock_during="commit", before_write=before_write)
        if self.name == "merge":
            merge = writer.merge(rows.alias("s"), f"t.id = s.id AND {_condition('t.', self.ids)}", alias="t")
            merge = merge.whenNotMatchedInsertAll()
            return merge.execute(lock_during="commit", before_write=before_write)
        return apply_rows(
            writer, rows, keys=["id"], event_time="at", txn=self.transaction, before_write=before_write
        ).commit


def _condition(alias: str, ids: Sequence[int]) -> str:
    """Return the SQL predicate for rows with these ids, so that Delta skips files of other rows."""
    return f"{alias}id BETWEEN {ids[0]} AND {ids[-1]}"
