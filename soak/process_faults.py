"""Faults of a writer's processes and of its network."""

from __future__ import annotations

import signal
from collections.abc import Callable

from soak.fault_context import (
    OUTCOMES,
    FaultContext,
    Incident,
    heard,
    of,
    of_hold,
    place_of,
    stopped,
    struck,
    takeover,
    until,
    until_true,
)

_START_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0
_GIVE_UP_SECONDS = 90.0


def process_fault(name: str, number: signal.Signals, *, python: bool, jvm: bool) -> Callable[..., Incident]:
    """Return the fault that sends this signal to a writer's Python, its JVM or both."""

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        found = yield from struck(context, name, writer, point)
        if found is None:
            return
        held, put = found
        process = context.writers[writer]
        if number is signal.SIGKILL:
            context.say("killed", worker=writer, incarnation=process.options.incarnation)
        process.signal(number, python=python, jvm=jvm)
        if python:
            context.say("holder-gone", worker=writer, token=held["token"], table=held["table"])
        if put is None:
            process.tell("go")
        # Sometimes as soon as the next holder has read, sometimes when it has committed.
        kind = context.random.choice(("read", "acknowledged"))
        # A JVM alone may stand still for as long as it likes: Python keeps the lock.
        patience = 3 * context.session_seconds + 5 + context.slack_seconds if python else 1.3 * context.session_seconds
        yield from until(patience, takeover(held, kind))
        if put is not None:
            put.release.set()
        if number is signal.SIGSTOP:
            process.signal(signal.SIGCONT, python=python, jvm=jvm)
            context.say("resumed", worker=writer, table=held["table"], token=held["token"])
            yield from heard(context, writer)
        else:
            yield from until(
                _START_SECONDS + 2 * context.slack_seconds,
                lambda _: context.writers[writer] is not process and context.writers[writer].python is not None,
            )

    return strike


def cut_zookeeper(context: FaultContext, writer: str, point: str) -> Incident:
    """Have its network to ZooKeeper swallow everything past the session, while S3 answers."""
    found = yield from stopped(context, writer, point)
    if found is None:
        return
    held, put = found
    process = context.writers[writer]
    process.link.cut()
    context.say("fault", kind="cut-zookeeper", worker=writer, point=point, **place_of(held))
    context.say("holder-gone", worker=writer, token=held["token"], table=held["table"])
    yield from until(3 * context.session_seconds + 5 + context.slack_seconds, takeover(held, "read"))
    if put is None:
        process.tell("go")
    else:
        put.release.set()
    yield from until(context.session_seconds, of(writer, *OUTCOMES))
    process.link.mend()
    yield from heard(context, writer)


def lost_reply(context: FaultContext, writer: str, point: str) -> Incident:
    """Have ZooKeeper do what it asks for next, and lose the answer and the connection."""
    found = yield from stopped(context, writer, point)
    if found is None:
        return
    process = context.writers[writer]
    link = process.link
    link.deafened.clear()
    link.deaf = True
    process.tell("go")
    yield from until_true(_PATIENCE_SECONDS, link.deafened.is_set)
    link.drop()
    link.deaf = False
    if link.deafened.is_set():
        context.say("fault", kind="lost-zookeeper-reply", worker=writer, point=point, **place_of(found[0]))
    yield from until(60, of(writer, *OUTCOMES))


def cut_s3(context: FaultContext, writer: str, point: str) -> Incident:
    """Have its network to S3 swallow everything past the session, while ZooKeeper answers.

    What it sent meanwhile arrives when the network is back, late; what it took for lost by then, beside its repetition.
    """
    found = yield from struck(context, "cut-s3", writer, point)
    if found is None:
        return
    held, _ = found
    process = context.writers[writer]
    assert process.s3_link is not None  # noqa: S101 (the class needs it)
    begun, ends = len(context.history), of_hold(held, *OUTCOMES)
    process.s3_link.cut()
    process.tell("go")
    # The longer one is past S3A's patience, too.
    yield from until(context.random.choice((4, 2)) * context.session_seconds, lambda _: False)
    process.s3_link.mend()
    yield from until_true(_GIVE_UP_SECONDS + context.slack_seconds, lambda: any(map(ends, context.history[begun:])))
