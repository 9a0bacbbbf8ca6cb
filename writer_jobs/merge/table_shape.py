"""Prepare a table for a batch: create it, bind it to its feed, and add the columns and types that the batch needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StructField, StructType

from lock_manager import Hold
from lock_manager.deadline import Deadline
from lock_manager.partitions import MAX_PARTITIONS
from writer_jobs.commit.lock_target import Partitions, partitions_of_rows
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.partition_values import partition_types, refuse_clock_changes, with_storable_values
from writer_jobs.delta.session import refuse_lenient_casts
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import holds, mismatch, missing_fields, type_differences
from writer_jobs.errors import SchemaMismatchError, TableError, WriteConflictError
from writer_jobs.locking import locked_all
from writer_jobs.merge.change_spec import DELETED, SEQ, UNCHANGED, ChangeSpec
from writer_jobs.merge.evolution import alter_clauses, sql_type
from writer_jobs.merge.side_table import partition_keys
from writer_jobs.merge.table_feed import FeedBinding, TableFeed
from writer_jobs.merge.table_model import RowModel
from writer_jobs.writer import LockedDeltaWriter


@dataclass
class TableShape:
    """The table that a batch needs: its feed, columns, types and partitions.

    If it ``evolves``, the table gets new columns and wider types. ``partition_by`` are the partition columns of a new
    table.

    Raises:
        UnsupportedSessionError: The session's casts may change values.

    """

    spark: SparkSession
    writer: LockedDeltaWriter
    spec: ChangeSpec
    model: RowModel
    feed: TableFeed
    evolves: bool
    partition_by: Sequence[str]

    def __post_init__(self) -> None:
        refuse_lenient_casts(self.spark)
        self.binding = FeedBinding(self.spark, self.writer.table, self.feed)
        self._layout_at_check: dict[str, str] = {}

    def fit(self, prepared: DataFrame, state: TableState | None) -> DataFrame:
        """Cast keys and sequence to the table's types, so that keys that are equal in the table are equal in the batch.

        Changes that the table cannot store are refused before they are read. A partition value that Delta would store
        as another value fails when it is read. ``prepared`` comes from :meth:`ChangeSpec.prepare`.

        Raises:
            ChangesError: The table is bound to another feed.
            SchemaMismatchError: The table cannot store the columns, or the values of a key or of the sequence; or the
                session's time zone cannot write the table's timestamp partitions.

        """
        if state is not None:
            self.binding.refuse_other(state)
            if not self.evolves:
                columns = [field for field in prepared.schema if field.name not in (SEQ, DELETED, UNCHANGED)]
                refuse_mismatch(self.writer.table, state, StructType(columns))
        table_types = {} if state is None else {field.name.lower(): field.dataType for field in state.schema}
        table_columns = {name: name for name in self.spec.keys}
        if self.model.sequence is not None:
            table_columns[SEQ] = self.model.sequence
        for name, column in table_columns.items():
            table_type, value_type = table_types.get(column.lower()), prepared.schema[name].dataType
            if table_type is None:
                continue
            if not holds(table_type, value_type):
                raise SchemaMismatchError(
                    table=self.writer.table,
                    reason=f"the column {column} has the type {table_type.simpleString()}, in which two values of type "
                    f"{value_type.simpleString()} could become equal; cast the key or sequence to a type that the "
                    "column stores exactly",
                )
            prepared = prepared.withColumn(name, F.col(quoted(name)).cast(table_type))
        self._layout_at_check = self._layout(state, prepared.schema)
        partitions = partition_types(state, self.partition_by, prepared.schema)
        refuse_clock_changes(self.spark, self.writer.table, partitions)
        keys = {name: key_type for name, key_type in partitions.items() if name in self.spec.keys}
        non_keys = {name: column_type for name, column_type in partitions.items() if name not in keys}
        # Only the keys of a delete are stored.
        return with_storable_values(with_storable_values(prepared, keys), non_keys, ~F.col(DELETED))

    def ensure_table(
        self, state: TableState | None, row: StructType, sequence: DataType, deadline: Deadline
    ) -> TableState:
        """Return the table's state after creating the table or adding columns, if needed, under its lock.

        ``state`` is the last known state. The table may exist, or have more columns, by now.

        Raises:
            ChangesError: The table is bound to another feed, or its columns have another source.
            SchemaMismatchError: The table cannot store the rows.
            SluiceError: See :meth:`LockedDeltaWriter.append`.

        """
        fields = self.model.fields(sequence)
        if state is None:
            with lock_table(self.spark, self.writer, deadline):
                # Another run may have created the table, with columns of its own.
                if (state := self.writer.log.state()) is None:
                    empty_rows = self.spark.createDataFrame([], StructType([*row, *fields]))
                    self.writer.append(empty_rows, partition_by=self.partition_by, lock_during="write")
                    state = self.writer.log.state()
                return self.ensure_table(existing_state(self.writer, state), row, sequence, deadline)
        self.binding.refuse_other(state)
        self.model.refuse_other_columns(state.schema, row)
        refuse_mismatch(self.writer.table, state, row, evolves=self.evolves)
        state = alter_if_needed(
            self.spark, self.writer, state, lambda newest: self._clauses(newest.schema, row, fields), deadline
        )
        refuse_mismatch(self.writer.table, state, row)
        # Last, so that a refused run does not bind the table.
        return alter_if_needed(self.spark, self.writer, state, self.binding.clauses, deadline)

    def check_again(self, state: TableState | None, row: StructType) -> TableState:
        """Return the state that was read under the lock, if the table still is as :meth:`ensure_table` returned it.

        Raises:
            ChangesError: The table property ``sluice.feed`` has another feed now.
            SchemaMismatchError: The table can no longer store the rows.
            WriteConflictError: The table has other partition columns, or keys of other types, than when :meth:`fit`
                checked the changes.

        """
        state = existing_state(self.writer, state)
        self.binding.refuse_other(state)
        if self._layout(state, state.schema) != self._layout_at_check:
            raise WriteConflictError(
                table=self.writer.table,
                reason="another writer created the table, or changed its partition columns or the types of its keys, "
                "after the changes were checked: run the job again",
            )
        refuse_mismatch(self.writer.table, state, row)
        return state

    def partitions(self, rows: DataFrame, state: TableState) -> Partitions | None:
        """Return the partitions of a batch's rows; None if the whole table has to be locked."""
        if not partition_keys(state, self.spec.keys):
            return None
        partitions = partitions_of_rows(rows, state)
        return partitions if partitions and len(partitions) <= MAX_PARTITIONS else None

    def _layout(self, state: TableState | None, rows: StructType) -> dict[str, str]:
        """Return the types of the keys and the partition columns, of the table or of the rows for a new table."""
        partitions = self.partition_by if state is None else state.partition_columns
        types = {field.name.lower(): field.dataType for field in (*rows, *(() if state is None else state.schema))}
        keys = {f"key {name.lower()}": types[name.lower()].simpleString() for name in self.spec.keys}
        return {**keys, "partition columns": ", ".join(partitions).lower()}

    def _clauses(self, table: StructType, row: StructType, fields: Sequence[StructField]) -> list[str]:
        """Return the clauses of ``ALTER TABLE name`` that the table needs before it can store the changes."""
        columns = {name.lower() for name in table.names}
        clauses = [
            f"ADD COLUMNS ({quoted(field.name)} {sql_type(field.dataType)})"
            for field in fields
            if field.name.lower() not in columns
        ]
        if self.evolves:
            # Keys and sequence keep their types, because the side table has them, too.
            fixed_columns = {name.lower() for name in (*self.spec.keys, self.model.sequence or "")}
            clauses += alter_clauses(table, row, tuple(name for name in row.names if name.lower() not in fixed_columns))
        return clauses


def alter_if_needed(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    state: TableState,
    clauses_for: Callable[[TableState], list[str]],
    deadline: Deadline,
) -> TableState:
    """Alter a table under its lock if its last known state needs it, and return its state.

    ``clauses_for`` returns the clauses of ``ALTER TABLE name`` that a state needs.

    Raises:
        SchemaMismatchError: The table cannot be altered in this way.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    if not clauses_for(state):
        return state
    with lock_table(spark, writer, deadline):
        # Another run may have altered the table.
        for clause in clauses_for(existing_state(writer, writer.log.state())):
            try:
                spark.sql(f"ALTER TABLE delta.{quoted(writer.location)} {clause}")
            except JVM_ERRORS as error:
                raise SchemaMismatchError(table=writer.table, reason=error_reason(error)) from error
    return existing_state(writer, writer.log.state())


def existing_state(writer: LockedDeltaWriter, state: TableState | None) -> TableState:
    """Return a state that is not None.

    Raises:
        TableError: The table does not exist.

    """
    if state is None:
        raise TableError(f"{writer.table} was removed while changes were applied to it: restore it, or start again")
    return state


def refuse_mismatch(table: str, state: TableState, row: StructType, *, evolves: bool = False) -> None:
    """Refuse rows that the table cannot store unchanged.

    A table that ``evolves`` gets new fields and wider types, so these differences are not refused.

    Raises:
        SchemaMismatchError: The table lacks a field, has a type that could change a value, or has a nested field that
            the rows lack: an update replaces the column with all of its fields.

    """
    refused_differences = [
        difference
        for difference in type_differences(state.schema, row)
        if (difference.is_unknown or difference.is_refused) and not (evolves and difference.can_evolve)
    ]
    reason = mismatch(refused_differences)
    if reason is None and (missing_names := list(missing_fields(state.schema, row))):
        names = ", ".join(missing_names)
        reason = f"the rows lack {names}, and an update replaces the whole column: add these fields to the rows"
    elif any(difference.can_evolve for difference in refused_differences):
        reason = f"{reason}; pass --schema-evolution to add columns and widen types"
    if reason is not None:
        raise SchemaMismatchError(table=table, reason=reason)


def lock_table(spark: SparkSession, writer: LockedDeltaWriter, deadline: Deadline) -> AbstractContextManager[Hold]:
    """Lock the whole table of a writer."""
    return locked_all(spark, {writer.location: None}, manager=writer.manager, timeout_seconds=deadline.remaining())
