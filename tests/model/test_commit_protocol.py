"""The model of the commit protocol keeps every promise, and needs each protection for one of them."""

from __future__ import annotations

import functools
import importlib
import operator
from pathlib import Path

import pytest

from tests.model.commit_protocol import (
    GROUP_PROTECTIONS,
    GROUP_SCENARIOS,
    LARGE_GROUP_SCENARIOS,
    LARGE_SCENARIOS,
    MISFIT_PROTECTIONS,
    MISFIT_SCENARIO,
    PROTECTIONS,
    RULES,
    SCENARIOS,
    Search,
    main,
    search,
    without,
)  # fmt: skip

ROOT = Path(__file__).parents[2]
#: The range of the number of states. Another number shows that the model has changed.
STATES = {
    "two writers at the gate": range(2_000, 2_300),
    "two operations of one hold": range(2_500, 2_800),
    "two threads of one hold": range(1_000, 1_100),
    "a writer that dies": range(1_400, 1_600),
    "two writers, a death and repeated requests": range(70_000, 80_000),
    "two operations of one hold and a rival": range(23_000, 26_000),
    "three writers": range(140_000, 160_000),
    "a group of two": range(4_500, 5_000),
    "a group of two with marks": range(4_500, 5_000),
    "a group of two, a death and repeated requests": range(170_000, 190_000),
    "a group of three": range(1_100_000, 1_200_000),
}
#: A search of a minute.
LONG = {"a group of three"}
STEPS = {
    "stage", "light", "join", "grant", "settle", "permit", "put", "arrival", "reply", "refusal", "timeout", "look",
    "release", "expiry", "loss", "death",
}  # fmt: skip
GROUP_STEPS = {"notice", "cancel", "ask", "dismiss"}


@functools.cache
def searched(scenario: str) -> Search:
    return search({**SCENARIOS, **LARGE_SCENARIOS, **GROUP_SCENARIOS, **LARGE_GROUP_SCENARIOS}[scenario])


@pytest.mark.parametrize(
    "scenario",
    [
        *SCENARIOS,
        *GROUP_SCENARIOS,
        *(
            pytest.param(name, marks=pytest.mark.soak if name in LONG else pytest.mark.full)
            for name in {**LARGE_SCENARIOS, **LARGE_GROUP_SCENARIOS}
        ),
    ],
)
def test_every_state_keeps_the_promises(scenario: str) -> None:
    result = searched(scenario)
    assert result.broken == {}
    assert result.states in STATES[scenario]


def test_the_scenarios_take_every_step() -> None:
    assert set.union(*(searched(scenario).steps for scenario in SCENARIOS)) == STEPS
    assert set.union(*(searched(scenario).steps for scenario in GROUP_SCENARIOS)) == (STEPS - {"death"}) | GROUP_STEPS


@pytest.mark.parametrize("protection", PROTECTIONS)
def test_negative_control_each_protection_keeps_one_promise(protection: str) -> None:
    broken = [search(without(scenario, protection)).broken.keys() for scenario in SCENARIOS.values()]
    assert functools.reduce(operator.or_, broken) == {PROTECTIONS[protection]}


@pytest.mark.parametrize("protection", GROUP_PROTECTIONS)
def test_negative_control_each_protection_of_groups_keeps_one_promise(protection: str) -> None:
    broken = [search(without(scenario, protection)).broken.keys() for scenario in GROUP_SCENARIOS.values()]
    assert functools.reduce(operator.or_, broken) == {GROUP_PROTECTIONS[protection]}


@pytest.mark.soak
def test_a_group_with_a_misfit_keeps_the_promises() -> None:
    result = search(MISFIT_SCENARIO)
    assert result.broken == {}
    assert result.states in range(900_000, 960_000)


@pytest.mark.soak
@pytest.mark.parametrize("protection", MISFIT_PROTECTIONS)
def test_negative_control_a_group_with_a_misfit_needs_its_protection(protection: str) -> None:
    assert search(without(MISFIT_SCENARIO, protection)).broken.keys() == {MISFIT_PROTECTIONS[protection]}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_names_its_code(rule: str) -> None:
    module, _, name = RULES[rule].partition(":")
    if module.endswith(".java"):
        assert name in (ROOT / module).read_text(encoding="utf-8")
    else:
        assert callable(operator.attrgetter(name)(importlib.import_module(module)))


def test_the_ways_to_break_a_promise_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    names = [*PROTECTIONS, *GROUP_PROTECTIONS]
    assert all(line.startswith(f"without {name}: ") for line, name in zip(lines, names, strict=True))
