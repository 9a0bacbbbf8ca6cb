"""Compares the results of a load with its source. The functions are pure: they use recorded data only."""

from __future__ import annotations

import json
import statistics
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sluice.audit.checks import commits_in_conflict, count_text, describe_overlaps, find_overlaps
from sluice.audit.log_files import LogCommit
from sluice.demo.flights import KEY, Contents
from sluice.demo.records import AcknowledgedCommit, Writer

_MAX_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The figures of a load, and the problems that its checks found.

    Attributes:
        locked: Whether the writers took the lock.
        rows_expected: Number of rows in the source.
        rows_found: Number of rows in the table.
        missing_rows: Number of rows of the source that are not in the table.
        duplicate_rows: Number of rows of the table beyond the first of each key.
        unexpected_rows: Number of keys in the table that are not in the source.
        checksum_mismatches: Numeric columns whose number of values or sum differs from the source's.
        commits_acknowledged: Number of commits that the writers reported as committed.
        commits_in_log: Number of commits of these writers in the table's log.
        lost_commits: Number of acknowledged commits that are not in the log.
        lost: Ids of the lost commits.
        unacknowledged_commits: Number of commits in the log that no writer reported.
        versions: Number of version files in the log that can be parsed.
        missing_versions: Number of versions without such a file, below the newest one.
        conflicts: Number of commits without the lock that lost at least one race for a version.
        in_conflict: Ids of these commits. A commit without an id is not among them.
        unacknowledged_conflicts: Number of these commits that no writer reported.
        retries: Number of times that a writer without the lock repeated a commit.
        overlapping_holds: Number of pairs of holds that overlap, by the writers' clocks.
        failed_writers: Numbers of the writers whose exit code was not 0.
        wall_seconds: Seconds from the start of the first writer to the end of the last.
        loading_seconds: Seconds from the first request for the lock (without the lock: the first write) to the last
            acknowledgement. The start and the end of the processes are not included.
        hold_seconds_p50: Median duration of a hold, in seconds; None without the lock.
        wait_seconds_p50: Median time that a writer waited for the lock, in seconds; None without the lock.
        problems: One sentence per failed check.

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
        """Return the figures as JSON values."""
        return {"ok": self.ok, **asdict(self)}


def commit_id(commit: LogCommit) -> str | None:
    """Return the id of a writer's commit, from its stamp or ``userMetadata.rival``; None if it has none."""
    if commit.stamp is not None:
        return commit.stamp.commit_id
    try:
        rival_id = json.loads(commit.user_metadata or "")["rival"]["commit_id"]
    except (ValueError, TypeError, KeyError):
        return None
    return rival_id if isinstance(rival_id, str) else None


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
    """Compare the writers' reports with the log, and the table's rows with the source.

    Args:
        writers: The writers with the commits that they reported.
        log: The table's commits. Those with a commit id are of these writers.
        source, table: Summaries of the rows.
        locked: Whether the writers took the lock. Then an overlap of holds is a problem.
        commits_planned: Number of commits that the writers should make.
        wall_seconds: Seconds from the start of the first writer to the end of the last.
        table_problems: Problems that the check of the table found.

    """
    acknowledged_commits = [commit for writer in writers for commit in writer.commits]
    acknowledged_ids = {commit.commit_id for commit in acknowledged_commits}
    ids_in_log = [log_id for commit in log for write in commit.writes if (log_id := commit_id(write)) is not None]
    lost_ids = acknowledged_ids - set(ids_in_log)
    lost_commits = [
        f"{commit.commit_id} (writer {commit.writer}, {commit.rows} rows)"
        for commit in acknowledged_commits
        if commit.commit_id in lost_ids
    ]
    unacknowledged_ids = set(ids_in_log) - acknowledged_ids
    overlapping_pairs = find_overlaps([hold for commit in acknowledged_commits if (hold := commit.hold) is not None])
    in_conflict = commits_in_conflict(log)
    failed_writers = tuple(writer.number for writer in writers if writer.exit_code != 0)
    count_problem = f"{commits_planned} commits were planned, and {len(acknowledged_commits)} acknowledged"
    missing_keys, unexpected_keys = source.keys - table.keys, table.keys.keys() - source.keys.keys()
    repeated_keys = [key for key, count in table.keys.items() if count > 1]
    duplicates = table.rows - len(table.keys)
    mismatching_columns = tuple(name for name in source.sums if source.sums[name] != table.sums.get(name))
    problems = [
        *(f"writer {number} failed" for number in failed_writers),
        *([count_problem] if len(acknowledged_commits) != commits_planned else []),
        *_problem(len(lost_ids), "acknowledged commit", f"not in the log: {_examples(lost_commits)}"),
        *_problem(
            len(unacknowledged_ids), "commit", f"in the log, but reported by no writer: {_examples(unacknowledged_ids)}"
        ),
        *_problem(len(ids_in_log) - len(set(ids_in_log)), "commit", "in the log more than once"),
        *_problem(missing_keys.total(), "row", f"missing, for example {_examples(missing_keys)}"),
        *_problem(duplicates, "duplicate row", f"by ({', '.join(KEY)}), for example {_examples(repeated_keys)}"),
        *_problem(len(unexpected_keys), "row", f"not from the source, for example {_examples(unexpected_keys)}"),
        *_problem(
            len(mismatching_columns), "column", f"with other values than the source: {', '.join(mismatching_columns)}"
        ),
    ]
    if locked:
        problems += describe_overlaps(overlapping_pairs)
    return Outcome(
        locked=locked,
        writers=len(writers),
        rows_expected=source.rows,
        rows_found=table.rows,
        missing_rows=missing_keys.total(),
        duplicate_rows=duplicates,
        unexpected_rows=len(unexpected_keys),
        checksum_mismatches=mismatching_columns,
        commits_acknowledged=len(acknowledged_commits),
        commits_in_log=len(ids_in_log),
        lost_commits=len(lost_ids),
        lost=tuple(sorted(lost_ids)),
        unacknowledged_commits=len(unacknowledged_ids),
        versions=len(log),
        missing_versions=max((commit.version for commit in log), default=-1) + 1 - len(log),
        conflicts=len(in_conflict),
        in_conflict=tuple(log_id for commit in in_conflict if (log_id := commit_id(commit)) is not None),
        unacknowledged_conflicts=sum(commit_id(commit) not in acknowledged_ids for commit in in_conflict),
        retries=sum(len(writer.retried_at) for writer in writers),
        overlapping_holds=len(overlapping_pairs),
        failed_writers=failed_writers,
        wall_seconds=round(wall_seconds, 3),
        loading_seconds=round(_loading_seconds(acknowledged_commits), 3),
        hold_seconds_p50=_median([hold.end - hold.start for commit in acknowledged_commits if (hold := commit.hold)]),
        wait_seconds_p50=_median(
            [
                commit.acquired_at - commit.requested_at
                for commit in acknowledged_commits
                if commit.acquired_at is not None
            ]
        ),
        problems=(*problems, *table_problems),
    )


def _problem(number: int, noun: str, fault: str) -> list[str]:
    """Return a problem such as ``2 rows missing``, or nothing if the number is 0."""
    return [f"{count_text(number, noun)} {fault}"] if number else []


def _loading_seconds(acknowledged_commits: Sequence[AcknowledgedCommit]) -> float:
    if not acknowledged_commits:
        return 0.0
    return max(commit.released_at for commit in acknowledged_commits) - min(
        commit.requested_at for commit in acknowledged_commits
    )


def _median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 3) if values else None


def _examples(names: Collection[Any]) -> str:
    """Return the first names in sorted order as text. A name is a text or a tuple of texts."""
    texts = [name if isinstance(name, str) else " ".join(map(str, name)) for name in sorted(names)[:_MAX_EXAMPLES]]
    return ", ".join(texts) + (" …" if len(names) > _MAX_EXAMPLES else "")
