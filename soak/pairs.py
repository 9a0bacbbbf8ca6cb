"""Pairs of faults: which two may meet, where, and whether they did.

Two faults meet under one hold, or under two holds that follow each other: the first leaves an intent unfinished, and
the second strikes the holder that has to fill that version. A fault alone is a pair without a second fault.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

from soak.fault_context import OUTCOMES, PUT, Event, FaultContext, Incident, advance
from soak.faults import CLASSES, FaultClass

ONE_HOLD = "one hold"
"""Both faults strike the same hold: it is lost, and then something happens to its PUT."""
NEXT_HOLD = "next hold"
"""The first fault leaves an intent unfinished; the second strikes the hold that finds it."""
ALONE = "alone"
"""The first fault strikes alone."""

_PERMITTED = ("checked", PUT)
_AT_DATA = ("data",)
# Points at which each of these leaves the intent of a version that may still be put.
_LEAVES_INTENT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("kill-python", "kill-jvm", "kill-both", "pause-python", "pause-both"), _PERMITTED),
    **dict.fromkeys(("cut-zookeeper", "break-lock"), _PERMITTED),
    **dict.fromkeys(("s3-late", "s3-unavailable"), _AT_DATA),
}
# Each of these loses the hold, and the log store puts nevertheless when it has the guard's permission.
_LOSES_HOLD = ("pause-python", "pause-both", "cut-zookeeper", "break-lock")
_LOSS_POINT = "checked"
# Where a second fault strikes: the hold has filled the version, or its PUT is an empty commit's (the last two).
_SECOND_POINTS = ("read", "data", "checked", PUT)
_NEXT_POINT = "acquired"
_ENDS = OUTCOMES - {"ended"}

_EFFECTS: Mapping[str, tuple[str, ...]] = {
    "lost hold": ("pause-python", "pause-both", "cut-zookeeper", "break-lock", "second-hold"),
    "dead writer": ("kill-python", "kill-jvm", "kill-both"),
    "PUT of unknown outcome": ("cut-s3", "s3-lost-reply", "s3-500", "s3-503", "s3-unavailable", "s3-delay", "s3-late"),
    "refused PUT": ("s3-403", "s3-409", "s3-412"),
    "slow writer": ("pause-jvm", "lost-zookeeper-reply", "expire-queued", "cancel-queued"),
    "ensemble": tuple(name for name in CLASSES if name.startswith("zookeeper-")),
}
_UNFINISHED = "unfinished intent"


@dataclass(frozen=True)
class Pair:
    """Two faults that are to meet, or one alone.

    Attributes:
        first: the fault that strikes first, or the only one.
        writer: name of the writer that the first fault strikes.
        point: point at which the first fault strikes.
        second: the other fault; None for a fault alone.
        second_point: point at which the second fault strikes, or prepares to strike the PUT.
        meeting: ``one hold``, ``next hold`` or ``alone``.

    """

    first: FaultClass
    writer: str
    point: str
    second: FaultClass | None = None
    second_point: str = ""
    meeting: str = ALONE

    @property
    def kinds(self) -> dict[str, Any]:
        """The pair as the history names it."""
        return {"first": self.first.name, "second": self.second.name if self.second else None, "meeting": self.meeting}

    def strike(self, context: FaultContext) -> Incident:
        """Play both faults to their ends, and write into the history whether they met."""
        play = {ALONE: _alone, ONE_HOLD: _under_one_hold, NEXT_HOLD: _under_next_hold}[self.meeting]
        met = yield from play(context, self)
        context.say("pair", **self.kinds, met=met)


@dataclass(frozen=True)
class PairKind:
    """Two classes that may meet, with the points at which they may strike."""

    first: FaultClass
    second: FaultClass
    meeting: str
    points: tuple[str, ...]
    second_points: tuple[str, ...]

    @property
    def effects(self) -> str:
        """Effects of the two faults; see :func:`effects_of`."""
        return effects_of({"first": self.first.name, "second": self.second.name, "meeting": self.meeting})


def pair_kinds(names: Collection[str], points_of: Callable[[FaultClass], Collection[str]]) -> list[PairKind]:
    """Return every pair that these classes allow.

    Args:
        names: classes of the run.
        points_of: returns the points at which a class may strike in this run.

    """
    classes = [CLASSES[name] for name in names]
    kinds = []
    for first in classes:
        leaves = tuple(point for point in _LEAVES_INTENT.get(first.name, ()) if point in points_of(first))
        loses = tuple(point for point in (_LOSS_POINT,) if first.name in _LOSES_HOLD and point in points_of(first))
        for second in classes:
            after = tuple(point for point in _SECOND_POINTS if point in points_of(second))
            if leaves and after:
                kinds.append(PairKind(first, second, NEXT_HOLD, leaves, after))
            if loses and second.name.startswith("s3-"):
                kinds.append(PairKind(first, second, ONE_HOLD, loses, _AT_DATA))
    return kinds


def effects_of(pair: Mapping[str, Any]) -> str:
    """Return the effects of the two faults of a ``pair`` event, for people."""
    first = _UNFINISHED if pair["meeting"] == NEXT_HOLD else effect_of(pair["first"])
    return f"{first}, {effect_of(pair['second'])}" if pair["second"] else f"{first} alone"


def effect_of(name: str) -> str:
    """Return the effect of a class of faults on a writer, for people."""
    return next(effect for effect, names in _EFFECTS.items() if name in names)


_Play = Generator[None, Event | None, bool]


def _alone(context: FaultContext, pair: Pair) -> _Play:
    start = len(context.history)
    yield from pair.first.strike(context, pair.writer, pair.point)
    return bool(list(_strikes(context, start, pair.first)))


def _under_one_hold(context: FaultContext, pair: Pair) -> _Play:
    """Prepare the fault of the PUT, then have the hold be lost between the guard's permission and that PUT."""
    assert pair.second is not None  # noqa: S101 (the kind of pair has one)
    start, first_started = len(context.history), False
    running = _advanced([pair.second.strike(context, pair.writer, pair.second_point)], None)
    while running:
        event = yield
        if not first_started and _is_stop(event, pair.second_point) and event["worker"] == pair.writer:
            # Before the second fault lets the writer continue.
            first_started = True
            running += _advanced([pair.first.strike(context, pair.writer, pair.point)], None)
        running = _advanced(running, event)
    return any(
        loss.get("token") == put.get("token") and not _has_ended(context, start, loss, put)
        for loss in _strikes(context, start, pair.first)
        for put in _strikes(context, start, pair.second)
    )


def _under_next_hold(context: FaultContext, pair: Pair) -> _Play:
    """Stop the next holder before it fills the version, and have the second fault strike it later."""
    assert pair.second is not None  # noqa: S101 (the kind of pair has one)
    start, next_holder = len(context.history), ""
    struck: list[Event] = []
    waiters = [name for name in context.writers if name != pair.writer]

    def say(name: str, /, **more: Any) -> None:
        context.say(name, **more)
        if name == "fault":
            # Before the fault does anything, because the next holder may be quick.
            struck.append({"token": -1, "table": None, **more})
            _tell(context, waiters, f"stop-at {_NEXT_POINT}")

    running = _advanced([pair.first.strike(replace(context, say=say), pair.writer, pair.point)], None)
    patience = 3 * context.session_seconds + context.slack_seconds
    deadline: float | None = None
    while running or (struck and not next_holder and (deadline is None or time.monotonic() < deadline)):
        event = yield
        if not running and deadline is None:
            deadline = time.monotonic() + patience
        if not next_holder and _is_stop(event, _NEXT_POINT) and event["worker"] in waiters:
            name = str(event["worker"])
            if event["table"] == struck[0]["table"] and event["token"] > struck[0]["token"]:
                next_holder = name
                _tell(context, waiters, f"pass {_NEXT_POINT}")
                running += _advanced([pair.second.strike(context, name, pair.second_point)], None)
            else:
                _tell(context, [name], f"stop-at {_NEXT_POINT}")
            _tell(context, [name], "go")
        running = _advanced(running, event)
    _tell(context, waiters, f"pass {_NEXT_POINT}")
    return any(
        event["worker"] == next_holder and _found_unfinished(context, event)
        for event in _strikes(context, start, pair.second)
    )


def _advanced(incidents: list[Incident], event: Event | None) -> list[Incident]:
    return [incident for incident in incidents if advance(incident, event) is not None]


def _is_stop(event: Event | None, point: str) -> TypeGuard[Event]:
    return event is not None and event["event"] == "stopped" and event.get("point") == point


def _tell(context: FaultContext, names: Collection[str], words: str) -> None:
    for name in names:
        with suppress(KeyError):
            context.writers[name].tell(words)


def _strikes(context: FaultContext, start: int, fault: FaultClass) -> Iterator[Event]:
    """Yield the strikes of a class since this length of the history."""
    return (event for event in context.history[start:] if event["event"] == "fault" and event["kind"] == fault.name)


def _has_ended(context: FaultContext, start: int, loss: Event, put: Event) -> bool:
    """Return whether the transaction that both strikes are about had an outcome between them."""
    history = list(context.history[start:])
    first, last = sorted((history.index(loss), history.index(put)))
    return any(
        event["event"] in _ENDS and event.get("token") == loss.get("token") and event.get("worker") == loss["worker"]
        for event in history[first:last]
    )


def _found_unfinished(context: FaultContext, strike: Event) -> bool:
    """Return whether the hold that was struck had found an unfinished intent."""
    return any(
        event["event"] == "holding" and event.get("token") == strike.get("token") and bool(event["unfinished"])
        for event in context.history
    )
