"""Checks of a table's log and of its writers' records. They are pure functions: they read no file and query no server.

Each check returns one sentence per problem, and an empty list if there is none. Of many problems of one kind it returns
the first few.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ParamSpec

from lock_manager.resources import table_key
from lock_manager.table_records.adoption import OPTIMISTIC_ENSEMBLE, UNSET_PROPERTIES
from sluice.audit.log_files import CHECKSUM_FILE, LogCommit, versions_in

_P = ParamSpec("_P")
_MAX_SHOWN = 5
_CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint\..+")
_TWO_ENSEMBLES = "two ensembles could have granted its lock"
_LATE_COMMIT = "a late commit to an earlier table, which was dropped here before this table was created"


class ProblemList:
    """The first few problems of one kind, and the number of the further ones."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._more = 0

    def add(self, problem: str) -> None:
        """Add a problem."""
        if len(self._shown) < _MAX_SHOWN:
            self._shown.append(problem)
        else:
            self._more += 1

    def sentences(self) -> list[str]:
        """Return the first few problems, and a sentence with the number of the further ones."""
        return [*self._shown, *([f"(and {self._more} more of this kind)"] if self._more else [])]


def limit_problems(check: Callable[_P, Iterable[str]]) -> Callable[_P, list[str]]:
    """Decorate a check that yields problems: the decorated check returns the first few in a list."""

    @functools.wraps(check)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> list[str]:
        problems = ProblemList()
        for problem in check(*args, **kwargs):
            problems.add(problem)
        return problems.sentences()

    return run


@dataclass(frozen=True, order=True)
class Interval:
    """The time of a recorded hold, in seconds since the epoch.

    Attributes:
        end: End of the hold, or the last time at which it is known to have lasted.
        owner: The holder. Intervals of the same owner belong to one hold, so they never conflict.
        node: The locked node. Holds of different nodes may overlap.
        shared: Whether other shared holds of the node may overlap with it.

    """

    start: float
    end: float
    owner: str
    node: str = ""
    shared: bool = False


def find_overlaps(holds: Iterable[Interval], *, clock_skew_seconds: float = 0.0) -> list[tuple[Interval, Interval]]:
    """Return the pairs of holds that overlap although they exclude each other: one pair for each two owners.

    Overlaps up to ``clock_skew_seconds`` are ignored, because the clocks of the hosts differ.
    """
    pairs: dict[tuple[str, str], tuple[Interval, Interval]] = {}
    open_holds: dict[str, list[Interval]] = defaultdict(list)
    for hold in sorted(holds):
        earlier_holds = [
            earlier_hold for earlier_hold in open_holds[hold.node] if earlier_hold.end - clock_skew_seconds > hold.start
        ]
        for earlier_hold in earlier_holds:
            if earlier_hold.owner != hold.owner and not (earlier_hold.shared and hold.shared):
                owners = sorted((earlier_hold.owner, hold.owner))
                pairs.setdefault((owners[0], owners[1]), (earlier_hold, hold))
        open_holds[hold.node] = [*earlier_holds, hold]
    return list(pairs.values())


def holds_in_log(commits: Iterable[LogCommit]) -> list[Interval]:
    """Return the holds that commits record, one interval for each hold and node; none for commits without a lock.

    An interval lasts from the acquisition to the time of the hold's last commit at the node.
    """
    spans: dict[tuple[str, str, bool], tuple[float, float]] = {}
    for commit in commits:
        if commit.stamp is None or commit.timestamp is None or commit.stamp.ensemble == OPTIMISTIC_ENSEMBLE:
            continue
        stamp = commit.stamp
        nodes = [(key, False) for key in stamp.tokens] + [(key, True) for key in stamp.shared_tokens]
        for key, shared in nodes:
            start, end = spans.get((stamp.hold, key, shared), (stamp.acquired_at, commit.timestamp))
            spans[stamp.hold, key, shared] = (min(start, stamp.acquired_at), max(end, commit.timestamp))
    return [
        Interval(start, max(start, end), hold, node, shared) for (hold, node, shared), (start, end) in spans.items()
    ]


@limit_problems
def describe_overlaps(pairs: Iterable[tuple[Interval, Interval]]) -> Iterator[str]:
    """Describe each pair of overlapping holds, with the length of the overlap."""
    for earlier, later in pairs:
        seconds = min(earlier.end, later.end) - later.start
        yield f"two holds overlap by {seconds:.3f} s: {earlier.owner} and {later.owner}"


@limit_problems
def check_versions(names: Sequence[str]) -> Iterator[str]:
    """Find versions that are missing before the first version file, between version files, or after the last one.

    ``names`` are the names of the files in ``_delta_log``. Log clean-up removes only the oldest versions, and only if a
    checkpoint makes them superfluous.
    """
    versions = versions_in(names)
    for previous, version in pairwise(versions):
        if version != previous + 1:
            yield (
                f"{_missing_text(previous + 1, version - 1)} from the log, but version {version} exists: either files "
                f"were deleted, or version {version} is {_LATE_COMMIT}"
            )
    checkpoints = [int(match[1]) for match in map(_CHECKPOINT_FILE.fullmatch, names) if match]
    recorded_versions = [int(name[:20]) for name in names if CHECKSUM_FILE.fullmatch(name)] + checkpoints
    if versions and versions[0] > 0 and not any(checkpoint >= versions[0] - 1 for checkpoint in checkpoints):
        yield f"{_missing_text(0, versions[0] - 1)} from the log, and no checkpoint fills the gap"
    if versions and max(recorded_versions, default=0) > versions[-1]:
        missing_text = _missing_text(versions[-1] + 1, max(recorded_versions))
        yield f"{missing_text} from the log, but a later checksum or checkpoint exists"


def _missing_text(first: int, last: int) -> str:
    return f"version {first} is missing" if first == last else f"versions {first} to {last} are missing"


@limit_problems
def check_tokens(commits: Iterable[LogCommit]) -> Iterator[str]:
    """Find fencing tokens that are not in the order of the versions: an earlier holder wrote after a later one.

    Within one ensemble and one locked node, an exclusive token is above all earlier tokens of other holds, and a shared
    token is above all earlier exclusive ones. A hold has one token at a node, and may commit any number of times. A
    token below that of version 0 has one of two causes: the commit was meant for an earlier table, which was dropped at
    this location, or version 0 was committed late.
    """
    first_tokens: dict[tuple[str, str], int] = {}
    # The highest exclusive and shared tokens so far by ensemble and node, each with its hold and its version.
    highest: dict[tuple[str, str, bool], tuple[int, str, int]] = defaultdict(lambda: (-1, "", -1))
    for commit in commits:
        stamp = commit.stamp
        if stamp is None:
            continue
        if commit.version == 0:
            first_tokens = {(stamp.ensemble, key): token for key, token in stamp.tokens.items()}
        for shared, tokens in ((False, stamp.tokens), (True, stamp.shared_tokens)):
            for key, token in tokens.items():
                first_token = first_tokens.get((stamp.ensemble, key), -1)
                if token < first_token:
                    yield (
                        f"version {commit.version} carries fencing token {token}, below {first_token} of version 0: "
                        f"either it is {_LATE_COMMIT} (docs/operate.md), or version 0 was committed late"
                    )
                    continue
                exclusive, same_mode = highest[stamp.ensemble, key, False], highest[stamp.ensemble, key, shared]
                limit = exclusive if shared else max(exclusive, highest[stamp.ensemble, key, True])
                if token <= limit[0] and (token, stamp.hold) != limit[:2]:
                    yield (
                        f"version {commit.version} carries fencing token {token}, not above "
                        f"{limit[0]} of version {limit[2]}: an earlier holder wrote after a later one"
                    )
                highest[stamp.ensemble, key, shared] = max(same_mode, (token, stamp.hold, commit.version))


@limit_problems
def check_ensembles(commits: Iterable[LogCommit], *, adopted_by: str = "") -> Iterator[str]:
    """Find commits whose lock may be of another ensemble than the table's.

    These commits are problems:

    - The table is adopted, and the commit is under another ensemble.
    - A commit removed the adoption as a side effect (the table was replaced or restored), and a later commit is under
      another ensemble than the former adopter. A removal without a new adoption is a problem itself.
    - The table is not adopted, and its commits return to an ensemble after commits of another one. This is allowed
      only if the ensemble adopted the table in between.

    ``adopted_by`` is the UUID of the ensemble that adopted the table before the first of these commits, if it is known.
    """
    previous_ensemble, last_versions = "", dict[str, int]()
    removal: tuple[str, int] | None = None  # the former adopter, and the version that removed the adoption
    for commit in commits:
        accepted_ensembles = {adopted_by}
        if commit.adopted_by is not None and commit.adopted_by != adopted_by:
            is_side_effect = commit.adopted_by == "" and commit.operation != UNSET_PROPERTIES
            removal = (adopted_by, commit.version) if is_side_effect else None
            # This commit may be under the previous or the new adopter: a clone starts with the adoption of its source,
            # and RESTORE brings back an older one.
            adopted_by = commit.adopted_by
            accepted_ensembles.add(adopted_by)
            last_versions.pop(adopted_by, None)
        if commit.stamp is None:
            continue
        ensemble = commit.stamp.ensemble
        made_under = f"version {commit.version} was made under ensemble {ensemble}"
        if adopted_by and "" not in accepted_ensembles and ensemble not in accepted_ensembles:
            yield f"{made_under}, but the table is adopted by {adopted_by}: {_TWO_ENSEMBLES}"
        elif removal is not None and ensemble != removal[0]:
            yield (
                f"{made_under}, though the table was adopted by {removal[0]} until version {removal[1]} removed the "
                f"adoption: {_TWO_ENSEMBLES}"
            )
        elif ensemble != previous_ensemble and ensemble in last_versions:
            yield (
                f"{made_under} again, after version {last_versions[previous_ensemble]} under {previous_ensemble}: "
                f"{_TWO_ENSEMBLES}"
            )
        previous_ensemble = ensemble
        last_versions[ensemble] = commit.version
    if removal is not None:
        yield (
            f"the table was adopted by ensemble {removal[0]} until version {removal[1]} removed the adoption: any "
            "ensemble's lock is accepted now; run `sluice adopt` again"
        )


@limit_problems
def check_names(commits: Iterable[LogCommit], *, adopted_name: str = "") -> Iterator[str]:
    """Find commits under a lock on another name than the adopted one.

    A commit that changes the adoption may be under the lock on either name: moving a table holds both locks, and a
    clone starts with the adoption of its source. ``adopted_name`` is the adopted name before the first of these
    commits, if it is known.
    """
    for commit in commits:
        previous_name = adopted_name
        adopted_name = adopted_name if commit.adopted_name is None else commit.adopted_name
        if commit.stamp is None or not previous_name:
            continue
        locked_keys = {key.partition("/")[0] for key in (*commit.stamp.tokens, *commit.stamp.shared_tokens)}
        if locked_keys.isdisjoint({table_key(previous_name), table_key(adopted_name)}):
            yield (
                f"version {commit.version} was made under a lock that is not on {previous_name}, the name under which "
                "the table is adopted: two names could have been locked"
            )


@limit_problems
def check_commit_ids(commits: Iterable[LogCommit]) -> Iterator[str]:
    """Find writes that are in the log more than once."""
    writes = (
        (write.stamp.commit_id, write.version)
        for commit in commits
        if any(file.changes_data for file in commit.adds)
        for write in commit.writes
        if write.stamp is not None
    )
    for commit_id, versions in _group_versions(writes).items():
        if len(versions) > 1:
            yield f"write {commit_id} is in the log {len(versions)} times (versions {', '.join(map(str, versions))})"


def commits_in_conflict(commits: Iterable[LogCommit]) -> list[LogCommit]:
    """Return the commits that lost at least one race: another commit lies between the version read and their own.

    Commits with a stamp are not counted: the lock orders them, so an earlier version of another writer is no lost race.
    """
    return [
        commit
        for commit in commits
        if commit.stamp is None and commit.read_version is not None and commit.read_version + 1 < commit.version
    ]


def unlocked_writers(commits: Iterable[LogCommit]) -> dict[str, tuple[int, ...]]:
    """Return the versions of commits without a stamp, by engine."""
    return _group_versions((commit.engine or "unknown", commit.version) for commit in commits if commit.stamp is None)


def observed_commits(commits: Iterable[LogCommit]) -> dict[str, tuple[int, ...]]:
    """Return the versions that the guard allowed only in ``observe`` mode, by the error's name."""
    return _group_versions((commit.observed, commit.version) for commit in commits if commit.observed is not None)


def _group_versions(pairs: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    """Group pairs of a name and a version by name."""
    groups: dict[str, list[int]] = defaultdict(list)
    for name, version in pairs:
        groups[name].append(version)
    return {name: tuple(versions) for name, versions in sorted(groups.items())}


def version_ranges(versions: Sequence[int]) -> str:
    """Return ascending versions as ``version 3`` or ``versions 1 to 4, 6, …``. A long list is cut."""
    ranges: list[tuple[int, int]] = []
    for version in versions:
        if ranges and version == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], version)
        else:
            ranges.append((version, version))
    texts = [str(start) if start == end else f"{start} to {end}" for start, end in ranges[:_MAX_SHOWN]]
    ellipsis = ["…"] if len(ranges) > _MAX_SHOWN else []
    return f"version{'s' if len(versions) > 1 else ''} {', '.join([*texts, *ellipsis])}"


def count_text(number: int, noun: str) -> str:
    """Return ``1 row`` or ``2 rows``. The plural of ``noun`` is regular."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
