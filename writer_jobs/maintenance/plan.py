"""What is to be done to a table: in units, each under a lock of its own, what is worth most first."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from writer_jobs.maintenance.findings import Finding, find
from writer_jobs.maintenance.health import FileTotals, PartitionHealth, TableHealth
from writer_jobs.maintenance.policy import Action, Policy

#: How many partitions are worked on at the same time: one of small files is often one task, which leaves cores idle.
PARALLEL = 4
#: How many small partitions one commit rewrites at most.
PARTITIONS_PER_COMMIT = 1
_Partitions = tuple[Mapping[str, str | None], ...]
_ALSO_BY_ZORDER = (Action.COMPACT, Action.PURGE)
# What can be done to several partitions in one commit, and which files of a partition that rewrites.
_TOGETHER: Mapping[Action, Callable[[PartitionHealth], FileTotals]] = {
    Action.COMPACT: lambda part: part.small,
    Action.PURGE: lambda part: part.with_deleted_rows,
}
_REMOVE = (Action.VACUUM, Action.CLEAN_LOG)
_ON_TABLE = (Action.VACUUM, Action.CHECKPOINT, Action.CLEAN_LOG)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One thing to do, under a lock of its own.

    Attributes:
        action: what.
        partitions: values of those to do it to, in one commit; empty: to the table.
        worth: what it saves, see :class:`Finding`.
        tries: how often it was tried.
        work_seconds: how long the last try worked before it lost its race.

    """

    action: Action
    partitions: _Partitions = ()
    worth: float = 0.0
    tries: int = 0
    work_seconds: float = 0.0

    def is_apart_from(self, other: Unit) -> bool:
        """Tell whether both can be done at the same time: to different partitions."""
        if not (self.partitions and other.partitions):
            return False
        return not any(values in other.partitions for values in self.partitions)

    def again(self, work_seconds: float) -> list[Unit]:
        """Return what is to be tried after a lost race: each partition alone, so that one race costs one of them.

        Args:
            work_seconds: how long it worked for nothing.

        """
        alone = _one_by_one(self.partitions)
        one = replace(self, worth=self.worth / len(alone), tries=self.tries + 1, work_seconds=work_seconds / len(alone))
        return [replace(one, partitions=each) for each in alone]


def plan(
    health: TableHealth,
    policy: Policy,
    actions: Collection[Action] | None,
    *,
    partitions_per_commit: int = PARTITIONS_PER_COMMIT,
) -> list[Unit]:
    """Return what is to be done to a table, what is worth most first.

    Args:
        health: of the table.
        policy: of the table.
        actions: those that were asked for, wherever they change anything; None: what the findings say and the policy
            allows.
        partitions_per_commit: at most so many partitions are compacted, or purged, in one commit, and no more than
            what together has the target size of one file to be rewritten.

    """
    wanted = policy
    if actions is not None:
        wanted = replace(policy, least_small_files=1, unordered_share=0.0, deleted_share=0.0, expired_share=0.0)
    allowed = policy.auto if actions is None else frozenset(actions)
    parts = {_name_of(part.values): part for part in health.partitions}

    def worth(finding: Finding, partitions: _Partitions) -> float:
        if not partitions:
            return finding.worth
        alone = replace(health, partitions=tuple(parts[_name_of(values)] for values in partitions))
        return next((each.worth for each in find(alone, wanted) if each.code == finding.code), 0.0)

    units = [
        Unit(action=finding.action, partitions=values, worth=worth(finding, values))
        for finding in find(health, wanted)
        if finding.action in allowed and finding.action is not None
        for values in _one_by_one(finding.partitions)
    ]
    if actions is not None:
        there = {unit.action for unit in units}
        units += [Unit(action=each) for each in _ON_TABLE if each in allowed - there]
    elif health.folder.problem is not None:
        # It fails, and says why nothing may be removed: else nobody would notice.
        units += [Unit(action=each) for each in _REMOVE if each in allowed][:1]
    planned = _by_worth(_joined(units))
    return _by_worth(_together(planned, parts, partitions_per_commit, health.target_file_size))


def _by_worth(units: Iterable[Unit]) -> list[Unit]:
    return sorted(units, key=lambda unit: -unit.worth)


def _one_by_one(partitions: _Partitions) -> list[_Partitions]:
    """Return each partition alone; of the table, the table."""
    return [(values,) for values in partitions] if partitions else [()]


def _joined(units: Iterable[Unit]) -> Iterable[Unit]:
    """Return each once, and of those that rewrite a partition only the one that rewrites all of it."""
    once: dict[tuple[Action, str], Unit] = {}
    for unit in units:
        once.setdefault((unit.action, _name(unit)), unit)
    for (action, partition), unit in once.items():
        if action in _ALSO_BY_ZORDER and (Action.ZORDER, partition) in once:
            continue
        if action is Action.ZORDER:
            also = (once.get((other, partition)) for other in _ALSO_BY_ZORDER)
            unit = replace(unit, worth=unit.worth + sum(each.worth for each in also if each is not None))  # noqa: PLW2901
        yield unit


def _together(units: Iterable[Unit], parts: Mapping[str, PartitionHealth], most: int, most_bytes: int) -> list[Unit]:
    """Return the same work in fewer commits: small partitions that are worth about the same are rewritten in one."""
    made: list[Unit] = []
    # Of each action, which of them was begun last, and how many bytes it rewrites.
    begun: dict[Action, tuple[int, int]] = {}
    for unit in units:
        if unit.action not in _TOGETHER or not unit.partitions:
            made.append(unit)
            continue
        size = sum(_TOGETHER[unit.action](parts[_name_of(values)]).size for values in unit.partitions)
        at, before = begun.get(unit.action, (None, 0))
        if at is None or len(made[at].partitions) >= most or before + size > most_bytes:
            begun[unit.action] = (len(made), size)
            made.append(unit)
        else:
            begun[unit.action] = (at, before + size)
            both = made[at]
            made[at] = replace(both, partitions=both.partitions + unit.partitions, worth=both.worth + unit.worth)
    return made


def _name(unit: Unit) -> str:
    return " ".join(_name_of(values) for values in unit.partitions)


def _name_of(values: Mapping[str, str | None]) -> str:
    return repr(sorted(values.items()))
