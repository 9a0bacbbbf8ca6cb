"""What a soak does to its writers, to ZooKeeper and to S3: each class of fault by name, and what it is.

A fault is a generator: it is sent every event of the run, and None now and then while nothing happens; between them it
acts. So it strikes at a point in a writer's work and waits for conditions, not for seconds.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sluice.soak.s3_faults import FaultGate, S3Fault
from sluice.soak.stage import (
    OUTCOMES,
    PUT,
    Event,
    Finding,
    Incident,
    Stage,
    Waiting,
    of,
    stopped,
    takeover,
    until,
    until_true,
)


@dataclass(frozen=True)
class FaultClass:
    """A class of faults.

    Attributes:
        name: for ``--faults``.
        what: one line for people.
        points: where it may strike.
        strike: does it, to the writer of this name at this point.
        needs: ``gate`` or ``zookeeper``, if it takes one of ours.

    """

    name: str
    what: str
    points: tuple[str, ...]
    strike: Callable[[Stage, str, str], Incident]
    needs: str | None = None

    def points_with(self, gate: FaultGate | None) -> tuple[str, ...]:
        """Return where it may strike, with a gate in front of S3 or without."""
        return tuple(point for point in self.points if point != PUT or gate is not None)


_START_SECONDS = 60.0
_PATIENCE_SECONDS = 10.0
_LOOK_SECONDS = 0.5


def _struck(stage: Stage, name: str, writer: str, point: str) -> Finding:
    """Have a writer stop at a point, and say that a fault strikes there; return what ``stopped`` returns."""
    found = yield from stopped(stage, writer, point)
    if found is not None:
        stage.say("fault", kind=name, worker=writer, point=point, **_place(found[0]))
    return found


def _place(event: Event) -> dict[str, Any]:
    """Return the table and the hold that an event is about, as far as it has them."""
    return {name: event[name] for name in ("token", "table") if name in event}


def _process_fault(name: str, number: signal.Signals, *, python: bool, jvm: bool) -> Callable[..., Incident]:
    def strike(stage: Stage, writer: str, point: str) -> Incident:
        struck = yield from _struck(stage, name, writer, point)
        if struck is None:
            return
        held, put = struck
        process = stage.writers[writer]
        if number is signal.SIGKILL:
            stage.say("killed", worker=writer, incarnation=process.options.incarnation)
        process.signal(number, python=python, jvm=jvm)
        if python:
            stage.say("holder-gone", worker=writer, token=held["token"], table=held["table"])
        if put is None:
            process.tell("go")
        # Sometimes as soon as the next holder has read, sometimes when it has committed.
        kind = stage.random.choice(("read", "acknowledged"))
        # A JVM alone may stand still for as long as it likes: Python keeps the lock.
        patience = 3 * stage.session_seconds + 5 + stage.slack_seconds if python else 1.3 * stage.session_seconds
        yield from until(patience, takeover(held, kind))
        if put is not None:
            put.release.set()
        if number is signal.SIGSTOP:
            process.signal(signal.SIGCONT, python=python, jvm=jvm)
            stage.say("resumed", worker=writer, table=held["table"], token=held["token"])
            yield from until(2 * stage.session_seconds + 10 + stage.slack_seconds, of(writer, *OUTCOMES))
        else:
            yield from until(
                _START_SECONDS + 2 * stage.slack_seconds,
                lambda _: stage.writers[writer] is not process and stage.writers[writer].python is not None,
            )

    return strike


def _cut_zookeeper(stage: Stage, writer: str, point: str) -> Incident:
    found = yield from stopped(stage, writer, point)
    if found is None:
        return
    held, put = found
    process = stage.writers[writer]
    process.link.cut()
    stage.say("fault", kind="cut-zookeeper", worker=writer, point=point, **_place(held))
    stage.say("holder-gone", worker=writer, token=held["token"], table=held["table"])
    if put is None:
        yield from until(3 * stage.session_seconds + 5 + stage.slack_seconds, takeover(held, "read"))
        process.tell("go")
    else:
        yield from until(3 * stage.session_seconds + 5 + stage.slack_seconds, takeover(held, "read"))
        put.release.set()
    yield from until(stage.session_seconds, of(writer, *OUTCOMES))
    process.link.mend()
    yield from until(2 * stage.session_seconds + 10 + stage.slack_seconds, of(writer, *OUTCOMES))


def _lost_reply(stage: Stage, writer: str, point: str) -> Incident:
    found = yield from stopped(stage, writer, point)
    if found is None:
        return
    process = stage.writers[writer]
    link = process.link
    link.deafened.clear()
    link.deaf = True
    process.tell("go")
    yield from until_true(_PATIENCE_SECONDS, link.deafened.is_set)
    link.drop()
    link.deaf = False
    if link.deafened.is_set():
        stage.say("fault", kind="lost-zookeeper-reply", worker=writer, point=point, **_place(found[0]))
    yield from until(60, of(writer, *OUTCOMES))


def _expire_queued(stage: Stage, writer: str, point: str) -> Incident:
    found = yield from stopped(stage, writer, point)
    if found is None:
        return
    table, process = found[0]["table"], stage.writers[writer]
    ahead = stage.random.choice([name for name in stage.writers if name != writer])
    holder = yield from stopped(stage, ahead, "acquired")
    process.tell("go")
    if holder is not None and holder[0]["table"] == table:
        yield from until_true(_PATIENCE_SECONDS, lambda: writer in stage.queues.jobs(table))
        stage.say("fault", kind="expire-queued", worker=writer, point=point, table=table)
        process.link.cut()
        yield from until_true(2 * stage.session_seconds + 5, lambda: writer not in stage.queues.jobs(table))
        process.link.mend()
    stage.writers[ahead].tell("go")
    yield from until(60, of(writer, *OUTCOMES))


def _break_lock(stage: Stage, writer: str, point: str) -> Incident:
    struck = yield from _struck(stage, "break-lock", writer, point)
    if struck is None:
        return
    held, put = struck
    stage.queues.delete(held["table"], held["token"])
    yield from until(
        stage.session_seconds + 5 + stage.slack_seconds, takeover(held, stage.random.choice(("read", "acknowledged")))
    )
    if put is not None:
        put.release.set()
    stage.writers[writer].tell("go")
    yield from until(2 * stage.session_seconds + 10 + stage.slack_seconds, of(writer, *OUTCOMES))


def _second_hold(stage: Stage, writer: str, point: str) -> Incident:
    struck = yield from _struck(stage, "second-hold", writer, point)
    if struck is None:
        return
    held, _ = struck
    process = stage.writers[writer]
    stage.queues.delete(held["table"], held["token"])
    process.tell("second")
    yield from until(60, lambda event: of(writer, "stored", "gave-up")(event) and "thread" in event)
    process.tell("go")
    yield from until(30, lambda event: of(writer, *OUTCOMES)(event) and "thread" not in event)
    yield from until(30, lambda event: of(writer, *OUTCOMES)(event) and "thread" in event)


def _s3_fault(name: str, **how: Any) -> Callable[..., Incident]:
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
            stage.say("fault", kind=name, worker=writer, point=point, **_place(held), **more)
        if fault.held:
            yield from until(3 * stage.session_seconds + stage.slack_seconds, takeover(held, "acknowledged"))
            fault.release.set()
        yield from until(60, of(writer, *OUTCOMES))
        stage.gate.disarm(writer)

    return strike


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


def _zookeeper_fault(name: str) -> Callable[..., Incident]:
    def strike(stage: Stage, writer: str, point: str) -> Incident:
        assert stage.zookeeper is not None  # noqa: S101 (the class needs it)
        found = yield from stopped(stage, writer, point)
        leader = _leader(stage)
        victims = [leader]
        if name == "zookeeper-quorum":
            victims = [server for server in stage.zookeeper.servers if server is not leader]
        stage.say("fault", kind=name, worker=writer, point=point, **(_place(found[0]) if found else {}))
        for server in victims:
            if name == "zookeeper-leader-pause":
                server.pause()
            else:
                server.kill()
        stage.writers[writer].tell("go")
        yield from until(stage.session_seconds * stage.random.uniform(0.3, 1.5), lambda _: False)
        for server in victims:
            if name == "zookeeper-leader-pause":
                server.resume()
            else:
                server.start()
        yield from _serving(stage)
        stage.say("repaired", kind=name)
        yield from until(
            3 * stage.session_seconds + 10 + stage.slack_seconds, lambda event: event["event"] == "acknowledged"
        )

    return strike


def _rolling_restart(stage: Stage, writer: str, point: str) -> Incident:
    assert stage.zookeeper is not None  # noqa: S101 (the class needs it)
    yield from _struck(stage, "zookeeper-rolling-restart", writer, point)
    stage.writers[writer].tell("go")
    for server in stage.zookeeper.servers:
        server.stop()
        server.start()
        yield from _serving(stage)
    stage.say("repaired", kind="zookeeper-rolling-restart")
    yield from until(
        3 * stage.session_seconds + 10 + stage.slack_seconds, lambda event: event["event"] == "acknowledged"
    )


_IN_HAND = ("acquired", "read", "data", "checked", "stored", "releasing")
_AT_PUT = (*_IN_HAND, PUT)
_STOP, _KILL = signal.SIGSTOP, signal.SIGKILL

_ALL = (
    FaultClass("pause-python", "SIGSTOP of the writer's Python past its session, then SIGCONT", _AT_PUT,
               _process_fault("pause-python", _STOP, python=True, jvm=False)),
    FaultClass("pause-jvm", "SIGSTOP of its JVM, then SIGCONT", _AT_PUT,
               _process_fault("pause-jvm", _STOP, python=False, jvm=True)),
    FaultClass("pause-both", "SIGSTOP of both past the session, then SIGCONT", _AT_PUT,
               _process_fault("pause-both", _STOP, python=True, jvm=True)),
    FaultClass("kill-python", "SIGKILL of its Python", _AT_PUT,
               _process_fault("kill-python", _KILL, python=True, jvm=False)),
    FaultClass("kill-jvm", "SIGKILL of its JVM", _AT_PUT,
               _process_fault("kill-jvm", _KILL, python=False, jvm=True)),
    FaultClass("kill-both", "SIGKILL of both", _AT_PUT,
               _process_fault("kill-both", _KILL, python=True, jvm=True)),
    FaultClass("cut-zookeeper", "its network to ZooKeeper swallows everything past the session, S3 does not",
               _AT_PUT, _cut_zookeeper),
    FaultClass("expire-queued", "its session ends while it waits in the queue", ("asking",), _expire_queued),
    FaultClass("lost-zookeeper-reply", "ZooKeeper does what it asked, and the answer is lost with the connection",
               ("asking", "data", "releasing"), _lost_reply),
    FaultClass("break-lock", "its contender is deleted by somebody else", _AT_PUT, _break_lock),
    FaultClass("second-hold", "its hold is lost, and another of its threads gets the lock and commits",
               ("acquired", "read", "data"), _second_hold),
    FaultClass("s3-lost-reply", "the PUT is stored, the connection closed without an answer", ("data",),
               _s3_fault("s3-lost-reply", lost=True, stored=True), "gate"),
    FaultClass("s3-500", "an internal error, of a PUT that was stored or was not", ("data",),
               _s3_fault("s3-500", status=500), "gate"),
    FaultClass("s3-503", "slow down, likewise", ("data",), _s3_fault("s3-503", status=503), "gate"),
    FaultClass("s3-unavailable", "every PUT of the commit fails with 500 and is not stored", ("data",),
               _s3_fault("s3-unavailable", status=500, times=99), "gate"),
    FaultClass("s3-409", "another conditional request was under way", ("data",),
               _s3_fault("s3-409", status=409), "gate"),
    FaultClass("s3-412", "a writer without the lock has the version a moment before", ("data",),
               _s3_fault("s3-412", rival=True), "gate"),
    FaultClass("s3-403", "access denied", ("data",), _s3_fault("s3-403", status=403), "gate"),
    FaultClass("s3-delay", "the PUT takes longer than the session and than S3A's patience", ("data",),
               _s3_fault("s3-delay", held=True), "gate"),
    FaultClass("zookeeper-leader-kill", "the leader of the ensemble is killed, and started again", ("read", "data"),
               _zookeeper_fault("zookeeper-leader-kill"), "zookeeper"),
    FaultClass("zookeeper-leader-pause", "the leader stands still for a while", ("read", "data"),
               _zookeeper_fault("zookeeper-leader-pause"), "zookeeper"),
    FaultClass("zookeeper-quorum", "two of three servers are killed, and started again", ("read", "data"),
               _zookeeper_fault("zookeeper-quorum"), "zookeeper"),
    FaultClass("zookeeper-rolling-restart", "its servers are restarted one after the other", ("read", "data"),
               _rolling_restart, "zookeeper"),
)  # fmt: skip

CLASSES: Mapping[str, FaultClass] = {each.name: each for each in _ALL}
"""Every class of faults, by name."""
