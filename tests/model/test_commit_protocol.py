"""The model of the commit protocol keeps every promise, and needs each protection for one of them."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
from pathlib import Path

import pytest

from tests.model.commit_protocol import (
    GROUP_SCENARIOS,
    JAVA_FOLDER,
    LARGE_GROUP_SCENARIOS,
    LARGE_SCENARIOS,
    RULES,
    SCENARIOS,
    SUITES,
    TRIO_SCENARIOS,
    Search,
    broken_without,
    main,
    search,
)

ROOT = Path(__file__).parents[2]
#: The range of the number of states. Another number shows that the model has changed.
STATES = {
    "two writers at the gate": range(2_000, 2_300),
    "two operations of one hold": range(2_500, 2_800),
    "two threads of one hold": range(1_000, 1_100),
    "a writer that dies": range(1_400, 1_600),
    "two writers with one mark": range(1_700, 1_900),
    "an append after a change of metadata": range(280, 310),
    "two writers, a death and repeated requests": range(70_000, 80_000),
    "two operations of one hold and a rival": range(23_000, 26_000),
    "three writers": range(140_000, 160_000),
    "a group of two": range(4_500, 5_000),
    "a group of two with marks": range(4_500, 5_000),
    "a group of two, a death and repeated requests": range(170_000, 190_000),
    "a group of three": range(1_250_000, 1_310_000),
    "three appends": range(2_700, 2_900),
    "three appends, two with one mark": range(1_200, 1_300),
    "a change of metadata between two appends": range(750, 830),
    "three appends, with lost replies": range(57_000, 63_000),
    "three appends, two with one mark, with lost replies": range(28_000, 31_000),
    "a change of metadata between two appends, with lost replies": range(18_000, 20_000),
}
#: A search of a minute.
LONG = {"a group of three"}
STEPS = {
    "stage", "light", "join", "grant", "settle", "permit", "put", "arrival", "reply", "refusal", "timeout", "look",
    "release", "expiry", "loss", "death",
}  # fmt: skip
GROUP_STEPS = {"notice", "cancel", "ask", "dismiss"}
#: Of these, the steps of the coordinator, of the store, of the network and of users.
EVENTS = {"arrival", "reply", "refusal", "timeout", "expiry", "loss", "death", "cancel"}
PROTECTIONS = {name: protection for protections, _ in SUITES for name, protection in protections.items()}
CODE = {**RULES, **{name: protection.code for name, protection in PROTECTIONS.items()}}


@functools.cache
def searched(scenario: str) -> Search:
    return search((SCENARIOS | LARGE_SCENARIOS | GROUP_SCENARIOS | LARGE_GROUP_SCENARIOS | TRIO_SCENARIOS)[scenario])


@pytest.mark.parametrize(
    "scenario",
    [
        *SCENARIOS,
        *GROUP_SCENARIOS,
        *TRIO_SCENARIOS,
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
    assert broken_without(protection).keys() == {PROTECTIONS[protection].promise}


def test_each_step_of_a_process_has_a_rule() -> None:
    assert EVENTS < STEPS | GROUP_STEPS
    assert RULES.keys() == (STEPS | GROUP_STEPS) - EVENTS


@pytest.mark.parametrize("rule", CODE)
def test_each_rule_and_protection_names_its_code(rule: str) -> None:
    module, _, name = CODE[rule].partition(":")
    if module.endswith(".java"):
        assert name in (ROOT / JAVA_FOLDER / module).read_text(encoding="utf-8")
    else:
        assert inspect.isroutine(operator.attrgetter(name)(importlib.import_module(module)))


def test_the_ways_to_break_a_promise_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"without {name}: ") for line, name in zip(lines, PROTECTIONS, strict=True))
