"""The health of a table's log, and the growth of the table over the last week."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.logged_files import LoggedFiles
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import TableError
from writer_jobs.maintenance.health import DAY_SECONDS, FileTotals, LogHealth

_WEEK = timedelta(days=7)
_HOUR = timedelta(hours=1)
_CHECKPOINT_FILE = r"^(\d{20})\.checkpoint\..*(parquet|json)$"
_MS = 1000


class LogMeasurement:
    """Computes the health of a table's log and the table's growth.

    Args:
        snapshot: Newest version of the table.
        logged_files: Log of the table, listed after the snapshot was loaded.
        pointed_checkpoint: Version in Delta's pointer to the newest checkpoint; None if there is no pointer.
        clean_up_retention_seconds: Retention of versions, in seconds; see :func:`.log_retention_seconds`.

    """

    def __init__(
        self,
        snapshot: Snapshot,
        logged_files: LoggedFiles,
        pointed_checkpoint: int | None,
        clean_up_retention_seconds: float,
    ) -> None:
        self._snapshot = snapshot
        self._pointed_checkpoint = pointed_checkpoint
        self._files = logged_files.log_files.withColumn("checkpoint", _checkpoint_version())
        self._now = datetime.now(UTC)
        is_old = F.col("modified_ms") <= int((self._now - _WEEK).timestamp() * _MS)
        # The cutoff of Delta's clean-up is the last midnight (UTC) before now minus the retention. With an infinite
        # retention nothing expires.
        cutoff = self._now.timestamp() - clean_up_retention_seconds
        midnight = None if math.isinf(cutoff) else int(cutoff // DAY_SECONDS * DAY_SECONDS)
        is_young = F.expr("true") if midnight is None else F.col("modified_ms") > midnight * _MS
        version_time = F.struct("version", "modified_ms")
        # Not the newest listed checkpoint: a checkpoint in several parts may be incomplete.
        self._newest_checkpoint = snapshot.checkpoint_version
        is_newest_checkpoint = F.col("checkpoint") == F.lit(self._newest_checkpoint)
        figures = self._files.agg(
            F.count("*").alias("files"),
            F.coalesce(F.sum("length"), F.lit(0)).alias("size"),
            F.count("version").alias("versions"),
            F.min(F.when(F.col("version").isNotNull(), version_time)).alias("first"),
            F.max(F.when(F.col("version").isNotNull() & is_old, version_time)).alias("week_ago"),
            F.min(F.when(is_young, F.col("version"))).alias("oldest_young"),
            F.max(F.when(is_newest_checkpoint, F.col("modified_ms"))).alias("checkpointed_ms"),
        )
        self._figures = figures.collect()[0]
        first = self._figures["first"]
        self._first_version = snapshot.version if first is None else first["version"]

    @property
    def health(self) -> LogHealth:
        """Health of the log."""
        figures, checkpointed_ms = self._figures, self._figures["checkpointed_ms"]
        transactions, recent_transactions = self._count_transactions()
        return LogHealth(
            total=FileTotals(figures["files"], figures["size"]),
            first_version=self._first_version,
            versions=figures["versions"],
            checkpoint_version=self._newest_checkpoint,
            checkpointed_at=None if checkpointed_ms is None else datetime.fromtimestamp(checkpointed_ms / _MS, UTC),
            since_checkpoint=max(0, self._snapshot.version - (self._newest_checkpoint or 0)),
            checkpoint_interval=self._snapshot.checkpoint_interval,
            expired_versions=self._count_expired(),
            retention_seconds=self._snapshot.log_retention_seconds,
            writers_clean=self._snapshot.cleans_log,
            transactions=transactions,
            recent_transactions=recent_transactions,
            drops_transactions=not math.isinf(self._snapshot.transaction_retention_seconds),
        )

    def _count_transactions(self) -> tuple[int, int]:
        """Return the number of transactions in the table, and the number of those that are younger than a week."""
        week_ago_ms = int((self._now - _WEEK).timestamp() * _MS)
        is_recent = F.col("lastUpdated") > week_ago_ms
        counts = self._snapshot.transactions.agg(F.count("*"), F.count_if(is_recent)).collect()[0]
        return int(counts[0]), int(counts[1])

    def _count_expired(self) -> int:
        """Return the number of versions that Delta's clean-up would remove now."""
        if self._pointed_checkpoint is None:
            return 0
        # Clean-up removes the versions before the newest checkpoint at or below both the oldest young version and the
        # pointer.
        oldest_young = self._figures["oldest_young"]
        limit = min(self._snapshot.version if oldest_young is None else oldest_young, self._pointed_checkpoint)
        if limit <= self._first_version:
            return 0
        (oldest_kept,) = self._files.where(F.col("checkpoint") <= limit).agg(F.max("checkpoint")).collect()[0]
        if self._pointed_checkpoint == limit:
            oldest_kept = limit
        return 0 if oldest_kept is None else self._files.where(F.col("version") < oldest_kept).count()

    def daily_rates(self, log: DeltaTableLog) -> tuple[float | None, float | None]:
        """Return the growth in bytes and the number of commits, both per day of the last week; None: unknown."""
        start = self._figures["week_ago"] or self._figures["first"]
        if start is None:
            return None, None
        start_version, start_ms = start
        # The newest version of a week ago may be much older than a week.
        seconds = min(self._now.timestamp() - start_ms / _MS, _WEEK.total_seconds())
        if seconds < _HOUR.total_seconds():
            return None, None
        days = seconds / DAY_SECONDS
        commits = (self._snapshot.version - start_version) / days
        try:
            return (self._snapshot.size - log.snapshot_at(start_version).size) / days, commits
        except TableError:
            # The checkpoint of that version is gone.
            return None, commits


def _checkpoint_version() -> Column:
    """Return the version of the checkpoint to which a file of the log belongs; null for another file."""
    return F.nullif(F.regexp_extract("name", _CHECKPOINT_FILE, 1), F.lit("")).cast("long")
