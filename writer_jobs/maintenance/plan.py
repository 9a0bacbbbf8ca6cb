"""What is to be done to a table: in units, each under a lock of its own, what is worth most first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from writer_jobs.maintenance.findings import Finding, find
from writer_jobs.maintenance.health import TableHealth
from writer_jobs.maintenance.policy import Action, Policy

#: How many partitions are worked on at the same time: one of small files is often one task, which leaves cores idle.
PARALLEL = 4
_ALSO_BY_ZORDER = (Action.COMPACT, Action.PURGE)
_ON_TABLE = (Action.VACUUM, Action.CHECKPOINT, Action.CLEAN_LOG)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One thing to do, under a lock of its own.

    Attributes:
        action: what.
        partition: values of the one to do it to; empty: to the table.
        worth: what it saves, see :class:`Finding`.
        tries: how often it was tried.

    """

    action: Action
    partition: Mapping[str, str | None]
    worth: float
    tries: int = 0

    def is_apart_from(self, other: Unit) -> bool:
        """Tell whether both can be done at the same time: to different partitions."""
        return bool(self.partition and other.partition) and self.partition != other.partition


def plan(health: TableHealth, policy: Policy, actions: Collection[Action] | None) -> list[Unit]:
    """Return what is to be done to a table, what is worth most first.

    Args:
        health: of the table.
        policy: of the table.
        actions: those that were asked for, wherever they change anything; None: what the findings say and the policy
            allows.

    """
    wanted = policy
    if actions is not None:
        wanted = replace(policy, least_small_files=1, unordered_share=0.0, deleted_share=0.0)
    allowed = policy.auto if actions is None else frozenset(actions)
    units = [
        Unit(action=finding.action, partition=values, worth=_worth(finding, values, health, wanted))
        for finding in find(health, wanted)
        if finding.action in allowed and finding.action is not None
        for values in (finding.partitions or ({},))
    ]
    if actions is not None:
        there = {unit.action for unit in units}
        units += [Unit(action=each, partition={}, worth=0.0) for each in _ON_TABLE if each in allowed - there]
    return sorted(_joined(units), key=lambda unit: -unit.worth)


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


def _name(unit: Unit) -> str:
    return repr(sorted(unit.partition.items()))


def _worth(finding: Finding, values: Mapping[str, str | None], health: TableHealth, policy: Policy) -> float:
    if not values:
        return finding.worth
    alone = replace(health, partitions=tuple(part for part in health.partitions if part.values == values))
    return next((each.worth for each in find(alone, policy) if each.code == finding.code), 0.0)
