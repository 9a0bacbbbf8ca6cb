"""What is to be done to a table, and which partitions are rewritten in one commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.test_health import HEALTHY_TABLE, MIB
from writer_jobs.maintenance.health import FileTotals, PartitionHealth, TableHealth
from writer_jobs.maintenance.plan import WorkUnit, plan
from writer_jobs.maintenance.policy import Action, Policy


def table(*small: tuple[int, int], deleted: int = 0) -> TableHealth:
    """Return a table whose partitions have so many small files, of so many MiB together."""
    parts = (
        PartitionHealth(
            values={"day": str(day)},
            total=FileTotals(files, size * MIB),
            small=FileTotals(files, size * MIB),
            stored_rows=100,
            deleted_rows=deleted,
            with_deleted_rows=FileTotals(1, size * MIB) if deleted else FileTotals(),
        )
        for day, (files, size) in enumerate(small)
    )
    return replace(HEALTHY_TABLE, partitions=tuple(parts))


def days(units: list[WorkUnit]) -> list[tuple[str, ...]]:
    return [tuple(str(values["day"]) for values in unit.partitions) for unit in units]


def test_each_partition_has_a_commit_of_its_own() -> None:
    assert days(plan(table((9, 1), (8, 1)), Policy(), None)) == [("0",), ("1",)]


@pytest.mark.parametrize("action", [Action.COMPACT, Action.PURGE])
def test_small_partitions_are_rewritten_in_one_commit_if_asked_for(action: Action) -> None:
    found = table((9, 1), (8, 1), (7, 1), (6, 1), (5, 1), deleted=50)
    planned = plan(found, Policy(), {action}, partitions_per_commit=2)
    assert [unit.action for unit in planned] == [action] * 3
    assert [len(unit.partitions) for unit in planned] == [2, 2, 1]
    assert sorted(day for each in days(planned) for day in each) == list("01234")


def test_what_is_worth_about_the_same_is_together_and_the_worth_adds_up() -> None:
    planned = plan(table((5, 1), (9, 1), (6, 1), (8, 1)), Policy(), None, partitions_per_commit=2)
    assert days(planned) == [("1", "3"), ("2", "0")]
    assert [unit.worth for unit in planned] == [8 + 7, 5 + 4]


def test_one_commit_rewrites_no_more_than_one_file_of_the_target_size() -> None:
    # Of 128 MiB: the first is too large for company, and the others are not more than that together.
    planned = plan(table((90, 500), (8, 60), (7, 60), (6, 60)), Policy(), None, partitions_per_commit=64)
    assert days(planned) == [("0",), ("1", "2"), ("3",)]


def test_only_what_can_be_is_done_to_several_partitions_at_once() -> None:
    found = replace(table((9, 1), (8, 1)), zorder_by=("a",))
    found = replace(found, partitions=tuple(replace(part, unordered=part.total) for part in found.partitions))
    planned = plan(found, Policy(zorder_by=("a",)), {Action.ZORDER, Action.VACUUM}, partitions_per_commit=8)
    assert sorted((unit.action.value, each) for unit, each in zip(planned, days(planned), strict=True)) == [
        ("vacuum", ()),
        ("zorder", ("0",)),
        ("zorder", ("1",)),
    ]


def test_after_a_lost_race_each_partition_is_tried_alone() -> None:
    one, two = {"day": "1"}, {"day": "2"}
    assert WorkUnit(action=Action.COMPACT, partitions=(one, two), worth=6).retries(8) == [
        WorkUnit(action=Action.COMPACT, partitions=(one,), worth=3, tries=1, work_seconds=4),
        WorkUnit(action=Action.COMPACT, partitions=(two,), worth=3, tries=1, work_seconds=4),
    ]
    for unit in (WorkUnit(action=Action.COMPACT, partitions=(one,)), WorkUnit(action=Action.CHECKPOINT)):
        assert unit.retries(8) == [replace(unit, tries=1, work_seconds=8)]


def test_units_are_apart_if_they_have_no_partition_in_common() -> None:
    one, two, three = ({"day": str(day)} for day in range(3))
    unit = WorkUnit(action=Action.COMPACT, partitions=(one, two))
    assert unit.is_disjoint_from(WorkUnit(action=Action.PURGE, partitions=(three,)))
    assert not unit.is_disjoint_from(WorkUnit(action=Action.PURGE, partitions=(two, three)))
    assert not unit.is_disjoint_from(WorkUnit(action=Action.VACUUM))
