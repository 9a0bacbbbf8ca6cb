"""Faults of the services: S3's answers to a commit, and the servers of the ensemble."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

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
    wait_until,
)
from soak.s3_faults import S3Fault

_START_SECONDS = 60.0
_ARRIVAL_SECONDS = 30.0
_UNKNOWN_SECONDS = 60.0
_END_SECONDS = 30.0
_POLL_SECONDS = 0.5


def s3_fault(name: str, **fields: Any) -> Callable[..., Incident]:
    """Return the fault that strikes the next PUTs of a commit with an :class:`S3Fault` of these fields."""

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        stop = yield from stop_at(context, writer, point)
        if stop is None:
            return
        assert context.gate is not None  # noqa: S101 (the class needs this service)
        fault_fields = dict(fields)
        if name in ("s3-500", "s3-503"):
            # The PUT is stored or not. The error comes once, twice, or until the writer gives up.
            fault_fields |= {"stored": context.random.random() < 0.5, "times": context.random.choice((1, 2, 99))}  # noqa: PLR2004
        fault = context.gate.arm(writer, S3Fault(**fault_fields))
        context.writers[writer].send("go")
        event = yield from wait_for(_ARRIVAL_SECONDS + context.slack_seconds, is_from(writer, "put-arrived", *OUTCOMES))
        if event is not None and event["event"] == "put-arrived":
            context.record("fault", kind=name, worker=writer, point=point, **hold_fields(stop.event), **fault_fields)
        if fault.held:
            takeover = is_takeover(stop.event, "acknowledged")
            yield from wait_for(3 * context.session_seconds + context.slack_seconds, takeover)
            fault.release.set()
        yield from wait_for(60, is_from(writer, *OUTCOMES))
        context.gate.disarm(writer, fault)

    return strike


def s3_late(context: FaultContext, writer: str, point: str) -> Incident:
    """Hold the PUT of a commit back until its writer has given up and the next holder has read.

    The repetitions of the PUT get an internal error. S3A repeats it after 5 s; the writer gives up later.
    """
    stop = yield from stop_at(context, writer, point)
    if stop is None:
        return
    assert context.gate is not None  # noqa: S101 (the class needs this service)
    late_put = context.gate.arm(writer, S3Fault(held=True))
    errors = context.gate.arm(writer, S3Fault(status=500, times=99))
    context.writers[writer].send("go")
    event = yield from wait_for(_ARRIVAL_SECONDS + context.slack_seconds, is_from(writer, "put-arrived", *OUTCOMES))
    has_arrived = event is not None and event["event"] == "put-arrived"
    if has_arrived:
        context.record("fault", kind="s3-late", worker=writer, point=point, **hold_fields(stop.event))
        yield from wait_for(_UNKNOWN_SECONDS + context.slack_seconds, is_from_hold(stop.event, *OUTCOMES))
    context.gate.disarm(writer, late_put, errors)
    if has_arrived:
        # After an unknown outcome the writer may open a second block under its hold, so the slack counts twice.
        takeover = is_takeover(stop.event, "read")
        yield from wait_for(3 * context.session_seconds + 2 * context.slack_seconds, takeover)
    # Release even without an arrival: a PUT that arrives later must not be held back for good.
    late_put.release.set()
    if has_arrived:
        yield from wait_until(_END_SECONDS, late_put.ended.is_set)


def _servers(context: FaultContext) -> list[Any]:
    assert context.zookeeper is not None  # noqa: S101 (the class needs this service)
    return list(context.zookeeper.servers)


def _leader(servers: list[Any]) -> Any:
    """Return the leader, or the last server if there is none."""
    return next((server for server in servers if b"Mode: leader" in server.command(b"srvr")), servers[-1])


def _wait_until_serving(context: FaultContext) -> Wait:
    """Wait until all servers serve."""
    next_poll = 0.0

    def all_serve() -> bool:
        nonlocal next_poll
        if time.monotonic() < next_poll:
            return False
        next_poll = time.monotonic() + _POLL_SECONDS
        return all(b"Mode: " in server.command(b"srvr") for server in _servers(context))

    return (yield from wait_until(_START_SECONDS, all_serve))


def _wait_for_commit(context: FaultContext, name: str) -> Incident:
    """Record that all servers serve again, and wait until a writer has committed."""
    context.record("repaired", kind=name)
    yield from wait_for(
        3 * context.session_seconds + 10 + context.slack_seconds, lambda event: event["event"] == "acknowledged"
    )


def zookeeper_fault(
    name: str, harm: str = "kill", repair: str = "start", sessions: tuple[float, float] = (0.3, 1.5)
) -> Callable[..., Incident]:
    """Return the fault that harms the leader, or with ``zookeeper-quorum`` all other servers.

    Args:
        name: Name of the fault class.
        harm: Method of the server that harms it.
        repair: Method of the server that repairs it.
        sessions: Least and greatest time between the two, in session timeouts.

    """

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        stop = yield from stop_at(context, writer, point)
        servers = _servers(context)
        leader = _leader(servers)
        victims = [leader]
        if name == "zookeeper-quorum":
            victims = [server for server in servers if server is not leader]
        context.record("fault", kind=name, worker=writer, point=point, **(hold_fields(stop.event) if stop else {}))
        for server in victims:
            getattr(server, harm)()
        context.writers[writer].send("go")
        yield from wait_for(context.session_seconds * context.random.uniform(*sessions), lambda _: False)
        for server in victims:
            getattr(server, repair)()
        yield from _wait_until_serving(context)
        yield from _wait_for_commit(context, name)

    return strike


def rolling_restart(context: FaultContext, writer: str, point: str) -> Incident:
    """Restart the servers one after the other, each when the previous one serves again."""
    yield from strike_at(context, "zookeeper-rolling-restart", writer, point)
    context.writers[writer].send("go")
    for server in _servers(context):
        server.stop()
        server.start()
        yield from _wait_until_serving(context)
    yield from _wait_for_commit(context, "zookeeper-rolling-restart")
