"""What the figures of a table mean: findings, each with a code, what it says, and the action that mends it.

docs/maintenance.md describes each code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from writer_jobs.maintenance.health import FileTotals, PartitionHealth, TableHealth, share
from writer_jobs.maintenance.policy import Action, Policy

_KIB = 1024
_DAY = 86_400
# A partition with less than this share of one file's size, on average, is no partition for its table.
_TINY_PARTITION = 1 / 8
_MANY_PARTITIONS = 100


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something about a table that costs its readers or its owner something.

    Attributes:
        code: stable name; docs/maintenance.md describes it.
        says: the figures, in a sentence.
        action: what mends it; None: nothing that a job may decide, see ``advice``.
        advice: what to do, in a sentence.
        partitions: values of those that it is about; empty: it is about the table.
        worth: what mending it saves, in files: those that a reader opens, or that lie around, each of the target size
            if they are large. What is worth most is done first.

    """

    code: str
    says: str
    action: Action | None
    advice: str
    partitions: tuple[Mapping[str, str | None], ...] = ()
    worth: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "code": self.code,
            "says": self.says,
            "action": None if self.action is None else self.action.value,
            "advice": self.advice,
            "partitions": [dict(values) for values in self.partitions],
            "worth": round(self.worth, 1),
        }


def find(health: TableHealth, policy: Policy) -> list[Finding]:
    """Return what is found, what is worth most first.

    Args:
        health: of the table.
        policy: of the table.

    """
    found = [finding for rule in RULES.values() for finding in rule(health, policy)]
    return sorted(found, key=lambda finding: -finding.worth)


def _small_files(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    if health.clustering_columns:
        # Their files are put together by clustering.
        return
    saved = {id(part): part.files_saved(policy.target_file_size) for part in health.partitions}
    chosen = _worst(health, lambda part: saved[id(part)], policy.least_small_files)
    if chosen:
        small = sum((part.small for part in chosen), FileTotals())
        yield Finding(
            code="small-files",
            says=f"{small.files:,} files of {size_text(small.size)} together, in {_in_partitions(chosen)}, are smaller "
            f"than {size_text(policy.small_file_size)}: readers open {sum(saved[id(part)] for part in chosen):,} more "
            "than they need",
            action=Action.COMPACT,
            advice="compact them",
            partitions=_values(chosen),
            worth=sum(saved[id(part)] for part in chosen),
        )


def _unordered(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    chosen = _worst(
        health,
        lambda part: share(part.unordered.size, part.total.size) if part.unordered.files > 1 else 0.0,
        max(policy.unordered_share, 1e-9),
    )
    # Delta orders a clustered table by its own columns, and by no others.
    if health.zorder_by and chosen and not health.clustering_columns:
        new = sum((part.unordered for part in chosen), FileTotals())
        yield Finding(
            code="unordered",
            says=f"{size_text(new.size)} in {_in_partitions(chosen)} came after the rows were put in Z-order by "
            f"{', '.join(health.zorder_by)}",
            action=Action.ZORDER,
            advice="put the rows in Z-order again, which rewrites these partitions",
            partitions=_values(chosen),
            worth=_in_files(new.size, policy),
        )


def _lost_order(health: TableHealth, _: Policy) -> Iterator[Finding]:
    if health.order_problem is not None:
        yield Finding(
            code="lost-order",
            says=f"no rows are put in Z-order, for what sluice.maintenance.zorderBy says cannot be done: "
            f"{health.order_problem}",
            action=None,
            advice="set the property to columns that the table has, or unset it",
        )


def _unclustered(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    new = health.total.unclustered
    many = share(new.size, health.total.total.size) >= policy.unordered_share
    if health.clustering_columns and new.files > 1 and (many or new.files > policy.least_small_files):
        yield Finding(
            code="unclustered",
            says=f"{new.files:,} files of {size_text(new.size)} are not clustered by "
            f"{', '.join(health.clustering_columns)}",
            action=Action.CLUSTER,
            advice="have Delta cluster them",
            worth=new.files - 1 + _in_files(new.size, policy),
        )


def _deleted_rows(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    chosen = _worst(
        health,
        lambda part: max(part.deleted_share, 1e-9) if part.with_deleted_rows.files else 0.0,
        max(policy.deleted_share, 1e-9),
    )
    if chosen:
        rows = sum(part.deleted_rows for part in chosen)
        files = sum((part.with_deleted_rows for part in chosen), FileTotals())
        dead = sum(part.deleted_share * part.with_deleted_rows.size for part in chosen)
        yield Finding(
            code="deleted-rows",
            says=f"{rows:,} deleted rows are still in {files.files:,} files of {_in_partitions(chosen)}: each reader "
            "reads them and passes over them",
            action=Action.PURGE,
            advice="rewrite these files without the deleted rows",
            partitions=_values(chosen),
            # Two files instead of one for each reader: the rows, and which of them are deleted.
            worth=files.files + _in_files(dead, policy),
        )


def _expired_rows(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    expired = share(health.expired_rows, health.remembered_rows)
    if health.expired_rows and expired >= policy.expired_share:
        total = health.total.total
        yield Finding(
            code="expired-rows",
            says=f"{health.expired_rows:,} of {health.remembered_rows:,} remembered rows are expired: each batch of "
            "changes reads them",
            action=Action.FORGET,
            advice="rewrite the table without them",
            worth=_in_files(expired * total.size, policy) + expired * total.files,
        )


def _expired_files(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    expired = health.folder.expired
    if expired.files and health.folder.problem is None:
        yield Finding(
            code="expired-files",
            says=f"{expired.files:,} files of {size_text(expired.size)} are of no version that anybody may still read",
            action=Action.VACUUM,
            advice="vacuum the table",
            worth=_in_files(expired.size, policy) + expired.files / 100,
        )


def _orphans(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    orphans = health.folder.orphans
    if orphans.files and health.folder.problem is None:
        yield Finding(
            code="orphans",
            says=f"{orphans.files:,} files of {size_text(orphans.size)} belong to no version, and are older than any "
            "write that is on its way: writers were killed, or failed",
            action=Action.VACUUM,
            advice="vacuum the table",
            worth=_in_files(orphans.size, policy) + orphans.files / 100,
        )


def _old_checkpoint(health: TableHealth, _: Policy) -> Iterator[Finding]:
    log = health.log
    if log.since_checkpoint >= 2 * log.checkpoint_interval:
        since = "and no checkpoint" if log.checkpoint_version is None else "since the newest checkpoint"
        yield Finding(
            code="old-checkpoint",
            says=f"{log.since_checkpoint:,} versions {since}: each new reader reads every one of them",
            action=Action.CHECKPOINT,
            advice="write a checkpoint",
            worth=log.since_checkpoint,
        )


def _long_log(health: TableHealth, _: Policy) -> Iterator[Finding]:
    log = health.log
    if log.expired_versions >= log.checkpoint_interval:
        yield Finding(
            code="long-log",
            says=f"{log.expired_versions:,} versions in the log are older than {log.retention_seconds / _DAY:.1f} days",
            action=Action.CLEAN_LOG,
            advice="clean the log up",
            # Each listing of the log goes through them, and no reader opens one.
            worth=log.expired_versions / 100,
        )


def _writers_clean(health: TableHealth, _: Policy) -> Iterator[Finding]:
    if health.log.writers_clean:
        yield Finding(
            code="writers-clean-log",
            says="any writer's checkpoint may delete old version files, and a writer that is late waits for that",
            action=None,
            advice="set delta.enableExpiredLogCleanup=false, and let maintain.py alone clean the log up",
        )


def _long_retention(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    kept, live = health.folder.removed, health.total.total.size
    if kept.size > max(live, policy.target_file_size):
        days = health.folder.retention_seconds / _DAY
        yield Finding(
            code="much-kept",
            says=f"files that the table has lost, and that are kept for {days:.1f} days, are {size_text(kept.size)}: "
            f"more than its newest version, {size_text(live)}",
            action=None,
            advice="if nobody reads versions that old, lower delta.deletedFileRetentionDuration; pin what is to last",
        )


def _kept_for_streams(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    kept = health.folder.kept_for_streams
    if kept.size > policy.target_file_size:
        yield Finding(
            code="kept-for-streams",
            says=f"{kept.files:,} files of {size_text(kept.size)} wait for streams that are far behind",
            action=None,
            advice="find out why the stream is slow; or, if it is gone, take it out of sluice.maintenance.streams",
        )


def _lost_keeper(health: TableHealth, _: Policy) -> Iterator[Finding]:
    if health.folder.problem is not None:
        yield Finding(
            code="lost-keeper",
            says=f"it is not known which files pins and streams still need: {health.folder.problem}",
            action=None,
            advice="mend that, or remove the pin or the stream's name: no file and no version is removed until then",
        )


def _tiny_partitions(health: TableHealth, policy: Policy) -> Iterator[Finding]:
    number = len(health.partitions)
    if number >= _MANY_PARTITIONS and health.total.total.size / number < policy.target_file_size * _TINY_PARTITION:
        yield Finding(
            code="tiny-partitions",
            says=f"{number:,} partitions have {size_text(health.total.total.size / number)} on average: no compaction "
            "can make files of a good size",
            action=None,
            advice="choose coarser partition columns, or clustering",
        )


#: Every rule, by the code of what it finds.
RULES: Mapping[str, Callable[[TableHealth, Policy], Iterator[Finding]]] = {
    "small-files": _small_files,
    "unordered": _unordered,
    "lost-order": _lost_order,
    "unclustered": _unclustered,
    "deleted-rows": _deleted_rows,
    "expired-rows": _expired_rows,
    "expired-files": _expired_files,
    "orphans": _orphans,
    "old-checkpoint": _old_checkpoint,
    "long-log": _long_log,
    "writers-clean-log": _writers_clean,
    "much-kept": _long_retention,
    "kept-for-streams": _kept_for_streams,
    "lost-keeper": _lost_keeper,
    "tiny-partitions": _tiny_partitions,
}


def size_text(size: float) -> str:
    """Return a number of bytes for people, such as ``1.5 MiB``, or ``-1.5 MiB`` of what became less."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < _KIB:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _KIB
    return f"{size:.1f} TiB"


def _worst(
    health: TableHealth, measure: Callable[[PartitionHealth], float], least: float
) -> tuple[PartitionHealth, ...]:
    """Return the partitions of which a measure is at least so much, the worst first."""
    chosen = [part for part in health.partitions if measure(part) >= least]
    return tuple(sorted(chosen, key=measure, reverse=True))


def _in_partitions(parts: tuple[PartitionHealth, ...]) -> str:
    if not parts[0].values:
        return "the table"
    return f"{len(parts):,} partitions" if len(parts) > 1 else f"partition {parts[0].name}"


def _values(parts: tuple[PartitionHealth, ...]) -> tuple[Mapping[str, str | None], ...]:
    return tuple(part.values for part in parts if part.values)


def _in_files(size: float, policy: Policy) -> float:
    return size / policy.target_file_size
