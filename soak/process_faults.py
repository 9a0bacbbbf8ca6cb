"""Faults of a writer's processes and of its network."""

from __future__ import annotations

import signal
from collections.abc import Callable

from soak.fault_context import (
    OUTCOMES,
    FaultContext,
    Incident,
    Wait,
    hold_fields,
    is_from,
    is_from_hold,
    is_takeover,
    stop_at,
    strike_at,
    wait_for,
    wait_for_outcome,
    wait_until,
)
from soak.processes import WriterProcess

_START_SECONDS = 60.0
_REPLY_SECONDS = 10.0
_GIVE_UP_SECONDS = 90.0


def process_fault(name: str, number: signal.Signals, *, python: bool, jvm: bool) -> Callable[..., Incident]:
    """Return the fault that sends a signal to a writer's Python, its JVM or both."""

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        stop = yield from strike_at(context, name, writer, point)
        if stop is None:
            return
        event, put = stop
        process = context.writers[writer]
        if number is signal.SIGKILL:
            context.record("killed", worker=writer, incarnation=process.options.incarnation)
        process.signal(number, python=python, jvm=jvm)
        if python:
            context.record("holder-gone", worker=writer, token=event["token"], table=event["table"])
        if put is None:
            process.send("go")
        # The writer or its PUT continues when the next holder has read, or when it has committed.
        kind = context.random.choice(("read", "acknowledged"))
        # A paused JVM alone does not lose the lock, because Python keeps the session.
        seconds = 3 * context.session_seconds + 5 + context.slack_seconds if python else 1.3 * context.session_seconds
        yield from wait_for(seconds, is_takeover(event, kind))
        if put is not None:
            put.release.set()
        if number is signal.SIGSTOP:
            process.signal(signal.SIGCONT, python=python, jvm=jvm)
            context.record("resumed", worker=writer, table=event["table"], token=event["token"])
            yield from wait_for_outcome(context, writer)
        else:
            yield from wait_for_replacement(context, process)

    return strike


def wait_for_replacement(context: FaultContext, process: WriterProcess) -> Wait:
    """Wait until the writer that replaces a killed process is ready."""
    writers, name = context.writers, process.options.name
    return (
        yield from wait_for(
            _START_SECONDS + 2 * context.slack_seconds,
            lambda _: writers[name] is not process and writers[name].python is not None,
        )
    )


Outage = Callable[[FaultContext, WriterProcess, str], Callable[[], None]]
"""Begins an outage for a writer, whose table is given, and returns the function that ends it."""


def outage(name: str, begin: Outage) -> Callable[..., Incident]:
    """Return a fault: the coordinator does not answer a writer until another writer has read the table."""

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        stop = yield from stop_at(context, writer, point)
        if stop is None:
            return
        event, put = stop
        process = context.writers[writer]
        end = begin(context, process, event["table"])
        context.record("fault", kind=name, worker=writer, point=point, **hold_fields(event))
        context.record("holder-gone", worker=writer, token=event["token"], table=event["table"])
        yield from wait_for(3 * context.session_seconds + 5 + context.slack_seconds, is_takeover(event, "read"))
        if put is None:
            process.send("go")
        else:
            put.release.set()
        yield from wait_for(context.session_seconds, is_from(writer, *OUTCOMES))
        end()
        yield from wait_for_outcome(context, writer)

    return strike


def cut_coordinator(_: FaultContext, process: WriterProcess, __: str) -> Callable[[], None]:
    """Cut the network between a writer's Python and the coordinator; return the function that restores it."""
    assert process.link is not None  # noqa: S101 (the class needs this connection)
    process.link.cut()
    return process.link.mend


def cut_both(context: FaultContext, process: WriterProcess, table: str) -> Callable[[], None]:
    """Cut the network of a writer's Python and of its JVM; return the function that restores it."""
    assert process.s3_link is not None  # noqa: S101 (the class needs this connection)
    mend_coordinator, s3_link = cut_coordinator(context, process, table), process.s3_link
    s3_link.cut()

    def mend() -> None:
        mend_coordinator()
        s3_link.mend()

    return mend


def lost_reply(context: FaultContext, writer: str, point: str) -> Incident:
    """Let ZooKeeper execute the writer's next request, and lose the reply and the connection."""
    stop = yield from stop_at(context, writer, point)
    if stop is None:
        return
    process = context.writers[writer]
    link = process.link
    assert link is not None  # noqa: S101 (the class needs this connection)
    link.reply_discarded.clear()
    link.discards_replies = True
    process.send("go")
    yield from wait_until(_REPLY_SECONDS, link.reply_discarded.is_set)
    link.drop()
    link.discards_replies = False
    if link.reply_discarded.is_set():
        context.record("fault", kind="lost-zookeeper-reply", worker=writer, point=point, **hold_fields(stop.event))
    yield from wait_for(60, is_from(writer, *OUTCOMES))


def cut_s3(context: FaultContext, writer: str, point: str) -> Incident:
    """Cut the network between a writer's JVM and S3 past the session timeout, while the coordinator answers.

    Requests that were sent meanwhile arrive when the network is restored, even if the writer has repeated them.
    """
    stop = yield from strike_at(context, "cut-s3", writer, point)
    if stop is None:
        return
    process = context.writers[writer]
    assert process.s3_link is not None  # noqa: S101 (its FaultClass needs ``gate``)
    start, is_outcome = len(context.history), is_from_hold(stop.event, *OUTCOMES)
    process.s3_link.cut()
    process.send("go")
    # The longer time exceeds S3A's timeouts, too.
    yield from wait_for(context.random.choice((4, 2)) * context.session_seconds, lambda _: False)
    process.s3_link.mend()
    yield from wait_until(
        _GIVE_UP_SECONDS + context.slack_seconds, lambda: any(map(is_outcome, context.history[start:]))
    )
