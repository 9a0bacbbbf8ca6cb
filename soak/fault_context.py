"""Where faults act, and how they wait: for events, not for seconds."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.testing.queues import LockQueues
from soak.containers import ContainerZooKeeper
from soak.processes import WriterProcess
from soak.s3_faults import FaultGate, S3Fault

Event = Mapping[str, Any]
"""One line of the history."""

Incident = Generator[None, Event | None, None]
"""A fault while it goes on: it is sent each event, and None while there is none; see :func:`advance`."""

Waiting = Generator[None, Event | None, Event | None]
"""A part of a fault; returns the event that it waited for, None if that did not come in time."""

_Stopped = Generator[None, Event | None, tuple[Event, S3Fault | None] | None]
# Likewise; returns what :func:`stopped` does.

#: Names of the events that end a transaction, or its writer.
OUTCOMES = frozenset({"acknowledged", "refused", "unknown", "gave-up", "ended"})
PUT = "put"
"""A point of the gate's, beside the writers' own: the PUT was sent, and the store has not seen it."""


@dataclass(kw_only=True)
class FaultContext:
    """Where faults act.

    Attributes:
        writers: by name; a killed one is replaced by another of its name.
        session_seconds: session time-out of the writers, as granted.
        gate: in front of an S3 of ours, None with another one.
        zookeeper: an ensemble of ours, None with another one.
        queues: of the tables' locks.
        say: writes an event into the history.
        random: seeded.
        history: every event so far.
        slack_seconds: how much longer than a bare JVM these writers may take for a step.

    """

    writers: dict[str, WriterProcess]
    session_seconds: float
    gate: FaultGate | None
    zookeeper: EmbeddedZooKeeper | ContainerZooKeeper | None
    queues: LockQueues
    say: Callable[..., None]
    random: random.Random
    history: Sequence[Event]
    slack_seconds: float = 0.0

    def attempt(self, writer: str, version: int) -> Event | None:
        """Return the newest attempt of a writer's last hold to put this version, None if there is none."""
        for event in reversed(self.history):
            if event.get("worker") == writer and event["event"] == "attempting":
                return event if event["version"] == version else None
        return None


def until(seconds: float, wanted: Callable[[Event], bool]) -> Waiting:
    """Wait for an event, at most that long; return it, or None."""
    deadline = time.monotonic() + seconds
    while True:
        event = yield
        if event is not None and wanted(event):
            return event
        if time.monotonic() > deadline:
            return None


def until_true(seconds: float, condition: Callable[[], bool]) -> Waiting:
    """Wait for what no event tells, at most that long."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        yield
    return None


def of(writer: str, *kinds: str) -> Callable[[Event], bool]:
    """Return the test for an event of a writer."""
    return lambda event: event.get("worker") == writer and event["event"] in kinds


def heard(context: FaultContext, writer: str) -> Waiting:
    """Wait until a writer that was left alone again says what became of its transaction."""
    return until(2 * context.session_seconds + 10 + context.slack_seconds, of(writer, *OUTCOMES))


def of_hold(held: Event, *kinds: str) -> Callable[[Event], bool]:
    """Return the test for an event of a writer under this hold, or one that says no hold."""
    test = of(str(held.get("worker")), *kinds)
    return lambda event: test(event) and event.get("token", held.get("token")) == held.get("token")


def takeover(held: Event, kind: str) -> Callable[[Event], bool]:
    """Return the test for this event of a later holder of the same table."""
    return lambda event: (
        event["event"] == kind
        and event.get("table") == held.get("table")
        and event.get("token", -1) > held.get("token", -1)
        and (event.get("worker") != held.get("worker") or event.get("thread") == 2)  # noqa: PLR2004 (its second)
    )


def stopped(context: FaultContext, writer: str, point: str) -> _Stopped:
    """Have a writer stop at a point; return where it is, and the held PUT if that is the point."""
    process = context.writers[writer]
    wait = 20 * context.session_seconds + 30 + context.slack_seconds
    if point != PUT:
        process.tell(f"stop-at {point}")
        event = yield from until(
            wait, lambda event: of(writer, "stopped", "ended")(event) and event.get("point", point) == point
        )
        return (event, None) if event is not None and event["event"] == "stopped" else None
    assert context.gate is not None  # noqa: S101 (the class needs it)
    fault = context.gate.arm(writer, S3Fault(held=True))
    deadline = time.monotonic() + wait
    arrived: Event | None = None
    while time.monotonic() < deadline:
        event = yield
        if event is not None and event.get("worker") == writer:
            if event["event"] == "ended":
                break
            arrived = event if event["event"] == "put-arrived" else arrived
        # The gate may be quicker to say so than the writer was.
        attempt = arrived and context.attempt(writer, arrived["version"])
        if attempt is not None:
            return attempt, fault
    context.gate.disarm(writer)
    fault.release.set()
    return None


def struck(context: FaultContext, name: str, writer: str, point: str) -> _Stopped:
    """Have a writer stop at a point, and say that a fault strikes there; return what ``stopped`` returns."""
    found = yield from stopped(context, writer, point)
    if found is not None:
        context.say("fault", kind=name, worker=writer, point=point, **place_of(found[0]))
    return found


def place_of(event: Event) -> dict[str, Any]:
    """Return the table and the hold that an event is about, as far as it has them."""
    return {name: event[name] for name in ("token", "table") if name in event}


def advance(incident: Incident, event: Mapping[str, Any] | None) -> Incident | None:
    """Send a fault an event; return it, or None if that was its end."""
    try:
        if inspect.getgeneratorstate(incident) == inspect.GEN_CREATED:
            next(incident)
        else:
            incident.send(event)
    except StopIteration:
        return None
    return incident
