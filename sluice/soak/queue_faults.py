"""Faults of a contender: before the lock is acquired, and while it is held."""

from __future__ import annotations

from collections.abc import Generator

from sluice.soak.stage import OUTCOMES, Event, Incident, Stage, heard, of, stopped, struck, takeover, until, until_true

_PATIENCE_SECONDS = 10.0
_OUTCOME_SECONDS = 60.0

Queued = Generator[None, Event | None, tuple[str, str] | None]


def expire_queued(stage: Stage, writer: str, point: str) -> Incident:
    """Cut a writer off while it waits in the queue, until its session and its place are gone."""
    queued = yield from _queued(stage, writer, point)
    if queued is None:
        return
    table, ahead = queued
    link = stage.writers[writer].link
    stage.say("fault", kind="expire-queued", worker=writer, point=point, table=table)
    link.cut()
    yield from until_true(2 * stage.session_seconds + 5, lambda: not stage.queues.contenders(table, writer))
    link.mend()
    stage.writers[ahead].tell("go")
    yield from until(_OUTCOME_SECONDS, of(writer, *OUTCOMES))


def cancel_queued(stage: Stage, writer: str, point: str) -> Incident:
    """Have a writer cancel its wait behind a stopped holder, look what that leaves in the queue, and have it ask again.

    It is stopped before it asks again, and its session stays: what is of it in the queue then was left there.
    """
    queued = yield from _queued(stage, writer, point)
    if queued is None:
        return
    table, ahead = queued
    process = stage.writers[writer]
    stage.say("fault", kind="cancel-queued", worker=writer, point=point, table=table)
    process.tell(f"stop-at {point}")
    process.tell("cancel")
    again = yield from until(_OUTCOME_SECONDS, of(writer, "stopped", "ended"))
    if again is not None and again["event"] == "stopped":
        yield from until_true(_PATIENCE_SECONDS, lambda: not stage.queues.contenders(table, writer))
        stage.say("queue", table=table, worker=writer, left=stage.queues.contenders(table, writer))
    process.tell("go")
    stage.writers[ahead].tell("go")
    yield from until(_OUTCOME_SECONDS, of(writer, *(OUTCOMES - {"gave-up"})))


def _queued(stage: Stage, writer: str, point: str) -> Queued:
    """Have a writer wait in the queue behind another that is stopped; return table and the other, None if it fails."""
    found = yield from stopped(stage, writer, point)
    if found is None:
        return None
    table = found[0]["table"]
    ahead = stage.random.choice([name for name in stage.writers if name != writer])
    holder = yield from stopped(stage, ahead, "acquired")
    stage.writers[writer].tell("go")
    if holder is not None and holder[0]["table"] == table:
        yield from until_true(_PATIENCE_SECONDS, lambda: bool(stage.queues.contenders(table, writer)))
        if stage.queues.contenders(table, writer):
            return table, ahead
    stage.writers[ahead].tell("go")
    return None


def break_lock(stage: Stage, writer: str, point: str) -> Incident:
    """Delete the contender of a holder."""
    found = yield from struck(stage, "break-lock", writer, point)
    if found is None:
        return
    held, put = found
    stage.queues.delete(held["table"], held["token"])
    yield from until(
        stage.session_seconds + 5 + stage.slack_seconds, takeover(held, stage.random.choice(("read", "acknowledged")))
    )
    if put is not None:
        put.release.set()
    stage.writers[writer].tell("go")
    yield from heard(stage, writer)


def second_hold(stage: Stage, writer: str, point: str) -> Incident:
    """Delete the contender of a holder, and have another of its threads get the lock and commit."""
    found = yield from struck(stage, "second-hold", writer, point)
    if found is None:
        return
    held, _ = found
    process = stage.writers[writer]
    stage.queues.delete(held["table"], held["token"])
    process.tell("second")
    yield from until(60, lambda event: of(writer, "stored", "gave-up")(event) and "thread" in event)
    process.tell("go")
    yield from until(30, lambda event: of(writer, *OUTCOMES)(event) and "thread" not in event)
    yield from until(30, lambda event: of(writer, *OUTCOMES)(event) and "thread" in event)
