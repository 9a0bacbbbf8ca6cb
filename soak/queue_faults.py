"""Faults of a contender: before the lock is acquired, and while it is held."""

from __future__ import annotations

from collections.abc import Generator

from soak.fault_context import (
    OUTCOMES,
    Event,
    FaultContext,
    Incident,
    heard,
    of,
    stopped,
    struck,
    takeover,
    until,
    until_true,
)

_PATIENCE_SECONDS = 10.0
_OUTCOME_SECONDS = 60.0

_Queued = Generator[None, Event | None, tuple[str, str] | None]


def expire_queued(context: FaultContext, writer: str, point: str) -> Incident:
    """Cut a writer off while it waits in the queue, until its session and its place are gone."""
    queued = yield from _queued(context, writer, point)
    if queued is None:
        return
    table, ahead = queued
    link = context.writers[writer].link
    context.say("fault", kind="expire-queued", worker=writer, point=point, table=table)
    link.cut()
    yield from until_true(2 * context.session_seconds + 5, lambda: not context.queues.contenders(table, writer))
    link.mend()
    context.writers[ahead].tell("go")
    yield from until(_OUTCOME_SECONDS, of(writer, *OUTCOMES))


def cancel_queued(context: FaultContext, writer: str, point: str) -> Incident:
    """Have a writer cancel its wait behind a stopped holder, look what that leaves in the queue, and have it ask again.

    It is stopped before it asks again, and its session stays: what is of it in the queue then was left there.
    """
    queued = yield from _queued(context, writer, point)
    if queued is None:
        return
    table, ahead = queued
    process = context.writers[writer]
    context.say("fault", kind="cancel-queued", worker=writer, point=point, table=table)
    process.tell(f"stop-at {point}")
    process.tell("cancel")
    again = yield from until(_OUTCOME_SECONDS, of(writer, "stopped", "ended"))
    if again is not None and again["event"] == "stopped":
        yield from until_true(_PATIENCE_SECONDS, lambda: not context.queues.contenders(table, writer))
        context.say("queue", table=table, worker=writer, left=context.queues.contenders(table, writer))
    process.tell("go")
    context.writers[ahead].tell("go")
    yield from until(_OUTCOME_SECONDS, of(writer, *(OUTCOMES - {"gave-up"})))


def _queued(context: FaultContext, writer: str, point: str) -> _Queued:
    """Have a writer wait in the queue behind another that is stopped; return table and the other, None if it fails."""
    found = yield from stopped(context, writer, point)
    if found is None:
        return None
    table = found[0]["table"]
    ahead = context.random.choice([name for name in context.writers if name != writer])
    holder = yield from stopped(context, ahead, "acquired")
    context.writers[writer].tell("go")
    if holder is not None and holder[0]["table"] == table:
        yield from until_true(_PATIENCE_SECONDS, lambda: bool(context.queues.contenders(table, writer)))
        if context.queues.contenders(table, writer):
            return table, ahead
    context.writers[ahead].tell("go")
    return None


def break_lock(context: FaultContext, writer: str, point: str) -> Incident:
    """Delete the contender of a holder."""
    found = yield from struck(context, "break-lock", writer, point)
    if found is None:
        return
    held, put = found
    context.queues.delete(held["table"], held["token"])
    yield from until(
        context.session_seconds + 5 + context.slack_seconds,
        takeover(held, context.random.choice(("read", "acknowledged"))),
    )
    if put is not None:
        put.release.set()
    context.writers[writer].tell("go")
    yield from heard(context, writer)


def second_hold(context: FaultContext, writer: str, point: str) -> Incident:
    """Delete the contender of a holder, and have another of its threads get the lock and commit."""
    found = yield from struck(context, "second-hold", writer, point)
    if found is None:
        return
    held, _ = found
    process = context.writers[writer]
    context.queues.delete(held["table"], held["token"])
    process.tell("second")
    yield from until(60, lambda event: of(writer, "stored", "gave-up")(event) and "thread" in event)
    process.tell("go")
    yield from until(30, lambda event: of(writer, *OUTCOMES)(event) and "thread" not in event)
    yield from until(30, lambda event: of(writer, *OUTCOMES)(event) and "thread" in event)
