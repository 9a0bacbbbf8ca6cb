"""``apply_changes``: merge changes of another store into a table, whatever is repeated, late or mixed up."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import AtomicType, StructField, StructType

from lock_manager import Hold
from lock_manager.deadline import Deadline
from lock_manager.partitions import MOST_PARTITIONS
from writer_jobs.changes.batch import ChangeBatch
from writer_jobs.changes.spec import DELETED, SEQ, SEQUENCE, ChangeSpec, quoted
from writer_jobs.changes.tombstones import TOMB, Tombstones, partition_keys
from writer_jobs.changes.unfinished import Note, Notes, is_covered, names_of
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.commit.lock_target import Lock, LockTarget, Partitions, partitions_of_rows
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import has_condition
from writer_jobs.delta.table_log import TableState
from writer_jobs.errors import SchemaMismatchError, TableError, WriteFailedError
from writer_jobs.locking import locked_all
from writer_jobs.writer import LockedDeltaWriter

_S, _T = "__sluice_s", "__sluice_t"
_RETENTION = timedelta(days=7)
_RAISED = "USER_RAISED_EXCEPTION"
_KINDS = ("Inserted", "Updated", "Deleted")


@dataclass(frozen=True, kw_only=True)
class ChangesResult:
    """What became of one batch of changes.

    Attributes:
        table: canonical URI.
        version: of the table that has them; None if they were there before (``txn``).
        already_applied: the table had this transaction already.
        changes: how many there were.
        keys: how many keys they were of.
        inserted: rows that are new.
        updated: rows that were replaced by newer ones.
        deleted: rows that are gone.
        unchanged: keys whose newest change was known already, was older than what the table has, or deleted nothing.
        newest_sequence: the largest; None of an empty batch.
        commit: of the table; None if nothing was to be done.

    """

    table: str
    version: int | None
    already_applied: bool
    changes: int
    keys: int
    inserted: int
    updated: int
    deleted: int
    unchanged: int
    newest_sequence: Any
    commit: CommitResult | None

    @property
    def counts(self) -> dict[str, Any]:
        """Its numbers, by name; JSON values."""
        names = ("changes", "keys", "inserted", "updated", "deleted", "unchanged")
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
    partition_by: Sequence[str] = (),
    tombstone_retention: timedelta = _RETENTION,
    txn: tuple[str, int] | None = None,
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    before_write: Callable[[Hold], None] | None = None,
) -> ChangesResult:
    """Apply a batch of changes to a table, so that it has the newest row of each key (SCD type 1).

    ::

        apply_changes(writer, changes, keys=["id"], sequence_by="updated_at", apply_as_deletes="op = 'd'")

    The result does not depend on the order in which changes come, on how they are cut into batches, or on how often
    each comes:

    - Of several changes to one key the one with the largest sequence counts, within a batch and between them.
    - A delete counts in that order. It leaves a tombstone in ``<location>_tombstones``, so that an older change that
      comes later does not bring the row back; until ``tombstone_retention`` has passed since it was applied.
    - A change that has the sequence of another one of its key is a repetition if both say the same. Else it is not
      known which is newer, and the batch is refused, as one with a null in a key or in a sequence is.

    What it does **not** promise: that changes which come later than ``tombstone_retention`` after a delete stay out.

    The batch is folded before the lock is asked for. If the table's partition columns are keys, the partitions that the
    batch touches are locked, else the table: by another column a key does not tell where its row is. The tombstones are
    locked with it, and committed before it; what a killed run left between the two commits the next one finishes.

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
    with closing(_Application(writer, spec, changes, tuple(partition_by))) as application:
        return application.run(options, txn, tombstone_retention.total_seconds())


class _Application:
    """One batch, on its way into one table."""

    def __init__(
        self, writer: LockedDeltaWriter, spec: ChangeSpec, changes: DataFrame, partition_by: tuple[str, ...]
    ) -> None:
        self._writer = writer
        self._spark = changes.sparkSession
        self._spec = spec
        self._partition_by = partition_by
        self._id = uuid.uuid4().hex
        self._columns = spec.columns(changes)
        self._sequence = spec.sequence_column(self._columns)
        self._tombstones = Tombstones(self._spark, writer.manager, writer.location, spec.keys)
        self._notes = Notes(HadoopFiles.of(self._spark), writer.location)
        self._batch = ChangeBatch(self._fitted(spec.prepared(changes)), spec)

    def close(self) -> None:
        self._batch.close()

    def run(self, options: WriteOptions, txn: tuple[str, int] | None, retention_seconds: float) -> ChangesResult:
        log, batch = self._writer.log, self._batch
        if (txn is not None and log.head(txn[0]).last_transaction >= txn[1]) or not (batch.keys or self._notes.all()):
            return self._result(None, already_applied=batch.keys > 0)
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
                if txn is not None and log.head(txn[0]).last_transaction >= txn[1]:
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
        if unknown:
            raise SchemaMismatchError(
                table=self._writer.table, reason=f"the table has no column {', '.join(unknown)}; the changes have"
            )
        for name in self._spec.keys:
            prepared = prepared.withColumn(name, F.col(quoted(name)).cast(kinds[name.lower()]))
        if (kind := kinds.get(self._sequence.lower())) is not None:
            prepared = prepared.withColumn(SEQ, F.col(SEQ).cast(kind))
        return prepared

    def _table_state(self) -> TableState:
        """Return the table's state, after making it, or its column for the sequence, if need be."""
        log = self._writer.log
        kinds = {field.name: field.dataType for field in self._batch.rows.schema}
        if (state := log.state()) is None:
            fields = [StructField(name, kinds[name]) for name in self._columns]
            if self._sequence == SEQUENCE:
                fields.append(StructField(SEQUENCE, kinds[SEQ]))
            empty = self._spark.createDataFrame([], StructType(fields))
            self._writer.append(empty, partition_by=self._partition_by, hold="write")
            state = log.state()
        elif self._sequence.lower() not in {name.lower() for name in state.schema.names}:
            with locked_all(self._spark, {self._writer.location: None}, manager=self._writer.manager):
                table = f"delta.{quoted(self._writer.location)}"
                self._spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({SEQUENCE} {kinds[SEQ].simpleString()})")
            state = log.state()
        if state is None:
            raise TableError(f"{self._writer.table} was removed while changes were applied to it")
        return state

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
        """Commit the tombstones, then the table; then forget the note of the batch, and of those that had ended."""
        target = LockTarget.of(self._writer.log, partitions)
        held, source = names_of(target.named), self._batch.rows
        lock: Lock = "table" if partitions is None else list(partitions)
        ended = [note.batch for note in self._notes.all() if is_covered(note, held)]
        if tombstones:
            predicate = LockTarget.of(self._tombstones.writer.log, partitions).predicate()
            left = self._tombstones.of_batches(ended, predicate) if ended else None
            if self._batch.deletes:
                self._notes.write(Note(self._id, held))
                ended.append(self._id)
                self._tombstones.add(source.where(DELETED), self._id, lock)
            source = self._without_stale(source, self._tombstones.newest(predicate))
            if left is not None:
                source = self._with_deletes(source, left)
        merged = self._merge(source, lock, options, txn)
        for batch in ended:
            self._notes.remove(batch)
        return merged

    def _without_stale(self, rows: DataFrame, newest: DataFrame) -> DataFrame:
        """Leave out what is older than the tombstone of its key, and fail on what is as old."""
        known = rows.join(newest, list(self._spec.keys), "left")
        tie = ~F.col(DELETED) & (F.col(SEQ) == F.col(TOMB))
        kept = known.where(F.col(DELETED) | F.col(TOMB).isNull() | (F.col(SEQ) >= F.col(TOMB)))
        message = self._named("a change has the sequence of a delete of its key, so that the newest is not known: ")
        kind = rows.schema[SEQ].dataType
        return kept.withColumn(SEQ, F.when(tie, F.raise_error(message).cast(kind)).otherwise(F.col(SEQ))).drop(TOMB)

    def _with_deletes(self, rows: DataFrame, left: DataFrame) -> DataFrame:
        """Add deletes that an earlier batch did not get into the table; of one key the newest is left."""
        keys = list(self._spec.keys)
        upserts, deletes = rows.where(~F.col(DELETED)), rows.where(DELETED).select(*map(quoted, keys), SEQ)
        # An upsert that is left is newer than every tombstone of its key.
        newest = deletes.unionByName(left).groupBy(*map(quoted, keys)).agg(F.max(SEQ).alias(SEQ))
        others = newest.join(upserts.select(*map(quoted, keys)), keys, "left_anti").withColumn(DELETED, F.expr("true"))
        return upserts.unionByName(others, allowMissingColumns=True)

    def _merge(
        self,
        source: DataFrame,
        lock: Lock,
        options: WriteOptions,
        txn: tuple[str, int] | None,
    ) -> CommitResult:
        def of(alias: str, name: str) -> Column:
            return F.col(f"{alias}.{quoted(name)}")

        condition = F.expr("true")
        for name in self._spec.keys:
            condition = condition & (of(_T, name) == of(_S, name))
        new, known, deleted = of(_S, SEQ), of(_T, self._sequence), of(_S, DELETED)
        same = F.expr("true")
        for field in source.schema:
            if field.name not in (SEQ, DELETED):
                same = same & _comparable(field, of(_S, field.name)).eqNullSafe(_comparable(field, of(_T, field.name)))
        message = self._named("a change has the sequence of the row in the table and says something else: ", _S)
        values = {quoted(name): of(_S, name) for name in self._columns}
        if self._sequence == SEQUENCE:
            values[SEQUENCE] = new
        merge = (
            self._writer.merge(source.alias(_S), condition, alias=_T)
            .whenMatchedUpdate(
                (new == known) & (deleted | ~same),
                {quoted(self._sequence): F.raise_error(message).cast(source.schema[SEQ].dataType)},
            )
            .whenMatchedDelete(deleted & (known.isNull() | (new > known)))
            .whenMatchedUpdate(~deleted & (known.isNull() | (new > known)), values)
            .whenNotMatchedInsert(~deleted, values)
        )
        metadata = {**(options.metadata or {}), "changes": self._id}
        try:
            result: CommitResult = merge.execute(lock=lock, metadata=metadata, txn=txn)
        except WriteFailedError as error:
            if error.__cause__ is not None and has_condition(error.__cause__, _RAISED):
                raise self._spec.misfit(error.reason) from error
            raise
        return result

    def _named(self, message: str, alias: str | None = None) -> Column:
        prefix = f"{alias}." if alias else ""
        parts: list[Column] = [F.lit(message)]
        for number, name in enumerate(self._spec.keys):
            value = F.coalesce(F.col(f"{prefix}{quoted(name)}").cast("string"), F.lit("null"))
            parts += [F.lit(f"{', ' if number else ''}{name}="), value]
        return F.concat(*parts)

    def _result(self, commit: CommitResult | None, *, already_applied: bool) -> ChangesResult:
        batch, counts = self._batch, commit.metrics if commit is not None else {}
        inserted, updated, deleted = (int(counts.get(f"numTargetRows{kind}", 0)) for kind in _KINDS)
        return ChangesResult(
            table=self._writer.table,
            version=commit.version if commit is not None else None,
            already_applied=already_applied,
            changes=batch.changes,
            keys=batch.keys,
            inserted=inserted,
            updated=updated,
            deleted=deleted,
            unchanged=max(0, batch.keys - inserted - updated - deleted),
            newest_sequence=batch.newest,
            commit=commit,
        )


def _comparable(field: StructField, column: Column) -> Column:
    return column if isinstance(field.dataType, AtomicType) else F.to_json(F.struct(column))
