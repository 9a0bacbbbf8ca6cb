"""``apply_cells``: merge HBase cells into a Delta table, so that its rows have the values that an HBase reader sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import timedelta
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import Hold
from writer_jobs.commit.options import WriteOptions, options_of_next_write
from writer_jobs.feeds.dead_letters import DeadLetterLimit, write_dead_letters
from writer_jobs.feeds.hbase.cells import CellRows
from writer_jobs.feeds.hbase.decode import FILTERED, MESSAGE, ORIGIN, REASON, decode_cells
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.merge.apply import RETENTION
from writer_jobs.merge.batch_applier import BatchApplier
from writer_jobs.merge.change_spec import SEQ, ChangeSpec
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.table_feed import TableFeed
from writer_jobs.merge.table_shape import TableShape
from writer_jobs.writer import LockedDeltaWriter


def apply_cells(
    writer: LockedDeltaWriter,
    cells: DataFrame,
    mapping: HBaseMapping,
    *,
    partition_by: Sequence[str] = (),
    max_dead_letters: DeadLetterLimit | None = None,
    retention: timedelta = RETENTION,
    txn: tuple[str, int] | None = None,
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    before_write: Callable[[Hold], None] | None = None,
) -> ChangesResult:
    """Apply a batch of cells to a table. Each row of the table then has the values that an HBase reader sees.

    ::

        mapping = HBaseMapping.parsed('{"row_key": [{"column": "id", "type": "string"}]}')
        apply_cells(writer, spark.read.parquet("s3a://landing/cells"), mapping)

    The rules are those of :mod:`writer_jobs.feeds.hbase.cells`. The result does not depend on the order of the cells,
    on their division into batches, or on repetitions. All cells are stored in ``<location>_cells``, which is locked
    with the table and committed before it, as tombstones are; see :func:`writer_jobs.apply_changes`. Cells that cannot
    be decoded are written to ``<location>_dead_letters`` and counted.

    Args:
        writer: Writer of the table. The table is created if its location is empty. Do not add columns of your own: in
            the rows that a batch touches they become null.
        cells: Cells, as :func:`writer_jobs.feeds.hbase.decode.decode_cells` takes them.
        mapping: Mapping of the row key and of values. All feeds of a table use one mapping.
        partition_by: Partition columns of a new table; columns of the row key.
        max_dead_letters: Maximum number of dead letters of a batch; a batch with more is refused. None: no limit.
        retention: How long maintenance keeps deletes and replaced versions after they were applied. A Put whose delete
            was removed becomes visible if it arrives again or late. A delete of the newest version uncovers no older
            version that was removed.
        txn: Id and version of the batch's transaction. With it, the batch and its dead letters are applied once.
        lock_timeout_seconds: Seconds to wait for the lock; None for the lock manager's default.
        metadata: Metadata of the commits.
        before_write: Called under the lock, before the write.

    Raises:
        ChangesError: Two cells have one timestamp, different values and no order; two HBase columns map to one column
            of the table; the table has another feed; or too many cells cannot be decoded.
        SourceError: The cells lack a column.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    spec = ChangeSpec(table=writer.table, keys=mapping.keys, sequence_by=SEQ)
    options = WriteOptions(lock_timeout_seconds=lock_timeout_seconds, metadata=metadata, before_write=before_write)
    feed = TableFeed(
        model="cells",
        keys=mapping.keys,
        source_tables=mapping.tables or None,
        single_version_families=mapping.single_version_families or None,
    )
    model = CellRows(spec, mapping)
    shape = TableShape(cells.sparkSession, writer, spec, model, feed, evolves=True, partition_by=partition_by)
    if (state := writer.log.state()) is not None:
        shape.binding.refuse_other(state)
    with ExitStack() as resources:
        # The cells are read once: a later read of a topic can return more.
        partitions = partition_by if state is None else state.partition_columns
        decoded_cells = decode_cells(cells, mapping, partitions)
        rows = resources.enter_context(closing(MaterializedRows.of(spec.table, decoded_cells, "cells"))).rows
        counts = rows.agg(
            F.count_if(~F.col(FILTERED)).alias("cells"),
            F.count_if(FILTERED).alias("filtered"),
            F.count(REASON).alias("dead"),
            F.mode(REASON).alias("reason"),
        )
        cell_count, filtered, dead_count, dead_reason = counts.collect()[0]
        if max_dead_letters is not None:
            max_dead_letters.check(writer.table, dead_count, cell_count, dead_reason)
        decoded_rows = rows.where(F.col(REASON).isNull() & ~F.col(FILTERED)).drop(REASON, ORIGIN, MESSAGE, FILTERED)
        applier = resources.enter_context(closing(BatchApplier(shape, model, decoded_rows, retention, txn, options)))
        dead_letters = rows.where(F.col(REASON).isNotNull()).select(
            F.lit(None).cast("binary").alias("key"),
            F.col(MESSAGE).alias("value"),
            F.col(ORIGIN).alias("origin"),
            F.col(REASON).alias("reason"),
        )
        result, newest = applier.run(), applier.batch.newest
        if dead_count:
            write_dead_letters(writer, dead_letters, txn, options_of_next_write(options, writer.manager, result.commit))
        return replace(
            result,
            dead_letters=dead_count,
            dead_reason=dead_reason,
            filtered=filtered,
            newest_at=None if newest is None else newest / 1000,
        )
