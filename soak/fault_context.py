"""The environment of faults, and their functions to wait for events and conditions."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.testing.queues import LockQueues
from soak.containers import ContainerZooKeeper
from soak.evidence import Event
from soak.lease_queues import LeaseQueues
from soak.processes import WriterProcess
from soak.s3_faults import FaultGate, S3Fault

Incident = Generator[None, Event | None, None]
"""A running fault. :func:`advance` sends it each event, and None while there is none."""

Wait = Generator[None, Event | None, Event | None]
"""A part of a fault that waits. It returns the event that it waited for, or None."""

#: Events that end a transaction or its writer.
OUTCOMES = frozenset({"acknowledged", "refused", "unknown", "gave-up", "ended"})
PUT = "put"
"""The point at which the fault gate has received a PUT that S3 has not. The other points are the writer's own."""
OFFERS = "offers"
"""The point at which a holder has chosen the members of its group commit, and has stored no intent yet."""


class Stop(NamedTuple):
    """A writer that is stopped at a point.

    Attributes:
        event: The event that names its table and hold.
        put: Its PUT, if that is held back; None if the writer itself is stopped.

    """

    event: Event
    put: S3Fault | None


StopWait = Generator[None, Event | None, Stop | None]
"""A part of a fault that stops a writer. It returns None if the writer did not come to the point in time."""


@dataclass(frozen=True)
class Queued:
    """A writer that waits behind a stopped holder.

    Attributes:
        holder: Name of the holder.
        point: Point at which the holder is stopped.
        stop: Its stop.
        is_shared: Whether a fault of the holder lets it continue, and not the fault of the waiter.

    """

    holder: str
    point: str
    stop: Stop
    is_shared: bool = False

    @property
    def table(self) -> str:
        """The table."""
        return str(self.stop.event["table"])

    def continue_holder(self, context: FaultContext) -> None:
        """Let the holder continue; a second call has no effect."""
        if self.is_shared:
            return
        if self.stop.put is not None:
            self.stop.put.release.set()
        else:
            context.writers[self.holder].send(f"pass {self.point}")


@dataclass(kw_only=True)
class FaultContext:
    """The services and writers of a run, for its faults.

    Attributes:
        writers: Writers by name. A killed writer is replaced by a new one of the same name.
        session_seconds: Session timeout that ZooKeeper granted the writers, or their lease on S3, in seconds.
        gate: The gate in front of the embedded S3; None with another S3.
        zookeeper: The ensemble, if the run has started it; None with another ensemble.
        queues: Queues of the tables' locks.
        record: Appends an event to the history.
        random: Seeded random numbers.
        history: All events so far.
        slack_seconds: Additional seconds for a step of these writers, compared with a JVM without Spark.
        makes_groups: Whether the writers make group commits.
        queued: The stopped holder and its waiter, if a fault of each strikes there; None: each fault stops its writers.

    """

    writers: dict[str, WriterProcess]
    session_seconds: float
    gate: FaultGate | None
    zookeeper: EmbeddedZooKeeper | ContainerZooKeeper | None
    queues: LockQueues | LeaseQueues
    record: Callable[..., None]
    random: random.Random
    history: Sequence[Event]
    slack_seconds: float = 0.0
    makes_groups: bool = False
    queued: Queued | None = None

    @property
    def waiters_leave_in_turn(self) -> bool:
        """Whether a dead waiter leaves the queue only after it has become the holder."""
        return isinstance(self.queues, LeaseQueues)

    def newest_attempt(self, writer: str, version: int) -> Event | None:
        """Return the newest attempt of a writer if it is for this version, else None."""
        for event in reversed(self.history):
            if event.get("worker") == writer and event["event"] == "attempting":
                return event if event["version"] == version else None
        return None


def wait_for(seconds: float, matches: Callable[[Event], bool]) -> Wait:
    """Wait for an event that matches, for at most ``seconds``; return the event, or None."""
    deadline = time.monotonic() + seconds
    while True:
        event = yield
        if event is not None and matches(event):
            return event
        if time.monotonic() > deadline:
            return None


def wait_until(seconds: float, condition: Callable[[], bool]) -> Wait:
    """Wait for a condition that no event announces, for at most ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        yield
    return None


def is_from(writer: str, *kinds: str) -> Callable[[Event], bool]:
    """Return a predicate for events of these kinds by a writer."""
    return lambda event: event.get("worker") == writer and event["event"] in kinds


def wait_for_outcome(context: FaultContext, writer: str) -> Wait:
    """Wait until a writer that is no longer disturbed reports the outcome of its transaction."""
    return wait_for(2 * context.session_seconds + 10 + context.slack_seconds, is_from(writer, *OUTCOMES))


def is_from_hold(stop: Event, *kinds: str) -> Callable[[Event], bool]:
    """Return a predicate for events of these kinds by a stopped writer, under its hold or without a hold."""
    is_from_writer = is_from(str(stop.get("worker")), *kinds)
    return lambda event: is_from_writer(event) and event.get("token", stop.get("token")) == stop.get("token")


def is_takeover(stop: Event, kind: str) -> Callable[[Event], bool]:
    """Return a predicate for events of this kind by a later holder of the stopped writer's table."""
    return lambda event: (
        event["event"] == kind
        and event.get("table") == stop.get("table")
        and event.get("token", -1) > stop.get("token", -1)
        and (event.get("worker") != stop.get("worker") or event.get("thread") == 2)  # noqa: PLR2004 (its second thread)
    )


def stop_at(context: FaultContext, writer: str, point: str) -> StopWait:
    """Stop a writer at a point. At the point :data:`PUT` the gate holds its PUT back instead."""
    if context.queued is not None and writer == context.queued.holder:
        return context.queued.stop
    process = context.writers[writer]
    seconds = 20 * context.session_seconds + 30 + context.slack_seconds
    if point != PUT:
        process.send(f"stop-at {point}")
        event = yield from wait_for(
            seconds, lambda event: is_from(writer, "stopped", "ended")(event) and event.get("point", point) == point
        )
        if event is not None and event["event"] == "stopped":
            return Stop(event, None)
        process.send(f"pass {point}")
        return None
    assert context.gate is not None  # noqa: S101 (without a gate the plan has no PUT)
    put = context.gate.arm(writer, S3Fault(held=True))
    deadline = time.monotonic() + seconds
    arrival: Event | None = None
    while time.monotonic() < deadline:
        event = yield
        if event is not None and event.get("worker") == writer:
            if event["event"] == "ended":
                break
            if event["event"] == "put-arrived":
                arrival = event
        # The gate may report the arrival before the writer reports the attempt.
        attempt = arrival and context.newest_attempt(writer, arrival["version"])
        if attempt is not None:
            return Stop(attempt, put)
    context.gate.disarm(writer, put)
    put.release.set()
    return None


def strike_at(context: FaultContext, name: str, writer: str, point: str) -> StopWait:
    """Stop a writer at a point, and record that a fault strikes there."""
    stop = yield from stop_at(context, writer, point)
    if stop is not None:
        context.record("fault", kind=name, worker=writer, point=point, **hold_fields(stop.event))
    return stop


def hold_fields(event: Event) -> dict[str, Any]:
    """Return the fields of an event that name its table and hold."""
    return {name: event[name] for name in ("token", "table") if name in event}


def advance(incident: Incident, event: Mapping[str, Any] | None) -> Incident | None:
    """Send an event to a running fault; return the fault, or None if it has ended."""
    try:
        if inspect.getgeneratorstate(incident) == inspect.GEN_CREATED:
            next(incident)
        else:
            incident.send(event)
    except StopIteration:
        return None
    return incident
