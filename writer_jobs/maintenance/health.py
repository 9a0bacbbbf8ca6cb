"""The health of a table's storage: figures of the table, its partitions, its log and its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

#: Upper bounds of the classes in a histogram of file sizes, in bytes; the last class has no upper bound.
SIZE_BOUNDS = tuple(1 << power for power in (14, 16, 18, 20, 22, 24, 26, 27, 28, 30))
#: Length of a day, in seconds.
DAY_SECONDS = 86_400


@dataclass(frozen=True)
class FileTotals:
    """Number of some files, and their total size in bytes."""

    files: int = 0
    size: int = 0

    def __add__(self, other: FileTotals) -> FileTotals:
        return FileTotals(self.files + other.files, self.size + other.size)


@dataclass(frozen=True, kw_only=True)
class PartitionHealth:
    """The data files of one partition; for a table without partitions, all data files.

    Attributes:
        values: Values of the partition columns, as Delta writes them; None: null.
        small: Files below half of the target size.
        rows: Rows that a reader sees, by the files' statistics; None: a file has no statistics.
        stored_rows: Rows in the files that have statistics, including deleted rows.
        deleted_rows: Rows that are marked as deleted and still stored. A file with such rows has statistics.
        with_deleted_rows: Files with deleted rows.
        unordered: Files that were added after the last Z-order; empty if the policy sets no Z-order.
        unclustered: Files that Delta has not clustered yet, if the table has clustering columns.
        histogram: Number of files by size, see :data:`SIZE_BOUNDS`.

    """

    values: Mapping[str, str | None]
    total: FileTotals
    small: FileTotals = FileTotals()
    rows: int | None = None
    stored_rows: int = 0
    deleted_rows: int = 0
    with_deleted_rows: FileTotals = FileTotals()
    unordered: FileTotals = FileTotals()
    unclustered: FileTotals = FileTotals()
    histogram: tuple[int, ...] = (0,) * (len(SIZE_BOUNDS) + 1)

    @property
    def name(self) -> str:
        """Name for display; empty for a table without partitions."""
        return partition_name(self.values)

    @property
    def deleted_share(self) -> float:
        """Deleted share of the rows in files with statistics."""
        return share(self.deleted_rows, self.stored_rows)

    def files_saved(self, target: int) -> int:
        """Return the number of files that compaction of the small files saves, given its target size in bytes."""
        return max(0, self.small.files - max(1, -(-self.small.size // target)))


@dataclass(frozen=True, kw_only=True)
class LogHealth:
    """The folder ``_delta_log``.

    Attributes:
        first_version: Oldest version in the log.
        checkpoint_version: Version of the newest checkpoint; None: there is no checkpoint.
        checkpointed_at: Time at which that checkpoint was written.
        since_checkpoint: Number of versions after it. Each reader of the table reads every one of them.
        checkpoint_interval: Number of versions after which Delta writes the next checkpoint.
        expired_versions: Number of versions that clean-up may remove now.
        retention_seconds: Retention of versions in the log, in seconds.
        writers_clean: Whether the checkpoint of any writer also cleans up (``delta.enableExpiredLogCleanup``).
        transactions: Number of applications (``txnAppId``) whose last transaction is in the table.
        recent_transactions: Number of these whose last transaction was made in the last week.
        drops_transactions: Whether Delta drops old transactions (``delta.setTransactionRetentionDuration``).

    """

    total: FileTotals
    first_version: int
    versions: int
    checkpoint_version: int | None
    checkpointed_at: datetime | None
    since_checkpoint: int
    checkpoint_interval: int
    expired_versions: int
    retention_seconds: float
    writers_clean: bool
    transactions: int = 0
    recent_transactions: int = 0
    drops_transactions: bool = False


@dataclass(frozen=True, kw_only=True)
class FolderHealth:
    """The files below a table's location that are not in its newest version.

    Attributes:
        removed: Files that a commit removed and that retention keeps for readers of older versions.
        expired: Files that a commit removed, or that are older than the log, and that nothing keeps. VACUUM deletes
            them.
        kept_for_pins: Removable files that a pin needs.
        kept_for_streams: Removable files that a stream still needs and no pin.
        uncommitted: Young files that no version names. A running write may still commit them.
        orphans: Files that no version names and that are older than any running write.
        retention_seconds: Retention of removed files, in seconds.
        problem: Reason why the files that pins and streams need are unknown; None: they are known. With a problem no
            file may be removed, and expired files and orphans include those that a pin or a stream may need.

    """

    removed: FileTotals = FileTotals()
    expired: FileTotals = FileTotals()
    kept_for_pins: FileTotals = FileTotals()
    kept_for_streams: FileTotals = FileTotals()
    uncommitted: FileTotals = FileTotals()
    orphans: FileTotals = FileTotals()
    retention_seconds: float = 0.0
    problem: str | None = None


@dataclass(frozen=True, kw_only=True)
class TableHealth:
    """A table at one version.

    Attributes:
        table: Canonical URI.
        table_id: Delta's table id. A table that is recreated at the same location gets a new one.
        partition_columns: Partition columns, in partition order.
        clustering_columns: Columns of the table's clustering; empty: the table has no clustering.
        zorder_by: Columns of the policy's Z-order.
        order_problem: Reason why the policy's Z-order is not possible; None: it is, or the policy sets none.
        target_file_size: Size of a data file after compaction, in bytes.
        partitions: Partitions that have files.
        growth_per_day: Growth of the table in bytes per day, over the last week or as far as the log goes back; None:
            the log does not go back one hour.
        commits_per_day: Versions per day, over the same time.
        pins: Names of the pins that have not expired.
        next_pin_expiry: When the first of these pins expires; None without pins.
        remembered_rows: Rows of a side table; 0 for any other table.
        expired_rows: Rows of a side table that no feed needs any more.

    """

    table: str
    table_id: str
    version: int
    committed_at: datetime
    measured_at: datetime
    measuring_seconds: float
    partition_columns: tuple[str, ...]
    clustering_columns: tuple[str, ...] = ()
    zorder_by: tuple[str, ...] = ()
    order_problem: str | None = None
    target_file_size: int
    partitions: tuple[PartitionHealth, ...]
    log: LogHealth
    folder: FolderHealth
    growth_per_day: float | None = None
    commits_per_day: float | None = None
    pins: tuple[str, ...] = ()
    next_pin_expiry: datetime | None = None
    remembered_rows: int = 0
    expired_rows: int = 0

    @cached_property
    def total(self) -> PartitionHealth:
        """Sum of all partitions."""
        parts = self.partitions
        rows = [part.rows for part in parts]
        return PartitionHealth(
            values={},
            total=sum_totals(part.total for part in parts),
            small=sum_totals(part.small for part in parts),
            rows=None if None in rows else sum(part.rows or 0 for part in parts),
            stored_rows=sum(part.stored_rows for part in parts),
            deleted_rows=sum(part.deleted_rows for part in parts),
            with_deleted_rows=sum_totals(part.with_deleted_rows for part in parts),
            unordered=sum_totals(part.unordered for part in parts),
            unclustered=sum_totals(part.unclustered for part in parts),
            histogram=tuple(map(sum, zip(*(part.histogram for part in parts), strict=True)))
            or PartitionHealth.histogram,
        )

    @property
    def small_share(self) -> float:
        """Share of the small files among the data files."""
        return share(self.total.small.files, self.total.total.files)

    def to_json(self) -> dict[str, Any]:
        """Return the health as JSON values: sizes in bytes, times in ISO 8601."""
        document = _to_json(self)
        for part, part_document in zip(self.partitions, document["partitions"], strict=True):
            part_document["name"], part_document["deleted_share"] = part.name, part.deleted_share
        total = _to_json(self.total)
        del total["values"]
        return {
            **document,
            "size_bounds": list(SIZE_BOUNDS),
            "total": {**total, "small_share": self.small_share, "deleted_share": self.total.deleted_share},
        }


def partition_name(values: Mapping[str, str | None]) -> str:
    """Return the name of a partition for display, such as ``year=2013/month=1``."""
    return "/".join(f"{name}={'null' if value is None else value}" for name, value in values.items())


def share(part: float, total: float) -> float:
    """Return the share of a part in a total; 0 if the total is 0."""
    return part / total if total else 0.0


def sum_totals(totals: Iterable[FileTotals]) -> FileTotals:
    """Return the sum of some totals."""
    return sum(totals, FileTotals())


def _to_json(health: TableHealth | PartitionHealth) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(asdict(health), default=datetime.isoformat))
    return document
