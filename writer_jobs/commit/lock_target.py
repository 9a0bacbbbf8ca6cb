"""What a write locks: the whole table, or the partitions that it touches."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
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

# As SQL names what Delta's schema names otherwise.
_SQL_NAMES = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_WHOLE = re.compile(r"-?\d+")
# Quotes and backslashes depend on the session; ${…} Spark replaces, before it parses, by what it stands for.
_NEEDS_ESCAPE = re.compile(r"['\\$\x00-\x1f]")

Lock = Literal["table", "partitions"] | Collection[Mapping[str, object]]
"""What a write locks: all of the table, the partitions that it touches, or these."""

Partitions = Collection[Mapping[str, object]]
"""Partitions by column."""

Finder = Callable[[TableState], Partitions | None]
"""Finds out which partitions a write touches, at most one more than can be locked one by one; None: any."""


@dataclass(frozen=True)
class LockTarget:
    """What is to be locked of a table.

    Attributes:
        log: of the table.
        scope: what to ask for.
        schema: of its partitions, if it is some of them.
        named: the partitions to which the work is confined, None for the whole table; these are in the scope, which may
            hold more, because many partitions are locked as one table.

    """

    log: DeltaTableLog
    scope: TableScope
    schema: PartitionSchema | None = None
    named: tuple[Partition, ...] | None = None

    def predicate(self, alias: str | None = None) -> str | None:
        """Return the SQL predicate of the rows in the named partitions, None for the whole table.

        Made of literals only, so that Delta knows of a commit to other partitions that it is no conflict.

        Args:
            alias: of the table in the statement.

        """
        if self.named is None or self.schema is None:
            return None
        columns = {column.physical_name: column for column in self.schema.columns}
        prefix = f"{quoted(alias)}." if alias else ""
        choices = []
        for partition in self.named:
            terms = [
                f"{prefix}{quoted(columns[name].name)} "
                + ("IS NULL" if value is None else f"= {_sql_literal(columns[name].type, value)}")
                for name, value in partition.values
            ]
            choices.append(" AND ".join(terms))
        return "(" + " OR ".join(f"({choice})" for choice in choices) + ")"

    def holds(self, found: Partitions | None) -> bool:
        """Tell whether these partitions, or any if it is None, are among those that are to be locked."""
        if self.scope.partitions is None or self.schema is None:
            return True
        return found is not None and self.scope.contains([self.schema.partition(values) for values in found])

    @classmethod
    def of(
        cls, log: DeltaTableLog, partitions: Collection[Mapping[str, object]] | None, snapshot: Snapshot | None = None
    ) -> LockTarget:
        """Make it of partitions by column, or of the whole table; ``snapshot`` is the table's, if one is loaded.

        Raises:
            TableError, ResourceError: the table has no such partitions.

        """
        table = TableResource.of(log.location)
        if partitions is None:
            return cls(log, TableScope.of(table))
        schema = (snapshot or log.snapshot()).partition_schema()
        named = smallest_cover(schema.partition(values) for values in partitions)
        return cls(log, TableScope.of(table, named), schema, named)

    def guarded(
        self, spark: SparkSession, hold: Hold, about: Mapping[str, Any]
    ) -> AbstractContextManager[GuardedTable]:
        """Bind this thread's commits to the hold, as :func:`writer_jobs.commit.guarded.guarded`."""
        return guarded(spark, hold, self.log, about, schema=self.schema)


def job_note(spark: SparkSession, manager: LockManager) -> dict[str, Any]:
    """Return the job's name as commits record it: the lock manager's, or the application's name."""
    return {"job": manager.settings.job or spark.sparkContext.appName}


def lock_target_of(log: DeltaTableLog, lock: Lock, find: Finder) -> LockTarget:
    """Return what to lock for a write.

    Args:
        log: of the table.
        lock: what the caller asked for.
        find: how to find out which partitions the write touches, for ``"partitions"``.

    Raises:
        TableError, ResourceError: there are no such partitions.
        ValueError: ``lock`` is another word.

    """
    if not isinstance(lock, str):
        return LockTarget.of(log, lock)
    if lock not in ("table", "partitions"):
        raise ValueError(f"lock={lock!r}: choose 'table', 'partitions', or a list of partitions")
    snapshot = log.snapshot() if lock == "partitions" else None
    state = snapshot.state if snapshot is not None else None
    if state is None or not state.partition_columns:
        return LockTarget.of(log, None)
    touched = find(state)
    found = [dict(values) for values in dict.fromkeys(tuple(each.items()) for each in touched or ())]
    if len(found) > MAX_PARTITIONS:
        _log.warning(
            "the write to %s touches more than %d partitions: locking the whole table", log.location, MAX_PARTITIONS
        )
    if not found or len(found) > MAX_PARTITIONS:
        return LockTarget.of(log, None)
    try:
        return LockTarget.of(log, found, snapshot)
    except ResourceError as error:
        _log.warning("locking the whole table: %s", error)
        return LockTarget.of(log, None)


def rows_within(spark: SparkSession, target: LockTarget, bounds: Column) -> DataFrame:
    """Return the rows of a table, as it is now, in what is to be locked of it and within bounds."""
    rows = spark.read.format("delta").load(target.log.location)
    return (rows if (where := target.predicate()) is None else rows.where(where)).where(bounds)


def partitions_of_rows(
    df: DataFrame, state: TableState, names: Mapping[str, Column] | None = None
) -> Partitions | None:
    """Return the distinct partitions that rows are in, at most one more than can be locked; None if it is unknown.

    As Delta will write them: cast to the column's type; moments as such, for their text is not one moment where clocks
    are put back.

    Args:
        df: the rows.
        state: of the table that they are for.
        names: what the rows say of each partition column; by default what they have under its name.

    """
    has = {name.lower() for name in df.columns}
    if names is None and any(name.lower() not in has for name in state.partition_columns):
        # Delta makes them up (generated columns), or refuses the rows.
        return None
    given = names or {name: col(quoted(name)) for name in state.partition_columns}
    types = {name: state.schema[name].dataType for name in state.partition_columns if name in given}
    columns = [
        (unix_micros(given[name].cast(kind)) if isinstance(kind, TimestampType) else given[name].cast(kind))
        .cast("string")
        .alias(name)
        for name, kind in types.items()
    ]
    rows = [row.asDict() for row in df.select(*columns).distinct().limit(MAX_PARTITIONS + 1).collect()]
    moments = [name for name, kind in types.items() if isinstance(kind, TimestampType)]
    try:
        return [{**row, **{name: _moment(row[name]) for name in moments}} for row in rows]
    except OverflowError:
        # Nobody can name such a partition.
        return None


def _moment(microseconds: str | None) -> datetime | None:
    return None if microseconds is None else moment_of_micros(int(microseconds))


def _sql_literal(type_name: str, value: str) -> str:
    """Write a partition's value as SQL, of a type as Delta names it."""
    if type_name in _SQL_NAMES and _WHOLE.fullmatch(value):
        return value if type_name == "integer" else f"CAST({value} AS {_SQL_NAMES[type_name]})"
    # Hexadecimal where a quote or a backslash would need to be escaped, which depends on the session.
    text = f"CAST(X'{value.encode().hex()}' AS STRING)" if _NEEDS_ESCAPE.search(value) else f"'{value}'"
    return text if type_name.startswith(("string", "varchar", "char")) else f"CAST({text} AS {type_name.upper()})"
