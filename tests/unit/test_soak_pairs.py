"""Pairs of faults: which classes may meet, and whether the faults of a pair met. The writers only record commands."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import pytest

from soak.fault_context import PUT, FaultContext, Incident, advance, strike_at
from soak.faults import CLASSES, FaultClass
from soak.pairs import ALONE, NEXT_HOLD, ONE_HOLD, Pair, PairKind, effect_of, pair_kinds

TABLE = "s3a://lake/soak-0"


class Writer:
    """A writer process that records its commands."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def send(self, command: str) -> None:
        self.commands.append(command)


class Scene:
    """Two writers, and a pair of faults that strike where the writers stop."""

    def __init__(self, meeting: str, *, second: str | None = "break-lock") -> None:
        self.history: list[dict[str, Any]] = []
        self.writers = {name: Writer() for name in ("writer-1", "writer-2")}
        self.context = FaultContext(
            writers=cast("Any", self.writers), session_seconds=1.0, gate=None, zookeeper=None, queues=cast("Any", None),
            record=self.record, random=random.Random(1), history=self.history,
        )  # fmt: skip
        fault = self.fault(second) if second else None
        pair = Pair(self.fault("kill-both"), "writer-1", "checked", fault, "data", meeting)
        self.incident: Incident | None = advance(pair.strike(self.context), None)

    def fault(self, name: str) -> FaultClass:
        def strike(context: FaultContext, writer: str, point: str) -> Incident:
            stop = yield from strike_at(context, name, writer, point)
            if stop is not None:
                cast("Any", context.writers[writer]).send("go")

        return replace(CLASSES[name], strike=strike)

    def record(self, event: str, **fields: Any) -> None:
        self.history.append({"event": event, **fields})

    def receive(self, event: str, worker: str, token: int, **fields: Any) -> None:
        """Add an event of a writer to the history, and send it to the faults."""
        self.history.append({"event": event, "worker": worker, "token": token, "table": TABLE, **fields})
        if self.incident is not None:
            self.incident = advance(self.incident, self.history[-1])

    @property
    def pair(self) -> dict[str, Any]:
        """The event of the pair. It is the last event of the history."""
        assert self.incident is None
        return self.history[-1]


@pytest.mark.parametrize(("unfinished_intents", "met"), [(1, True), (0, False)])
def test_the_second_fault_strikes_the_next_hold_after_an_intent(unfinished_intents: int, *, met: bool) -> None:
    scene = Scene(NEXT_HOLD)
    assert scene.writers["writer-2"].commands == []
    scene.receive("stopped", "writer-1", 5, point="checked")
    assert scene.writers["writer-2"].commands == ["stop-at acquired"]
    scene.receive("holding", "writer-2", 7, unfinished=unfinished_intents)
    scene.receive("stopped", "writer-2", 7, point="acquired")
    assert scene.writers["writer-2"].commands[1:] == ["pass acquired", "stop-at data", "go"]
    scene.receive("stopped", "writer-2", 7, point="data")
    fault_names = {"first": "kill-both", "second": "break-lock"}
    assert scene.pair == {"event": "pair", **fault_names, "meeting": NEXT_HOLD, "met": met}


def test_a_holder_of_another_table_is_not_the_next_holder() -> None:
    scene = Scene(NEXT_HOLD)
    scene.receive("stopped", "writer-1", 5, point="checked")
    scene.receive("stopped", "writer-2", 7, point="acquired", table="s3a://lake/soak-1")
    assert scene.writers["writer-2"].commands[1:] == ["stop-at acquired", "go"]
    assert scene.incident is not None


@pytest.mark.parametrize("ends_early", [False, True])
def test_under_one_hold_the_second_fault_is_prepared_first(*, ends_early: bool) -> None:
    scene = Scene(ONE_HOLD)
    scene.receive("stopped", "writer-1", 5, point="data")
    assert scene.writers["writer-1"].commands == ["stop-at data", "stop-at checked", "go"]
    if ends_early:
        scene.receive("refused", "writer-1", 5)
    scene.receive("stopped", "writer-1", 5, point="checked")
    assert scene.pair["met"] is not ends_early


def test_a_single_fault_is_a_pair_without_a_second_fault() -> None:
    scene = Scene(ALONE, second=None)
    scene.receive("stopped", "writer-1", 5, point="checked")
    assert scene.pair == {"event": "pair", "first": "kill-both", "second": None, "meeting": ALONE, "met": True}
    other_scene = Scene(ALONE, second=None)
    other_scene.receive("ended", "writer-1", 5)
    assert not other_scene.pair["met"]


def pair_kinds_of(*fault_names: str) -> list[PairKind]:
    return pair_kinds(fault_names, lambda fault: fault.points)


def test_pairs_leave_an_intent_or_lose_the_hold_first() -> None:
    all_kinds = pair_kinds_of(*CLASSES)
    assert {kind.effects for kind in all_kinds} >= {
        "unfinished intent, lost hold",
        "unfinished intent, PUT of unknown outcome",
        "lost hold, PUT of unknown outcome",
    }
    queue_faults = {"expire-queued", "cancel-queued"}
    assert not [kind for kind in all_kinds if {kind.first.name, kind.second.name} & queue_faults]
    assert all(set(kind.points) <= {"checked", "data", PUT} for kind in all_kinds)
    (next_hold, one_hold) = (kind for kind in pair_kinds_of("break-lock", "s3-403") if kind.second.name == "s3-403")
    assert (next_hold.meeting, next_hold.points, next_hold.second_points) == (NEXT_HOLD, ("checked", PUT), ("data",))
    assert (one_hold.meeting, one_hold.points, one_hold.second_points) == (ONE_HOLD, ("checked",), ("data",))


def test_every_class_has_an_effect() -> None:
    assert all(effect_of(name) for name in CLASSES)
