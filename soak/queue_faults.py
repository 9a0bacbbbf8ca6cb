"""Faults of a contender: while it waits in the queue, and while it holds the lock."""

from __future__ import annotations

from collections.abc import Generator

from soak.evidence import Event
from soak.fault_context import (
    OUTCOMES,
    FaultContext,
    Incident,
    is_from,
    is_takeover,
    stop_at,
    strike_at,
    wait_for,
    wait_for_outcome,
    wait_until,
)

_QUEUE_SECONDS = 10.0
_OUTCOME_SECONDS = 60.0

_QueueWait = Generator[None, Event | None, tuple[str, str] | None]


def expire_queued(context: FaultContext, writer: str, point: str) -> Incident:
    """Cut a waiter off from ZooKeeper until its session and its contender are gone."""
    queued = yield from _queue_behind_holder(context, writer, point)
    if queued is None:
        return
    table, holder = queued
    link = context.writers[writer].link
    context.record("fault", kind="expire-queued", worker=writer, point=point, table=table)
    link.cut()
    yield from wait_until(2 * context.session_seconds + 5, lambda: not context.queues.contenders(table, writer))
    link.mend()
    context.writers[holder].send("go")
    yield from wait_for(_OUTCOME_SECONDS, is_from(writer, *OUTCOMES))


def cancel_queued(context: FaultContext, writer: str, point: str) -> Incident:
    """Cancel the wait of a writer, record its contenders that remain in the queue, and let it request the lock again.

    The writer stops before the new request and keeps its session. So its contender in the queue, if there is one, is
    left from the cancelled wait.
    """
    queued = yield from _queue_behind_holder(context, writer, point)
    if queued is None:
        return
    table, holder = queued
    process = context.writers[writer]
    context.record("fault", kind="cancel-queued", worker=writer, point=point, table=table)
    process.send(f"stop-at {point}")
    process.send("cancel")
    event = yield from wait_for(_OUTCOME_SECONDS, is_from(writer, "stopped", "ended"))
    if event is not None and event["event"] == "stopped":
        yield from wait_until(_QUEUE_SECONDS, lambda: not context.queues.contenders(table, writer))
        context.record("queue", table=table, worker=writer, left=context.queues.contenders(table, writer))
    process.send("go")
    context.writers[holder].send("go")
    yield from wait_for(_OUTCOME_SECONDS, is_from(writer, *(OUTCOMES - {"gave-up"})))


def _queue_behind_holder(context: FaultContext, writer: str, point: str) -> _QueueWait:
    """Let a writer wait behind a stopped holder; return the table and the holder, or None if that did not succeed."""
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
            return table, holder
    context.writers[holder].send("go")
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
