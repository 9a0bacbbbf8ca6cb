"""Apply one batch of changes to one table: lock it, commit the side table, merge; or undo the batch as a whole."""

from __future__ import annotations

import logging
import uuid
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from functools import cached_property, partial

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructField, StructType

from lock_manager import SluiceError
from lock_manager.table_records.commit_stamp import CHANGES
from writer_jobs.commit.lock_target import Lock, LockTarget, Partitions, rows_within
from writer_jobs.commit.merge import LockedMerge
from writer_jobs.commit.options import WriteOptions, lock_deadline
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import CommitUnknownError, WriteFailedError
from writer_jobs.locking import locked_all
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.batch_records import BatchRecord, BatchRecords
from writer_jobs.merge.change_spec import SEQ, SEQUENCE
from writer_jobs.merge.column_sequences import with_deleted_at
from writer_jobs.merge.merge_sql import T
from writer_jobs.merge.newest_sequence import NewestSequence, TableVersions
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.side_table import SideTable
from writer_jobs.merge.table_feed import feed_of
from writer_jobs.merge.table_model import TableModel
from writer_jobs.merge.table_shape import TableShape, alter_if_needed, lock_table
from writer_jobs.merge.truncate import parsed_sequence

log = logging.getLogger(__name__)


class BatchApplier:
    """Applies one batch to one table.

    Args:
        shape: The table that the batch needs; it has the same model.
        model: Model of the table's rows and of its side table.
        prepared: Changes as :meth:`ChangeSpec.prepare` returns them.
        retention: How long maintenance keeps the rows of the side table.
        txn: ``(txnAppId, txnVersion)`` of the batch.
        write_options: Options of the commits.

    Raises:
        ChangesError, SchemaMismatchError: See :class:`ChangeBatch` and :meth:`TableShape.fit`.

    """

    def __init__(
        self,
        shape: TableShape,
        model: TableModel,
        prepared: DataFrame,
        retention: timedelta,
        txn: tuple[str, int] | None,
        write_options: WriteOptions,
    ) -> None:
        self._shape, self._model = shape, model
        writer, spark, spec = shape.writer, shape.spark, shape.spec
        self._writer, self._spark, self._spec = writer, spark, spec
        self._retention_days = retention / timedelta(days=1)
        self._txn = txn
        self._write_options = write_options
        self._batch_id = uuid.uuid4().hex
        self._side_table = SideTable(
            spark, writer.manager, writer.location, spec.keys, model.side_table, model.side_properties
        )
        self._records = BatchRecords(HadoopFiles.of(spark), writer.location)
        self._snapshot_before = writer.log.snapshot()
        fitted_changes = shape.fit(prepared, self._snapshot_before.state)
        self.batch = ChangeBatch(fitted_changes, spec, model.group_columns, model.tie_breaker)
        # These rows are committed to the side table before the table.
        with ExitStack() as on_failure:
            on_failure.callback(self.batch.close)
            self._side_rows = model.side_rows(self.batch)
            on_failure.pop_all()
        self._deadline = lock_deadline(write_options, writer.manager)

    def close(self) -> None:
        """Release the local checkpoints of the batch."""
        self._model.close()
        self.batch.close()

    def run(self) -> ChangesResult:
        """Lock the tables, apply the batch and release the lock.

        Raises:
            ChangesError: The table is bound to another feed, or its side table has other keys.
            SluiceError: See :meth:`LockedDeltaWriter.append`.

        """
        if self._snapshot_before.has_transaction(self._txn):
            return self._result(None, already_applied=True)
        if not self.batch.folded_count:
            return self._result(None, already_applied=False)
        side_state = self._side_table.state()
        self._refuse_other_side_table(side_state)
        table_state = self._snapshot_before.state
        while True:
            state = self._shape.ensure_table(
                table_state, self._schema, self.batch.rows.schema[SEQ].dataType, self._deadline
            )
            side_state = self._ensure_side_table(state, side_state)
            partitions = self._shape.partitions(self.batch.rows, state)
            tables = {self._writer.location: partitions}
            if side_state is not None:
                tables[self._side_table.location] = partitions
            with locked_all(
                self._spark, tables, manager=self._writer.manager, timeout_seconds=self._deadline.remaining()
            ) as hold:
                locked_side_state = self._side_table.state()
                if side_state is None and locked_side_state is not None:
                    # Another run of the feed has created the side table. It has to be locked, too.
                    side_state, table_state = locked_side_state, self._writer.log.state()
                    continue
                if locked_side_state is None and (side_state is not None or self._side_rows is not None):
                    raise self._spec.misfit(
                        f"{self._side_table.location} was removed while the batch was applied; nothing of the batch is "
                        "in the table: restore the folder if you can, then apply the batch again"
                    )
                if (before_write := self._write_options.get("before_write")) is not None:
                    before_write(hold)
                snapshot = self._writer.log.snapshot()
                if snapshot.has_transaction(self._txn):
                    return self._result(None, already_applied=True)
                commit = self._apply(snapshot, partitions, has_side_table=side_state is not None)
            return self._result(commit, already_applied=commit.already_committed)

    def _result(self, commit: CommitResult | None, *, already_applied: bool) -> ChangesResult:
        return ChangesResult.of_batch(
            self._writer.table, self._model, self.batch, commit, already_applied=already_applied
        )

    @cached_property
    def _schema(self) -> StructType:
        """The columns that the table gets; some models read the rows of the batch to list them."""
        return self._model.row(self.batch)

    # -- before the lock -------------------------------------------------------------------------------------------

    def _ensure_side_table(self, table: TableState, side_state: TableState | None) -> TableState | None:
        """Return the state of the side table, and create it if the batch needs it; None if there is none."""
        if self._side_rows is None:
            return side_state
        side = self._side_table
        if side_state is None:
            with lock_table(self._spark, side.writer, self._deadline):
                if side.state() is None:
                    self._refuse_rows_without_side_table()
                    side.create(table, self.batch.rows.schema[SEQ].dataType)
            side_state = side.state()
        return side_state and alter_if_needed(
            self._spark, side.writer, side_state, lambda _: side.clauses(self._retention_days), self._deadline
        )

    def _refuse_other_side_table(self, side_state: TableState | None) -> None:
        """Refuse a table whose side table is not of this feed, before the table is bound to this feed.

        Raises:
            ChangesError: The side table has other keys or properties, or the table has rows and lacks the side table
                that they need.

        """
        if side_state is None:
            if self._model.side_table.holds_all_rows and self._writer.log.state() is not None:
                self._refuse_rows_without_side_table()
        elif not self._side_table.has_keys(side_state):
            raise self._spec.misfit(
                f"{self._side_table.location} has other key columns than {', '.join(self._spec.keys)}: apply all feeds "
                "of a table with the same keys"
            )
        elif other_properties := self._side_table.other_properties():
            differences = "; ".join(
                f"{name}: {value or 'not set'} in {self._side_table.location}, "
                f"{self._model.side_properties[name] or 'not set'} in this run"
                for name, value in other_properties.items()
            )
            raise self._spec.misfit(f"{differences}: use the table's values, or load all changes into a new table")

    def _refuse_rows_without_side_table(self) -> None:
        """Refuse a table that has rows if all rows have to be computed from the side table, which is missing.

        Raises:
            ChangesError: The table has such rows.

        """
        if self._model.side_table.holds_all_rows:
            table = self._spark.read.format("delta").load(self._writer.location)
            if not table.isEmpty():
                raise self._spec.misfit(
                    f"the table has rows, but {self._side_table.location}, from which all rows are computed, does not "
                    "exist: load all cells, from the first one, into a new table"
                )

    # -- under the lock --------------------------------------------------------------------------------------------

    def _apply(self, snapshot: Snapshot, partitions: Partitions | None, *, has_side_table: bool) -> CommitResult:
        """Undo batches that ended between their two commits, then commit to the side table, then to the table.

        ``snapshot`` was read under the lock on ``partitions`` (None: the whole table).
        """
        state = self._shape.check_again(snapshot.state, self._schema)
        target = LockTarget.of(self._writer.log, partitions, snapshot)
        locked_partitions = None if target.partitions is None else tuple(map(str, target.partitions))
        batch = self.batch
        lock: Lock = "table" if partitions is None else list(partitions)
        stored_side_rows = side_version = None
        if has_side_table:
            self._undo_ended_batches(locked_partitions, lock)
            # Read before this batch adds its rows: the model gets those from the batch itself.
            side_version = self._side_table.writer.log.head().version
            predicate = LockTarget.of(self._side_table.writer.log, partitions).predicate()
            stored_side_rows = self._side_table.rows(side_version, predicate).where(batch.bounds())
        sequence = StructField(self._model.sequence or SEQUENCE, batch.rows.schema[SEQ].dataType)
        versions = TableVersions(sequence, snapshot.table_id, snapshot.version, side_version)
        newest = NewestSequence(self._writer, batch.sequences, versions, partial(self._sequences, side_version))

        written_columns = {name.lower() for name in self._schema.names}
        generated_columns = [name for name in state.generated_columns if name.lower() not in written_columns]

        def read_table() -> DataFrame:
            # Delta refuses a merge that writes generated columns.
            return rows_within(self._spark, target, batch.bounds()).drop(*generated_columns)

        # The model may read the table. If that fails, nothing has been committed yet.
        source = self._model.source(
            self._rows_after_truncate(state), read_table, stored_side_rows, batch.sequences, newest.is_older_than_batch
        )
        new_side_version = side_version
        if side_version is not None and self._side_rows is not None:
            self._records.write(BatchRecord(self._batch_id, state.version, locked_partitions))
            new_side_version = self._side_table.add(self._side_rows, self._batch_id, lock).version
        try:
            commit = self._merge(self._model.merge(self._writer, source, batch.bounds(T)), lock)
        except WriteFailedError as error:
            if self._side_rows is not None and not isinstance(error, CommitUnknownError):
                try:
                    self._undo_ended_batches(locked_partitions, lock)
                except (SluiceError, *JVM_ERRORS, PySparkException) as undo_error:
                    error.add_note(
                        f"{self._side_table.location} may still have rows of this batch; the next batch deletes them: "
                        f"{undo_error}"
                    )
            raise
        if self._side_rows is not None:
            self._records.remove(self._batch_id)
        if commit.version is not None:
            newest.record(replace(versions, version=commit.version, side_version=new_side_version))
        return commit

    def _sequences(self, side_version: int | None) -> DataFrame:
        """Return the column ``SEQ`` of all rows of the table, and of those of a version of the side table."""
        table = self._spark.read.format("delta").load(self._writer.location)
        sequences = table.select(F.col(quoted(self._model.sequence or SEQUENCE)).alias(SEQ))
        return sequences if side_version is None else sequences.union(self._side_table.rows(side_version).select(SEQ))

    def _rows_after_truncate(self, state: TableState) -> DataFrame:
        """Return the rows of the batch that are not older than the last truncate of the source table.

        After a truncate they have ``DELETED_AT``.
        """
        feed, rows = feed_of(state), self.batch.rows
        if feed is None or feed.truncated_at is None:
            return rows
        truncated_at = parsed_sequence(feed.truncated_at, rows.schema[SEQ].dataType)
        return with_deleted_at(rows.where(F.col(SEQ) >= truncated_at), truncated_at)

    def _undo_ended_batches(self, locked_partitions: tuple[str, ...] | None, lock: Lock) -> None:
        """Delete the side rows of batches that ended before the commit to the table, in the locked partitions."""
        for record in self._records.all():
            if not record.has_ended(locked_partitions):
                continue
            is_settled = self._writer.log.has_batch(record.batch, after=record.after)
            if not is_settled:
                log.warning("undoing a batch of changes to %s that ended before it was applied", self._writer.table)
                is_settled = self._side_table.delete_batch(record.batch, lock)
            if is_settled:
                self._records.remove(record.batch)

    def _merge(self, merge: LockedMerge, lock: Lock) -> CommitResult:
        metadata = {**(self._write_options.get("metadata") or {}), CHANGES: self._batch_id}
        with self._spec.refusals():
            commit: CommitResult = merge.execute(lock=lock, metadata=metadata, txn=self._txn)
        return commit
