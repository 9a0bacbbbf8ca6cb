"""The rows of a side table (``_tombstones``, ``_cells``), and which of them maintenance may delete.

A feed appends to a side table with each batch, and holds the lock on it over both commits of the batch. So maintenance
rewrites the side table without the lock, and commits with it. Rows that a batch appends meanwhile stay. An expired row
stays expired when rows are appended: a cell that is hidden is hidden for good.
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
from writer_jobs.errors import WriteConflictError
from writer_jobs.feeds.hbase.cells import CELLS, without_expired
from writer_jobs.maintenance.policy import Policy
from writer_jobs.merge.batch_records import BatchRecords
from writer_jobs.merge.change_spec import SEQ, SEQUENCE
from writer_jobs.merge.side_table import APPLIED_AT, BATCH

_DAY_SECONDS = 86_400
_KEPT = "__sluice_kept"


@dataclass(frozen=True, kw_only=True)
class SideRows:
    """Which rows of a side table are kept.

    Attributes:
        keys: Key columns.
        of_cells: Whether the rows are cells of HBase; else they are tombstones.
        retention_seconds: Rows that are older than this may expire.

    """

    keys: tuple[str, ...]
    of_cells: bool
    retention_seconds: float

    @classmethod
    def of(cls, state: TableState, policy: Policy) -> SideRows | None:
        """Return the rows of a side table; None if the table is none, or no feed has set how long it remembers."""
        names = set(state.schema.names)
        internal = {SEQUENCE, BATCH, APPLIED_AT}
        if policy.forget_after_days is None or not internal <= names:
            return None
        fields = {field.name for field in CELLS.fields}
        of_cells = fields <= names
        keys = [name for name in state.schema.names if name not in (internal | fields if of_cells else internal)]
        return cls(keys=tuple(keys), of_cells=of_cells, retention_seconds=policy.forget_after_days * _DAY_SECONDS)

    def kept(self, rows: DataFrame) -> DataFrame:
        """Return the rows that are needed, each once, in the table's columns."""
        names = [name for name in rows.columns if name not in (BATCH, APPLIED_AT)]
        columns = [SEQ if name == SEQUENCE else name for name in names]
        once = (
            rows.withColumnRenamed(SEQUENCE, SEQ)
            .groupBy(*map(quoted, columns))
            .agg(F.max_by(F.struct(BATCH, APPLIED_AT), APPLIED_AT).alias(_KEPT))
            .select(*map(quoted, columns), f"{_KEPT}.*")
        )
        old = F.col(APPLIED_AT) < F.timestamp_seconds(F.lit(time.time() - self.retention_seconds))
        needed = without_expired(once, self.keys, old) if self.of_cells else once.where(~old)
        return needed.withColumnRenamed(SEQ, SEQUENCE).select(*map(quoted, rows.columns))


def refuse_unfinished_batches(spark: SparkSession, location: str) -> None:
    """Make sure that each batch in a side table has come to its end. To be called under the lock on it.

    Of a batch that was killed between its two commits the next batch deletes the rows again, by the batch's id. Two
    batches may have the same row, and only one id is kept.

    Args:
        spark: The session.
        location: Location of the side table.

    Raises:
        WriteConflictError: A batch was killed, and is not undone yet.
        StorageError: The notes of batches cannot be read.

    """
    for suffix in SIDE_TABLE_SUFFIXES:
        if location.endswith(suffix) and BatchRecords(HadoopFiles.of(spark), location.removesuffix(suffix)).all():
            reason = "a batch of changes was killed before it was applied; the next batch of the table undoes it"
            raise WriteConflictError(table=location, reason=reason)


def side_tables_of(spark: SparkSession, locations: Sequence[str]) -> list[str]:
    """Return the locations of the side tables that tables have."""
    files = HadoopFiles.of(spark)
    places = [f"{location.rstrip('/')}{suffix}" for location in locations for suffix in SIDE_TABLE_SUFFIXES]
    return [place for place in places if files.status(f"{place}/_delta_log") is not None]
