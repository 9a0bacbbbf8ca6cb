"""One batch of changes on its way into one table: folded, locked, remembered, merged; or undone as a whole."""

from __future__ import annotations

import logging
import uuid
from dataclasses import dataclass
from functools import cached_property

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lock_manager import SluiceError
from lock_manager.table_records.commit_stamp import CHANGES
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.lock_target import Lock, LockTarget, Partitions, rows_within
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.errors import CommitUnknownError, WriteFailedError
from writer_jobs.locking import locked_all
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.batch_records import Note, Notes, names_of
from writer_jobs.merge.change_spec import SEQ, ChangeSpec
from writer_jobs.merge.merge_sql import T
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.side_table import SideTable
from writer_jobs.merge.table_feed import FeedBinding
from writer_jobs.merge.table_model import Kind
from writer_jobs.merge.table_shape import TableShape, evolved, lock_on
from writer_jobs.writer import LockedDeltaWriter

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class How:
    """How a batch is applied.

    Attributes:
        evolves: whether the table gets new columns, and wider types.
        partition_by: partition columns, if it is new.
        retention_days: Days that maintenance keeps the rows of the side table.
        txn: ``(txnAppId, txnVersion)`` of the batch.

    """

    evolves: bool
    partition_by: tuple[str, ...]
    retention_days: float
    txn: tuple[str, int] | None


class Application:
    """One batch, on its way into one table.

    Args:
        writer: of the table.
        spec: keys, and what messages need.
        kind: which rows the changes become.
        binding: How the table is fed.
        prepared: changes as :meth:`ChangeSpec.prepared` returns them.
        how: more.
        options: of the write.

    Raises:
        ChangesError: the changes cannot be ordered.

    """

    def __init__(
        self,
        writer: LockedDeltaWriter,
        spec: ChangeSpec,
        kind: Kind,
        binding: FeedBinding,
        prepared: DataFrame,
        how: How,
        options: WriteOptions,
    ) -> None:
        self._writer = writer
        self._spark = prepared.sparkSession
        self._spec = spec
        self._how = how
        self._options = options
        self._id = uuid.uuid4().hex
        self._kind = kind
        self._side = SideTable(self._spark, writer.manager, writer.location, spec.keys, kind.remembered)
        self._notes = Notes(HadoopFiles.of(self._spark), writer.location)
        self._shape = TableShape(
            self._spark, writer, spec, kind, binding, evolves=how.evolves, partition_by=how.partition_by
        )
        self._snapshot_before = writer.log.snapshot()
        fitted = self._shape.fitted(prepared, self._snapshot_before.state)
        self.batch = ChangeBatch(fitted, spec, kind.folded_by, kind.preferred_by)
        # What has to be remembered of it, if anything, is committed first.
        self._noted = kind.noted(self.batch)
        self._deadline = options.deadline(writer.manager)

    def close(self) -> None:
        """Give back what is kept of the batch."""
        self.batch.close()

    def run(self) -> ChangesResult:
        """Lock, apply, give the lock back.

        Raises:
            ChangesError: The table is fed in another way, or its side table has other keys.
            SluiceError: see :meth:`LockedDeltaWriter.append`.

        """
        if self._is_applied(self._snapshot_before):
            return self._result(None, already_applied=True)
        if not self.batch.folded:
            return self._result(None, already_applied=False)
        side_state = self._side.state()
        self._refuse_other_past(side_state)
        table_state = self._snapshot_before.state
        while True:
            state = self._shape.state(table_state, self._row, self.batch.rows.schema[SEQ].dataType, self._deadline)
            side_state = self._side_state(state, side_state)
            partitions = self._shape.partitions(self.batch.rows, state)
            tables = {self._writer.location: partitions}
            if side_state is not None:
                tables[self._side.location] = partitions
            with locked_all(
                self._spark, tables, manager=self._writer.manager, timeout_seconds=self._deadline.remaining()
            ) as hold:
                if side_state is None and (side_state := self._side.state()) is not None:
                    # Another feed has made it meanwhile.
                    table_state = self._writer.log.state()
                    continue
                if self._options.before_write is not None:
                    self._options.before_write(hold)
                snapshot = self._writer.log.snapshot()
                if self._is_applied(snapshot):
                    return self._result(None, already_applied=True)
                merged = self._apply(snapshot, partitions, remembers=side_state is not None)
            return self._result(merged, already_applied=merged.already_committed)

    def _result(self, commit: CommitResult | None, *, already_applied: bool) -> ChangesResult:
        return ChangesResult.of_batch(
            self._writer.table, self._kind, self.batch, commit, already_applied=already_applied
        )

    def _is_applied(self, snapshot: Snapshot) -> bool:
        """Tell whether the table has this transaction already, or a later one."""
        txn = self._how.txn
        return txn is not None and snapshot.last_transaction(txn[0]) >= txn[1]

    @cached_property
    def _row(self) -> StructType:
        """The columns that the table gets of the batch; some kinds look for them in its rows."""
        return self._kind.row(self.batch)

    # -- before the lock -------------------------------------------------------------------------------------------

    def _side_state(self, table: TableState, side_state: TableState | None) -> TableState | None:
        """Return the state of the side table, after creating it if the batch needs it; None if there is none.

        Args:
            table: State of the table.
            side_state: State of the side table before; None if there was none.

        """
        if side_state is None and self._noted is not None:
            with lock_on(self._spark, self._writer, self._side.location, self._deadline):
                if self._side.state() is None:
                    self._refuse_rows_of_others()
                    self._side.create(table, self.batch.rows.schema[SEQ].dataType)
            side_state = self._side.state()
        if side_state is not None and self._noted is not None:
            days = self._how.retention_days
            return evolved(
                self._spark, self._side.writer, side_state, lambda _: self._side.retention_clauses(days), self._deadline
            )
        return side_state

    def _refuse_other_past(self, side_state: TableState | None) -> None:
        """Refuse a table that another feed made, as far as the side table shows it, before it is bound to this feed.

        Args:
            side_state: State of the side table; None if there is none.

        Raises:
            ChangesError: The side table has other keys, or there is none and the table has rows that need one.

        """
        if side_state is None:
            if self._kind.remembered.is_all and self._writer.log.state() is not None:
                self._refuse_rows_of_others()
        elif not self._side.is_of_keys(side_state):
            raise self._spec.misfit(
                f"{self._side.location} is of other keys than {', '.join(self._spec.keys)}: all feeds of a table have "
                "the same keys"
            )

    def _refuse_rows_of_others(self) -> None:
        """Make sure that a table has no rows yet whose rows follow from what is remembered alone."""
        if self._kind.remembered.is_all:
            table = self._spark.read.format("delta").load(self._writer.location)
            if not table.isEmpty():
                raise self._spec.misfit(
                    f"the table has rows, and {self._side.location} is not there, of which all rows are made: give its "
                    "cells from the first one on to a table of their own"
                )

    # -- under the lock --------------------------------------------------------------------------------------------

    def _apply(self, snapshot: Snapshot, partitions: Partitions | None, *, remembers: bool) -> CommitResult:
        """Undo batches that ended between their commits, then commit the side table, then the table.

        Args:
            snapshot: The table, loaded under the lock.
            partitions: Partitions that are locked; None: the whole table.
            remembers: Whether there is a side table.

        """
        state = self._shape.checked_again(snapshot.state, self._row)
        target = LockTarget.of(self._writer.log, partitions, snapshot)
        held, batch = names_of(target.named), self.batch
        lock: Lock = "table" if partitions is None else list(partitions)
        remembered = None
        if remembers:
            self._settle(held, lock)
            # As it was before: what this batch adds to it, its rows say, too.
            within = LockTarget.of(self._side.writer.log, partitions).predicate()
            remembered = self._side.all(within).where(batch.bounds())

        written = {name.lower() for name in self._row.names}
        generated = [name for name in state.generated_columns if name.lower() not in written]

        def read_table() -> DataFrame:
            # Without columns whose values Delta computes: a merge that wrote them would be refused.
            return rows_within(self._spark, target, batch.bounds()).drop(*generated)

        # It may read the table: an error leaves nothing to undo.
        source = self._kind.source(batch.rows, read_table, remembered)
        if remembers and self._noted is not None:
            self._notes.write(Note(self._id, state.version, held))
            self._side.add(self._noted, self._id, lock)
        try:
            merged = self._merge(self._kind.merge(self._writer, source, batch.bounds(T)), lock)
        except WriteFailedError as error:
            if self._noted is not None and not isinstance(error, CommitUnknownError):
                try:
                    self._settle(held, lock)
                except (SluiceError, *JVM_ERRORS, PySparkException) as problem:
                    error.add_note(f"the next batch undoes the rest of this one: {problem}")
            raise
        if self._noted is not None:
            self._notes.remove(self._id)
        return merged

    def _settle(self, held: tuple[str, ...] | None, lock: Lock) -> None:
        """Undo the batches that ended between their two commits, in the partitions that are locked."""
        for note in self._notes.all():
            if not note.has_ended(held):
                continue
            is_settled = self._writer.log.has_batch(note.batch, after=note.after)
            if not is_settled:
                log.warning("a batch of changes to %s ended before it was applied: undone", self._writer.table)
                is_settled = self._side.take_back(note.batch, lock)
            if is_settled:
                self._notes.remove(note.batch)

    def _merge(self, merge: LockedMerge, lock: Lock) -> CommitResult:
        metadata = {**(self._options.metadata or {}), CHANGES: self._id}
        try:
            result: CommitResult = merge.execute(lock=lock, metadata=metadata, txn=self._how.txn)
        except WriteFailedError as error:
            if refusal := self._spec.refusal_in(error):
                raise refusal from error
            raise
        return result
