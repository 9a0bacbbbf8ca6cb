"""Faults of the services: what S3 answers to a commit, and the servers of the ensemble."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sluice.soak.s3_faults import S3Fault
from sluice.soak.stage import (
    OUTCOMES,
    Incident,
    Stage,
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

_START_SECONDS = 60.0
_ARRIVAL_SECONDS = 30.0
_UNKNOWN_SECONDS = 60.0
_END_SECONDS = 30.0
_LOOK_SECONDS = 0.5


def s3_fault(name: str, **how: Any) -> Callable[..., Incident]:
    """Return the fault that does this to the next PUT of a commit."""

    def strike(stage: Stage, writer: str, point: str) -> Incident:
        found = yield from stopped(stage, writer, point)
        if found is None:
            return
        held, _ = found
        assert stage.gate is not None  # noqa: S101 (the class needs it)
        more = dict(how)
        if name in ("s3-500", "s3-503"):
            # Of a PUT that was stored or not; once, twice, or until the writer gives up.
            more |= {"stored": stage.random.random() < 0.5, "times": stage.random.choice((1, 2, 99))}  # noqa: PLR2004
        fault = stage.gate.arm(writer, S3Fault(**more))
        stage.writers[writer].tell("go")
        arrived = yield from until(30, of(writer, "put-arrived", *OUTCOMES))
        if arrived is not None and arrived["event"] == "put-arrived":
            stage.say("fault", kind=name, worker=writer, point=point, **place_of(held), **more)
        if fault.held:
            yield from until(3 * stage.session_seconds + stage.slack_seconds, takeover(held, "acknowledged"))
            fault.release.set()
        yield from until(60, of(writer, *OUTCOMES))
        stage.gate.disarm(writer)

    return strike


def s3_late(stage: Stage, writer: str, point: str) -> Incident:
    """Hold the PUT of a commit back until its writer has given up and the next holder has read.

    Its repetitions get an internal error each. S3A takes 5 s to repeat it, and its writer some more to give up.
    """
    found = yield from stopped(stage, writer, point)
    if found is None:
        return
    held, _ = found
    assert stage.gate is not None  # noqa: S101 (the class needs it)
    late = stage.gate.arm(writer, S3Fault(held=True))
    stage.gate.arm(writer, S3Fault(status=500, times=99))
    stage.writers[writer].tell("go")
    event = yield from until(_ARRIVAL_SECONDS + stage.slack_seconds, of(writer, "put-arrived", *OUTCOMES))
    arrived = event is not None and event["event"] == "put-arrived"
    if arrived:
        stage.say("fault", kind="s3-late", worker=writer, point=point, **place_of(held))
        yield from until(_UNKNOWN_SECONDS + stage.slack_seconds, of_hold(held, *OUTCOMES))
    stage.gate.disarm(writer)
    if arrived:
        # The writer's second block takes its time, too.
        yield from until(3 * stage.session_seconds + 2 * stage.slack_seconds, takeover(held, "read"))
    # Also one that arrives only now, which nobody would let go.
    late.release.set()
    if arrived:
        yield from until_true(_END_SECONDS, late.ended.is_set)


def _leader(stage: Stage) -> Any:
    assert stage.zookeeper is not None  # noqa: S101 (the class needs it)
    for server in stage.zookeeper.servers:
        if b"Mode: leader" in server.command(b"srvr"):
            return server
    return stage.zookeeper.servers[-1]


def _serving(stage: Stage) -> Waiting:
    """Wait until all servers serve."""
    assert stage.zookeeper is not None  # noqa: S101 (the class needs it)
    servers = stage.zookeeper.servers
    look_at = 0.0

    def serve() -> bool:
        nonlocal look_at
        if time.monotonic() < look_at:
            return False
        look_at = time.monotonic() + _LOOK_SECONDS
        return all(b"Mode: " in server.command(b"srvr") for server in servers)

    return (yield from until_true(_START_SECONDS, serve))


def _repaired(stage: Stage, name: str) -> Incident:
    """Say that all servers serve again, and wait until somebody has committed."""
    stage.say("repaired", kind=name)
    yield from until(
        3 * stage.session_seconds + 10 + stage.slack_seconds, lambda event: event["event"] == "acknowledged"
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

    def strike(stage: Stage, writer: str, point: str) -> Incident:
        assert stage.zookeeper is not None  # noqa: S101 (the class needs it)
        found = yield from stopped(stage, writer, point)
        leader = _leader(stage)
        victims = [leader]
        if name == "zookeeper-quorum":
            victims = [server for server in stage.zookeeper.servers if server is not leader]
        stage.say("fault", kind=name, worker=writer, point=point, **(place_of(found[0]) if found else {}))
        for server in victims:
            getattr(server, hurt)()
        stage.writers[writer].tell("go")
        yield from until(stage.session_seconds * stage.random.uniform(*sessions), lambda _: False)
        for server in victims:
            getattr(server, heal)()
        yield from _serving(stage)
        yield from _repaired(stage, name)

    return strike


def rolling_restart(stage: Stage, writer: str, point: str) -> Incident:
    """Restart the servers one after the other, each when the one before serves again."""
    assert stage.zookeeper is not None  # noqa: S101 (the class needs it)
    yield from struck(stage, "zookeeper-rolling-restart", writer, point)
    stage.writers[writer].tell("go")
    for server in stage.zookeeper.servers:
        server.stop()
        server.start()
        yield from _serving(stage)
    yield from _repaired(stage, "zookeeper-rolling-restart")
