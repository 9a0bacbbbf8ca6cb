"""``apply_cells``: merge cells of an HBase table into a Delta table, so that it has what HBase would show."""

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
from writer_jobs.feeds.hbase.decode import MESSAGE, ORIGIN, OTHER, REASON, decoded
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.merge.apply import RETENTION
from writer_jobs.merge.batch_applier import ApplyOptions, BatchApplier
from writer_jobs.merge.change_spec import SEQ, ChangeSpec
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.table_feed import FeedBinding, TableFeed
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
    """Apply a batch of cells to a table, so that each row has what HBase would show of it.

    ::

        mapping = HBaseMapping.parsed('{"row_key": [{"column": "id", "type": "string"}]}')
        apply_cells(writer, spark.read.parquet("s3a://landing/cells"), mapping)

    The rules are those of :mod:`writer_jobs.feeds.hbase.cells`. The result does not depend on the order in which cells
    come, on how they are cut into batches, or on how often each comes. Cells are remembered in ``<location>_cells``,
    which is locked with the table and committed before it, as tombstones are; see
    :func:`writer_jobs.apply_changes`. What cannot be decoded goes to ``<location>_dead_letters``, and is counted.

    Args:
        writer: of the table, which is made if there is nothing at its location. Its columns are the feed's.
        cells: see :func:`writer_jobs.feeds.hbase.decode.decoded`.
        mapping: of the row key and of values. All feeds of a table have the same one.
        partition_by: partition columns of a new table, of the row key's.
        max_dead_letters: A batch with more is refused.
        retention: how late a cell may come after a delete that hides it, or a delete after a newer version.
        txn: as for :func:`writer_jobs.apply_changes`; with it dead letters are written once, too.
        lock_timeout_seconds: likewise.
        metadata: likewise.
        before_write: likewise.

    Raises:
        ChangesError: two cells have one timestamp and different values, and it is not known which is newer; two columns
            of HBase would be one of the table. Or the table is fed in another way, or too many cells cannot be decoded.
        SourceError: the cells lack a column.
        SluiceError: see :meth:`LockedDeltaWriter.append`.

    """
    spec = ChangeSpec.of(writer.table, keys=mapping.keys, sequence_by=SEQ)
    options = WriteOptions(lock_timeout_seconds=lock_timeout_seconds, metadata=metadata, before_write=before_write)
    how = ApplyOptions(
        evolves=True,
        partition_by=tuple(partition_by),
        retention_days=retention / timedelta(days=1),
        txn=txn,
    )
    feed = TableFeed(model="cells", keys=spec.keys, source_tables=mapping.tables or None)
    binding = FeedBinding(cells.sparkSession, writer.table, feed)
    if (state := writer.log.state()) is not None:
        binding.refuse_other(state)
    with ExitStack() as open_ones:
        # Read once: a topic may have more the next time.
        partitions = partition_by if state is None else state.partition_columns
        decoded_cells = decoded(cells, mapping, partitions)
        found = open_ones.enter_context(closing(MaterializedRows.of(spec.table, decoded_cells, "cells"))).rows
        counts = found.agg(
            F.count_if(~F.col(OTHER)).alias("cells"),
            F.count_if(OTHER).alias("filtered"),
            F.count(REASON).alias("dead"),
            F.mode(REASON).alias("reason"),
        )
        cell_count, filtered, dead_count, dead_reason = counts.collect()[0]
        if max_dead_letters is not None:
            max_dead_letters.check(writer.table, dead_count, cell_count, dead_reason)
        good = found.where(F.col(REASON).isNull() & ~F.col(OTHER)).drop(REASON, ORIGIN, MESSAGE, OTHER)
        application = BatchApplier(writer, spec, CellRows(spec, mapping), binding, good, how, options)
        open_ones.enter_context(closing(application))
        dead = found.where(F.col(REASON).isNotNull()).select(
            F.lit(None).cast("binary").alias("key"),
            F.col(MESSAGE).alias("value"),
            F.col(ORIGIN).alias("origin"),
            F.col(REASON).alias("reason"),
        )
        result, newest = application.run(), application.batch.newest
        if dead_count:
            write_dead_letters(writer, dead, txn, options_of_next_write(options, writer.manager, result.commit))
        return replace(
            result,
            dead_letters=dead_count,
            dead_reason=dead_reason,
            filtered=filtered,
            newest_at=None if newest is None else newest / 1000,
        )
