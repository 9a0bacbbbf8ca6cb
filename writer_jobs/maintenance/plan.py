"""The plan of a maintenance run: units of work, by descending worth."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from writer_jobs.maintenance.findings import Finding, find
from writer_jobs.maintenance.health import FileTotals, PartitionHealth, TableHealth
from writer_jobs.maintenance.policy import Action, Policy

#: Number of partitions that are rewritten in parallel. One partition of small files is often one Spark task, which
#: leaves cores idle.
PARALLEL = 4
#: Largest number of small partitions that one commit rewrites.
PARTITIONS_PER_COMMIT = 1
_Partitions = tuple[Mapping[str, str | None], ...]
# Z-order rewrites a whole partition, so it includes these actions.
_INCLUDED_IN_ZORDER = (Action.COMPACT, Action.PURGE)
# Actions that one commit can apply to several partitions, and the files of a partition that each action rewrites.
_REWRITTEN_FILES: Mapping[Action, Callable[[PartitionHealth], FileTotals]] = {
    Action.COMPACT: lambda part: part.small,
    Action.PURGE: lambda part: part.with_deleted_rows,
}
_REMOVING_ACTIONS = (Action.VACUUM, Action.CLEAN_LOG)
_TABLE_ACTIONS = (Action.VACUUM, Action.CHECKPOINT, Action.CLEAN_LOG)


@dataclass(frozen=True, kw_only=True)
class WorkUnit:
    """One action on a table or on some of its partitions, under at most one lock.

    Attributes:
        partitions: Values of the partitions that one commit rewrites; empty: the unit is about the table.
        worth: Files that the unit saves, see :class:`Finding`.
        tries: Number of earlier tries.
        work_seconds: Seconds per partition that the last try worked before it lost its race.

    """

    action: Action
    partitions: _Partitions = ()
    worth: float = 0.0
    tries: int = 0
    work_seconds: float = 0.0

    def is_disjoint_from(self, other: WorkUnit) -> bool:
        """Return whether two units can run in parallel, because they rewrite different partitions."""
        has_partitions = bool(self.partitions and other.partitions)
        return has_partitions and not any(values in other.partitions for values in self.partitions)

    def retries(self, work_seconds: float) -> list[WorkUnit]:
        """Return the units to try after a lost race: one per partition, so that the next race costs one partition."""
        partitions = _one_by_one(self.partitions)
        number = len(partitions)
        retry = replace(self, worth=self.worth / number, tries=self.tries + 1, work_seconds=work_seconds / number)
        return [replace(retry, partitions=partition) for partition in partitions]


def plan(
    health: TableHealth,
    policy: Policy,
    actions: Collection[Action] | None,
    *,
    partitions_per_commit: int = PARTITIONS_PER_COMMIT,
) -> list[WorkUnit]:
    """Return the units of work for a table, by descending worth.

    Args:
        actions: Actions to execute wherever they change anything; None: those that the findings name and the policy
            allows.
        partitions_per_commit: Largest number of partitions that one commit compacts or purges. Partitions share a
            commit only if their files to rewrite are together no larger than one file of the target size.

    """
    thresholds, allowed_actions = policy, policy.auto
    if actions is not None:
        thresholds = replace(policy, min_small_files=1, unordered_share=0.0, deleted_share=0.0, expired_share=0.0)
        allowed_actions = frozenset(actions)
    parts = {_partition_key(part.values): part for part in health.partitions}

    def worth(finding: Finding, partitions: _Partitions) -> float:
        if not partitions:
            return finding.worth
        part_health = replace(health, partitions=tuple(parts[_partition_key(values)] for values in partitions))
        return next((similar.worth for similar in find(part_health, thresholds) if similar.code == finding.code), 0.0)

    units = [
        WorkUnit(action=finding.action, partitions=partition, worth=worth(finding, partition))
        for finding in find(health, thresholds)
        if finding.action in allowed_actions and finding.action is not None
        for partition in _one_by_one(finding.partitions)
    ]
    if actions is not None:
        planned_actions = {unit.action for unit in units}
        units += [WorkUnit(action=action) for action in _TABLE_ACTIONS if action in allowed_actions - planned_actions]
    elif health.folder.problem is not None:
        # This unit fails and reports why no file can be removed. Without it the problem would go unnoticed.
        units += [WorkUnit(action=action) for action in _REMOVING_ACTIONS if action in allowed_actions][:1]
    by_worth = _by_worth(_without_duplicates(units))
    return _by_worth(_share_commits(by_worth, parts, partitions_per_commit, health.target_file_size))


def _by_worth(units: Iterable[WorkUnit]) -> list[WorkUnit]:
    return sorted(units, key=lambda unit: -unit.worth)


def _one_by_one(partitions: _Partitions) -> list[_Partitions]:
    """Return each partition alone; for the table (no partitions), the table."""
    return [(values,) for values in partitions] if partitions else [()]


def _without_duplicates(units: Iterable[WorkUnit]) -> Iterable[WorkUnit]:
    """Yield each unit once, without the units that the Z-order of the same partition includes."""
    unique_units: dict[tuple[Action, str], WorkUnit] = {}
    for unit in units:
        unique_units.setdefault((unit.action, " ".join(map(_partition_key, unit.partitions))), unit)
    for (action, partition), unit in unique_units.items():
        if action is Action.ZORDER:
            keys = [(included_action, partition) for included_action in _INCLUDED_IN_ZORDER]
            yield replace(unit, worth=unit.worth + sum(unique_units[key].worth for key in keys if key in unique_units))
        elif action not in _INCLUDED_IN_ZORDER or (Action.ZORDER, partition) not in unique_units:
            yield unit


def _share_commits(
    units: Iterable[WorkUnit], parts: Mapping[str, PartitionHealth], max_partitions: int, max_bytes: int
) -> list[WorkUnit]:
    """Merge units of small partitions with about the same worth, so that one commit rewrites several of them."""
    merged_units: list[WorkUnit] = []
    # For each action, the unit that gets further partitions: its index in `merged_units`, and the bytes to rewrite.
    open_units: dict[Action, tuple[int, int]] = {}
    for unit in units:
        if unit.action not in _REWRITTEN_FILES or not unit.partitions:
            merged_units.append(unit)
            continue
        size = sum(_REWRITTEN_FILES[unit.action](parts[_partition_key(values)]).size for values in unit.partitions)
        index, filled_bytes = open_units.get(unit.action, (None, 0))
        if index is None or len(merged_units[index].partitions) >= max_partitions or filled_bytes + size > max_bytes:
            open_units[unit.action] = (len(merged_units), size)
            merged_units.append(unit)
        else:
            open_units[unit.action] = (index, filled_bytes + size)
            merged_unit = merged_units[index]
            partitions, worth = merged_unit.partitions + unit.partitions, merged_unit.worth + unit.worth
            merged_units[index] = replace(merged_unit, partitions=partitions, worth=worth)
    return merged_units


def _partition_key(values: Mapping[str, str | None]) -> str:
    return repr(sorted(values.items()))
