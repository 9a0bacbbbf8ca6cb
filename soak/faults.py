"""What a soak does to its writers, to ZooKeeper and to S3: each class of fault by name, and what it is.

A fault is a generator: it is sent every event of the run, and None now and then while nothing happens; between them it
acts. So it strikes at a point in a writer's work and waits for conditions, not for seconds.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from soak.fault_context import PUT, FaultContext, Incident
from soak.process_faults import cut_s3, cut_zookeeper, lost_reply, process_fault
from soak.queue_faults import break_lock, cancel_queued, expire_queued, second_hold
from soak.s3_faults import FaultGate
from soak.service_faults import rolling_restart, s3_fault, s3_late, zookeeper_fault


@dataclass(frozen=True)
class FaultClass:
    """A class of faults.

    Attributes:
        name: for ``--faults``.
        what: one line for people.
        points: where it may strike.
        strike: does it, to the writer of this name at this point.
        needs: ``gate`` or ``zookeeper``, if it takes one of ours; ``container``, if it takes one in containers.

    """

    name: str
    what: str
    points: tuple[str, ...]
    strike: Callable[[FaultContext, str, str], Incident]
    needs: str | None = None

    def points_with(self, gate: FaultGate | None) -> tuple[str, ...]:
        """Return where it may strike, with a gate in front of S3 or without."""
        return tuple(point for point in self.points if point != PUT or gate is not None)


_IN_HAND = ("acquired", "read", "data", "checked", "stored", "releasing")
_AT_PUT = (*_IN_HAND, PUT)
_STOP, _KILL = signal.SIGSTOP, signal.SIGKILL

_ALL = (
    FaultClass("pause-python", "SIGSTOP of the writer's Python past its session, then SIGCONT", _AT_PUT,
               process_fault("pause-python", _STOP, python=True, jvm=False)),
    FaultClass("pause-jvm", "SIGSTOP of its JVM, then SIGCONT", _AT_PUT,
               process_fault("pause-jvm", _STOP, python=False, jvm=True)),
    FaultClass("pause-both", "SIGSTOP of both past the session, then SIGCONT", _AT_PUT,
               process_fault("pause-both", _STOP, python=True, jvm=True)),
    FaultClass("kill-python", "SIGKILL of its Python", _AT_PUT,
               process_fault("kill-python", _KILL, python=True, jvm=False)),
    FaultClass("kill-jvm", "SIGKILL of its JVM", _AT_PUT,
               process_fault("kill-jvm", _KILL, python=False, jvm=True)),
    FaultClass("kill-both", "SIGKILL of both", _AT_PUT,
               process_fault("kill-both", _KILL, python=True, jvm=True)),
    FaultClass("cut-zookeeper", "its network to ZooKeeper swallows everything past the session, S3 does not",
               _AT_PUT, cut_zookeeper),
    FaultClass("cut-s3", "its network to S3 swallows everything past the session, ZooKeeper does not",
               ("read", "data", "checked"), cut_s3, "gate"),
    FaultClass("expire-queued", "its session ends while it waits in the queue", ("asking",), expire_queued),
    FaultClass("cancel-queued", "it cancels its wait in the queue, and asks again", ("asking",), cancel_queued),
    FaultClass("lost-zookeeper-reply", "ZooKeeper does what it asked, and the answer is lost with the connection",
               ("asking", "data", "releasing"), lost_reply),
    FaultClass("break-lock", "its contender is deleted by somebody else", _AT_PUT, break_lock),
    FaultClass("second-hold", "its hold is lost, and another of its threads gets the lock and commits",
               ("acquired", "read", "data"), second_hold),
    FaultClass("s3-lost-reply", "the PUT is stored, the connection closed without an answer", ("data",),
               s3_fault("s3-lost-reply", lost=True, stored=True), "gate"),
    FaultClass("s3-500", "an internal error, of a PUT that was stored or was not", ("data",),
               s3_fault("s3-500", status=500), "gate"),
    FaultClass("s3-503", "slow down, likewise", ("data",), s3_fault("s3-503", status=503), "gate"),
    FaultClass("s3-unavailable", "every PUT of the commit fails with 500 and is not stored", ("data",),
               s3_fault("s3-unavailable", status=500, times=99), "gate"),
    FaultClass("s3-409", "another conditional request was under way", ("data",),
               s3_fault("s3-409", status=409), "gate"),
    FaultClass("s3-412", "a writer without the lock has the version a moment before", ("data",),
               s3_fault("s3-412", rival=True), "gate"),
    FaultClass("s3-403", "access denied", ("data",), s3_fault("s3-403", status=403), "gate"),
    FaultClass("s3-delay", "the PUT takes longer than the session and than S3A's patience", ("data",),
               s3_fault("s3-delay", held=True), "gate"),
    FaultClass("s3-late", "the PUT arrives when its writer has given up, and the next holder has read", ("data",),
               s3_late, "gate"),
    FaultClass("zookeeper-leader-kill", "the leader of the ensemble is killed, and started again", ("read", "data"),
               zookeeper_fault("zookeeper-leader-kill"), "zookeeper"),
    FaultClass("zookeeper-leader-pause", "the leader stands still for a while", ("read", "data"),
               zookeeper_fault("zookeeper-leader-pause", "pause", "resume"), "zookeeper"),
    FaultClass("zookeeper-leader-cut", "the leader's container is taken off its network until there is another leader",
               ("read", "data"), zookeeper_fault("zookeeper-leader-cut", "cut", "mend", (2.5, 3.5)), "container"),
    FaultClass("zookeeper-quorum", "two of three servers are killed, and started again", ("read", "data"),
               zookeeper_fault("zookeeper-quorum"), "zookeeper"),
    FaultClass("zookeeper-rolling-restart", "its servers are restarted one after the other", ("read", "data"),
               rolling_restart, "zookeeper"),
)  # fmt: skip

CLASSES: Mapping[str, FaultClass] = {each.name: each for each in _ALL}
"""Every class of faults, by name."""
