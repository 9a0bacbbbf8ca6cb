"""``apply_changes``: merge changes of another store into a table, whatever is repeated, late or mixed up."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from typing import Any

from pyspark.sql import Column, DataFrame

from lock_manager import Hold
from writer_jobs.commit.locked_operation import WriteOptions
from writer_jobs.merge.batch_applier import Application, How
from writer_jobs.merge.change_spec import ChangeSpec, sql_of
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.scd1 import NewestRows
from writer_jobs.merge.scd2 import RowHistory
from writer_jobs.merge.table_feed import FeedBinding, TableFeed
from writer_jobs.writer import LockedDeltaWriter

#: How long what is remembered of changes is kept, unless another time is given.
RETENTION = timedelta(days=7)
_TYPES: dict[int, type[NewestRows | RowHistory]] = {1: NewestRows, 2: RowHistory}


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
    tombstone_retention: timedelta = RETENTION,
    sequence_name: str | None = None,
    source_tables: Collection[str] | None = None,
    source_columns: Collection[str] | None = None,
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

    The first batch binds the table to its keys, sequence and SCD type by the table property ``sluice.feed``; see
    :mod:`writer_jobs.merge.table_feed`.

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
            ``struct("committed_at", "position")``. A text column is refused, an expression of one is not. If the table
            gets a column of that name, that is a row's sequence; else the table has it in ``__SEQUENCE``.
        apply_as_deletes: SQL or a column: which changes delete their row. Null is no.
        column_list: columns that the table gets; by default all.
        except_column_list: columns that it does not get.
        stored_as_scd_type: 1: the newest row of each key. 2: every row that a key had, valid from ``__START_AT`` up to,
            and without, ``__END_AT``, which is null in the current one; both are sequences.
        schema_evolution: add columns that the table lacks, and widen its types to those of the changes, but not of
            keys and sequences. Else such changes are refused.
        partition_by: partition columns of a new table.
        tombstone_retention: how long a delete is remembered; if several feeds of a table differ, the longest time.
        sequence_name: Text that names the order in ``sluice.feed``; by default the SQL of ``sequence_by``.
        source_tables: Tables of the other store whose changes the table gets, for ``sluice.feed``. A batch of changes
            of other source tables than the table's is refused. None: they are not known.
        source_columns: Columns of the changes at their source, for ``sluice.feed``; see
            :func:`~writer_jobs.merge.table_feed.recorded_columns`.
        txn: ``(txnAppId, txnVersion)``: if the table has this one already, or a later one, nothing is done.
        lock_timeout_seconds: total; by default the manager's.
        metadata: more to note in the commit; JSON values.
        before_write: called under the lock.

    Raises:
        ValueError: arguments that contradict each other.
        ChangesError: the changes lack a column, or cannot be ordered; the message names the keys. Or the table is fed
            in another way.
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
    ).of_changes(changes)
    options = WriteOptions(lock_timeout_seconds=lock_timeout_seconds, metadata=metadata, before_write=before_write)
    if stored_as_scd_type not in _TYPES:
        raise ValueError(f"stored_as_scd_type={stored_as_scd_type!r}: choose 1 (the newest rows) or 2 (with history)")
    how = How(
        evolves=schema_evolution,
        partition_by=tuple(partition_by),
        retention_days=tombstone_retention / timedelta(days=1),
        txn=txn,
    )
    kind = _TYPES[stored_as_scd_type](spec, spec.columns(changes))
    feed = TableFeed(
        model="changes",
        keys=spec.keys,
        scd_type=stored_as_scd_type,
        sequence_by=sql_of(sequence_by) if sequence_name is None else sequence_name,
        sequence_column=kind.sequence,
        source_tables=None if source_tables is None else tuple(sorted(source_tables)),
        source_columns=None if source_columns is None else tuple(sorted(source_columns)),
    )
    binding = FeedBinding(changes.sparkSession, writer.table, feed)
    with closing(Application(writer, spec, kind, binding, spec.prepared(changes), how, options)) as application:
        return application.run()
