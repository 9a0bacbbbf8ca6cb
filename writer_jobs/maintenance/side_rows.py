"""The rows of a side table (``_tombstones``, ``_cells``), and the rule that decides which of them maintenance deletes.

A feed appends to a side table with each batch, and holds the lock on it over both commits of the batch. Maintenance
rewrites the side table without the lock and holds the lock for its own commit only, so that feeds do not wait. Rows
that a batch appends meanwhile stay. A cell that a delete hides stays hidden when rows are appended.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.side_locations import SIDE_TABLE_SUFFIXES
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import LOG_FOLDER
from writer_jobs.errors import WriteConflictError
from writer_jobs.feeds.hbase.cells import CELLS, without_expired
from writer_jobs.maintenance.health import DAY_SECONDS
from writer_jobs.maintenance.policy import Policy
from writer_jobs.merge.batch_records import BatchRecords
from writer_jobs.merge.change_spec import SEQ, SEQUENCE
from writer_jobs.merge.side_table import APPLIED_AT, BATCH

_NEWEST_BATCH = "__sluice_newest_batch"


@dataclass(frozen=True, kw_only=True)
class SideTableRetention:
    """The rule that decides which rows of a side table expire: HBase cells (``has_cells``) or tombstones.

    ``single_version_families`` are HBase families whose older versions expire at once.
    """

    keys: tuple[str, ...]
    has_cells: bool
    retention_seconds: float
    single_version_families: tuple[str, ...]

    @classmethod
    def of(cls, state: TableState, policy: Policy) -> SideTableRetention | None:
        """Return the rule for a table; None if it is not a side table or no feed has set its retention."""
        names = set(state.schema.names)
        internal_columns = {SEQUENCE, BATCH, APPLIED_AT}
        if policy.forget_after_days is None or not internal_columns <= names:
            return None
        cell_fields = {field.name for field in CELLS.fields}
        has_cells = cell_fields <= names
        other_columns = internal_columns | cell_fields if has_cells else internal_columns
        keys = tuple(name for name in state.schema.names if name not in other_columns)
        return cls(
            keys=keys,
            has_cells=has_cells,
            retention_seconds=policy.forget_after_days * DAY_SECONDS,
            single_version_families=policy.single_version_families,
        )

    def drop_expired(self, rows: DataFrame) -> DataFrame:
        """Return the rows that a feed still needs, each once, in the table's columns."""
        names = [name for name in rows.columns if name not in (BATCH, APPLIED_AT)]
        columns = [SEQ if name == SEQUENCE else name for name in names]
        unique_rows = (
            rows.withColumnRenamed(SEQUENCE, SEQ)
            .groupBy(*map(quoted, columns))
            .agg(F.max_by(F.struct(BATCH, APPLIED_AT), APPLIED_AT).alias(_NEWEST_BATCH))
            .select(*map(quoted, columns), f"{_NEWEST_BATCH}.*")
        )
        is_old = F.col(APPLIED_AT) < F.timestamp_seconds(F.lit(time.time() - self.retention_seconds))
        if self.has_cells:
            needed_rows = without_expired(unique_rows, self.keys, is_old, self.single_version_families)
        else:
            needed_rows = unique_rows.where(~is_old)
        return needed_rows.withColumnRenamed(SEQ, SEQUENCE).select(*map(quoted, rows.columns))


def refuse_unfinished_batches(spark: SparkSession, location: str) -> None:
    """Refuse a side table with an unfinished batch. The caller holds the lock on the side table.

    If a batch was killed between its two commits, the next batch deletes the rows of the killed batch, by its id. Two
    batches may have the same row, and :meth:`SideTableRetention.drop_expired` keeps only one of their ids.

    Raises:
        WriteConflictError: A batch was killed and is not undone yet.
        StorageError: The records of batches cannot be read.

    """
    for suffix in SIDE_TABLE_SUFFIXES:
        if location.endswith(suffix) and BatchRecords(HadoopFiles.of(spark), location.removesuffix(suffix)).all():
            reason = "a batch of changes was killed before it was applied; the next batch of the table undoes it"
            raise WriteConflictError(table=location, reason=reason)


def side_tables_of(spark: SparkSession, locations: Sequence[str]) -> list[str]:
    """Return the locations of the existing side tables of some tables."""
    files = HadoopFiles.of(spark)
    side_locations = [f"{location.rstrip('/')}{suffix}" for location in locations for suffix in SIDE_TABLE_SUFFIXES]
    return [location for location in side_locations if files.status(f"{location}/{LOG_FOLDER}") is not None]
