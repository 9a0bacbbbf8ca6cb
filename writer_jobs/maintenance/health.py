"""How healthy a table's storage is: figures of the table, of each partition, of its log and of its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

#: Upper bounds of the classes in a histogram of file sizes, in bytes; the last class has no bound.
SIZE_BOUNDS = tuple(1 << power for power in (14, 16, 18, 20, 22, 24, 26, 27, 28, 30))


@dataclass(frozen=True)
class FileTotals:
    """Some files.

    Attributes:
        files: how many.
        size: of all together, in bytes.

    """

    files: int = 0
    size: int = 0

    def __add__(self, other: FileTotals) -> FileTotals:
        return FileTotals(self.files + other.files, self.size + other.size)


@dataclass(frozen=True, kw_only=True)
class PartitionHealth:
    """The data files of one partition; of a table without partitions, all of them.

    Attributes:
        values: of its partition columns, as Delta writes them; None: null.
        total: all files.
        small: those below half of the target size.
        rows: that can be read, as far as statistics tell; None: not every file has them.
        stored_rows: that are in the files that have statistics, the deleted ones too.
        deleted_rows: that are still in the files, and marked as deleted. A file that has some has statistics.
        with_deleted_rows: files that have such rows.
        unordered: files that came after the rows were put in Z-order the last time; empty if they need no order.
        unclustered: files that Delta has not clustered yet, of a table with clustering columns.
        histogram: number of files by size, see :data:`SIZE_BOUNDS`.

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
        """``year=2013/month=1``, for people; empty for a table without partitions."""
        return "/".join(f"{name}={'null' if value is None else value}" for name, value in self.values.items())

    @property
    def deleted_share(self) -> float:
        """Share of the rows in the files that is deleted; files without statistics do not count."""
        return share(self.deleted_rows, self.stored_rows)

    def files_saved(self, target: int) -> int:
        """Return how many files fewer there are when the small ones are put together.

        Args:
            target: size of a file then, in bytes.

        """
        return max(0, self.small.files - max(1, -(-self.small.size // target)))


@dataclass(frozen=True, kw_only=True)
class LogHealth:
    """The folder ``_delta_log``.

    Attributes:
        total: all files in it.
        first_version: the oldest that is still there.
        versions: how many are.
        checkpoint_version: the newest checkpoint; None: there is none.
        checkpointed_at: when it was written.
        since_checkpoint: versions after it: whoever reads the table reads each.
        checkpoint_interval: after so many Delta writes the next.
        expired_versions: versions that clean-up may remove now.
        retention_seconds: for how long versions are kept.
        writers_clean: whether any writer's checkpoint cleans up, too (``delta.enableExpiredLogCleanup``).

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


@dataclass(frozen=True, kw_only=True)
class FolderHealth:
    """The files below a table's location that are not of its newest version.

    Attributes:
        removed: that the table has lost, and that retention keeps for readers of older versions.
        expired: that the table has lost, or that are older than its log, and that nothing keeps: VACUUM takes them.
        kept_for_pins: that VACUUM would take, were it not for pins.
        kept_for_streams: that it would take, were it not for streams that have not read them yet.
        uncommitted: that no version has named, and that may be of a write on its way: they are young.
        orphans: that no version has named, and that are older than any write on its way.
        retention_seconds: for how long removed files are kept.
        problem: why it is not known what pins and streams keep: nothing may be removed, and expired files and orphans
            are counted as if nothing kept them; None: it is known.

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
        table: canonical URI.
        table_id: of the table, which another one at the same place has not.
        version: the newest, when it was looked at.
        committed_at: when that was committed.
        measured_at: when it was looked at.
        measuring_seconds: how long that took.
        partition_columns: in partition order.
        clustering_columns: by which Delta clusters; empty: it does not.
        zorder_by: by which the table's policy wants Z-order.
        order_problem: why its policy's columns are not followed; None: they are, or there are none.
        target_file_size: bytes that a file is to have.
        partitions: each one that has files.
        log: its log.
        folder: its other files.
        growth_per_day: bytes that its newest version has more than that of a week ago, by day; None: the log does not
            go back as far as an hour.
        commits_per_day: versions by day, over the same time.
        pins: names of those that hold.
        remembered_rows: rows of a side table; 0 of any other table.
        expired_rows: those of them that no feed needs any more.

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
    remembered_rows: int = 0
    expired_rows: int = 0

    @cached_property
    def total(self) -> PartitionHealth:
        """All partitions together."""
        each = self.partitions
        rows = [part.rows for part in each]
        return PartitionHealth(
            values={},
            total=_sum(part.total for part in each),
            small=_sum(part.small for part in each),
            rows=None if None in rows else sum(part.rows or 0 for part in each),
            stored_rows=sum(part.stored_rows for part in each),
            deleted_rows=sum(part.deleted_rows for part in each),
            with_deleted_rows=_sum(part.with_deleted_rows for part in each),
            unordered=_sum(part.unordered for part in each),
            unclustered=_sum(part.unclustered for part in each),
            histogram=tuple(map(sum, zip(*(part.histogram for part in each), strict=True)))
            or PartitionHealth(values={}, total=FileTotals()).histogram,
        )

    @property
    def small_share(self) -> float:
        """Share of the files that is small."""
        return share(self.total.small.files, self.total.total.files)

    @property
    def files_saved(self) -> int:
        """How many files fewer there are when the small ones are put together."""
        return sum(part.files_saved(self.target_file_size) for part in self.partitions)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values: sizes in bytes, times in ISO 8601."""
        said = _json(asdict(self))
        for part, made in zip(self.partitions, said["partitions"], strict=True):
            made["name"], made["deleted_share"] = part.name, part.deleted_share
        total = _json(asdict(self.total))
        del total["values"]
        return {
            **said,
            "size_bounds": list(SIZE_BOUNDS),
            "total": {**total, "small_share": self.small_share, "deleted_share": self.total.deleted_share},
        }


def share(part: float, whole: float) -> float:
    """Return a part of a whole; 0 of nothing."""
    return part / whole if whole else 0.0


def _sum(totals: Any) -> FileTotals:
    return sum(totals, FileTotals())


def _json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _json(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(each) for each in value]
    return value.isoformat() if isinstance(value, datetime) else value
