"""Faults of the services: what S3 answers to a commit, and the servers of the ensemble."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from soak.fault_context import (
    OUTCOMES,
    FaultContext,
    Incident,
    Waiting,
    of,
    of_hold,
    place_of,
    stopped,
    struck,
    takeover,
    until,
    until_true,
)
from soak.s3_faults import S3Fault

_START_SECONDS = 60.0
_ARRIVAL_SECONDS = 30.0
_UNKNOWN_SECONDS = 60.0
_END_SECONDS = 30.0
_LOOK_SECONDS = 0.5


def s3_fault(name: str, **how: Any) -> Callable[..., Incident]:
    """Return the fault that does this to the next PUT of a commit."""

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        found = yield from stopped(context, writer, point)
        if found is None:
            return
        held, _ = found
        assert context.gate is not None  # noqa: S101 (the class needs it)
        more = dict(how)
        if name in ("s3-500", "s3-503"):
            # Of a PUT that was stored or not; once, twice, or until the writer gives up.
            more |= {"stored": context.random.random() < 0.5, "times": context.random.choice((1, 2, 99))}  # noqa: PLR2004
        fault = context.gate.arm(writer, S3Fault(**more))
        context.writers[writer].tell("go")
        arrived = yield from until(_ARRIVAL_SECONDS + context.slack_seconds, of(writer, "put-arrived", *OUTCOMES))
        if arrived is not None and arrived["event"] == "put-arrived":
            context.say("fault", kind=name, worker=writer, point=point, **place_of(held), **more)
        if fault.held:
            yield from until(3 * context.session_seconds + context.slack_seconds, takeover(held, "acknowledged"))
            fault.release.set()
        yield from until(60, of(writer, *OUTCOMES))
        context.gate.disarm(writer)

    return strike


def s3_late(context: FaultContext, writer: str, point: str) -> Incident:
    """Hold the PUT of a commit back until its writer has given up and the next holder has read.

    Its repetitions get an internal error each. S3A takes 5 s to repeat it, and its writer some more to give up.
    """
    found = yield from stopped(context, writer, point)
    if found is None:
        return
    held, _ = found
    assert context.gate is not None  # noqa: S101 (the class needs it)
    late = context.gate.arm(writer, S3Fault(held=True))
    context.gate.arm(writer, S3Fault(status=500, times=99))
    context.writers[writer].tell("go")
    event = yield from until(_ARRIVAL_SECONDS + context.slack_seconds, of(writer, "put-arrived", *OUTCOMES))
    arrived = event is not None and event["event"] == "put-arrived"
    if arrived:
        context.say("fault", kind="s3-late", worker=writer, point=point, **place_of(held))
        yield from until(_UNKNOWN_SECONDS + context.slack_seconds, of_hold(held, *OUTCOMES))
    context.gate.disarm(writer)
    if arrived:
        # The writer's second block takes its time, too.
        yield from until(3 * context.session_seconds + 2 * context.slack_seconds, takeover(held, "read"))
    # Also one that arrives only now, which nobody would let go.
    late.release.set()
    if arrived:
        yield from until_true(_END_SECONDS, late.ended.is_set)


def _leader(context: FaultContext) -> Any:
    assert context.zookeeper is not None  # noqa: S101 (the class needs it)
    for server in context.zookeeper.servers:
        if b"Mode: leader" in server.command(b"srvr"):
            return server
    return context.zookeeper.servers[-1]


def _serving(context: FaultContext) -> Waiting:
    """Wait until all servers serve."""
    assert context.zookeeper is not None  # noqa: S101 (the class needs it)
    servers = context.zookeeper.servers
    look_at = 0.0

    def serve() -> bool:
        nonlocal look_at
        if time.monotonic() < look_at:
            return False
        look_at = time.monotonic() + _LOOK_SECONDS
        return all(b"Mode: " in server.command(b"srvr") for server in servers)

    return (yield from until_true(_START_SECONDS, serve))


def _repaired(context: FaultContext, name: str) -> Incident:
    """Say that all servers serve again, and wait until somebody has committed."""
    context.say("repaired", kind=name)
    yield from until(
        3 * context.session_seconds + 10 + context.slack_seconds, lambda event: event["event"] == "acknowledged"
    )


def zookeeper_fault(
    name: str, hurt: str = "kill", heal: str = "start", sessions: tuple[float, float] = (0.3, 1.5)
) -> Callable[..., Incident]:
    """Return the fault that does this to the leader, or to the others.

    Args:
        name: of the class.
        hurt: the server's method that harms it.
        heal: the one that undoes that.
        sessions: how long in between, at least and at most, in session time-outs.

    """

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        assert context.zookeeper is not None  # noqa: S101 (the class needs it)
        found = yield from stopped(context, writer, point)
        leader = _leader(context)
        victims = [leader]
        if name == "zookeeper-quorum":
            victims = [server for server in context.zookeeper.servers if server is not leader]
        context.say("fault", kind=name, worker=writer, point=point, **(place_of(found[0]) if found else {}))
        for server in victims:
            getattr(server, hurt)()
        context.writers[writer].tell("go")
        yield from until(context.session_seconds * context.random.uniform(*sessions), lambda _: False)
        for server in victims:
            getattr(server, heal)()
        yield from _serving(context)
        yield from _repaired(context, name)

    return strike


def rolling_restart(context: FaultContext, writer: str, point: str) -> Incident:
    """Restart the servers one after the other, each when the one before serves again."""
    assert context.zookeeper is not None  # noqa: S101 (the class needs it)
    yield from struck(context, "zookeeper-rolling-restart", writer, point)
    context.writers[writer].tell("go")
    for server in context.zookeeper.servers:
        server.stop()
        server.start()
        yield from _serving(context)
    yield from _repaired(context, "zookeeper-rolling-restart")
