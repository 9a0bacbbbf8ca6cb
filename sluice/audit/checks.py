"""The checks of a table's log and of its writers' records. Pure: they read no file and ask no server.

Each check returns sentences, one per problem found, and none if all is well.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from lock_manager.resources import table_key
from lock_manager.table_records.adoption import UNSET_PROPERTIES
from sluice.audit.log_files import CHECKSUM_FILE, LogCommit, version_files

_SHOWN = 5
_CHECKPOINT_FILE = re.compile(r"(\d{20})\.checkpoint\..+")


@dataclass(frozen=True, order=True)
class Interval:
    """A hold as it was recorded, in seconds since the epoch.

    Attributes:
        start: when it began.
        end: when it ended, or the last moment known to lie within it.
        owner: who held; two intervals of one owner are one hold and never overlap.
        node: what was held; of different ones holds may overlap.
        shared: whether others may hold the node at the same time, if they share it, too.

    """

    start: float
    end: float
    owner: str
    node: str = ""
    shared: bool = False


def overlaps(holds: Iterable[Interval], *, clock_skew_seconds: float = 0.0) -> list[tuple[Interval, Interval]]:
    """Return every pair of holds of different owners that share time and a node, and may not.

    Args:
        holds: in any order.
        clock_skew_seconds: shared time up to this is blamed on the hosts' clocks.

    """
    found: dict[tuple[str, str], tuple[Interval, Interval]] = {}
    active: dict[str, list[Interval]] = defaultdict(list)
    for hold in sorted(holds):
        earlier = [other for other in active[hold.node] if other.end - clock_skew_seconds > hold.start]
        for other in earlier:
            if other.owner != hold.owner and not (other.shared and hold.shared):
                found.setdefault((other.owner, hold.owner), (other, hold))
        active[hold.node] = [*earlier, hold]
    return list(found.values())


def holds_in_log(commits: Iterable[LogCommit]) -> list[Interval]:
    """Return what the log tells of holds, for each node: from the lock to the preparation of the hold's last commit."""
    spans: dict[tuple[str, str, bool], tuple[float, float]] = {}
    for commit in commits:
        if commit.stamp is None or commit.timestamp is None:
            continue
        stamp = commit.stamp
        nodes = [(key, False) for key in stamp.tokens] + [(key, True) for key in stamp.shared_tokens]
        for key, shared in nodes:
            start, end = spans.get((stamp.hold, key, shared), (stamp.acquired_at, commit.timestamp))
            spans[stamp.hold, key, shared] = (min(start, stamp.acquired_at), max(end, commit.timestamp))
    return [
        Interval(start, max(start, end), hold, node, shared) for (hold, node, shared), (start, end) in spans.items()
    ]


def describe_overlaps(pairs: Sequence[tuple[Interval, Interval]]) -> list[str]:
    """Say which holds overlapped, and for how long."""
    return shortened(
        [
            f"two held the lock at once for {min(one.end, other.end) - other.start:.3f} s: "
            f"{one.owner} and {other.owner}"
            for one, other in pairs
        ]
    )


def check_versions(names: Sequence[str]) -> list[str]:
    """Look for gaps: before the first version, between versions, and after the last one.

    Args:
        names: of the files in ``_delta_log``. Log clean-up removes the oldest versions, and only those that a
            checkpoint has made superfluous.

    """
    versions = version_files(names)
    problems = [
        f"{_missing(before + 1, after - 1)} from the log, and version {after} is there: either what is missing was "
        f"deleted, or version {after} is a late commit to a table that was dropped here before this one was made"
        for before, after in pairwise(versions)
        if after != before + 1
    ]
    checkpoints = [int(match[1]) for match in map(_CHECKPOINT_FILE.fullmatch, names) if match]
    noted = [int(name[:20]) for name in names if CHECKSUM_FILE.fullmatch(name)] + checkpoints
    if versions and versions[0] > 0 and not any(checkpoint >= versions[0] - 1 for checkpoint in checkpoints):
        problems.append(f"{_missing(0, versions[0] - 1)} from the log, and no checkpoint stands in")
    if versions and max(noted, default=0) > versions[-1]:
        problems.append(f"{_missing(versions[-1] + 1, max(noted))} from the log: a checksum or checkpoint is there")
    return shortened(problems)


def _missing(first: int, last: int) -> str:
    return f"version {first} is missing" if first == last else f"versions {first} to {last} are missing"


@dataclass
class _Node:
    """The highest tokens that commits have carried for one locked node so far, and the hold that the token is of."""

    exclusive: tuple[int, str, int] = (-1, "", -1)
    shared: tuple[int, str, int] = (-1, "", -1)


def check_tokens(commits: Iterable[LogCommit]) -> list[str]:
    """Look for fencing tokens that are not in the order of the versions: an earlier holder wrote after a later one.

    Of each ensemble, at each locked node: an exclusive token is above all earlier tokens of other holds, a shared one
    above all earlier exclusive ones. One hold has one token at a node, and may commit any number of times. A token
    below that of version 0 is of a hold that was over when the table was made: the commit is to another table, which
    was dropped here before.
    """
    problems = []
    born: dict[tuple[str, str], int] = {}
    nodes: dict[tuple[str, str], _Node] = defaultdict(_Node)
    for commit in commits:
        stamp = commit.stamp
        if stamp is None:
            continue
        if commit.version == 0:
            born = {(stamp.ensemble, key): token for key, token in stamp.tokens.items()}
        for shared, tokens in ((False, stamp.tokens), (True, stamp.shared_tokens)):
            for key, token in tokens.items():
                if token < born.get((stamp.ensemble, key), -1):
                    problems.append(
                        f"version {commit.version} carries fencing token {token}, below "
                        f"{born[stamp.ensemble, key]} of version 0: either it is a late commit to a table that was "
                        "dropped here before this one was made (docs/operate.md), or version 0 was committed late"
                    )
                    continue
                node = nodes[stamp.ensemble, key]
                earlier = node.exclusive if shared else max(node.exclusive, node.shared)
                if token <= earlier[0] and (token, stamp.hold) != earlier[:2]:
                    problems.append(
                        f"version {commit.version} carries fencing token {token}, not above "
                        f"{earlier[0]} of version {earlier[2]}: an earlier holder wrote after a later one"
                    )
                mine = (token, stamp.hold, commit.version)
                if shared:
                    node.shared = max(node.shared, mine)
                else:
                    node.exclusive = max(node.exclusive, mine)
    return shortened(problems)


def check_ensembles(commits: Iterable[LogCommit], *, adopted_by: str = "") -> list[str]:
    """Look for commits under a lock that an ensemble granted which had not adopted the table.

    That is one that has not adopted the table (see ``sluice adopt``), or had not when a commit removed the adoption as
    a side effect (a table that was replaced or restored); or one to which the table comes back after commits under
    another one, unless it adopted the table again.

    Args:
        commits: in the order of their versions.
        adopted_by: UUID of the ensemble that has adopted the table before the first of them, if that is known.

    """
    problems = []
    current, last_under = "", dict[str, int]()
    dropped: tuple[str, int] | None = None
    for commit in commits:
        if commit.adopted_by is not None and commit.adopted_by != adopted_by:
            silent = commit.adopted_by == "" and commit.operation != UNSET_PROPERTIES
            dropped = (adopted_by, commit.version) if silent else None
            # The commit may be under either: a clone begins with its source's adoption, RESTORE brings an older one.
            counts = {adopted_by, commit.adopted_by}
            adopted_by = commit.adopted_by
            last_under.pop(adopted_by, None)
        else:
            counts = {adopted_by}
        if commit.stamp is None:
            continue
        ensemble = commit.stamp.ensemble
        if adopted_by and "" not in counts and ensemble not in counts:
            problems.append(
                f"version {commit.version} was made under ensemble {ensemble}, but the table is adopted by "
                f"{adopted_by}: two ensembles could have granted its lock"
            )
        elif dropped is not None and ensemble != dropped[0]:
            problems.append(
                f"version {commit.version} was made under ensemble {ensemble}, though the table was adopted by "
                f"{dropped[0]} until version {dropped[1]} removed the adoption: two ensembles could have granted its "
                "lock"
            )
        elif ensemble != current and ensemble in last_under:
            problems.append(
                f"version {commit.version} was made under ensemble {ensemble} again, after version "
                f"{last_under[current]} under {current}: two ensembles could have granted its lock"
            )
        current = ensemble
        last_under[ensemble] = commit.version
    if dropped is not None:
        problems.append(
            f"the table was adopted by ensemble {dropped[0]} until version {dropped[1]} removed the adoption: any "
            "ensemble's lock counts now; run `sluice adopt` again"
        )
    return shortened(problems)


def check_names(commits: Iterable[LogCommit], *, adopted_name: str = "") -> list[str]:
    """Look for commits under a lock on another name than the one under which the table was adopted.

    A commit that changes the adoption may be under the lock on either name: what moves a table holds both, and a clone
    begins with the adoption of its source.

    Args:
        commits: in the order of their versions.
        adopted_name: under which name the table is adopted before the first of them, if that is known.

    """
    problems = []
    for commit in commits:
        before = adopted_name
        adopted_name = adopted_name if commit.adopted_name is None else commit.adopted_name
        if commit.stamp is None or not before:
            continue
        held = {key.partition("/")[0] for key in (*commit.stamp.tokens, *commit.stamp.shared_tokens)}
        if held.isdisjoint({table_key(before), table_key(adopted_name)}):
            problems.append(
                f"version {commit.version} was made under a lock that is not on {before}, the name under which "
                "the table is adopted: two names could have been locked"
            )
    return shortened(problems)


def check_commit_ids(commits: Iterable[LogCommit]) -> list[str]:
    """Look for writes that are in the log more than once."""
    versions: dict[str, list[int]] = defaultdict(list)
    for commit in commits:
        if commit.stamp is not None and any(file.changes_data for file in commit.adds):
            versions[commit.stamp.commit_id].append(commit.version)
    return shortened(
        [
            f"write {commit_id} is in the log {len(found)} times (versions {', '.join(map(str, found))})"
            for commit_id, found in versions.items()
            if len(found) > 1
        ]
    )


def commits_in_conflict(commits: Iterable[LogCommit]) -> list[LogCommit]:
    """Return the commits that lost at least one race: another commit lies between the version read and their own.

    Commits with the lock's stamp have no races: the gate lets one commit at a time put its version.
    """
    return [
        commit
        for commit in commits
        if commit.stamp is None and commit.read_version is not None and commit.read_version + 1 < commit.version
    ]


def unlocked_writers(commits: Iterable[LogCommit]) -> dict[str, tuple[int, ...]]:
    """Return the versions that were committed without the lock's stamp, by engine."""
    return _versions_by((commit.engine or "unknown", commit.version) for commit in commits if commit.stamp is None)


def observed_commits(commits: Iterable[LogCommit]) -> dict[str, tuple[int, ...]]:
    """Return the versions that the guard let pass only because it was told to observe, by the error's name."""
    return _versions_by((commit.observed, commit.version) for commit in commits if commit.observed is not None)


def _versions_by(pairs: Iterable[tuple[str, int]]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = defaultdict(list)
    for name, version in pairs:
        found[name].append(version)
    return {name: tuple(versions) for name, versions in sorted(found.items())}


def version_ranges(versions: Sequence[int]) -> str:
    """Return ``version 3`` or ``versions 1 to 4, 6, …``, of ascending versions; a long list is cut."""
    ranges: list[tuple[int, int]] = []
    for version in versions:
        if ranges and version == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], version)
        else:
            ranges.append((version, version))
    shown = [str(first) if first == last else f"{first} to {last}" for first, last in ranges[:_SHOWN]]
    more = ["…"] if len(ranges) > _SHOWN else []
    return f"version{'s' if len(versions) > 1 else ''} {', '.join([*shown, *more])}"


def count_of(number: int, what: str) -> str:
    """Return ``1 row`` or ``2 rows``, for ``what`` with a regular plural."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def shortened(problems: list[str]) -> list[str]:
    """Cut a long list: the first few tell what is wrong."""
    more = len(problems) - _SHOWN
    return [*problems[:_SHOWN], f"(and {more} more of the kind)"] if more > 0 else problems
