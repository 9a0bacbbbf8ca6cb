"""A table that can take a batch: it is there, is of the right kind, and has the columns and types that are needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructField, StructType

from lock_manager import Hold
from lock_manager.deadline import Deadline
from lock_manager.partitions import MOST_PARTITIONS
from writer_jobs.changes.evolution import evolution_of, loses
from writer_jobs.changes.kind import RowKind
from writer_jobs.changes.side_table import partition_keys
from writer_jobs.changes.spec import SEQ, ChangeSpec
from writer_jobs.commit.lock_target import Partitions, partitions_of_rows
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import TableState
from writer_jobs.errors import SchemaMismatchError, TableError
from writer_jobs.locking import locked_all
from writer_jobs.writer import LockedDeltaWriter


class TableShape:
    """What a table has to be like for batches of a kind.

    Args:
        spark: the session.
        writer: of the table.
        spec: keys, and what messages need.
        kind: which rows the changes become.
        evolves: whether the table gets new columns, and wider types.
        partition_by: partition columns, if it is new.

    """

    def __init__(
        self,
        spark: SparkSession,
        writer: LockedDeltaWriter,
        spec: ChangeSpec,
        kind: RowKind,
        *,
        evolves: bool,
        partition_by: Sequence[str],
    ) -> None:
        self._spark = spark
        self._writer = writer
        self._spec = spec
        self._kind = kind
        self._evolves = evolves
        self._partition_by = partition_by

    def fitted(self, prepared: DataFrame) -> DataFrame:
        """Cast keys and sequence to the table's types: keys that it takes for one are one."""
        state = self._writer.log.state()
        types = {} if state is None else {field.name.lower(): field.dataType for field in state.schema}
        for name in self._spec.keys:
            if (kind := types.get(name.lower())) is not None:
                prepared = prepared.withColumn(name, F.col(quoted(name)).cast(kind))
        if (kind := types.get((self._kind.sequence or "").lower())) is not None:
            prepared = prepared.withColumn(SEQ, F.col(SEQ).cast(kind))
        return prepared

    def state(self, row: StructType, sequence: DataType, deadline: Deadline) -> TableState:
        """Return the table's state, after making it, or columns of it, if need be, under its lock.

        Args:
            row: the columns that it gets of the batch.
            sequence: type of the sequence.
            deadline: for its locks.

        Raises:
            ChangesError: it is of another kind.
            SchemaMismatchError: it cannot take the rows.
            SluiceError: see :meth:`LockedDeltaWriter.append`.

        """
        table_log = self._writer.log
        ours = self._kind.fields(sequence)
        if (state := table_log.state()) is None:
            with lock_on(self._spark, self._writer, self._writer.location, deadline):
                # Another feed may have made it meanwhile, with columns of its own.
                if table_log.state() is None:
                    empty = self._spark.createDataFrame([], StructType([*row, *ours]))
                    self._writer.append(empty, partition_by=self._partition_by, hold="write")
            return self.state(row, sequence, deadline)
        self._kind.refuse_other_kind(state.schema, row)
        if self._needed(state, row, ours):
            with lock_on(self._spark, self._writer, self._writer.location, deadline):
                # Another feed may have done so meanwhile.
                if (now := table_log.state()) is not None:
                    for each in self._needed(now, row, ours):
                        self._alter(each)
            state = table_log.state()
        if state is None:
            raise TableError(f"{self._writer.table} was removed while changes were applied to it")
        self._refuse_loss(state, row)
        return state

    def partitions(self, rows: DataFrame, state: TableState) -> Partitions | None:
        """Return the partitions that rows of a batch are in; None: the whole table is to be locked."""
        if not partition_keys(state, self._spec.keys):
            return None
        found = partitions_of_rows(rows, state)
        return found if found and len(found) <= MOST_PARTITIONS else None

    def _refuse_loss(self, state: TableState, row: StructType) -> None:
        """Make sure that no value loses something in the table: it would be another one when it comes again.

        Raises:
            SchemaMismatchError: one would.

        """
        types = {field.name.lower(): field.dataType for field in state.schema}
        for field in row:
            kind = types.get(field.name.lower(), field.dataType)
            if loses(kind, field.dataType):
                raise SchemaMismatchError(
                    table=self._writer.table,
                    reason=f"the column {field.name} is {kind.simpleString()}, and values of type "
                    f"{field.dataType.simpleString()} would be cut",
                )

    def _needed(self, state: TableState, row: StructType, ours: Sequence[StructField]) -> list[str]:
        """Return what is to be altered of the table, before it can take the changes."""
        there = {name.lower() for name in state.schema.names}
        needed = [
            f"ADD COLUMNS ({field.name} {field.dataType.simpleString()})"
            for field in ours
            if field.name.lower() not in there
        ]
        if self._evolves:
            # The types of these stay: what is remembered has them, too.
            fixed = {name.lower() for name in (*self._spec.keys, self._kind.sequence or "")}
            needed += evolution_of(state.schema, row, tuple(name for name in row.names if name.lower() not in fixed))
        return needed

    def _alter(self, clause: str) -> None:
        try:
            self._spark.sql(f"ALTER TABLE delta.{quoted(self._writer.location)} {clause}")
        except JVM_ERRORS as error:
            raise SchemaMismatchError(table=self._writer.table, reason=one_sentence(error)) from error


def refuse_unknown(table: str, state: TableState, columns: Collection[str], whose: str) -> None:
    """Make sure that a table has all columns of what comes, where it is to get no new ones.

    Args:
        table: canonical URI, for the message.
        state: of the table.
        columns: that it needs.
        whose: they are, for the message.

    Raises:
        SchemaMismatchError: it lacks one.

    """
    known = {name.lower() for name in state.schema.names}
    if unknown := [name for name in columns if name.lower() not in known]:
        raise SchemaMismatchError(table=table, reason=f"the table has no column {', '.join(unknown)}; the {whose} have")


def lock_on(
    spark: SparkSession, writer: LockedDeltaWriter, location: str, deadline: Deadline
) -> AbstractContextManager[Hold]:
    """Lock the whole of one table, by a writer's lock manager."""
    return locked_all(spark, {location: None}, manager=writer.manager, timeout_seconds=deadline.remaining())
