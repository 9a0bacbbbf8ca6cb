"""The findings about a table: each has a code, a message with figures, and the action that repairs it.

docs/maintenance.md describes each code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from writer_jobs.maintenance.health import DAY_SECONDS, FileTotals, PartitionHealth, TableHealth, share, sum_totals
from writer_jobs.maintenance.policy import Action, Policy

#: The present names of codes, by the names that earlier releases wrote to reports and metrics.
RENAMED_CODES: Mapping[str, str] = {
    "lost-keeper": "broken-retention",
    "lost-order": "invalid-zorder",
    "much-kept": "long-retention",
}
_KIB = 1024
# Threshold for "more than nothing".
_EPSILON = 1e-9
# Partitions whose average size is below this share of the target file size are too small.
_TINY_PARTITION = 1 / 8
_MANY_PARTITIONS = 100
# With 10,000 transactions, writes with a transaction become slower.
_MANY_TRANSACTIONS = 10_000
# A listing of this many files costs about as much as one file that a reader opens.
_LISTED_FILES_PER_OPENED_FILE = 100
# With Delta's own interval of checkpoints, writers leave out those that would follow the last one too soon, for about
# 110 versions (Checkpoints.java).
_DELTA_INTERVAL, _VERSIONS_WITHOUT_CHECKPOINT = 10, 120


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A property of a table's storage that costs its readers or its owner something.

    Attributes:
        code: Stable name; docs/maintenance.md describes it.
        message: Sentence with the figures.
        action: Action that repairs it; None: a person has to decide, see ``advice``.
        advice: Recommended repair, in one sentence.
        partitions: Values of the partitions concerned; empty: the finding is about the table.
        worth: Estimated savings of the repair, in files: files that a reader opens, plus bytes divided by the target
            file size. A file that is only listed counts a hundredth. Maintenance repairs by descending worth.

    """

    code: str
    message: str
    action: Action | None
    advice: str
    partitions: tuple[Mapping[str, str | None], ...] = ()
    worth: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "code": self.code,
            "says": self.message,
            "action": None if self.action is None else self.action.value,
            "advice": self.advice,
            "partitions": [dict(values) for values in self.partitions],
            "worth": round(self.worth, 1),
        }


@dataclass(frozen=True)
class _Evidence:
    """The part of a finding that a rule computes; see :class:`Finding`."""

    message: str
    worth: float = 0.0
    parts: tuple[PartitionHealth, ...] = ()


_Check = Callable[[TableHealth, Policy], _Evidence | None]
#: The rules, by the code of their finding: the finding's action and advice, and the check that computes the rest of it.
RULES: dict[str, tuple[Action | None, str, _Check]] = {}


def _rule(code: str, action: Action | None, advice: str) -> Callable[[_Check], _Check]:
    """Return a decorator that adds a check to the rules."""

    def add(check: _Check) -> _Check:
        RULES[code] = (action, advice, check)
        return check

    return add


def find(health: TableHealth, policy: Policy) -> list[Finding]:
    """Return the findings about a table, by descending worth."""
    findings = [
        Finding(
            code=code,
            message=evidence.message,
            action=action,
            advice=advice,
            partitions=tuple(part.values for part in evidence.parts if part.values),
            worth=evidence.worth,
        )
        for code, (action, advice, check) in RULES.items()
        if (evidence := check(health, policy)) is not None
    ]
    return sorted(findings, key=lambda finding: -finding.worth)


@_rule("small-files", Action.COMPACT, "compact the small files")
def _small_files(health: TableHealth, policy: Policy) -> _Evidence | None:
    if health.clustering_columns:
        # Clustering compacts the files of such a table.
        return None
    files_saved = {id(part): part.files_saved(policy.target_file_size) for part in health.partitions}
    parts = _worst(health, lambda part: files_saved[id(part)], policy.min_small_files)
    if not parts:
        return None
    small_total, saved_files = sum_totals(part.small for part in parts), sum(files_saved[id(part)] for part in parts)
    message = (
        f"{small_total.files:,} files of {size_text(small_total.size)} in total, in {_in_partitions(parts)}, are "
        f"smaller than {size_text(policy.small_file_size)}: readers open {saved_files:,} files more than necessary"
    )
    return _Evidence(message, saved_files, parts)


@_rule("unordered", Action.ZORDER, "put the rows in Z-order again, which rewrites these partitions")
def _unordered(health: TableHealth, policy: Policy) -> _Evidence | None:
    # Delta orders a clustered table by its clustering columns only.
    if not health.zorder_by or health.clustering_columns:
        return None
    parts = _worst(
        health,
        lambda part: share(part.unordered.size, part.total.size) if part.unordered.files > 1 else 0.0,
        max(policy.unordered_share, _EPSILON),
    )
    if not parts:
        return None
    size, columns = sum(part.unordered.size for part in parts), ", ".join(health.zorder_by)
    message = f"{size_text(size)} in {_in_partitions(parts)} are newer than the last Z-order by {columns}"
    return _Evidence(message, _in_files(size, policy), parts)


@_rule("invalid-zorder", None, "set the property to columns of the table, or unset it")
def _invalid_zorder(health: TableHealth, _: Policy) -> _Evidence | None:
    message = f"the Z-order in sluice.maintenance.zorderBy is not possible: {health.order_problem}"
    return _Evidence(message) if health.order_problem is not None else None


@_rule("unclustered", Action.CLUSTER, "have Delta cluster these files")
def _unclustered(health: TableHealth, policy: Policy) -> _Evidence | None:
    unclustered = health.total.unclustered
    is_large = share(unclustered.size, health.total.total.size) >= policy.unordered_share
    is_enough = is_large or unclustered.files > policy.min_small_files
    if not (health.clustering_columns and unclustered.files > 1 and is_enough):
        return None
    columns = ", ".join(health.clustering_columns)
    message = f"{unclustered.files:,} files of {size_text(unclustered.size)} are not clustered by {columns}"
    return _Evidence(message, unclustered.files - 1 + _in_files(unclustered.size, policy))


@_rule("deleted-rows", Action.PURGE, "rewrite these files without the deleted rows")
def _deleted_rows(health: TableHealth, policy: Policy) -> _Evidence | None:
    parts = _worst(
        health,
        lambda part: max(part.deleted_share, _EPSILON) if part.with_deleted_rows.files else 0.0,
        max(policy.deleted_share, _EPSILON),
    )
    if not parts:
        return None
    rows, files = sum(part.deleted_rows for part in parts), sum(part.with_deleted_rows.files for part in parts)
    deleted_bytes = sum(part.deleted_share * part.with_deleted_rows.size for part in parts)
    message = (
        f"{rows:,} deleted rows are still stored in {files:,} files of {_in_partitions(parts)}: each reader reads and "
        "skips them"
    )
    # Each reader opens two files instead of one: the data file and its deletion vector.
    return _Evidence(message, files + _in_files(deleted_bytes, policy), parts)


@_rule("expired-rows", Action.FORGET, "rewrite the table without the expired rows")
def _expired_rows(health: TableHealth, policy: Policy) -> _Evidence | None:
    expired_share = share(health.expired_rows, health.remembered_rows)
    if not health.expired_rows or expired_share < policy.expired_share:
        return None
    total = health.total.total
    message = (
        f"{health.expired_rows:,} of {health.remembered_rows:,} remembered rows are expired: each batch of changes "
        "reads them"
    )
    return _Evidence(message, _in_files(expired_share * total.size, policy) + expired_share * total.files)


@_rule("expired-files", Action.VACUUM, "vacuum the table")
def _expired_files(health: TableHealth, policy: Policy) -> _Evidence | None:
    return _removable(health, health.folder.expired, "belong to no version that can still be read", policy)


@_rule("orphans", Action.VACUUM, "vacuum the table")
def _orphans(health: TableHealth, policy: Policy) -> _Evidence | None:
    reason = "belong to no version and are older than any running write: their writers were killed or failed"
    return _removable(health, health.folder.orphans, reason, policy)


def _removable(health: TableHealth, files: FileTotals, reason: str, policy: Policy) -> _Evidence | None:
    if not files.files or health.folder.problem is not None:
        return None
    message = f"{files.files:,} files of {size_text(files.size)} {reason}"
    return _Evidence(message, _in_files(files.size, policy) + files.files / _LISTED_FILES_PER_OPENED_FILE)


@_rule("old-checkpoint", Action.CHECKPOINT, "write a checkpoint")
def _old_checkpoint(health: TableHealth, _: Policy) -> _Evidence | None:
    log = health.log
    has_delta_interval = log.checkpoint_interval == _DELTA_INTERVAL
    if log.since_checkpoint < (_VERSIONS_WITHOUT_CHECKPOINT if has_delta_interval else 2 * log.checkpoint_interval):
        return None
    since_text = "and no checkpoint" if log.checkpoint_version is None else "since the newest checkpoint"
    message = f"{log.since_checkpoint:,} versions {since_text}: each new reader reads every one of them"
    return _Evidence(message, log.since_checkpoint)


@_rule("long-log", Action.CLEAN_LOG, "clean up the log")
def _long_log(health: TableHealth, _: Policy) -> _Evidence | None:
    log = health.log
    if log.expired_versions < log.checkpoint_interval:
        return None
    days = log.retention_seconds / DAY_SECONDS
    message = f"{log.expired_versions:,} versions in the log are older than {days:.1f} days"
    return _Evidence(message, log.expired_versions / _LISTED_FILES_PER_OPENED_FILE)


@_rule("writers-clean-log", None, "set delta.enableExpiredLogCleanup=false, so that only maintain.py cleans up the log")
def _writers_clean_log(health: TableHealth, _: Policy) -> _Evidence | None:
    message = (
        "the checkpoint of any writer may delete old version files, and then a writer that was paused may create such "
        "a version again"
    )
    return _Evidence(message) if health.log.writers_clean else None


@_rule(
    "many-transactions",
    None,
    "set delta.setTransactionRetentionDuration to more than the time after which a run or a stream may be repeated",
)
def _many_transactions(health: TableHealth, _: Policy) -> _Evidence | None:
    log = health.log
    if log.drops_transactions or log.transactions < _MANY_TRANSACTIONS:
        return None
    return _Evidence(
        f"{log.transactions:,} applications have a transaction in the table, {log.recent_transactions:,} of them made "
        "in the last week: each checkpoint has all of them, and each write with a transaction reads them"
    )


@_rule(
    "long-retention",
    None,
    "lower delta.deletedFileRetentionDuration if no reader needs versions that old; pin versions to keep",
)
def _long_retention(health: TableHealth, policy: Policy) -> _Evidence | None:
    removed, live = health.folder.removed, health.total.total.size
    if removed.size <= max(live, policy.target_file_size):
        return None
    days = health.folder.retention_seconds / DAY_SECONDS
    return _Evidence(
        f"removed files, which are kept for {days:.1f} days, have {size_text(removed.size)}: more than the newest "
        f"version, {size_text(live)}"
    )


@_rule(
    "kept-for-streams",
    None,
    "find out why the stream is slow; if it has ended, remove it from sluice.maintenance.streams",
)
def _kept_for_streams(health: TableHealth, policy: Policy) -> _Evidence | None:
    files = health.folder.kept_for_streams
    if files.size <= policy.target_file_size:
        return None
    return _Evidence(f"{files.files:,} files of {size_text(files.size)} wait for streams that are far behind")


@_rule(
    "broken-retention",
    None,
    "repair the pin or the streaming checkpoint, or remove the pin or the stream's name from "
    "sluice.maintenance.streams; until then no file and no version is removed",
)
def _broken_retention(health: TableHealth, _: Policy) -> _Evidence | None:
    message = f"the files that pins and streams still need are unknown: {health.folder.problem}"
    return _Evidence(message) if health.folder.problem is not None else None


@_rule("tiny-partitions", None, "choose coarser partition columns, or clustering")
def _tiny_partitions(health: TableHealth, policy: Policy) -> _Evidence | None:
    number, size = len(health.partitions), health.total.total.size
    if number < _MANY_PARTITIONS or size / number >= policy.target_file_size * _TINY_PARTITION:
        return None
    return _Evidence(
        f"{number:,} partitions have {size_text(size / number)} on average: compaction cannot produce files of the "
        "target size"
    )


def size_text(size: float) -> str:
    """Return a number of bytes for display, such as ``1.5 MiB`` or, for a decrease, ``-1.5 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < _KIB:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:.1f} TiB"


def _worst(
    health: TableHealth, measure: Callable[[PartitionHealth], float], threshold: float
) -> tuple[PartitionHealth, ...]:
    """Return the partitions whose measure reaches a threshold, by descending measure."""
    parts = [part for part in health.partitions if measure(part) >= threshold]
    return tuple(sorted(parts, key=measure, reverse=True))


def _in_partitions(parts: tuple[PartitionHealth, ...]) -> str:
    if not parts[0].values:
        return "the table"
    return f"{len(parts):,} partitions" if len(parts) > 1 else f"partition {parts[0].name}"


def _in_files(size: float, policy: Policy) -> float:
    return size / policy.target_file_size
