"""The lock target of a write: the whole table, or the partitions that the write touches."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Literal

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col, unix_micros
from pyspark.sql.types import TimestampType

from lock_manager import Hold, LockManager, PartitionSchema, ResourceError, TableResource, TableScope
from lock_manager.partitions import MAX_PARTITIONS, Partition, smallest_cover
from writer_jobs.commit.guarded import GuardedTable, guarded
from writer_jobs.delta.moments import moment_of_micros
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog

_log = logging.getLogger(__name__)

# SQL's name of each type that has another name in Delta's schema.
_SQL_NAMES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_WHOLE_NUMBER = re.compile(r"-?\d+")
# Texts to write in hexadecimal. How Spark reads quotes and backslashes depends on the session, and it substitutes ${…}.
_NEEDS_ESCAPE = re.compile(r"['\\$\x00-\x1f]")

Lock = Literal["table", "partitions"] | Collection[Mapping[str, object]]
"""The caller's choice: lock the whole table, the partitions that the write touches, or these partitions."""

Partitions = Collection[Mapping[str, object]]
"""Partitions, each a mapping of column names to values."""

PartitionFinder = Callable[[TableState], Partitions | None]
"""Returns the partitions that a write touches; None if it may touch any. A result of more partitions than can be locked
one by one need not be complete."""


@dataclass(frozen=True)
class LockTarget:
    """The part of a table that a write locks.

    Attributes:
        schema: Partition columns of the table, if the target is partitions; None for the whole table.
        partitions: The partitions to which the write is confined; None for the whole table. The scope contains these
            partitions. It may be larger, because many partitions are locked as one table.

    """

    log: DeltaTableLog
    scope: TableScope
    schema: PartitionSchema | None = None
    partitions: tuple[Partition, ...] | None = None

    def predicate(self, alias: str | None = None) -> str | None:
        """Return the SQL predicate of the rows in the target's partitions; None for the whole table.

        It compares columns with literals only, so that Delta sees that a commit to other partitions is no conflict.
        """
        if self.partitions is None or self.schema is None:
            return None
        columns = {column.physical_name: column for column in self.schema.columns}
        prefix = f"{quoted(alias)}." if alias else ""
        choices = []
        for partition in self.partitions:
            terms = [
                f"{prefix}{quoted(columns[name].name)} "
                + ("IS NULL" if value is None else f"= {_sql_literal(columns[name].type, value)}")
                for name, value in partition.values
            ]
            choices.append(" AND ".join(terms))
        return "(" + " OR ".join(f"({choice})" for choice in choices) + ")"

    @property
    def confinement(self) -> TableScope:
        """The part of the table to which the write is confined; at most :attr:`scope`."""
        return replace(self.scope, partitions=self.partitions)

    def contains(self, partitions: Partitions | None) -> bool:
        """Return whether the target contains these partitions; None stands for any partition."""
        if self.scope.partitions is None or self.schema is None:
            return True
        if partitions is None:
            return False
        distinct_partitions = {self.schema.partition(values) for values in partitions}
        # More partitions than can be locked need not be all, see PartitionFinder.
        return len(distinct_partitions) <= MAX_PARTITIONS and self.scope.contains(distinct_partitions)

    @classmethod
    def of(cls, log: DeltaTableLog, partitions: Partitions | None, snapshot: Snapshot | None = None) -> LockTarget:
        """Return the target of partitions, or of the whole table; ``snapshot`` is the table's, if it is loaded already.

        Raises:
            TableError, ResourceError: The table has no such partitions.

        """
        table = TableResource.of(log.location)
        if partitions is None:
            return cls(log, TableScope.of(table))
        schema = (snapshot or log.snapshot()).partition_schema()
        cover = smallest_cover(schema.partition(values) for values in partitions)
        return cls(log, TableScope.of(table, cover), schema, cover)

    def guarded(self, spark: SparkSession, hold: Hold, note: Mapping[str, Any]) -> AbstractContextManager[GuardedTable]:
        """Bind this thread's commits to the hold; see :func:`writer_jobs.commit.guarded.guarded`."""
        return guarded(spark, hold, self.log, note, schema=self.schema, scope=self.confinement)


def job_note(spark: SparkSession, manager: LockManager) -> dict[str, Any]:
    """Return the job's name as commits record it: the lock manager's, or the application's name."""
    return {"job": manager.settings.job or spark.sparkContext.appName}


def find_lock_target(log: DeltaTableLog, lock: Lock, find_partitions: PartitionFinder) -> LockTarget:
    """Return the lock target of a write.

    Raises:
        TableError, ResourceError: The table has no such partitions.
        ValueError: ``lock`` is a string other than ``"table"`` and ``"partitions"``.

    """
    if not isinstance(lock, str):
        return LockTarget.of(log, lock)
    if lock not in ("table", "partitions"):
        raise ValueError(f"lock={lock!r}: choose 'table', 'partitions', or a list of partitions")
    snapshot = log.snapshot() if lock == "partitions" else None
    state = snapshot.state if snapshot is not None else None
    if state is None or not state.partition_columns:
        return LockTarget.of(log, None)
    rows = [tuple(partition.items()) for partition in find_partitions(state) or ()]
    partitions = [dict(row) for row in dict.fromkeys(rows)]
    if len(partitions) > MAX_PARTITIONS:
        _log.warning(
            "the write to %s touches more than %d partitions: locking the whole table", log.location, MAX_PARTITIONS
        )
    if not partitions or len(partitions) > MAX_PARTITIONS:
        return LockTarget.of(log, None)
    try:
        return LockTarget.of(log, partitions, snapshot)
    except ResourceError as error:
        _log.warning("locking the whole table %s: %s", log.location, error)
        return LockTarget.of(log, None)


def rows_within(spark: SparkSession, target: LockTarget, bounds: Column) -> DataFrame:
    """Return the current rows of a table that are in a lock target and within bounds."""
    rows = spark.read.format("delta").load(target.log.location)
    return (rows if (where := target.predicate()) is None else rows.where(where)).where(bounds)


def partitions_of_rows(
    df: DataFrame, state: TableState, column_expressions: Mapping[str, Column] | None = None
) -> Partitions | None:
    """Return the distinct partitions of rows, at most one more than can be locked; None if they cannot be known.

    Values are returned as Delta will write them, cast to the column's type. Timestamps are returned as moments, because
    their text is ambiguous where clocks are put back.

    Args:
        column_expressions: Expressions on the rows, by partition column; by default the rows' columns of these names.

    """
    row_columns = {name.lower() for name in df.columns}
    if column_expressions is None and any(name.lower() not in row_columns for name in state.partition_columns):
        # Delta computes missing columns (generated columns), or refuses the rows.
        return None
    expressions = column_expressions or {name: col(quoted(name)) for name in state.partition_columns}
    types = {name: state.schema[name].dataType for name in state.partition_columns if name in expressions}
    moments = [name for name, data_type in types.items() if isinstance(data_type, TimestampType)]
    values = {name: expressions[name].cast(data_type) for name, data_type in types.items()}
    columns = [
        (unix_micros(value) if name in moments else value).cast("string").alias(name) for name, value in values.items()
    ]
    rows = [row.asDict() for row in df.select(*columns).distinct().limit(MAX_PARTITIONS + 1).collect()]
    try:
        return [{**row, **{name: moment_of_micros(int(row[name])) for name in moments if row[name]}} for row in rows]
    except OverflowError:
        # Python has no such moment, so the partition cannot be named.
        return None


def _sql_literal(type_name: str, value: str) -> str:
    """Return a partition's value as an SQL literal; ``type_name`` is Delta's name of the column's type."""
    if type_name in _SQL_NAMES and _WHOLE_NUMBER.fullmatch(value):
        return value if type_name == "integer" else f"CAST({value} AS {_SQL_NAMES[type_name]})"
    text = f"CAST(X'{value.encode().hex()}' AS STRING)" if _NEEDS_ESCAPE.search(value) else f"'{value}'"
    return text if type_name.startswith(("string", "varchar", "char")) else f"CAST({text} AS {type_name.upper()})"
