"""Faults of the requests for locks on S3. They strike the requests of one writer for the queue of its table."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from soak.evidence import Event
from soak.fault_context import (
    OUTCOMES,
    FaultContext,
    Incident,
    Wait,
    hold_fields,
    is_from,
    is_takeover,
    stop_at,
    wait_for,
    wait_until,
)
from soak.lease_queues import LeaseQueues
from soak.processes import WriterProcess
from soak.s3_faults import FaultGate, S3Fault

_ARRIVAL_SECONDS = 30.0
_OUTCOME_SECONDS = 60.0
# A client gives a request up after 4 s.
_GIVE_UP_SECONDS = 15.0
_END_SECONDS = 30.0
_ALL_REQUESTS = 1_000_000
_METHODS = frozenset({"GET", "PUT"})


def lease_fault(name: str, **fields: Any) -> Callable[..., Incident]:
    """Return the fault that strikes the next PUTs of a queue with an :class:`S3Fault` of these fields.

    A PUT that is held back arrives after the outcome of its writer.
    """

    def strike(context: FaultContext, writer: str, point: str) -> Incident:
        stop = yield from stop_at(context, writer, point)
        if stop is None:
            return
        fault_fields = dict(fields)
        if name in ("lease-500", "lease-503"):
            # The PUT is stored or not. The error comes once or twice.
            fault_fields |= {"stored": context.random.random() < 0.5, "times": context.random.choice((1, 2))}  # noqa: PLR2004
        gate, queue = _gate_and_queue(context, stop.event["table"])
        fault = gate.arm(writer, S3Fault(keys=queue, **fault_fields))
        context.writers[writer].send("go")
        event = yield from _wait_for_arrival(context, writer)
        if event is not None:
            context.record("fault", kind=name, worker=writer, point=point, **hold_fields(stop.event), **fault_fields)
        yield from wait_for(_OUTCOME_SECONDS, is_from(writer, *OUTCOMES))
        gate.disarm(writer, fault)
        fault.release.set()

    return strike


def lease_late(context: FaultContext, writer: str, point: str) -> Incident:
    """Hold a PUT of a queue back until its writer has given it up and another writer has read the table.

    The later requests of the writer get an error until then.
    """
    stop = yield from stop_at(context, writer, point)
    if stop is None:
        return
    gate, queue = _gate_and_queue(context, stop.event["table"])
    late_put = gate.arm(writer, S3Fault(held=True, keys=queue))
    start = len(context.history)
    context.writers[writer].send("go")
    event = yield from _wait_for_arrival(context, writer)
    if event is not None:
        errors = gate.arm(writer, S3Fault(status=503, times=_ALL_REQUESTS, keys=queue, methods=_METHODS))
        context.record("fault", kind="lease-late", worker=writer, point=point, **hold_fields(stop.event))
        yield from wait_until(_GIVE_UP_SECONDS, errors.arrived.is_set)
        yield from wait_for(3 * context.session_seconds + context.slack_seconds, is_takeover(stop.event, "read"))
        gate.disarm(writer, errors)
    gate.disarm(writer, late_put)
    # Release even without an arrival: a PUT that arrives later must not be held back for good.
    late_put.release.set()
    if event is not None:
        yield from wait_until(_END_SECONDS, late_put.ended.is_set)
    is_outcome = is_from(writer, *OUTCOMES)
    yield from wait_until(_OUTCOME_SECONDS, lambda: any(map(is_outcome, context.history[start:])))


def refuse_requests(context: FaultContext, process: WriterProcess, table: str) -> Callable[[], None]:
    """Let all requests of a writer for the queue of a table fail; return the function that ends that."""
    gate, queue = _gate_and_queue(context, table)
    fault = gate.arm(process.name, S3Fault(status=503, times=_ALL_REQUESTS, keys=queue, methods=_METHODS))
    return lambda: gate.disarm(process.name, fault)


def _gate_and_queue(context: FaultContext, table: str) -> tuple[FaultGate, re.Pattern[str]]:
    assert context.gate is not None  # noqa: S101 (the classes need these services)
    assert isinstance(context.queues, LeaseQueues)  # noqa: S101
    return context.gate, context.queues.paths(table)


def _wait_for_arrival(context: FaultContext, writer: str) -> Wait:
    """Wait until a request of the fault arrives; return None if the transaction ends before."""
    seconds = _ARRIVAL_SECONDS + context.slack_seconds
    event: Event | None = yield from wait_for(seconds, is_from(writer, "request-arrived", *OUTCOMES))
    return event if event is not None and event["event"] == "request-arrived" else None
