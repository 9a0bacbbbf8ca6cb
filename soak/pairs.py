"""Pairs of faults: the classes that may meet, their points, and whether they met.

Two faults meet under one hold, under two consecutive holds, or in a group commit. Under consecutive holds the first
fault leaves an unfinished intent, and the second fault strikes the holder that has to fill that version. In a group
commit the first fault strikes a member, and the second fault strikes its holder. A single fault is a pair without a
second fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from soak.evidence import Event
from soak.fault_context import OUTCOMES, PUT, FaultContext, Incident, advance
from soak.faults import CLASSES, FaultClass
from soak.queue_faults import queue_in_group

ONE_HOLD = "one hold"
"""Both faults strike the same hold: the first loses the hold, the second strikes its PUT."""
NEXT_HOLD = "next hold"
"""The first fault leaves an unfinished intent; the second strikes the hold that finds it."""
GROUP = "group"
"""The first fault strikes a writer that an intent names as a member; the second strikes the holder of that intent."""
ALONE = "alone"
"""The first fault strikes alone."""

_AFTER_ANSWER = ("checked", PUT)
_AT_DATA = ("data",)
# For each class, the points at which it leaves an intent whose version may still be put.
_LEAVES_INTENT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("kill-python", "kill-jvm", "kill-both", "pause-python", "pause-both"), _AFTER_ANSWER),
    **dict.fromkeys(("cut-zookeeper", "lease-cut", "lease-cut-both", "lease-unavailable", "break-lock"), _AFTER_ANSWER),
    **dict.fromkeys(("s3-late", "s3-unavailable"), _AT_DATA),
}
# These classes lose the hold. The log store puts nevertheless if the guard has allowed it before.
_LOSES_HOLD = ("pause-python", "pause-both", "cut-zookeeper", "lease-cut", "lease-unavailable", "break-lock")
_LOSS_POINT = "checked"
# Points of the second fault. At `checked` and PUT the fault may strike the empty commit's PUT; at `read` and `data` the
# version is already filled.
_SECOND_POINTS = ("read", "data", "checked", PUT)
_NEXT_POINT = "acquired"
_MEMBER_FAULTS = ("expire-queued", "cancel-queued", "pause-queued", "kill-queued")
# For each class, the points at which it may strike the holder of a group commit. The classes of S3 strike its PUT.
_HOLDER_POINTS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("kill-both", "cut-zookeeper", "lease-cut", "break-lock"), _AFTER_ANSWER),
    **dict.fromkeys(("s3-late", "s3-lost-reply"), ("checked",)),
}
# The event `ended` reports the end of a writer's process, not of a transaction.
_TRANSACTION_OUTCOMES = OUTCOMES - {"ended"}

_EFFECTS: Mapping[str, tuple[str, ...]] = {
    "lost hold": (
        "pause-python", "pause-both", "cut-zookeeper", "lease-cut", "lease-cut-both", "lease-unavailable", "break-lock",
        "second-hold",
    ),
    "dead writer": ("kill-python", "kill-jvm", "kill-both", "kill-queued"),
    "PUT of unknown outcome": ("cut-s3", "s3-lost-reply", "s3-500", "s3-503", "s3-unavailable", "s3-delay", "s3-late"),
    "refused PUT": ("s3-403", "s3-409", "s3-412"),
    "slow writer": ("pause-jvm", "lost-zookeeper-reply", "expire-queued", "cancel-queued", "pause-queued"),
    "failed lock request": (
        "lease-lost-reply", "lease-500", "lease-503", "lease-409", "lease-412", "lease-403", "lease-delay",
        "lease-late",
    ),
    "ensemble": tuple(name for name in CLASSES if name.startswith("zookeeper-")),
}  # fmt: skip
_UNFINISHED = "unfinished intent"


@dataclass(frozen=True)
class Pair:
    """Two planned faults, or one.

    Attributes:
        first: The first fault, or the only one.
        writer: Name of the writer that the first fault strikes.
        point: Point at which the first fault strikes.
        second: The second fault; None for a single fault.
        second_point: Point at which the second fault strikes, or prepares to strike the PUT.
        meeting: ``one hold``, ``next hold``, ``group`` or ``alone``.

    """

    first: FaultClass
    writer: str
    point: str
    second: FaultClass | None = None
    second_point: str = ""
    meeting: str = ALONE

    @property
    def event_fields(self) -> dict[str, Any]:
        """The fields of the pair in the history."""
        return {"first": self.first.name, "second": self.second.name if self.second else None, "meeting": self.meeting}

    def strike(self, context: FaultContext) -> Incident:
        """Run both faults until they end, and record whether they met."""
        run_meeting = _MEETINGS[self.meeting]
        met = yield from run_meeting(context, self)
        context.record("pair", **self.event_fields, met=met)


@dataclass(frozen=True)
class PairKind:
    """Two classes that may meet, and the points at which each may strike."""

    first: FaultClass
    second: FaultClass
    meeting: str
    points: tuple[str, ...]
    second_points: tuple[str, ...]

    @property
    def effects(self) -> str:
        """Effects of the two faults; see :func:`effects_of`."""
        return effects_of({"first": self.first.name, "second": self.second.name, "meeting": self.meeting})


def pair_kinds(
    names: Collection[str], points_of: Callable[[FaultClass], Collection[str]], *, makes_groups: bool
) -> list[PairKind]:
    """Return every pair that these classes allow.

    Args:
        names: Classes of the run.
        points_of: Returns the points at which a class may strike in this run.
        makes_groups: Whether the writers make group commits.

    """
    classes = [CLASSES[name] for name in names]
    kinds = []
    for first in classes:
        intent_points = tuple(point for point in _LEAVES_INTENT.get(first.name, ()) if point in points_of(first))
        loses_hold = first.name in _LOSES_HOLD and _LOSS_POINT in points_of(first)
        for second in classes:
            second_points = tuple(point for point in _SECOND_POINTS if point in points_of(second))
            if intent_points and second_points:
                kinds.append(PairKind(first, second, NEXT_HOLD, intent_points, second_points))
            if loses_hold and second.name.startswith("s3-"):
                kinds.append(PairKind(first, second, ONE_HOLD, (_LOSS_POINT,), _AT_DATA))
            reachable = {_LOSS_POINT, *points_of(second)}
            holder_points = tuple(point for point in _HOLDER_POINTS.get(second.name, ()) if point in reachable)
            if makes_groups and first.name in _MEMBER_FAULTS and holder_points:
                kinds.append(PairKind(first, second, GROUP, first.points, holder_points))
    return kinds


def effects_of(pair: Mapping[str, Any]) -> str:
    """Return the effects of the faults of a ``pair`` event, for the report."""
    first = _UNFINISHED if pair["meeting"] == NEXT_HOLD else effect_of(pair["first"])
    if pair["meeting"] == GROUP:
        first = first.replace("writer", "member")
    return f"{first}, {effect_of(pair['second'])}" if pair["second"] else f"{first} alone"


def effect_of(name: str) -> str:
    """Return the effect of a class of faults on a writer, for the report."""
    return next(effect for effect, names in _EFFECTS.items() if name in names)


_Meeting = Generator[None, Event | None, bool]


def _alone(context: FaultContext, pair: Pair) -> _Meeting:
    start = len(context.history)
    yield from pair.first.strike(context, pair.writer, pair.point)
    return bool(list(_strikes(context, start, pair.first)))


def _under_one_hold(context: FaultContext, pair: Pair) -> _Meeting:
    """Prepare the fault of the PUT, then lose the hold between the guard's answer and that PUT."""
    assert pair.second is not None  # noqa: S101 (this meeting has a second fault)
    start, first_started = len(context.history), False
    running = _advance_all([pair.second.strike(context, pair.writer, pair.second_point)], None)
    while running:
        event = yield
        if not first_started and _is_stop(event, pair.second_point) and event["worker"] == pair.writer:
            # Start the first fault before the second lets the writer continue.
            first_started = True
            running += _advance_all([pair.first.strike(context, pair.writer, pair.point)], None)
        running = _advance_all(running, event)
    return any(
        loss.get("token") == put.get("token") and not _has_ended(context, start, loss, put)
        for loss in _strikes(context, start, pair.first)
        for put in _strikes(context, start, pair.second)
    )


def _under_next_hold(context: FaultContext, pair: Pair) -> _Meeting:
    """Stop the next holder before it fills the version, and let the second fault strike it later."""
    assert pair.second is not None  # noqa: S101 (this meeting has a second fault)
    start, next_holder = len(context.history), ""
    strikes: list[Event] = []
    waiters = [name for name in context.writers if name != pair.writer]

    def record(event_name: str, /, **fields: Any) -> None:
        context.record(event_name, **fields)
        if event_name == "fault":
            # Send the command at once, because the next holder may be fast.
            strikes.append({"token": -1, "table": None, **fields})
            _send(context, waiters, f"stop-at {_NEXT_POINT}")

    running = _advance_all([pair.first.strike(replace(context, record=record), pair.writer, pair.point)], None)
    holder_seconds = 3 * context.session_seconds + context.slack_seconds
    deadline: float | None = None
    while running or (strikes and not next_holder and (deadline is None or time.monotonic() < deadline)):
        event = yield
        if not running and deadline is None:
            deadline = time.monotonic() + holder_seconds
        if not next_holder and _is_stop(event, _NEXT_POINT) and event["worker"] in waiters:
            name = str(event["worker"])
            if event["table"] == strikes[0]["table"] and event["token"] > strikes[0]["token"]:
                next_holder = name
                _send(context, waiters, f"pass {_NEXT_POINT}")
                running += _advance_all([pair.second.strike(context, name, pair.second_point)], None)
            else:
                _send(context, [name], f"stop-at {_NEXT_POINT}")
            _send(context, [name], "go")
        running = _advance_all(running, event)
    _send(context, waiters, f"pass {_NEXT_POINT}")
    return any(
        event["worker"] == next_holder and _found_unfinished(context, event)
        for event in _strikes(context, start, pair.second)
    )


def _in_group(context: FaultContext, pair: Pair) -> _Meeting:
    """Stop a holder when its intent names the first fault's writer, and let the faults strike both.

    The holder is struck first, or after the member has left the queue.
    """
    assert pair.second is not None  # noqa: S101 (this meeting has a second fault)
    queued = yield from queue_in_group(context, pair.writer, pair.point, pair.second_point)
    if queued is None:
        return False
    start, table = len(context.history), queued.table
    scene = replace(context, queued=replace(queued, is_shared=True))
    member_fault = pair.first.strike(scene, pair.writer, pair.point)
    holder_fault = pair.second.strike(scene, queued.holder, pair.second_point)
    if context.random.random() < 0.5:  # noqa: PLR2004
        running = _advance_all([holder_fault, member_fault], None)
    else:
        running = _advance_all([member_fault], None)
        deadline = time.monotonic() + 2 * context.session_seconds + context.slack_seconds
        while context.queues.contenders(table, pair.writer) and time.monotonic() < deadline:
            running = _advance_all(running, (yield))
        running += _advance_all([holder_fault], None)
    while running:
        running = _advance_all(running, (yield))
    return all(list(_strikes(context, start, fault)) for fault in (pair.first, pair.second))


_MEETINGS: Mapping[str, Callable[[FaultContext, Pair], _Meeting]] = {
    ALONE: _alone,
    ONE_HOLD: _under_one_hold,
    NEXT_HOLD: _under_next_hold,
    GROUP: _in_group,
}


def _advance_all(incidents: list[Incident], event: Event | None) -> list[Incident]:
    return [incident for incident in incidents if advance(incident, event) is not None]


def _is_stop(event: Event | None, point: str) -> TypeGuard[Event]:
    return event is not None and event["event"] == "stopped" and event.get("point") == point


def _send(context: FaultContext, names: Collection[str], command: str) -> None:
    for name in names:
        with suppress(KeyError):
            context.writers[name].send(command)


def _strikes(context: FaultContext, start: int, fault: FaultClass) -> Iterator[Event]:
    """Yield the strikes of a class, from this index of the history on."""
    return (event for event in context.history[start:] if event["event"] == "fault" and event["kind"] == fault.name)


def _has_ended(context: FaultContext, start: int, loss: Event, put: Event) -> bool:
    """Return whether the transaction ended between the two strikes."""
    history = list(context.history[start:])
    begin, end = sorted((history.index(loss), history.index(put)))
    return any(
        event["event"] in _TRANSACTION_OUTCOMES
        and event.get("token") == loss.get("token")
        and event.get("worker") == loss["worker"]
        for event in history[begin:end]
    )


def _found_unfinished(context: FaultContext, strike: Event) -> bool:
    """Return whether the hold of a strike had found an unfinished intent."""
    return any(
        event["event"] == "holding" and event.get("token") == strike.get("token") and bool(event["unfinished"])
        for event in context.history
    )
