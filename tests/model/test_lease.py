"""The model of the lease on S3 keeps every promise, and needs each protection for one of them."""

from __future__ import annotations

import functools
import importlib
import operator
from pathlib import Path

import pytest

from tests.model.lease import (
    FREE,
    LARGE_SCENARIOS,
    NO_ZOMBIE,
    PROTECTIONS,
    RULES,
    SCENARIOS,
    VALID,
    Search,
    main,
    search,
    too_fast,
    without,
)

ROOT = Path(__file__).parents[2]
#: The range of the number of states. Another number shows that the model has changed.
STATES = {
    "one writer that gives up": range(600, 750),
    "two writers": range(16_000, 19_000),
    "a writer that dies": range(21_000, 25_000),
    "a clock that is a quarter faster": range(16_000, 19_000),
    "clocks at any speed": range(7_500, 9_000),
    "a removed request that joins again": range(28_000, 33_000),
    "a writer that renews its lock": range(44_000, 52_000),
    "two writers and a lost reply": range(150_000, 170_000),
    "the turn of three": range(75_000, 90_000),
    "a hold with two attempts": range(80_000, 92_000),
}
STEPS = {
    "join", "look", "expel, reply", "beat", "settle", "intend", "put", "leave, reply", "give up", "time passes",
    "late write", "late put", "lost reply", "death", "another attempt",
}  # fmt: skip


@functools.cache
def searched(scenario: str) -> Search:
    return search({**SCENARIOS, **LARGE_SCENARIOS}[scenario])


@pytest.mark.parametrize(
    "scenario", [*SCENARIOS, *(pytest.param(name, marks=pytest.mark.full) for name in LARGE_SCENARIOS)]
)
def test_every_state_keeps_the_promises(scenario: str) -> None:
    result = searched(scenario)
    assert result.broken == {}
    assert result.states in STATES[scenario]


@pytest.mark.parametrize(
    "protection",
    [
        pytest.param(name, marks=pytest.mark.full) if scenario in LARGE_SCENARIOS else name
        for name, (_, scenario) in PROTECTIONS.items()
    ],
)
def test_negative_control_each_protection_keeps_one_promise(protection: str) -> None:
    promise, _ = PROTECTIONS[protection]
    assert list(without(protection).broken) == [promise]


def test_clocks_at_any_speed_keep_every_other_promise() -> None:
    """Only the validity of a hold, which is known without a request, depends on the speed of clocks."""
    assert searched(FREE).broken == {}
    assert list(search(too_fast()).broken) == [VALID]


@pytest.mark.parametrize("protection", ["proof in the intent", "kept intents", "filled intents", "kept intent"])
def test_negative_control_clocks_at_any_speed_need_the_intents(protection: str) -> None:
    assert list(search(SCENARIOS[FREE], {protection}).broken) == [NO_ZOMBIE]


@pytest.mark.full
def test_the_scenarios_take_every_step() -> None:
    assert set.union(*(searched(scenario).steps for scenario in {**SCENARIOS, **LARGE_SCENARIOS})) >= STEPS


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_names_its_code(rule: str) -> None:
    module, _, name = RULES[rule].partition(":")
    if module.endswith(".java"):
        assert name in (ROOT / module).read_text(encoding="utf-8")
    else:
        assert callable(operator.attrgetter(name)(importlib.import_module(module)))


@pytest.mark.full
def test_the_ways_to_break_a_promise_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"without {name}: ") for line, name in zip(lines, PROTECTIONS, strict=True))
