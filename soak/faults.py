"""The classes of faults that a soak injects into its writers, ZooKeeper and S3.

A fault is a generator that receives every event of the run, and None while there is no event. So it can strike at a
point of a writer's work, and end when the outcome is known.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from soak.fault_context import OFFERS, PUT, FaultContext, Incident
from soak.lease_faults import lease_fault, lease_late, refuse_requests
from soak.process_faults import cut_both, cut_coordinator, cut_s3, lost_reply, outage, process_fault
from soak.queue_faults import break_lock, cancel_queued, expire_queued, queued_process_fault, second_hold
from soak.service_faults import rolling_restart, s3_fault, s3_late, zookeeper_fault


@dataclass(frozen=True)
class FaultClass:
    """A class of faults.

    Attributes:
        name: Name in ``--faults``.
        description: One line for ``--list-faults``.
        points: Points at which it may strike.
        strike: Starts the fault. Its arguments are the context, the name of the writer and the point.
        needs: ``gate`` for the embedded S3, ``lease`` for locks on it, ``zookeeper`` for locks on ZooKeeper,
            ``ensemble`` for an ensemble that the run has started, or ``container`` for an ensemble in containers; None
            if it needs no such service.

    """

    name: str
    description: str
    points: tuple[str, ...]
    strike: Callable[[FaultContext, str, str], Incident]
    needs: str | None = None


_HOLD_POINTS = ("acquired", "read", "data", "checked", "stored", "releasing")
_HOLD_AND_PUT_POINTS = (*_HOLD_POINTS, OFFERS, PUT)
# Here the next PUT of the queue is the request, the intent and the release.
_LOCK_REQUEST_POINTS = ("asking", "data", "releasing")
_STOP, _KILL = signal.SIGSTOP, signal.SIGKILL

_ALL = (
    FaultClass("pause-python", "SIGSTOP of the writer's Python past its session timeout, then SIGCONT",
               _HOLD_AND_PUT_POINTS, process_fault("pause-python", _STOP, python=True, jvm=False)),
    FaultClass("pause-jvm", "SIGSTOP of the writer's JVM, then SIGCONT", _HOLD_AND_PUT_POINTS,
               process_fault("pause-jvm", _STOP, python=False, jvm=True)),
    FaultClass("pause-both", "SIGSTOP of both past the session timeout, then SIGCONT", _HOLD_AND_PUT_POINTS,
               process_fault("pause-both", _STOP, python=True, jvm=True)),
    FaultClass("kill-python", "SIGKILL of the writer's Python", _HOLD_AND_PUT_POINTS,
               process_fault("kill-python", _KILL, python=True, jvm=False)),
    FaultClass("kill-jvm", "SIGKILL of the writer's JVM", _HOLD_AND_PUT_POINTS,
               process_fault("kill-jvm", _KILL, python=False, jvm=True)),
    FaultClass("kill-both", "SIGKILL of both", _HOLD_AND_PUT_POINTS,
               process_fault("kill-both", _KILL, python=True, jvm=True)),
    FaultClass("cut-zookeeper", "the network to ZooKeeper is cut past the session timeout; S3 answers",
               _HOLD_AND_PUT_POINTS, outage("cut-zookeeper", cut_coordinator), "zookeeper"),
    FaultClass("cut-s3", "the network of the JVM to S3 is cut past the session timeout; the coordinator answers",
               ("read", "data", "checked"), cut_s3, "gate"),
    FaultClass("expire-queued", "the session of a waiter expires in the queue", ("asking",), expire_queued,
               "zookeeper"),
    FaultClass("cancel-queued", "a waiter cancels its wait in the queue and requests the lock again", ("asking",),
               cancel_queued),
    FaultClass("pause-queued", "SIGSTOP of a waiter past its session timeout, then SIGCONT", ("asking",),
               queued_process_fault("pause-queued", _STOP)),
    FaultClass("kill-queued", "SIGKILL of a waiter", ("asking",), queued_process_fault("kill-queued", _KILL)),
    FaultClass("lost-zookeeper-reply", "ZooKeeper executes a request; reply and connection are lost",
               _LOCK_REQUEST_POINTS, lost_reply, "zookeeper"),
    FaultClass("break-lock", "another client removes the holder from the queue", _HOLD_AND_PUT_POINTS, break_lock),
    FaultClass("second-hold", "the hold is lost, and another thread of the process gets the lock and commits",
               ("acquired", "read", "data"), second_hold),
    FaultClass("s3-lost-reply", "the PUT is stored; the connection is closed without a reply", ("data",),
               s3_fault("s3-lost-reply", lost=True, stored=True), "gate"),
    FaultClass("s3-500", "500 Internal Error for a PUT that was stored or not", ("data",),
               s3_fault("s3-500", status=500), "gate"),
    FaultClass("s3-503", "503 Slow Down for a PUT that was stored or not", ("data",),
               s3_fault("s3-503", status=503), "gate"),
    FaultClass("s3-unavailable", "every PUT of the commit gets 500 and is not stored", ("data",),
               s3_fault("s3-unavailable", status=500, times=99), "gate"),
    FaultClass("s3-409", "409: another conditional request is in progress", ("data",),
               s3_fault("s3-409", status=409), "gate"),
    FaultClass("s3-412", "412: a writer without the lock has just stored the version", ("data",),
               s3_fault("s3-412", rival=True), "gate"),
    FaultClass("s3-403", "403 Access Denied", ("data",), s3_fault("s3-403", status=403), "gate"),
    FaultClass("s3-delay", "the PUT takes longer than the session timeout and S3A's timeout", ("data",),
               s3_fault("s3-delay", held=True), "gate"),
    FaultClass("s3-late", "the PUT arrives after its writer has given up and the next holder has read", ("data",),
               s3_late, "gate"),
    FaultClass("zookeeper-leader-kill", "the leader of the ensemble is killed and started again", ("read", "data"),
               zookeeper_fault("zookeeper-leader-kill"), "ensemble"),
    FaultClass("zookeeper-leader-pause", "the leader is paused", ("read", "data"),
               zookeeper_fault("zookeeper-leader-pause", "pause", "resume"), "ensemble"),
    FaultClass("zookeeper-leader-cut", "the leader's container is disconnected for 2.5 to 3.5 session timeouts",
               ("read", "data"), zookeeper_fault("zookeeper-leader-cut", "cut", "mend", (2.5, 3.5)), "container"),
    FaultClass("zookeeper-quorum", "two of three servers are killed and started again", ("read", "data"),
               zookeeper_fault("zookeeper-quorum"), "ensemble"),
    FaultClass("zookeeper-rolling-restart", "the servers are restarted one after the other", ("read", "data"),
               rolling_restart, "ensemble"),
    FaultClass("lease-cut", "the network of Python to S3 is cut past the lease; the JVM's network works",
               _HOLD_AND_PUT_POINTS, outage("lease-cut", cut_coordinator), "lease"),
    FaultClass("lease-cut-both", "the networks of Python and of the JVM to S3 are cut past the lease",
               _HOLD_AND_PUT_POINTS, outage("lease-cut-both", cut_both), "lease"),
    FaultClass("lease-unavailable", "every request for the queue gets 503 past the lease", _HOLD_AND_PUT_POINTS,
               outage("lease-unavailable", refuse_requests), "lease"),
    FaultClass("lease-lost-reply", "the PUT of the queue is stored; the connection is closed without a reply",
               _LOCK_REQUEST_POINTS, lease_fault("lease-lost-reply", lost=True, stored=True), "lease"),
    FaultClass("lease-500", "500 Internal Error for a PUT of the queue that was stored or not", _LOCK_REQUEST_POINTS,
               lease_fault("lease-500", status=500), "lease"),
    FaultClass("lease-503", "503 Slow Down for a PUT of the queue that was stored or not", _LOCK_REQUEST_POINTS,
               lease_fault("lease-503", status=503), "lease"),
    FaultClass("lease-409", "409: another conditional request for the queue is in progress", _LOCK_REQUEST_POINTS,
               lease_fault("lease-409", status=409), "lease"),
    FaultClass("lease-412", "412: another client has just changed the queue", _LOCK_REQUEST_POINTS,
               lease_fault("lease-412", rival=True), "lease"),
    FaultClass("lease-403", "403 Access Denied for a PUT of the queue", _LOCK_REQUEST_POINTS,
               lease_fault("lease-403", status=403), "lease"),
    FaultClass("lease-delay", "a PUT of the queue takes longer than its time limit, and its repetition does not",
               _LOCK_REQUEST_POINTS, lease_fault("lease-delay", held=True), "lease"),
    FaultClass("lease-late", "a PUT of the queue arrives after its writer has given up and another one has read",
               _LOCK_REQUEST_POINTS, lease_late, "lease"),
)  # fmt: skip

#: Classes of faults by name.
CLASSES: Mapping[str, FaultClass] = {fault.name: fault for fault in _ALL}
