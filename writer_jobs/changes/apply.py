"""``apply_changes``: merge changes of another store into a table, whatever is repeated, late or mixed up."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructField, StructType

from lock_manager import Hold, SluiceError
from lock_manager.commit_stamp import CHANGES
from lock_manager.deadline import Deadline
from lock_manager.partitions import MOST_PARTITIONS
from writer_jobs.changes.batch import ChangeBatch
from writer_jobs.changes.evolution import evolution_of
from writer_jobs.changes.scd1 import NewestRows
from writer_jobs.changes.scd2 import END, START, RowHistory
from writer_jobs.changes.spec import DELETED, SEQ, ChangeSpec
from writer_jobs.changes.tombstones import Tombstones, partition_keys
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

_RETENTION = timedelta(days=7)
_RAISED = "USER_RAISED_EXCEPTION"
_KINDS = ("Inserted", "Updated", "Deleted")
_TYPES: dict[int, type[NewestRows | RowHistory]] = {1: NewestRows, 2: RowHistory}


@dataclass(frozen=True, kw_only=True)
class ChangesResult:
    """What became of one batch of changes.

    Attributes:
        table: canonical URI.
        version: of the table that has them; None if they were there before (``txn``).
        already_applied: the table had this transaction already.
        changes: how many there were.
        folded: how many were left to apply: the newest of each key; with history, one of each key and sequence.
        inserted: rows that are new.
        updated: rows that were replaced by newer ones.
        deleted: rows that are gone.
        unchanged: keys whose newest change was known already, was older than what the table has, or deleted nothing;
            with history changes that were known already, without deletes.
        newest_sequence: the largest; None of an empty batch.
        commit: of the table; None if nothing was to be done.

    """

    table: str
    version: int | None
    already_applied: bool
    changes: int
    folded: int
    inserted: int
    updated: int
    deleted: int
    unchanged: int
    newest_sequence: Any
    commit: CommitResult | None

    @property
    def counts(self) -> dict[str, Any]:
        """Its numbers, by name; JSON values."""
        names = ("changes", "folded", "inserted", "updated", "deleted", "unchanged")
        newest = self.newest_sequence
        return {
            **{name: getattr(self, name) for name in names},
            "newest_sequence": newest if isinstance(newest, int | float | str | None) else str(newest),
        }


def apply_changes(
    writer: LockedDeltaWriter,
    changes: DataFrame,
    *,
    keys: Sequence[str],
    sequence_by: str | Column,
    apply_as_deletes: str | Column | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    stored_as_scd_type: int = 1,
    schema_evolution: bool = False,
    partition_by: Sequence[str] = (),
    tombstone_retention: timedelta = _RETENTION,
    txn: tuple[str, int] | None = None,
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    before_write: Callable[[Hold], None] | None = None,
) -> ChangesResult:
    """Apply a batch of changes to a table, so that it has the newest row of each key, or the history of each.

    ::

        apply_changes(writer, changes, keys=["id"], sequence_by="updated_at", apply_as_deletes="op = 'd'")

    The result does not depend on the order in which changes come, on how they are cut into batches, or on how often
    each comes:

    - Of several changes to one key the one with the largest sequence counts, within a batch and between them. With
      history each counts, in that order: a row ends where the next change of its key begins, in one commit.
    - A delete counts in that order. It leaves a tombstone in ``<location>_tombstones``, so that an older change that
      comes later does not bring the row back; until ``tombstone_retention`` has passed since it was applied.
    - A change that has the sequence of another one of its key is a repetition if both say the same. Else it is not
      known which is newer, and the batch is refused, as one with a null in a key or in a sequence is.

    What it does **not** promise: that changes which come later than ``tombstone_retention`` after a delete stay out.

    The batch is folded before the lock is asked for. If the table's partition columns are keys, the partitions that the
    batch touches are locked, else the table: by another column a key does not tell where its row is. The tombstones are
    locked with it, and committed before it; what a killed run left between the two commits the next one undoes, so that
    a batch is applied as a whole or not at all.

    Args:
        writer: of the table, which is made if there is nothing at its location.
        changes: at least the keys and what ``sequence_by`` and ``apply_as_deletes`` need. A delete may have nulls in
            all other columns.
        keys: columns that together name a row.
        sequence_by: order of the changes of one key: a column's name, SQL, or a column, such as
            ``struct("committed_at", "position")``. If the table gets a column of that name, that is a row's sequence;
            else the table has it in ``__SEQUENCE``.
        apply_as_deletes: SQL or a column: which changes delete their row. Null is no.
        column_list: columns that the table gets; by default all.
        except_column_list: columns that it does not get.
        stored_as_scd_type: 1: the newest row of each key. 2: every row that a key had, valid from ``__START_AT`` up to,
            and without, ``__END_AT``, which is null in the current one; both are sequences.
        schema_evolution: add columns that the table has not, and widen its types to those of the changes, but not of
            keys and sequences. Else such changes are refused.
        partition_by: partition columns of a new table.
        tombstone_retention: how long a delete is remembered.
        txn: ``(txnAppId, txnVersion)``: if the table has this one already, or a later one, nothing is done.
        lock_timeout_seconds: total; by default the manager's.
        metadata: more to note in the commit; JSON values.
        before_write: called under the lock.

    Raises:
        ValueError: arguments that contradict each other.
        ChangesError: the changes lack a column, or cannot be ordered; the message names the keys.
        SchemaMismatchError: they do not fit the table.
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    spec = ChangeSpec.of(
        writer.table,
        keys=keys,
        sequence_by=sequence_by,
        apply_as_deletes=apply_as_deletes,
        column_list=column_list,
        except_column_list=except_column_list,
    )
    options = WriteOptions(lock_timeout_seconds=lock_timeout_seconds, metadata=metadata, before_write=before_write)
    if stored_as_scd_type not in _TYPES:
        raise ValueError(f"stored_as_scd_type={stored_as_scd_type!r}: choose 1 (the newest rows) or 2 (with history)")
    how = _How(stored_as_scd_type, schema_evolution, tuple(partition_by))
    with closing(_Application(writer, spec, changes, how)) as application:
        return application.run(options, txn, tombstone_retention.total_seconds())


@dataclass(frozen=True)
class _How:
    """What a table is, or becomes.

    Attributes:
        scd_type: 1 or 2.
        evolves: whether it gets new columns, and wider types.
        partition_by: partition columns, if it is new.

    """

    scd_type: int
    evolves: bool
    partition_by: tuple[str, ...]


class _Application:
    """One batch, on its way into one table."""

    def __init__(
        self,
        writer: LockedDeltaWriter,
        spec: ChangeSpec,
        changes: DataFrame,
        how: _How,
    ) -> None:
        self._writer = writer
        self._spark = changes.sparkSession
        self._spec = spec = spec.of_changes(changes)
        self._how = how
        self._id = uuid.uuid4().hex
        self._columns = spec.columns(changes)
        self._rows = _TYPES[how.scd_type](spec, self._columns)
        self._tombstones = Tombstones(self._spark, writer.manager, writer.location, spec.keys)
        self._notes = Notes(HadoopFiles.of(self._spark), writer.location)
        self._batch = ChangeBatch(self._fitted(spec.prepared(changes)), spec, self._rows.folded_by)

    def close(self) -> None:
        self._batch.close()

    def run(self, options: WriteOptions, txn: tuple[str, int] | None, retention_seconds: float) -> ChangesResult:
        table_log, batch = self._writer.log, self._batch
        if txn is not None and table_log.head(txn[0]).last_transaction >= txn[1]:
            return self._result(None, already_applied=True)
        if not batch.folded:
            return self._result(None, already_applied=False)
        seconds = options.lock_timeout_seconds
        deadline = Deadline(self._writer.manager.settings.timeout_seconds if seconds is None else seconds)
        while True:
            state = self._table_state()
            known = self._tombstone_state(state)
            partitions = self._partitions(state)
            tables = {self._writer.location: partitions}
            if known is not None:
                tables[self._tombstones.location] = partitions
            with locked_all(
                self._spark, tables, manager=self._writer.manager, timeout_seconds=deadline.remaining()
            ) as hold:
                if known is None and self._tombstones.state() is not None:
                    # Another feed has made them meanwhile.
                    continue
                if options.before_write is not None:
                    options.before_write(hold)
                if txn is not None and table_log.head(txn[0]).last_transaction >= txn[1]:
                    return self._result(None, already_applied=True)
                merged = self._apply(partitions, options, txn, tombstones=known is not None)
                if known is not None and partitions is None:
                    self._tombstones.compact(retention_seconds)
            return self._result(merged, already_applied=merged.already_committed)

    # -- before the lock -------------------------------------------------------------------------------------------

    def _fitted(self, prepared: DataFrame) -> DataFrame:
        """Cast keys and sequence to the table's types: keys that it takes for one are one.

        Raises:
            SchemaMismatchError: the table has not all of the columns.

        """
        state = self._writer.log.state()
        if state is None:
            return prepared
        kinds = {field.name.lower(): field.dataType for field in state.schema}
        unknown = [name for name in self._columns if name.lower() not in kinds]
        if unknown and not self._how.evolves:
            raise SchemaMismatchError(
                table=self._writer.table, reason=f"the table has no column {', '.join(unknown)}; the changes have"
            )
        for name in self._spec.keys:
            prepared = prepared.withColumn(name, F.col(quoted(name)).cast(kinds[name.lower()]))
        if (kind := kinds.get(self._rows.sequence.lower())) is not None:
            prepared = prepared.withColumn(SEQ, F.col(SEQ).cast(kind))
        return prepared

    def _table_state(self) -> TableState:
        """Return the table's state, after making it, or its column for the sequence, if need be."""
        table_log = self._writer.log
        kinds = {field.name: field.dataType for field in self._batch.rows.schema}
        ours = self._rows.fields(kinds[SEQ])
        if (state := table_log.state()) is None:
            fields = [*(StructField(name, kinds[name]) for name in self._columns), *ours]
            empty = self._spark.createDataFrame([], StructType(fields))
            self._writer.append(empty, partition_by=self._how.partition_by, hold="write")
            return self._table_state()
        there = {name.lower() for name in state.schema.names}
        self._refuse_other_type(there)
        if self._needed(state, ours):
            with locked_all(self._spark, {self._writer.location: None}, manager=self._writer.manager):
                # Another feed may have done so meanwhile.
                if (now := table_log.state()) is not None:
                    for each in self._needed(now, ours):
                        self._alter(each)
            state = table_log.state()
        if state is None:
            raise TableError(f"{self._writer.table} was removed while changes were applied to it")
        return state

    def _needed(self, state: TableState, ours: Sequence[StructField]) -> list[str]:
        """Return what is to be altered of the table, before it can take the changes."""
        there = {name.lower() for name in state.schema.names}
        needed = [
            f"ADD COLUMNS ({field.name} {field.dataType.simpleString()})"
            for field in ours
            if field.name.lower() not in there
        ]
        if self._how.evolves:
            others = tuple(name for name in self._columns if name.lower() not in self._fixed())
            needed += evolution_of(state.schema, self._batch.rows.schema, others)
        return needed

    def _fixed(self) -> set[str]:
        """Return the columns whose types stay: those of the tombstones, too."""
        return {name.lower() for name in (*self._spec.keys, self._rows.sequence)}

    def _alter(self, clause: str) -> None:
        try:
            self._spark.sql(f"ALTER TABLE delta.{quoted(self._writer.location)} {clause}")
        except JVM_ERRORS as error:
            raise SchemaMismatchError(table=self._writer.table, reason=one_sentence(error)) from error

    def _refuse_other_type(self, there: set[str]) -> None:
        """Make sure that the table is not one that keeps history, or the other way round."""
        keeps_history = {START.lower(), END.lower()} <= there
        if keeps_history and not isinstance(self._rows, RowHistory):
            raise self._spec.misfit(f"the table keeps history ({START}, {END}): apply changes with SCD type 2")
        if not keeps_history and isinstance(self._rows, RowHistory):
            raise self._spec.misfit(f"the table keeps no history (it has no {START}, {END}): make one of SCD type 2")

    def _tombstone_state(self, table: TableState) -> TableState | None:
        """Return the state of the tombstones' table, after making it if need be; None: no row was ever deleted.

        Raises:
            ChangesError: it is of other keys.

        """
        known = self._tombstones.state()
        if known is None and self._batch.deletes:
            self._tombstones.create(table, self._batch.rows.schema[SEQ].dataType)
            known = self._tombstones.state()
        if known is not None and not self._tombstones.is_of_keys(known):
            raise self._spec.misfit(
                f"{self._tombstones.location} has tombstones of other keys than {', '.join(self._spec.keys)}: all "
                "feeds of a table have the same keys"
            )
        return known

    def _partitions(self, state: TableState) -> Partitions | None:
        """Return the partitions that the batch touches; None: the whole table is to be locked."""
        if not partition_keys(state, self._spec.keys):
            return None
        found = partitions_of_rows(self._batch.rows, state)
        return found if found and len(found) <= MOST_PARTITIONS else None

    # -- under the lock --------------------------------------------------------------------------------------------

    def _apply(
        self,
        partitions: Partitions | None,
        options: WriteOptions,
        txn: tuple[str, int] | None,
        *,
        tombstones: bool,
    ) -> CommitResult:
        """Settle what ended batches have left; then commit the tombstones, then the table."""
        target = LockTarget.of(self._writer.log, partitions)
        held, batch = names_of(target.named), self._batch
        lock: Lock = "table" if partitions is None else list(partitions)
        deleted = None
        if tombstones:
            passed_over = self._settle(held, lock)
            if batch.deletes:
                self._notes.write(Note(self._id, self._writer.log.head().version, held))
                self._tombstones.add(batch.rows.where(DELETED), self._id, lock)
            predicate = LockTarget.of(self._tombstones.writer.log, partitions).predicate()
            deleted = self._tombstones.all(predicate, passed_over)

        def read_table() -> DataFrame:
            table = self._spark.read.format("delta").load(self._writer.location)
            return table if (where := target.predicate()) is None else table.where(where)

        source = self._rows.source(batch.rows, read_table, deleted)
        try:
            merged = self._merge(self._rows.merge(self._writer, source), lock, options, txn)
        except WriteFailedError as error:
            if batch.deletes and not isinstance(error, CommitUnknownError):
                self._take_back(error, lock)
            raise
        if batch.deletes:
            self._notes.remove(self._id)
        return merged

    def _settle(self, held: tuple[str, ...] | None, lock: Lock) -> list[str]:
        """Undo what batches have left that ended between their two commits.

        Returns:
            Those that could not be undone, because not all that they had locked is held: their tombstones do not count.

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
                self._tombstones.take_back(note.batch, lock)
            if within:
                self._notes.remove(note.batch)
        return passed_over

    def _merge(
        self, merge: LockedMerge, lock: Lock, options: WriteOptions, txn: tuple[str, int] | None
    ) -> CommitResult:
        metadata = {**(options.metadata or {}), CHANGES: self._id}
        try:
            result: CommitResult = merge.execute(lock=lock, metadata=metadata, txn=txn)
        except WriteFailedError as error:
            if error.__cause__ is not None and has_condition(error.__cause__, _RAISED):
                raise self._spec.misfit(error.reason) from error
            raise
        return result

    def _take_back(self, error: WriteFailedError, lock: Lock) -> None:
        """Undo the deletes of a batch of which nothing is in the table: it was refused as a whole."""
        try:
            self._tombstones.take_back(self._id, lock)
            self._notes.remove(self._id)
        except SluiceError as problem:
            error.add_note(f"the next batch takes its tombstones back: {problem}")

    def _result(self, commit: CommitResult | None, *, already_applied: bool) -> ChangesResult:
        batch, counts = self._batch, commit.metrics if commit is not None else {}
        inserted, updated, deleted = (int(counts.get(f"numTargetRows{kind}", 0)) for kind in _KINDS)
        return ChangesResult(
            table=self._writer.table,
            version=commit.version if commit is not None else None,
            already_applied=already_applied,
            changes=batch.changes,
            folded=batch.folded,
            inserted=inserted,
            updated=updated,
            deleted=deleted,
            unchanged=self._rows.unchanged(batch, inserted, updated, deleted),
            newest_sequence=batch.newest,
            commit=commit,
        )
