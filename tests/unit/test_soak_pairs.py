"""Pairs of faults: which classes may meet, and whether the faults of a pair met. The writers only record commands."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from soak.fault_context import PUT, FaultContext, Incident, advance, strike_at
from soak.faults import CLASSES, FaultClass
from soak.pairs import ALONE, GROUP, NEXT_HOLD, ONE_HOLD, Pair, PairKind, effect_of, pair_kinds

TABLE = "s3a://lake/soak-0"


class FirstChoice(random.Random):
    """A source of choices that takes the first choice, and numbers from a list."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = list(numbers)

    def choice(self, seq: Sequence[Any]) -> Any:
        return seq[0]

    def random(self) -> float:
        return self.numbers.pop(0)


class Queues:
    """The queue of the table: the names of the writers that wait."""

    def __init__(self) -> None:
        self.waiting: set[str] = set()

    def contenders(self, _: str, job: str) -> list[str]:
        return sorted(self.waiting & {job})


class Writer:
    """A writer process that records its commands."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def send(self, command: str) -> None:
        self.commands.append(command)


class Scene:
    """Two writers, and a pair of faults that strike where the writers stop."""

    def __init__(self, meeting: str, *, second: str | None = "break-lock", numbers: Sequence[float] = ()) -> None:
        self.queues = Queues()
        self.history: list[dict[str, Any]] = []
        self.writers = {name: Writer() for name in ("writer-1", "writer-2")}
        self.context = FaultContext(
            writers=cast("Any", self.writers), session_seconds=1.0, gate=None, zookeeper=None,
            queues=cast("Any", self.queues), record=self.record, random=FirstChoice(*numbers), history=self.history,
        )  # fmt: skip
        fault = self.fault(second) if second else None
        if meeting == GROUP:
            pair = Pair(CLASSES["cancel-queued"], "writer-1", "asking", fault, "checked", meeting)
        else:
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


HOLDER: dict[str, Any] = {"worker": "writer-2", "token": 7}
MEMBER: dict[str, Any] = {"worker": "writer-1", "token": 5}


def wait_in_group(scene: Scene, *members: str) -> None:
    """Let writer-1 wait behind writer-2, which comes to the point ``checked`` with an intent that names members."""
    scene.receive("stopped", **MEMBER, point="asking")
    scene.receive("waiting", **HOLDER, offer="c2")
    scene.receive("stopped", **HOLDER, point="acquired")
    scene.queues.waiting = {"writer-1"}
    scene.receive("waiting", **MEMBER, offer="c1")
    assert scene.writers["writer-2"].commands[-2:] == ["stop-at checked", "go"]
    scene.receive("grouped", **HOLDER, members=members)
    scene.receive("stopped", **HOLDER, point="checked")


def kinds_of_faults(scene: Scene) -> list[str]:
    return [event["kind"] for event in scene.history if event["event"] == "fault"]


def end_cancelled_wait(scene: Scene) -> None:
    scene.queues.waiting.clear()
    scene.receive("gave-up", **MEMBER)
    scene.receive("stopped", **MEMBER, point="asking")
    scene.receive("waiting", **MEMBER)
    scene.receive("acknowledged", **MEMBER)


def test_a_holder_is_struck_after_its_member_has_left_the_queue() -> None:
    # The member first; its fault does not let the holder continue.
    scene = Scene(GROUP, numbers=[0.9, 0.1])
    wait_in_group(scene, "c1")
    assert kinds_of_faults(scene) == ["cancel-queued"]
    assert scene.writers["writer-1"].commands[-1] == "cancel"
    assert scene.writers["writer-2"].commands[-2:] == ["stop-at checked", "go"]
    end_cancelled_wait(scene)
    assert kinds_of_faults(scene) == ["cancel-queued", "break-lock"]
    assert scene.writers["writer-2"].commands[-2:] == ["go", "go"]
    fault_names = {"first": "cancel-queued", "second": "break-lock"}
    assert scene.pair == {"event": "pair", **fault_names, "meeting": GROUP, "met": True}


def test_a_member_is_struck_after_its_holder() -> None:
    scene = Scene(GROUP, numbers=[0.1, 0.1])
    wait_in_group(scene, "c1")
    assert kinds_of_faults(scene) == ["break-lock", "cancel-queued"]
    end_cancelled_wait(scene)
    assert scene.pair["met"]


def test_a_holder_without_the_member_continues_and_the_pair_is_tried_again() -> None:
    scene = Scene(GROUP)
    wait_in_group(scene, "c9")
    assert scene.writers["writer-2"].commands[-1] == "pass checked"
    assert scene.writers["writer-1"].commands == ["stop-at asking", "go", "stop-at asking"]
    assert kinds_of_faults(scene) == []


def pair_kinds_of(*fault_names: str, makes_groups: bool = True) -> list[PairKind]:
    return pair_kinds(fault_names, lambda fault: fault.points, makes_groups=makes_groups)


def test_pairs_leave_an_intent_or_lose_the_hold_first() -> None:
    all_kinds = pair_kinds_of(*CLASSES)
    assert {kind.effects for kind in all_kinds} >= {
        "unfinished intent, lost hold",
        "unfinished intent, PUT of unknown outcome",
        "lost hold, PUT of unknown outcome",
    }
    kinds = [kind for kind in all_kinds if kind.meeting != GROUP]
    queue_faults = {"expire-queued", "cancel-queued"}
    assert not [kind for kind in kinds if {kind.first.name, kind.second.name} & queue_faults]
    assert all(set(kind.points) <= {"checked", "data", PUT} for kind in kinds)
    (next_hold, one_hold) = (kind for kind in pair_kinds_of("break-lock", "s3-403") if kind.second.name == "s3-403")
    assert (next_hold.meeting, next_hold.points, next_hold.second_points) == (NEXT_HOLD, ("checked", PUT), ("data",))
    assert (one_hold.meeting, one_hold.points, one_hold.second_points) == (ONE_HOLD, ("checked",), ("data",))


def test_the_faults_of_a_member_meet_those_of_its_holder() -> None:
    groups = {(kind.first.name, kind.second.name): kind for kind in pair_kinds_of(*CLASSES) if kind.meeting == GROUP}
    members, holders = ({pair[index] for pair in groups} for index in (0, 1))
    assert members == {"expire-queued", "cancel-queued", "pause-queued", "kill-queued"}
    assert holders == {"kill-both", "cut-zookeeper", "lease-cut", "break-lock", "s3-late", "s3-lost-reply"}
    assert len(groups) == len(members) * len(holders)
    kind = groups["kill-queued", "kill-both"]
    assert (kind.points, kind.second_points) == (("asking",), ("checked", PUT))
    assert kind.effects == "dead member, dead writer"
    assert groups["cancel-queued", "s3-late"].second_points == ("checked",)
    assert not [kind for kind in pair_kinds_of(*CLASSES, makes_groups=False) if kind.meeting == GROUP]


def test_every_class_has_an_effect() -> None:
    assert all(effect_of(name) for name in CLASSES)
