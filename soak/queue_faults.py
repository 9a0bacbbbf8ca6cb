"""Faults of a contender: while it waits in the queue, and while it holds the lock."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator
from functools import partial

from soak.evidence import Event
from soak.fault_context import (
    OFFERS,
    OUTCOMES,
    PUT,
    FaultContext,
    Incident,
    Queued,
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
# The gate may report a PUT before its writer reports the members.
_REPORT_SECONDS = 1.0
_GROUP_TRIES = 8

QueuedWait = Generator[None, Event | None, Queued | None]
"""A part of a fault that lets a writer wait behind a holder. It returns None if that did not succeed."""


def expire_queued(context: FaultContext, writer: str, point: str) -> Incident:
    """Cut a waiter off from ZooKeeper until its session and its contender are gone."""
    queued = yield from queue_behind_holder(context, writer, point)
    if queued is None:
        return
    table, link = queued.table, context.writers[writer].link
    assert link is not None  # noqa: S101 (the class needs this connection)
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
        if context.random.random() < 0.5 or context.waiters_leave_in_turn:  # noqa: PLR2004
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
    if context.queued is not None:
        return context.queued
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


def queue_in_group(context: FaultContext, writer: str, point: str, holder_point: str) -> QueuedWait:
    """Let a writer wait behind a holder that is stopped when its intent names the writer; None after eight tries.

    Args:
        context: Services and writers.
        writer: Name of the writer that waits.
        point: Point before its wait.
        holder_point: Point of the holder after its intent is stored.

    """
    for _ in range(_GROUP_TRIES):
        queued = yield from queue_behind_new_holder(context, writer, point)
        if queued is None:
            continue
        if not (_has_offer(context, queued.holder) and _has_offer(context, writer)):
            queued.continue_holder(context)
            continue
        named = yield from stop_holder_at(context, queued, holder_point)
        if named is None:
            continue
        if named.stop.put is not None:
            yield from wait_until(_REPORT_SECONDS, partial(_is_named, context, named, writer))
        if _is_named(context, named, writer):
            return named
        named.continue_holder(context)
    return None


def _is_named(context: FaultContext, queued: Queued, writer: str) -> bool:
    """Return whether the intent of a stopped holder names the newest wait of a writer."""
    offer, token = _newest_offer(context, writer), queued.stop.event["token"]
    groups = (event for event in reversed(context.history) if is_from(queued.holder, "grouped")(event))
    return any(event["token"] == token and offer in event["members"] for event in groups)


def _holder_points(context: FaultContext, holder: str, waiter: str) -> list[str]:
    """Return the points to which a holder comes; `OFFERS` only if its commit can have members."""
    points = ["acquired", "checked"]
    if context.makes_groups:
        points.append("stored")
    if _has_offer(context, holder) and _has_offer(context, waiter):
        points.append(OFFERS)
    return points if context.gate is None else [*points, PUT]


def _has_offer(context: FaultContext, writer: str) -> bool:
    """Return whether the newest wait of a writer has an offer. A commit that is offered may have members."""
    return bool(_newest_offer(context, writer))


def _newest_offer(context: FaultContext, writer: str) -> str | None:
    waits = (event for event in reversed(context.history) if is_from(writer, "waiting")(event))
    offer: str | None = next(waits, {}).get("offer")
    return offer


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
    """Remove a holder from its queue."""
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
    """Remove a holder from its queue, and let another thread of its process get the lock and commit."""
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
