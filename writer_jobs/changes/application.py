"""One batch of changes on its way into one table: folded, locked, remembered, merged; or undone as a whole."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructField, StructType

from lock_manager import Hold, SluiceError
from lock_manager.commit_stamp import CHANGES
from lock_manager.deadline import Deadline
from lock_manager.partitions import MOST_PARTITIONS
from writer_jobs.changes.batch import ChangeBatch
from writer_jobs.changes.evolution import evolution_of, loses
from writer_jobs.changes.kind import Kind
from writer_jobs.changes.parts import T
from writer_jobs.changes.side_table import SideTable, partition_keys
from writer_jobs.changes.spec import SEQ, ChangeSpec
from writer_jobs.changes.unfinished import Note, Notes, names_of
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.lock_target import Lock, LockTarget, Partitions, partitions_of_rows
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.commit.merge import LockedMerge
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, has_condition, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import TableState
from writer_jobs.errors import CommitUnknownError, SchemaMismatchError, TableError, WriteFailedError
from writer_jobs.locking import locked_all
from writer_jobs.writer import LockedDeltaWriter

log = logging.getLogger(__name__)

#: What a batch counts, by its name.
COUNTED = (
    "changes", "folded", "keys", "inserted", "updated", "deleted", "unchanged", "dead_letters", "skipped",
)  # fmt: skip
_RAISED = "USER_RAISED_EXCEPTION"
_METRICS = ("Inserted", "Updated", "Deleted")


@dataclass(frozen=True, kw_only=True)
class ChangesResult:
    """What became of one batch of changes.

    Attributes:
        table: canonical URI.
        version: of the table that has them; None if they were there before (``txn``).
        already_applied: the table had this transaction already.
        changes: how many there were.
        folded: how many were left to apply: the newest of each key; with history, one of each key and sequence.
        keys: how many keys they have.
        inserted: rows that are new.
        updated: rows that were replaced by newer ones.
        deleted: rows that are gone.
        unchanged: keys whose newest change was known already, was older than what the table has, or deleted nothing;
            with history changes that were known already, without deletes.
        newest_sequence: the largest; None of an empty batch.
        commit: of the table; None if nothing was to be done.
        dead_letters: messages that could not be decoded.
        skipped: messages that say nothing of a row.
        newest_at: when the newest change was made, seconds since the epoch; None if changes do not tell.

    """

    table: str
    version: int | None
    already_applied: bool
    changes: int
    folded: int
    keys: int
    inserted: int
    updated: int
    deleted: int
    unchanged: int
    newest_sequence: Any
    commit: CommitResult | None
    dead_letters: int = 0
    skipped: int = 0
    newest_at: float | None = None

    @classmethod
    def of_nothing(cls, table: str) -> ChangesResult:
        """Return what became of a batch without changes."""
        return cls(
            table=table, version=None, already_applied=False, changes=0, folded=0, keys=0, inserted=0, updated=0,
            deleted=0, unchanged=0, newest_sequence=None, commit=None,
        )  # fmt: skip

    @property
    def counts(self) -> dict[str, Any]:
        """Its numbers, by name, and in ``lag_s`` how old the newest change is, in seconds; JSON values."""
        newest = self.newest_sequence
        return {
            **{name: getattr(self, name) for name in COUNTED},
            "newest_sequence": newest if isinstance(newest, int | float | str | None) else str(newest),
            "lag_s": None if self.newest_at is None else round(time.time() - self.newest_at, 3),
        }


@dataclass(frozen=True, kw_only=True)
class How:
    """How a batch is applied.

    Attributes:
        evolves: whether the table gets new columns, and wider types.
        partition_by: partition columns, if it is new.
        retention_seconds: for how long what is remembered is kept at least.
        txn: ``(txnAppId, txnVersion)`` of the batch.

    """

    evolves: bool
    partition_by: tuple[str, ...]
    retention_seconds: float
    txn: tuple[str, int] | None


class Application:
    """One batch, on its way into one table.

    Args:
        writer: of the table.
        spec: keys, and what messages need.
        kind: which rows the changes become.
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
        self.batch = ChangeBatch(self._fitted(prepared), spec, kind.folded_by, kind.preferred_by)
        # What has to be remembered of it, if anything, is committed first.
        self._noted = kind.noted(self.batch)
        seconds = options.lock_timeout_seconds
        self._deadline = Deadline(writer.manager.settings.timeout_seconds if seconds is None else seconds)

    def close(self) -> None:
        """Give back what is kept of the batch."""
        self.batch.close()

    def run(self) -> ChangesResult:
        """Lock, apply, give the lock back.

        Raises:
            ChangesError: the table, or what is remembered, is of another kind or other keys.
            SluiceError: see :meth:`LockedDeltaWriter.append`.

        """
        if self._is_applied():
            return self._result(None, already_applied=True)
        if not self.batch.folded:
            return self._result(None, already_applied=False)
        while True:
            state = self._table_state()
            known = self._side_state(state)
            partitions = self._partitions(state)
            tables = {self._writer.location: partitions}
            if known is not None:
                tables[self._side.location] = partitions
            with locked_all(
                self._spark, tables, manager=self._writer.manager, timeout_seconds=self._deadline.remaining()
            ) as hold:
                if known is None and self._side.state() is not None:
                    # Another feed has made it meanwhile.
                    continue
                if self._options.before_write is not None:
                    self._options.before_write(hold)
                if self._is_applied():
                    return self._result(None, already_applied=True)
                merged = self._apply(partitions, remembers=known is not None)
            return self._result(merged, already_applied=merged.already_committed)

    def _is_applied(self) -> bool:
        """Tell whether the table has this transaction already, or a later one."""
        txn = self._how.txn
        return txn is not None and self._writer.log.head(txn[0]).last_transaction >= txn[1]

    @cached_property
    def _row(self) -> StructType:
        """The columns that the table gets of the batch; some kinds look for them in its rows."""
        return self._kind.row(self.batch)

    # -- before the lock -------------------------------------------------------------------------------------------

    def _fitted(self, prepared: DataFrame) -> DataFrame:
        """Cast keys and sequence to the table's types: keys that it takes for one are one."""
        state = self._writer.log.state()
        types = {} if state is None else {field.name.lower(): field.dataType for field in state.schema}
        for name in self._spec.keys:
            if (kind := types.get(name.lower())) is not None:
                prepared = prepared.withColumn(name, F.col(quoted(name)).cast(kind))
        if (kind := types.get((self._kind.sequence or "").lower())) is not None:
            prepared = prepared.withColumn(SEQ, F.col(SEQ).cast(kind))
        return prepared

    def _table_state(self) -> TableState:
        """Return the table's state, after making it, or its column for the sequence, if need be."""
        table_log, row = self._writer.log, self._row
        ours = self._kind.fields(self.batch.rows.schema[SEQ].dataType)
        if (state := table_log.state()) is None:
            with self._locked(self._writer.location):
                # Another feed may have made it meanwhile, with columns of its own.
                if table_log.state() is None:
                    empty = self._spark.createDataFrame([], StructType([*row, *ours]))
                    self._writer.append(empty, partition_by=self._how.partition_by, hold="write")
            return self._table_state()
        self._kind.refuse_other_kind(state.schema, row)
        if self._needed(state, row, ours):
            with self._locked(self._writer.location):
                # Another feed may have done so meanwhile.
                if (now := table_log.state()) is not None:
                    for each in self._needed(now, row, ours):
                        self._alter(each)
            state = table_log.state()
        if state is None:
            raise TableError(f"{self._writer.table} was removed while changes were applied to it")
        self._refuse_loss(state, row)
        return state

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

    def _locked(self, location: str) -> AbstractContextManager[Hold]:
        return locked_all(
            self._spark, {location: None}, manager=self._writer.manager, timeout_seconds=self._deadline.remaining()
        )

    def _needed(self, state: TableState, row: StructType, ours: Sequence[StructField]) -> list[str]:
        """Return what is to be altered of the table, before it can take the changes."""
        there = {name.lower() for name in state.schema.names}
        needed = [
            f"ADD COLUMNS ({field.name} {field.dataType.simpleString()})"
            for field in ours
            if field.name.lower() not in there
        ]
        if self._how.evolves:
            # The types of these stay: what is remembered has them, too.
            fixed = {name.lower() for name in (*self._spec.keys, self._kind.sequence or "")}
            needed += evolution_of(state.schema, row, tuple(name for name in row.names if name.lower() not in fixed))
        return needed

    def _alter(self, clause: str) -> None:
        try:
            self._spark.sql(f"ALTER TABLE delta.{quoted(self._writer.location)} {clause}")
        except JVM_ERRORS as error:
            raise SchemaMismatchError(table=self._writer.table, reason=one_sentence(error)) from error

    def _side_state(self, table: TableState) -> TableState | None:
        """Return the state of the side table, after making it if need be; None: nothing was ever to be remembered.

        Raises:
            ChangesError: it is of other keys.

        """
        known = self._side.state()
        if known is None and self._noted is not None:
            with self._locked(self._side.location):
                if self._side.state() is None:
                    self._refuse_rows_of_others()
                    self._side.create(table, self.batch.rows.schema[SEQ].dataType)
            known = self._side.state()
        if known is not None and not self._side.is_of_keys(known):
            raise self._spec.misfit(
                f"{self._side.location} is of other keys than {', '.join(self._spec.keys)}: all feeds of a table have "
                "the same keys"
            )
        return known

    def _refuse_rows_of_others(self) -> None:
        """Make sure that a table has no rows yet whose rows follow from what is remembered alone."""
        if self._kind.remembered.is_all:
            table = self._spark.read.format("delta").load(self._writer.location)
            if not table.isEmpty():
                raise self._spec.misfit(
                    f"the table has rows, and {self._side.location} is not there, of which all rows are made: give its "
                    "cells from the first one on to a table of their own"
                )

    def _partitions(self, state: TableState) -> Partitions | None:
        """Return the partitions that the batch touches; None: the whole table is to be locked."""
        if not partition_keys(state, self._spec.keys):
            return None
        found = partitions_of_rows(self.batch.rows, state)
        return found if found and len(found) <= MOST_PARTITIONS else None

    # -- under the lock --------------------------------------------------------------------------------------------

    def _apply(self, partitions: Partitions | None, *, remembers: bool) -> CommitResult:
        """Settle what ended batches have left; then commit what is to be remembered, then the table."""
        target = LockTarget.of(self._writer.log, partitions)
        held, batch = names_of(target.named), self.batch
        lock: Lock = "table" if partitions is None else list(partitions)
        remembered, within, compacts = None, None, False
        if remembers:
            passed_over = self._settle(held, lock)
            # As it was before: what this batch adds to it, its rows say, too.
            within = LockTarget.of(self._side.writer.log, partitions).predicate()
            remembered = self._side.all(within, passed_over).where(batch.bounds())
            if self._noted is not None:
                self._notes.write(Note(self._id, self._writer.log.head().version, held))
                compacts = self._side.add(self._noted, self._id, lock)

        def read_table() -> DataFrame:
            table = self._spark.read.format("delta").load(self._writer.location)
            table = table if (where := target.predicate()) is None else table.where(where)
            return table.where(batch.bounds())

        source = self._kind.source(batch.rows, read_table, remembered)
        try:
            merged = self._merge(self._kind.merge(self._writer, source, batch.bounds(T)), lock)
        except WriteFailedError as error:
            if self._noted is not None and not isinstance(error, CommitUnknownError):
                self._take_back(error, lock)
            raise
        if self._noted is not None:
            self._notes.remove(self._id)
        if compacts:
            self._compact(within, lock)
        return merged

    def _compact(self, predicate: str | None, lock: Lock) -> None:
        """Rewrite what is remembered within a predicate without what has expired."""
        if self._notes.all():
            # Of a batch that has not ended, or was not undone yet, it is not known what counts.
            return
        try:
            self._side.compact(self._how.retention_seconds, self._kind.without_expired, predicate, lock)
        except SluiceError as problem:
            # The batch is in the table: it has not failed.
            log.warning("%s was not rewritten without what has expired: %s", self._side.location, problem)

    def _settle(self, held: tuple[str, ...] | None, lock: Lock) -> list[str]:
        """Undo what batches have left that ended between their two commits.

        Returns:
            Those that could not be undone, because not all that they had locked is held: what they remember does not
            count.

        """
        passed_over = []
        for note in self._notes.all():
            if not note.has_ended(held):
                continue
            applied, within = self._writer.log.has_batch(note.batch, after=note.after), note.is_within(held)
            if not applied and not within:
                passed_over.append(note.batch)
            if not applied and within:
                log.warning("a batch of changes to %s had ended before it was applied: undone", self._writer.table)
                self._side.take_back(note.batch, lock)
            if within:
                self._notes.remove(note.batch)
        return passed_over

    def _merge(self, merge: LockedMerge, lock: Lock) -> CommitResult:
        metadata = {**(self._options.metadata or {}), CHANGES: self._id}
        try:
            result: CommitResult = merge.execute(lock=lock, metadata=metadata, txn=self._how.txn)
        except WriteFailedError as error:
            if error.__cause__ is not None and has_condition(error.__cause__, _RAISED):
                raise self._spec.misfit(error.reason) from error
            raise
        return result

    def _take_back(self, error: WriteFailedError, lock: Lock) -> None:
        """Forget what a batch was to be remembered by of which nothing is in the table: it was refused as a whole."""
        try:
            self._side.take_back(self._id, lock)
            self._notes.remove(self._id)
        except SluiceError as problem:
            error.add_note(f"the next batch undoes the rest of this one: {problem}")

    def _result(self, commit: CommitResult | None, *, already_applied: bool) -> ChangesResult:
        batch, counts = self.batch, commit.metrics if commit is not None else {}
        keys = batch.count_keys()
        inserted, updated, deleted = (int(counts.get(f"numTargetRows{kind}", 0)) for kind in _METRICS)
        return ChangesResult(
            table=self._writer.table,
            version=commit.version if commit is not None else None,
            already_applied=already_applied,
            changes=batch.changes,
            folded=batch.folded,
            keys=keys,
            inserted=inserted,
            updated=updated,
            deleted=deleted,
            unchanged=self._kind.unchanged(batch, keys, inserted, inserted + updated + deleted),
            newest_sequence=batch.newest,
            commit=commit,
            newest_at=moment_of(batch.newest),
        )


def moment_of(sequence: Any) -> float | None:
    """Return a sequence as seconds since the epoch, if it is a moment or a day; of a struct its first field counts.

    A timestamp without time zone is taken for one of this process's zone, a day for its begin.
    """
    first = sequence[0] if isinstance(sequence, tuple) and sequence else sequence
    if isinstance(first, datetime):
        return first.timestamp()
    return time.mktime(first.timetuple()) if isinstance(first, date) else None
