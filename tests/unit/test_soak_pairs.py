"""Pairs of faults: which classes may meet, and when they have met, with writers that record the words they receive."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, cast

import pytest

from soak.fault_context import PUT, FaultContext, Incident, advance, struck
from soak.faults import CLASSES, FaultClass
from soak.pairs import ALONE, NEXT_HOLD, ONE_HOLD, Pair, PairKind, effect_of, pair_kinds

TABLE = "s3a://lake/soak-0"


class Writer:
    """A writer process."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def tell(self, words: str) -> None:
        self.words.append(words)


class Scene:
    """Two writers, and a pair of faults that both strike at the points of their stops."""

    def __init__(self, meeting: str, *, second: str | None = "break-lock") -> None:
        self.history: list[dict[str, Any]] = []
        self.writers = {name: Writer() for name in ("writer-1", "writer-2")}
        self.context = FaultContext(
            writers=cast("Any", self.writers), session_seconds=1.0, gate=None, zookeeper=None, queues=cast("Any", None),
            say=self.say, random=random.Random(1), history=self.history,
        )  # fmt: skip
        fault = self.fault(second) if second else None
        pair = Pair(self.fault("kill-both"), "writer-1", "checked", fault, "data", meeting)
        self.incident: Incident | None = advance(pair.strike(self.context), None)

    def fault(self, name: str) -> FaultClass:
        def strike(context: FaultContext, writer: str, point: str) -> Incident:
            stop = yield from struck(context, name, writer, point)
            if stop is not None:
                cast("Any", context.writers[writer]).tell("go")

        return replace(CLASSES[name], strike=strike)

    def say(self, event: str, **more: Any) -> None:
        self.history.append({"event": event, **more})

    def hear(self, event: str, worker: str, token: int, **more: Any) -> None:
        """Let a writer write an event into the history."""
        self.history.append({"event": event, "worker": worker, "token": token, "table": TABLE, **more})
        if self.incident is not None:
            self.incident = advance(self.incident, self.history[-1])

    @property
    def pair(self) -> dict[str, Any]:
        """The event about the pair, which is the last one."""
        assert self.incident is None
        return self.history[-1]


@pytest.mark.parametrize(("unfinished", "met"), [(1, True), (0, False)])
def test_the_second_fault_strikes_the_hold_that_finds_the_intent(unfinished: int, *, met: bool) -> None:
    scene = Scene(NEXT_HOLD)
    assert scene.writers["writer-2"].words == []
    scene.hear("stopped", "writer-1", 5, point="checked")
    assert scene.writers["writer-2"].words == ["stop-at acquired"]
    scene.hear("holding", "writer-2", 7, unfinished=unfinished)
    scene.hear("stopped", "writer-2", 7, point="acquired")
    assert scene.writers["writer-2"].words[1:] == ["pass acquired", "stop-at data", "go"]
    scene.hear("stopped", "writer-2", 7, point="data")
    expected = {"event": "pair", "first": "kill-both", "second": "break-lock", "meeting": NEXT_HOLD, "met": met}
    assert scene.pair == expected


def test_a_holder_of_another_table_is_not_the_next_one() -> None:
    scene = Scene(NEXT_HOLD)
    scene.hear("stopped", "writer-1", 5, point="checked")
    scene.hear("stopped", "writer-2", 7, point="acquired", table="s3a://lake/soak-1")
    assert scene.writers["writer-2"].words[1:] == ["stop-at acquired", "go"]
    assert scene.incident is not None


@pytest.mark.parametrize("ends", [False, True])
def test_under_one_hold_the_second_fault_is_ready_before_the_first_strikes(*, ends: bool) -> None:
    scene = Scene(ONE_HOLD)
    scene.hear("stopped", "writer-1", 5, point="data")
    assert scene.writers["writer-1"].words == ["stop-at data", "stop-at checked", "go"]
    if ends:
        scene.hear("refused", "writer-1", 5)
    scene.hear("stopped", "writer-1", 5, point="checked")
    assert scene.pair["met"] is not ends


def test_a_fault_alone_is_a_pair_without_a_second_fault() -> None:
    scene = Scene(ALONE, second=None)
    scene.hear("stopped", "writer-1", 5, point="checked")
    assert scene.pair == {"event": "pair", "first": "kill-both", "second": None, "meeting": ALONE, "met": True}
    never = Scene(ALONE, second=None)
    never.hear("ended", "writer-1", 5)
    assert not never.pair["met"]


def kinds(*names: str) -> list[PairKind]:
    return pair_kinds(names, lambda fault: fault.points)


def test_pairs_leave_an_intent_or_lose_the_hold_first() -> None:
    every = kinds(*CLASSES)
    assert {kind.effects for kind in every} >= {
        "unfinished intent, lost hold",
        "unfinished intent, PUT of unknown outcome",
        "lost hold, PUT of unknown outcome",
    }
    queued = {"expire-queued", "cancel-queued"}
    assert not [kind for kind in every if {kind.first.name, kind.second.name} & queued]
    assert all(set(kind.points) <= {"checked", "data", PUT} for kind in every)
    (next_hold, one_hold) = (kind for kind in kinds("break-lock", "s3-403") if kind.second.name == "s3-403")
    assert (next_hold.meeting, next_hold.points, next_hold.second_points) == (NEXT_HOLD, ("checked", PUT), ("data",))
    assert (one_hold.meeting, one_hold.points, one_hold.second_points) == (ONE_HOLD, ("checked",), ("data",))


def test_every_class_has_an_effect() -> None:
    assert all(effect_of(name) for name in CLASSES)
