"""The health of a table's log, and the growth of the table over the last week."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.logged_files import LoggedFiles
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import TableError
from writer_jobs.maintenance.health import DAY_SECONDS, FileTotals, LogHealth

_WEEK = timedelta(days=7)
_HOUR = timedelta(hours=1)
_CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint\..*(parquet|json)")


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
        self._clean_up_retention_seconds = clean_up_retention_seconds
        self._now = datetime.now(UTC)
        log_files = logged_files.log_files
        self._total = FileTotals(len(log_files), sum(row["length"] for row in log_files))
        # Modification times, in seconds since the epoch, by version.
        self._version_times = {version: ms / 1000 for version, ms in logged_files.version_times.items()}
        self._checkpoint_times: dict[int, float] = {}
        for row in log_files:
            if (match := _CHECKPOINT_FILE.fullmatch(row["name"])) is not None:
                self._checkpoint_times[int(match[1])] = row["modified_ms"] / 1000

    @property
    def health(self) -> LogHealth:
        """Health of the log."""
        # Not the newest listed checkpoint: a checkpoint in several parts may be incomplete.
        newest_checkpoint = self._snapshot.checkpoint_version
        checkpoint_time = None if newest_checkpoint is None else self._checkpoint_times.get(newest_checkpoint)
        since_checkpoint = self._snapshot.version - (newest_checkpoint or 0)
        transactions, recent_transactions = self._count_transactions()
        return LogHealth(
            total=self._total,
            first_version=min(self._version_times, default=self._snapshot.version),
            versions=len(self._version_times),
            checkpoint_version=newest_checkpoint,
            checkpointed_at=None if checkpoint_time is None else datetime.fromtimestamp(checkpoint_time, UTC),
            since_checkpoint=max(0, since_checkpoint),
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
        week_ago_ms = int((self._now - _WEEK).timestamp() * 1000)
        is_recent = F.col("lastUpdated") > week_ago_ms
        counts = self._snapshot.transactions.agg(F.count("*"), F.count_if(is_recent)).collect()[0]
        return int(counts[0]), int(counts[1])

    def _count_expired(self) -> int:
        """Return the number of versions that Delta's clean-up would remove now."""
        if self._pointed_checkpoint is None:
            return 0
        # The cutoff of Delta's clean-up is the last midnight (UTC) before now minus the retention. With an
        # infinite retention nothing expires.
        cutoff = self._now.timestamp() - self._clean_up_retention_seconds
        midnight = cutoff if math.isinf(cutoff) else cutoff // DAY_SECONDS * DAY_SECONDS
        young_versions = (version for version, time in self._version_times.items() if time > midnight)
        oldest_young = min(young_versions, default=self._snapshot.version)
        # Clean-up removes the versions before the newest checkpoint at or below both the oldest young version and the
        # pointer.
        checkpoints = {*self._checkpoint_times, self._pointed_checkpoint}
        limit = min(oldest_young, self._pointed_checkpoint)
        oldest_kept = max((version for version in checkpoints if version <= limit), default=0)
        return sum(version < oldest_kept for version in self._version_times)

    def daily_rates(self, log: DeltaTableLog) -> tuple[float | None, float | None]:
        """Return the growth in bytes and the number of commits, both per day of the last week; None: unknown."""
        week_ago = (self._now - _WEEK).timestamp()
        first_logged = min(self._version_times, default=None)
        old_versions = (version for version, time in self._version_times.items() if time <= week_ago)
        start_version = max(old_versions, default=first_logged)
        if start_version is None:
            return None, None
        # The newest version of a week ago may be much older than a week.
        seconds = min(self._now.timestamp() - self._version_times[start_version], _WEEK.total_seconds())
        if seconds < _HOUR.total_seconds():
            return None, None
        days = seconds / DAY_SECONDS
        commits = (self._snapshot.version - start_version) / days
        try:
            return (self._snapshot.size - log.snapshot_at(start_version).size) / days, commits
        except TableError:
            # The checkpoint of that version is gone.
            return None, commits
