"""The plan of maintenance: actions for a table, and the partitions that one commit rewrites."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.test_health import HEALTHY_TABLE, MIB
from writer_jobs.maintenance.health import FileTotals, PartitionHealth, TableHealth
from writer_jobs.maintenance.plan import WorkUnit, plan
from writer_jobs.maintenance.policy import Action, Policy


def table(*partitions: tuple[int, int], deleted_rows: int = 0) -> TableHealth:
    """Return a table. The argument for a partition is its number of small files and their total size in MiB."""
    health = (
        PartitionHealth(
            values={"day": str(day)},
            total=FileTotals(files, size * MIB),
            small=FileTotals(files, size * MIB),
            stored_rows=100,
            deleted_rows=deleted_rows,
            with_deleted_rows=FileTotals(1, size * MIB) if deleted_rows else FileTotals(),
        )
        for day, (files, size) in enumerate(partitions)
    )
    return replace(HEALTHY_TABLE, partitions=tuple(health))


def days(units: list[WorkUnit]) -> list[tuple[str, ...]]:
    return [tuple(str(values["day"]) for values in unit.partitions) for unit in units]


def test_each_partition_is_rewritten_in_its_own_commit() -> None:
    assert days(plan(table((9, 1), (8, 1)), Policy(), None)) == [("0",), ("1",)]


@pytest.mark.parametrize("action", [Action.COMPACT, Action.PURGE])
def test_partitions_per_commit_combines_small_partitions(action: Action) -> None:
    health = table((9, 1), (8, 1), (7, 1), (6, 1), (5, 1), deleted_rows=50)
    units = plan(health, Policy(), {action}, partitions_per_commit=2)
    assert [unit.action for unit in units] == [action] * 3
    assert [len(unit.partitions) for unit in units] == [2, 2, 1]
    assert sorted(day for unit_days in days(units) for day in unit_days) == list("01234")


def test_partitions_of_similar_worth_share_a_commit() -> None:
    units = plan(table((5, 1), (9, 1), (6, 1), (8, 1)), Policy(), None, partitions_per_commit=2)
    assert days(units) == [("1", "3"), ("2", "0")]
    assert [unit.worth for unit in units] == [8 + 7, 5 + 4]


def test_partitions_share_a_commit_up_to_the_target_file_size() -> None:
    # The target size is 128 MiB. The first partition exceeds it; the second and the third together do not.
    units = plan(table((90, 500), (8, 60), (7, 60), (6, 60)), Policy(), None, partitions_per_commit=64)
    assert days(units) == [("0",), ("1", "2"), ("3",)]


def test_zorder_rewrites_one_partition_per_commit() -> None:
    health = table((9, 1), (8, 1))
    partitions = tuple(replace(partition, unordered=partition.total) for partition in health.partitions)
    health = replace(health, zorder_by=("a",), partitions=partitions)
    units = plan(health, Policy(zorder_by=("a",)), {Action.ZORDER, Action.VACUUM}, partitions_per_commit=8)
    assert sorted((unit.action.value, unit_days) for unit, unit_days in zip(units, days(units), strict=True)) == [
        ("vacuum", ()),
        ("zorder", ("0",)),
        ("zorder", ("1",)),
    ]


def test_after_a_conflict_each_partition_is_retried_alone() -> None:
    day_1, day_2 = {"day": "1"}, {"day": "2"}
    assert WorkUnit(action=Action.COMPACT, partitions=(day_1, day_2), worth=6).retries(8) == [
        WorkUnit(action=Action.COMPACT, partitions=(day_1,), worth=3, tries=1, work_seconds=4),
        WorkUnit(action=Action.COMPACT, partitions=(day_2,), worth=3, tries=1, work_seconds=4),
    ]
    for unit in (WorkUnit(action=Action.COMPACT, partitions=(day_1,)), WorkUnit(action=Action.CHECKPOINT)):
        assert unit.retries(8) == [replace(unit, tries=1, work_seconds=8)]


def test_units_without_a_common_partition_are_disjoint() -> None:
    day_0, day_1, day_2 = ({"day": str(day)} for day in range(3))
    unit = WorkUnit(action=Action.COMPACT, partitions=(day_0, day_1))
    assert unit.is_disjoint_from(WorkUnit(action=Action.PURGE, partitions=(day_2,)))
    assert not unit.is_disjoint_from(WorkUnit(action=Action.PURGE, partitions=(day_1, day_2)))
    assert not unit.is_disjoint_from(WorkUnit(action=Action.VACUUM))
