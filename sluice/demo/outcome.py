"""Checks whether a load kept its promises. Pure: from recorded data alone."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluice.audit.checks import commits_in_conflict, count_of, describe_overlaps, overlaps
from sluice.audit.log_files import LogCommit
from sluice.demo.flights import KEY, Contents
from sluice.demo.records import Acknowledged, Writer

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a load came to.

    Attributes:
        locked: whether the writers took the lock.
        writers: number of processes.
        rows_expected: rows in the source.
        rows_found: rows in the table.
        missing_rows: rows of the source that are not in the table.
        duplicate_rows: rows of the table beyond the first of each key.
        unexpected_rows: keys in the table that the source does not have.
        checksum_mismatches: numeric columns whose count of values or sum differs from the source's.
        commits_acknowledged: commits that a writer was told had succeeded.
        commits_in_log: commits of these writers in the table's log.
        lost_commits: acknowledged, and not in the log.
        lost: their ids.
        unacknowledged_commits: in the log, and acknowledged to nobody.
        versions: version files in the log.
        missing_versions: gaps between them, and before them.
        conflicts: commits without the lock that lost at least one race for a version.
        in_conflict: their ids, as far as the log has them.
        unacknowledged_conflicts: Those that no writer reported as committed.
        retries: times that a writer without the lock had to do a commit's work again.
        overlapping_holds: pairs of holds that share time, by the writers' clocks.
        failed_writers: numbers of the writers that did not end with exit code 0.
        wall_seconds: from the start of the first writer to the end of the last.
        loading_seconds: from the first request for the lock (without one: the first write) to the last
            acknowledgement; that is without the start and the end of the processes.
        hold_seconds_p50: how long a hold lasted, median; None without the lock.
        wait_seconds_p50: how long a writer waited for its turn, median; None without the lock.
        problems: one sentence per failed check.

    """

    locked: bool
    writers: int
    rows_expected: int
    rows_found: int
    missing_rows: int
    duplicate_rows: int
    unexpected_rows: int
    checksum_mismatches: tuple[str, ...]
    commits_acknowledged: int
    commits_in_log: int
    lost_commits: int
    lost: tuple[str, ...]
    unacknowledged_commits: int
    versions: int
    missing_versions: int
    conflicts: int
    in_conflict: tuple[str, ...]
    unacknowledged_conflicts: int
    retries: int
    overlapping_holds: int
    failed_writers: tuple[int, ...]
    wall_seconds: float
    loading_seconds: float
    hold_seconds_p50: float | None
    wait_seconds_p50: float | None
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every check passed."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON types."""
        return {"ok": self.ok, **asdict(self)}


def commit_id(commit: LogCommit) -> str | None:
    """Return the id that a writer gave its commit, with the lock (``sluice``) or without (``rival``)."""
    if commit.stamp is not None:
        return commit.stamp.commit_id
    try:
        said = json.loads(commit.user_metadata or "")["rival"]["commit_id"]
    except (ValueError, TypeError, KeyError):
        return None
    return said if isinstance(said, str) else None


def judge(
    writers: Sequence[Writer],
    log: Sequence[LogCommit],
    source: Contents,
    table: Contents,
    *,
    locked: bool,
    commits_planned: int,
    wall_seconds: float,
    table_problems: Sequence[str] = (),
) -> Outcome:
    """Compare what the writers were told with what the log and the table hold.

    Args:
        writers: with every line that they said.
        log: the table's commits, of which those with a commit id are these writers'.
        source: what was to be loaded.
        table: what was found.
        locked: whether the writers took the lock: then no overlap is forgiven.
        commits_planned: how many commits there should be.
        wall_seconds: how long it took.
        table_problems: what a check of the table itself found.

    """
    acknowledged = [commit for writer in writers for commit in writer.commits]
    ids_told = {commit.commit_id for commit in acknowledged}
    ids_in_log = [name for commit in log if (name := commit_id(commit)) is not None]
    lost = ids_told - set(ids_in_log)
    unacknowledged = set(ids_in_log) - ids_told
    overlapping = overlaps([hold for commit in acknowledged if (hold := commit.hold) is not None])
    in_conflict = commits_in_conflict(log)
    retries = sum(len(writer.retried_at) for writer in writers)
    failed = tuple(writer.number for writer in writers if writer.exit_code != 0)
    problems = [
        *(f"writer {number} failed" for number in failed),
        *_any(abs(commits_planned - len(acknowledged)), "commit", f"more or less than the {commits_planned} planned"),
        *_any(len(lost), "acknowledged commit", f"not in the log: {_some(_names(acknowledged, lost))}"),
        *_any(len(unacknowledged), "commit", f"in the log acknowledged to nobody: {_some(unacknowledged)}"),
        *_any(len(ids_in_log) - len(set(ids_in_log)), "commit", "in the log more than once"),
        *_compare_contents(source, table),
    ]
    if locked:
        problems += [
            *describe_overlaps(overlapping),
        ]
    return Outcome(
        locked=locked,
        writers=len(writers),
        rows_expected=source.rows,
        rows_found=table.rows,
        missing_rows=(source.keys - table.keys).total(),
        duplicate_rows=table.rows - len(table.keys),
        unexpected_rows=len(table.keys.keys() - source.keys.keys()),
        checksum_mismatches=_mismatches(source, table),
        commits_acknowledged=len(acknowledged),
        commits_in_log=len(ids_in_log),
        lost_commits=len(lost),
        lost=tuple(sorted(lost)),
        unacknowledged_commits=len(unacknowledged),
        versions=len(log),
        missing_versions=max((commit.version for commit in log), default=-1) + 1 - len(log),
        conflicts=len(in_conflict),
        in_conflict=tuple(name for commit in in_conflict if (name := commit_id(commit)) is not None),
        unacknowledged_conflicts=sum(commit_id(commit) not in ids_told for commit in in_conflict),
        retries=retries,
        overlapping_holds=len(overlapping),
        failed_writers=failed,
        wall_seconds=round(wall_seconds, 3),
        loading_seconds=round(_loading_seconds(acknowledged), 3),
        hold_seconds_p50=_median([hold.end - hold.start for commit in acknowledged if (hold := commit.hold)]),
        wait_seconds_p50=_median(
            [commit.acquired_at - commit.requested_at for commit in acknowledged if commit.acquired_at is not None]
        ),
        problems=(*problems, *table_problems),
    )


def _compare_contents(source: Contents, table: Contents) -> list[str]:
    """Look for rows that the table lacks, has twice, or has not from the source; and for values that differ."""
    missing = source.keys - table.keys
    twice = [key for key, times in table.keys.items() if times > 1]
    unexpected = table.keys.keys() - source.keys.keys()
    differing = _mismatches(source, table)
    return [
        *_any(missing.total(), "row", f"missing, for example {_some(missing)}"),
        *_any(table.rows - len(table.keys), "duplicate row", f"by ({', '.join(KEY)}), for example {_some(twice)}"),
        *_any(len(unexpected), "row", f"not from the source, for example {_some(unexpected)}"),
        *_any(len(differing), "column", f"with other values than the source: {', '.join(differing)}"),
    ]


def _mismatches(source: Contents, table: Contents) -> tuple[str, ...]:
    return tuple(name for name in source.sums if source.sums[name] != table.sums.get(name))


def _any(number: int, what: str, wrong: str) -> list[str]:
    return [f"{count_of(number, what)} {wrong}"] if number else []


def _loading_seconds(acknowledged: Sequence[Acknowledged]) -> float:
    if not acknowledged:
        return 0.0
    return max(commit.released_at for commit in acknowledged) - min(commit.requested_at for commit in acknowledged)


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def _names(acknowledged: Sequence[Acknowledged], commit_ids: Collection[str]) -> list[str]:
    return [
        f"{commit.commit_id} (writer {commit.writer}, {commit.rows} rows)"
        for commit in acknowledged
        if commit.commit_id in commit_ids
    ]


def _some(items: Collection[Any] | Mapping[Any, int]) -> str:
    shown = [str(item) if isinstance(item, str) else " ".join(map(str, item)) for item in sorted(items)[:_SHOWN]]
    return ", ".join(shown) + (" …" if len(items) > _SHOWN else "")
