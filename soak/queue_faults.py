"""Faults of a contender: while it waits in the queue, and while it holds the lock."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from dataclasses import dataclass

from soak.evidence import Event
from soak.fault_context import (
    OUTCOMES,
    PUT,
    FaultContext,
    Incident,
    Stop,
    StopWait,
    is_from,
    is_takeover,
    stop_at,
    strike_at,
    wait_for,
    wait_for_outcome,
    wait_until,
)
from soak.process_faults import wait_for_replacement

_QUEUE_SECONDS = 10.0
_OUTCOME_SECONDS = 60.0


@dataclass(frozen=True)
class Queued:
    """A writer that waits behind a stopped holder.

    Attributes:
        holder: Name of the holder.
        point: Point at which the holder is stopped.
        stop: Its stop.

    """

    holder: str
    point: str
    stop: Stop

    @property
    def table(self) -> str:
        """The table."""
        return str(self.stop.event["table"])

    def continue_holder(self, context: FaultContext) -> None:
        """Let the holder continue; a second call has no effect."""
        if self.stop.put is not None:
            self.stop.put.release.set()
        else:
            context.writers[self.holder].send(f"pass {self.point}")


QueuedWait = Generator[None, Event | None, Queued | None]
"""A part of a fault that lets a writer wait behind a holder. It returns None if that did not succeed."""


def expire_queued(context: FaultContext, writer: str, point: str) -> Incident:
    """Cut a waiter off from ZooKeeper until its session and its contender are gone."""
    queued = yield from queue_behind_holder(context, writer, point)
    if queued is None:
        return
    table, link = queued.table, context.writers[writer].link
    context.record("fault", kind="expire-queued", worker=writer, point=point, table=table, holder=queued.point)
    link.cut()
    yield from wait_until(2 * context.session_seconds + 5, lambda: not context.queues.contenders(table, writer))
    link.mend()
    queued.continue_holder(context)
    yield from wait_for(_OUTCOME_SECONDS, is_from(writer, *OUTCOMES))


def cancel_queued(context: FaultContext, writer: str, point: str) -> Incident:
    """Cancel the wait of a writer, record its contenders that remain in the queue, and let it request the lock again.

    The writer stops before the new request and keeps its session. So its contender in the queue, if there is one, is
    left from the cancelled wait.
    """
    queued = yield from queue_behind_holder(context, writer, point)
    if queued is None:
        return
    table, process = queued.table, context.writers[writer]
    context.record("fault", kind="cancel-queued", worker=writer, point=point, table=table, holder=queued.point)
    process.send(f"stop-at {point}")
    process.send("cancel")
    if queued.point != "acquired" and context.random.random() < 0.5:  # noqa: PLR2004
        queued.continue_holder(context)
    event = yield from wait_for(_OUTCOME_SECONDS, is_from(writer, "stopped", "ended"))
    if event is not None and event["event"] == "stopped":
        yield from wait_until(_QUEUE_SECONDS, lambda: not context.queues.contenders(table, writer))
        context.record("queue", table=table, worker=writer, left=context.queues.contenders(table, writer))
    process.send("go")
    queued.continue_holder(context)
    yield from wait_for(_OUTCOME_SECONDS, is_from(writer, *(OUTCOMES - {"gave-up"})))


def queued_process_fault(name: str, number: signal.Signals) -> Callable[..., Incident]:
    """Return the fault that sends a signal to the Python and the JVM of a waiter."""

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        queued = yield from queue_behind_holder(context, writer, point)
        if queued is None:
            return
        table, process = queued.table, context.writers[writer]
        context.record("fault", kind=name, worker=writer, point=point, table=table, holder=queued.point)
        if number is signal.SIGKILL:
            context.record("killed", worker=writer, incarnation=process.options.incarnation)
        process.signal(number, python=True, jvm=True)
        if context.random.random() < 0.5:  # noqa: PLR2004
            queued.continue_holder(context)
        yield from wait_until(2 * context.session_seconds + 5, lambda: not context.queues.contenders(table, writer))
        queued.continue_holder(context)
        if number is signal.SIGSTOP:
            process.signal(signal.SIGCONT, python=True, jvm=True)
            context.record("resumed", worker=writer, table=table)
            yield from wait_for_outcome(context, writer)
        else:
            yield from wait_for_replacement(context, process)

    return strike


def queue_behind_holder(context: FaultContext, writer: str, point: str) -> QueuedWait:
    """Let a writer wait behind a holder that is stopped at a random point."""
    queued = yield from queue_behind_new_holder(context, writer, point)
    if queued is None:
        return None
    holder_point = context.random.choice(_holder_points(context, queued.holder, writer))
    if holder_point == queued.point:
        return queued
    return (yield from stop_holder_at(context, queued, holder_point))


def queue_behind_new_holder(context: FaultContext, writer: str, point: str) -> QueuedWait:
    """Let a writer wait behind a holder that is stopped after it has acquired the lock."""
    stop = yield from stop_at(context, writer, point)
    if stop is None:
        return None
    table = stop.event["table"]
    holder = context.random.choice([name for name in context.writers if name != writer])
    holder_stop = yield from stop_at(context, holder, "acquired")
    context.writers[writer].send("go")
    if holder_stop is not None and holder_stop.event["table"] == table:
        yield from wait_until(_QUEUE_SECONDS, lambda: bool(context.queues.contenders(table, writer)))
        if context.queues.contenders(table, writer):
            return Queued(holder, "acquired", holder_stop)
    context.writers[holder].send("go")
    return None


def _holder_points(context: FaultContext, holder: str, waiter: str) -> list[str]:
    """Return the points to which a holder comes; ``offers`` only if its commit can have members."""
    points = ["acquired", "checked"]
    if context.makes_groups:
        points.append("stored")
    if _has_offer(context, holder) and _has_offer(context, waiter):
        points.append("offers")
    return points if context.gate is None else [*points, PUT]


def _has_offer(context: FaultContext, writer: str) -> bool:
    """Return whether the newest wait of a writer has an offer. A commit that is offered may have members."""
    waits = (event for event in reversed(context.history) if is_from(writer, "waiting")(event))
    return bool(next(waits, {}).get("offer"))


def stop_holder_at(context: FaultContext, queued: Queued, point: str) -> QueuedWait:
    """Let a stopped holder continue up to a later point; None if it does not come to that point."""
    stop = yield from _stop_later(context, queued.holder, point)
    return None if stop is None else Queued(queued.holder, point, stop)


def _stop_later(context: FaultContext, holder: str, point: str) -> StopWait:
    if point == PUT:
        stopping = stop_at(context, holder, point)
        next(stopping)
        context.writers[holder].send("go")
        return (yield from stopping)
    process = context.writers[holder]
    process.send(f"stop-at {point}")
    process.send("go")
    event = yield from wait_for(_OUTCOME_SECONDS, is_from(holder, "stopped", *OUTCOMES))
    if event is not None and event["event"] == "stopped":
        return Stop(event, None)
    process.send(f"pass {point}")
    return None


def break_lock(context: FaultContext, writer: str, point: str) -> Incident:
    """Delete the contender of a holder."""
    stop = yield from strike_at(context, "break-lock", writer, point)
    if stop is None:
        return
    event, put = stop
    context.queues.delete(event["table"], event["token"])
    yield from wait_for(
        context.session_seconds + 5 + context.slack_seconds,
        is_takeover(event, context.random.choice(("read", "acknowledged"))),
    )
    if put is not None:
        put.release.set()
    context.writers[writer].send("go")
    yield from wait_for_outcome(context, writer)


def second_hold(context: FaultContext, writer: str, point: str) -> Incident:
    """Delete the contender of a holder, and let another thread of its process get the lock and commit."""
    stop = yield from strike_at(context, "second-hold", writer, point)
    if stop is None:
        return
    process = context.writers[writer]
    context.queues.delete(stop.event["table"], stop.event["token"])
    process.send("second")
    yield from wait_for(60, lambda event: is_from(writer, "stored", "gave-up")(event) and "thread" in event)
    process.send("go")
    yield from wait_for(30, lambda event: is_from(writer, *OUTCOMES)(event) and "thread" not in event)
    yield from wait_for(30, lambda event: is_from(writer, *OUTCOMES)(event) and "thread" in event)
