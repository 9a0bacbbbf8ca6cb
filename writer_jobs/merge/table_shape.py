"""A table that can take a batch: it is there, is of the right kind, and has the columns and types that are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructField, StructType

from lock_manager import Hold
from lock_manager.deadline import Deadline
from lock_manager.partitions import MOST_PARTITIONS
from writer_jobs.commit.lock_target import Partitions, partitions_of_rows
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.partition_values import partition_types, refuse_clock_changes, with_storable_values
from writer_jobs.delta.session import refuse_lenient_casts
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import holds, mismatch, missing_fields, type_differences
from writer_jobs.errors import SchemaMismatchError, TableError, WriteConflictError
from writer_jobs.locking import locked_all
from writer_jobs.merge.change_spec import DELETED, SEQ, ChangeSpec
from writer_jobs.merge.evolution import evolution_of, sql_type
from writer_jobs.merge.side_table import partition_keys
from writer_jobs.merge.table_feed import FeedBinding
from writer_jobs.merge.table_model import RowKind
from writer_jobs.writer import LockedDeltaWriter


class TableShape:
    """What a table has to be like for batches of a kind.

    Args:
        spark: the session.
        writer: of the table.
        spec: keys, and what messages need.
        kind: which rows the changes become.
        binding: How the table is fed.
        evolves: whether the table gets new columns, and wider types.
        partition_by: partition columns, if it is new.

    Raises:
        UnsupportedSessionError: the session's casts may change values.

    """

    def __init__(
        self,
        spark: SparkSession,
        writer: LockedDeltaWriter,
        spec: ChangeSpec,
        kind: RowKind,
        binding: FeedBinding,
        *,
        evolves: bool,
        partition_by: Sequence[str],
    ) -> None:
        refuse_lenient_casts(spark)
        self._spark = spark
        self._writer = writer
        self._spec = spec
        self._kind = kind
        self._binding = binding
        self._evolves = evolves
        self._partition_by = partition_by
        self._layout_at_check: dict[str, str] = {}

    def fitted(self, prepared: DataFrame, state: TableState | None) -> DataFrame:
        """Cast keys and sequence to the table's types: keys that it takes for one are one.

        Changes that the table cannot take are refused here, before they are read. Reading them fails at a partition
        value that Delta would store as another value.

        Args:
            prepared: changes as :meth:`ChangeSpec.prepared` returns them.
            state: of the table; None if there is none.

        Raises:
            ChangesError: The table is fed in another way.
            SchemaMismatchError: The table cannot take the columns, or the values of a key or of the sequence; or the
                session's time zone cannot write the table's timestamp partitions.

        """
        if state is not None:
            self._binding.refuse_other(state)
            if not self._evolves:
                columns = [field for field in prepared.schema if field.name not in (SEQ, DELETED)]
                refuse_mismatch(self._writer.table, state, StructType(columns))
        types = {} if state is None else {field.name.lower(): field.dataType for field in state.schema}
        ours = {name: name for name in self._spec.keys}
        if self._kind.sequence is not None:
            ours[SEQ] = self._kind.sequence
        for name, column in ours.items():
            kind, given = types.get(column.lower()), prepared.schema[name].dataType
            if kind is None:
                continue
            if not holds(kind, given):
                raise SchemaMismatchError(
                    table=self._writer.table,
                    reason=f"the column {column} is {kind.simpleString()}, and of values of type "
                    f"{given.simpleString()} two could become one there, which a key or a sequence must not",
                )
            prepared = prepared.withColumn(name, F.col(quoted(name)).cast(kind))
        self._layout_at_check = self._layout(state, prepared.schema)
        partitions = partition_types(state, self._partition_by, prepared.schema)
        refuse_clock_changes(self._spark, self._writer.table, partitions)
        keys = {name: kind for name, kind in partitions.items() if name in self._spec.keys}
        non_keys = {name: kind for name, kind in partitions.items() if name not in keys}
        # Of a delete the table stores the key alone.
        return with_storable_values(with_storable_values(prepared, keys), non_keys, ~F.col(DELETED))

    def state(self, before: TableState | None, row: StructType, sequence: DataType, deadline: Deadline) -> TableState:
        """Return the table's state, after making it, or columns of it, if need be, under its lock.

        Args:
            before: what is known of it; it may have more columns by now.
            row: the columns that it gets of the batch.
            sequence: type of the sequence.
            deadline: for its locks.

        Raises:
            ChangesError: The table is fed in another way, or its columns have another source.
            SchemaMismatchError: it cannot take the rows.
            SluiceError: see :meth:`LockedDeltaWriter.append`.

        """
        ours = self._kind.fields(sequence)
        if before is None:
            with lock_on(self._spark, self._writer, self._writer.location, deadline):
                # Another feed may have made it meanwhile, with columns of its own.
                if (made := self._writer.log.state()) is None:
                    empty = self._spark.createDataFrame([], StructType([*row, *ours]))
                    self._writer.append(empty, partition_by=self._partition_by, hold="write")
                    made = self._writer.log.state()
                return self.state(_there(self._writer, made), row, sequence, deadline)
        self._binding.refuse_other(before)
        self._kind.refuse_other_columns(before.schema, row)
        refuse_mismatch(self._writer.table, before, row, evolves=self._evolves)
        state = evolved(
            self._spark, self._writer, before, lambda found: self._needed(found.schema, row, ours), deadline
        )
        refuse_mismatch(self._writer.table, state, row)
        # Last: a run that is refused does not bind the table.
        return evolved(self._spark, self._writer, state, self._binding.clauses, deadline)

    def checked_again(self, state: TableState | None, row: StructType) -> TableState:
        """Return the table's state under its lock, after checking that it is still as :meth:`state` returned it.

        Args:
            state: State of the table, read under the lock; None if there is none.
            row: the columns that it gets of the batch.

        Raises:
            ChangesError: The table property was changed.
            SchemaMismatchError: The table cannot take the rows any more.
            WriteConflictError: The table has other partition columns, or keys of other types, than when :meth:`fitted`
                checked the changes.

        """
        state = _there(self._writer, state)
        self._binding.refuse_other(state)
        layout = self._layout(state, state.schema)
        if layout != self._layout_at_check:
            raise WriteConflictError(
                table=self._writer.table,
                reason="another writer created the table, or changed its partition columns, after the changes were "
                "checked: run the job again",
            )
        refuse_mismatch(self._writer.table, state, row)
        return state

    def partitions(self, rows: DataFrame, state: TableState) -> Partitions | None:
        """Return the partitions that rows of a batch are in; None: the whole table is to be locked."""
        if not partition_keys(state, self._spec.keys):
            return None
        found = partitions_of_rows(rows, state)
        return found if found and len(found) <= MOST_PARTITIONS else None

    def _layout(self, state: TableState | None, rows: StructType) -> dict[str, str]:
        """Return the types of the keys, and the partition columns: those of the table, or of rows for a new table."""
        partitions = self._partition_by if state is None else state.partition_columns
        types = {field.name.lower(): field.dataType for field in (*rows, *(() if state is None else state.schema))}
        keys = {f"key {name.lower()}": types[name.lower()].simpleString() for name in self._spec.keys}
        return {**keys, "partition columns": ", ".join(partitions).lower()}

    def _needed(self, schema: StructType, row: StructType, ours: Sequence[StructField]) -> list[str]:
        """Return what is to be altered of the table, before it can take the changes."""
        there = {name.lower() for name in schema.names}
        needed = [
            f"ADD COLUMNS ({quoted(field.name)} {sql_type(field.dataType)})"
            for field in ours
            if field.name.lower() not in there
        ]
        if self._evolves:
            # The types of these stay: what is remembered has them, too.
            fixed = {name.lower() for name in (*self._spec.keys, self._kind.sequence or "")}
            needed += evolution_of(schema, row, tuple(name for name in row.names if name.lower() not in fixed))
        return needed


def evolved(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    before: TableState,
    needed: Callable[[TableState], list[str]],
    deadline: Deadline,
) -> TableState:
    """Alter a table, if need be, under its lock.

    Args:
        spark: the session.
        writer: of the table.
        before: what is known of it.
        needed: returns what is to be altered of it; what follows ``ALTER TABLE name``.
        deadline: for its lock.

    Returns:
        The table's state.

    Raises:
        SchemaMismatchError: it cannot be altered so.
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    if not needed(before):
        return before
    with lock_on(spark, writer, writer.location, deadline):
        # Another feed may have done so meanwhile.
        for clause in needed(_there(writer, writer.log.state())):
            try:
                spark.sql(f"ALTER TABLE delta.{quoted(writer.location)} {clause}")
            except JVM_ERRORS as error:
                raise SchemaMismatchError(table=writer.table, reason=one_sentence(error)) from error
    return _there(writer, writer.log.state())


def _there(writer: LockedDeltaWriter, state: TableState | None) -> TableState:
    if state is None:
        raise TableError(f"{writer.table} was removed while changes were applied to it")
    return state


def refuse_mismatch(table: str, state: TableState, row: StructType, *, evolves: bool = False) -> None:
    """Refuse rows that the table cannot store as they are.

    Args:
        table: canonical URI, for the message.
        state: of the table.
        row: columns of the rows.
        evolves: Whether the table gets new fields, and wider types.

    Raises:
        SchemaMismatchError: The table lacks a field, has a type that could change a value, or has a nested field that
            the rows lack: an update replaces the column with all of its fields.

    """
    refused = [
        difference
        for difference in type_differences(state.schema, row)
        if (difference.is_unknown or difference.is_refused) and not (evolves and difference.can_evolve)
    ]
    reason = mismatch(refused)
    if reason is None and (missing := list(missing_fields(state.schema, row))):
        reason = f"the rows lack {', '.join(missing)}, and an update replaces the whole column: add it to the rows"
    elif any(difference.can_evolve for difference in refused):
        reason = f"{reason}; pass --schema-evolution to add columns and widen types"
    if reason is not None:
        raise SchemaMismatchError(table=table, reason=reason)


def lock_on(
    spark: SparkSession, writer: LockedDeltaWriter, location: str, deadline: Deadline
) -> AbstractContextManager[Hold]:
    """Lock the whole of one table, by a writer's lock manager."""
    return locked_all(spark, {location: None}, manager=writer.manager, timeout_seconds=deadline.remaining())
