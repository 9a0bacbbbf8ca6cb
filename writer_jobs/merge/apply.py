"""``apply_changes``: merge changes of another store into a table. They may be repeated, late or out of order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame

from lock_manager import Hold
from writer_jobs.commit.options import WriteOptions
from writer_jobs.merge.batch_applier import BatchApplier
from writer_jobs.merge.change_spec import COLUMN_SEQUENCES, ChangeSpec, sql_of
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.scd1 import NewestRows
from writer_jobs.merge.scd2 import RowHistory
from writer_jobs.merge.table_feed import TableFeed
from writer_jobs.merge.table_shape import TableShape
from writer_jobs.writer import LockedDeltaWriter

#: Default retention of the rows of a side table.
RETENTION = timedelta(days=7)
_MODELS: dict[int, type[NewestRows | RowHistory]] = {1: NewestRows, 2: RowHistory}


def apply_changes(
    writer: LockedDeltaWriter,
    changes: DataFrame,
    *,
    keys: Sequence[str],
    sequence_by: str | Column,
    apply_as_deletes: str | Column | None = None,
    column_list: Sequence[str] | None = None,
    except_column_list: Sequence[str] | None = None,
    unchanged_columns: Mapping[str, str | Column] | None = None,
    stored_as_scd_type: int = 1,
    schema_evolution: bool = False,
    partition_by: Sequence[str] = (),
    tombstone_retention: timedelta = RETENTION,
    sequence_name: str | None = None,
    source_tables: Collection[str] | None = None,
    source_columns: Collection[str] | None = None,
    txn: tuple[str, int] | None = None,
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    before_write: Callable[[Hold], None] | None = None,
) -> ChangesResult:
    """Apply a batch of changes to a table, so that it has the newest row of each key, or the history of each key.

    ::

        apply_changes(writer, changes, keys=["id"], sequence_by="updated_at", apply_as_deletes="op = 'd'")

    The result does not depend on the order in which changes arrive, on how they are split into batches, or on how many
    times a change arrives:

    - Of several changes of a key, the one with the largest sequence wins, within a batch and between batches. With
      history, each change counts, in that order: a row ends where the next change of its key starts, in the commit that
      applies this change.
    - Deletes count in that order, too. A delete leaves a tombstone in ``<location>_tombstones`` until
      ``tombstone_retention`` has passed since it was applied, so that an older change does not restore the row.
    - A change with the sequence of another change of its key is a repetition if both are equal. Otherwise their order
      is not known, and the batch is refused if the result depends on it. A batch with a null in a key or in a sequence
      is refused, too.

    The first batch binds the table to its keys, sequence and SCD type by the table property ``sluice.feed``; see
    :mod:`writer_jobs.merge.table_feed`.

    It does **not** promise that a change stays out if it arrives later than ``tombstone_retention`` after a delete.

    The batch is folded before the lock is requested. If the table's partition columns are keys, only the partitions of
    the batch are locked. Otherwise the whole table is locked, because the partition of a row does not follow from its
    keys. The tombstones are locked with the table and committed before it. If a run is killed between the two commits,
    the next run undoes the first commit. So a batch is applied as a whole or not at all.

    Args:
        writer: Writer of the table. The table is created if it does not exist.
        changes: Changes with at least the keys and the columns of ``sequence_by`` and ``apply_as_deletes``. A delete
            may have nulls in all other columns.
        keys: Columns that together identify a row.
        sequence_by: Order of the changes of a key: a column name, SQL or a column, such as
            ``struct("committed_at", "position")``. A text column is refused; an expression of a text column is not. SCD
            type 1 stores the sequence in ``__SEQUENCE``, unless the argument is the name of a column that the table
            gets.
        apply_as_deletes: Condition (SQL or a column) that is true for deletes; null counts as false.
        column_list: Columns that the table gets; None: all columns.
        except_column_list: Columns that the table does not get.
        unchanged_columns: Conditions (SQL or columns), by column: if the condition is true, the change does not contain
            the column. The row keeps the value of the newest earlier change that contains it, also if that
            change arrives later; until then the value is null, and the result counts the row as ``incomplete``. SCD
            type 1 only. The table gets the column ``__COLUMN_SEQUENCES``.
        stored_as_scd_type: 1: the newest row of each key. 2: every row of each key, valid from the sequence
            ``__START_AT`` (inclusive) up to the sequence ``__END_AT`` (exclusive; null in the current row).
        schema_evolution: Add columns that the table lacks, and widen its types to those of the changes, except those of
            keys and sequences. If false, such changes are refused.
        partition_by: Partition columns of a new table.
        tombstone_retention: Time to keep tombstones. The longest time counts if several feeds of a table differ.
        sequence_name: Name of the order in ``sluice.feed``; None: the SQL of ``sequence_by``.
        source_tables: Tables of the other store whose changes the table gets, for ``sluice.feed``. A batch of other
            source tables is refused. None: they are not known.
        source_columns: Columns of the changes at their source, for ``sluice.feed``; see
            :func:`~writer_jobs.merge.table_feed.recorded_columns`.
        txn: ``(txnAppId, txnVersion)``. The batch is skipped if the table has this transaction or a later one.
        lock_timeout_seconds: Seconds to wait for all locks together; None: the manager's default.
        metadata: Additional metadata of the commit; JSON values.
        before_write: Called with the hold, under the lock, before the batch is written.

    Raises:
        ValueError: Arguments contradict each other.
        ChangesError: The changes lack a column, or their order is not known; the message has the keys. Or the table is
            bound to another feed.
        SchemaMismatchError: The changes do not fit the table.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    spec = ChangeSpec(
        table=writer.table,
        keys=keys,
        sequence_by=sequence_by,
        apply_as_deletes=apply_as_deletes,
        column_list=column_list,
        except_column_list=except_column_list,
        unchanged_columns=unchanged_columns or {},
    ).with_keys_of(changes)
    write_options = WriteOptions(
        lock_timeout_seconds=lock_timeout_seconds, metadata=metadata, before_write=before_write
    )
    if stored_as_scd_type not in _MODELS:
        raise ValueError(f"stored_as_scd_type={stored_as_scd_type!r}: choose 1 (the newest rows) or 2 (with history)")
    if unchanged_columns and stored_as_scd_type != 1:
        raise ValueError("unchanged_columns: a history needs changes with all columns")
    model = _MODELS[stored_as_scd_type](spec, spec.columns(changes))
    feed = TableFeed(
        model="changes",
        keys=spec.keys,
        scd_type=stored_as_scd_type,
        sequence_by=sql_of(sequence_by) if sequence_name is None else sequence_name,
        sequence_column=model.sequence,
        source_tables=None if source_tables is None else tuple(sorted(source_tables)),
        source_columns=None if source_columns is None else tuple(sorted(source_columns)),
        column_sequences=COLUMN_SEQUENCES if unchanged_columns else None,
    )
    prepared = spec.prepare(changes)
    shape = TableShape(prepared.sparkSession, writer, spec, model, feed, schema_evolution, partition_by)
    with closing(BatchApplier(shape, model, prepared, tombstone_retention, txn, write_options)) as applier:
        return applier.run()
