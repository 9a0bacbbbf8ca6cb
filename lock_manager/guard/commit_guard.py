"""The commit guard, Python side: the log store asks it at each commit whether the lock is held.

The log store (``log_store/``, in the driver's JVM) sends each request as a JSON object, whose ``kind`` is one of these
(``PythonGuard.java`` has the other fields):

* ``turn``: A commit that waits for its lock asks whether it has the lock by now.
* ``lock``: A transaction with an automatic ticket asks, before it begins, whether it has the lock by now.
* ``outcome``: The log store reports the outcome of a put that waited for its lock, or another writer's version that
  contains the commit.
* ``end``: The log store reports that a transaction with an automatic ticket has ended.
* ``commit``: The log store asks, just before it puts a version, whether it may. It puts only after a yes, or
  in ``observe`` mode.

A request of any other kind is refused. A commit belongs to the blocks to which its thread is bound. Other locks of this
process on the table do not count, nor do other blocks under the same hold.

This module does not depend on Spark: :mod:`writer_jobs.commit.driver_guard` connects it to the driver.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from lock_manager import tracing
from lock_manager.errors import (
    AdoptionMismatchError,
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockLostError,
    LockNotHeldError,
    NotStagedError,
    ResourceError,
    SluiceError,
)
from lock_manager.events import Event, emit
from lock_manager.guard.automatic_ticket import AutomaticTicket, AutomaticTickets
from lock_manager.guard.group_commit import GroupTerms, OfferedAppend, members_of
from lock_manager.guard.guarded_block import PARTITIONS_SUFFIX, AllowedPut, GuardedBlock, check_versions
from lock_manager.guard.put_spans import PutSpans
from lock_manager.guard.ticket import Ticket
from lock_manager.resources import canonical_table_uri
from lock_manager.table_records.adoption import UNSET_PROPERTIES

log = logging.getLogger(__name__)

_MAX_REFUSALS = 256
_MAX_ENDED_TICKETS = 1024


def _is_final(request: Mapping[str, Any], refusal: SluiceError) -> bool:
    """Return whether a refusal ends a write, and is not the end of a wait or a reason to write again with the lock."""
    if request.get("kind") in ("turn", "lock"):
        # The errors of other tickets are also those of their writers, who emit events of their own.
        return bool(request.get("automatic")) and isinstance(refusal, AdoptionMismatchError | LockNotHeldError)
    return not (request.get("ticket") and isinstance(refusal, NotStagedError))


class CommitGuard:
    """Decides on commits by the open blocks and tickets; one per process.

    Attributes:
        observed: Number of refusals in ``observe`` mode, in which the driver commits nevertheless.
        automatic: Opens tickets for commits of threads that have neither a block nor a ticket; None: such commits are
            refused.
        put_spans: Spans of the puts that the guard has allowed.

    """

    def __init__(self) -> None:
        self.put_spans = PutSpans()
        self._lock = threading.Lock()
        self._blocks: dict[str, GuardedBlock] = {}
        self._tickets: dict[str, Ticket | AutomaticTicket] = {}
        self._ended_tickets: OrderedDict[str, None] = OrderedDict()
        self._refusals: OrderedDict[str, SluiceError] = OrderedDict()
        self.observed = 0
        self.automatic: AutomaticTickets | None = None

    def add(self, block: GuardedBlock) -> None:
        """Allow the commits of threads that are bound to this block, as long as the ensemble confirms its hold."""
        with self._lock:
            self._blocks[block.block_id] = block

    def remove(self, block: GuardedBlock) -> None:
        """Refuse the later commits of the block."""
        with self._lock:
            self._blocks.pop(block.block_id, None)

    def open(self, ticket: Ticket) -> None:
        """Let the commit of this ticket wait until the ticket is granted or refused."""
        with self._lock:
            self._tickets[ticket.name] = ticket

    def close(self, ticket: Ticket) -> None:
        """Refuse the later commits of this ticket."""
        with self._lock:
            self._tickets.pop(ticket.name, None)

    def client_ended(self) -> None:
        """End all automatic tickets, because the JVM of the log store has ended."""
        with self._lock:
            tickets = [ticket for ticket in self._tickets.values() if isinstance(ticket, AutomaticTicket)]
        for ticket in tickets:
            self._end(ticket.name)

    def sibling_blocks(self, block: GuardedBlock) -> list[GuardedBlock]:
        """Return the other open blocks under the hold: of other tables, of other threads, and outer or inner blocks."""
        hold_id = block.hold.hold_id
        with self._lock:
            blocks = list(self._blocks.values())
        return [sibling for sibling in blocks if sibling is not block and sibling.hold.hold_id == hold_id]

    def refusal(self, attempt: str) -> SluiceError | None:
        """Return the error with which a recent attempt was refused; None if there was none."""
        with self._lock:
            error = self._refusals.get(attempt)
        # A copy, because each raise extends the traceback of the error.
        return copy.copy(error)

    def refusal_in(self, text: str) -> SluiceError | None:
        """Return the recent refusal whose message occurs in ``text``: Java passes exceptions on as text."""
        with self._lock:
            return next((error for error in reversed(self._refusals.values()) if str(error) in text), None)

    def check(self, request: str) -> str:
        """Answer one request; never raises. See ``PythonGuard.java`` for both JSON objects."""
        attempt, observe, table = "", False, "unknown"
        fields: dict[str, Any] = {}
        try:
            content = json.loads(request)
            attempt, observe, table = content["attempt"], bool(content.get("observe")), str(content["table"])
            fields = content
            with suppress(ResourceError):
                table = canonical_table_uri(table)
            return json.dumps(self._check(fields))
        except SluiceError as error:
            refusal = error
        except Exception as error:  # any failure must prevent the commit
            log.exception("the commit guard failed")
            reason = f"the commit guard failed: {type(error).__name__}: {error}"
            refusal = LockLostError(resource=table, hold_id="", reason=reason)
        if _is_final(fields, refusal):
            emit(Event.REFUSED, table, error=type(refusal).__name__)
        with self._lock:
            if attempt:
                self._refusals[attempt] = refusal
            while len(self._refusals) > _MAX_REFUSALS:
                self._refusals.popitem(last=False)
            self.observed += observe
        if observe:
            log.warning(
                "observe mode lets a commit pass that required mode would refuse (number %d in this driver): %s",
                self.observed,
                refusal,
            )
        return json.dumps({"refused": type(refusal).__name__, "message": str(refusal)})

    def _check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        match request.get("kind"):
            case "turn":
                return self._turn(self._open_ticket(request), request)
            case "lock":
                return {"turn": self._automatic_ticket(request).has_lock()}
            case "outcome":
                try:
                    ticket = self._ticket(request)
                    ticket.record_outcome(request)
                finally:
                    self.put_spans.end([request])
                if isinstance(ticket, AutomaticTicket) and ticket.has_ended:
                    self._end(ticket.name)
                return {}
            case "end":
                self._end(str(request["ticket"]), request.get("puts", ()))
                self.put_spans.end(request.get("puts", ()))
                return {}
            case "commit":
                return self._trace_commit(request)
            case kind:
                reason = (
                    f"the commit guard got a request of the unknown kind {kind!r}; use the log store's jar and the "
                    "Python package of one release"
                )
                raise LockLostError(resource=str(request["table"]), hold_id="", reason=reason)

    @staticmethod
    def _turn(ticket: Ticket | AutomaticTicket, request: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {"turn": ticket.has_turn(request)}
        if isinstance(ticket, Ticket) and ticket.is_member and ticket.committed is not None:
            answer["committed"] = ticket.committed["version"]
        return answer

    def _trace_commit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the request for a commit, in a span. A thread without a block or a granted ticket has no span."""
        ticket = self._tickets.get(str(request.get("ticket")))
        block = self._innermost_block(request) if ticket is None else ticket.block
        if block is None:
            return self._allow_commit(request)
        block.end_phase(request.get("write"))
        version = int(request["version"])
        attributes = {"sluice.version": version, "sluice.operation": request.get("operation")}
        with tracing.span("guard", attributes, parent=block.span):
            answer = self._allow_commit(request)
        self.put_spans.begin(str(request["attempt"]), version, block.span)
        return answer

    def _allow_commit(self, request: Mapping[str, Any]) -> dict[str, Any]:
        version, attempt, write_id = int(request["version"]), str(request["attempt"]), request.get("write")
        with self._lock:
            *outer_blocks, block = self._covering_blocks(request)
            if block.refusal is not None:
                raise block.refusal
            block.check_write(write_id, request.get("retention_ms", 0) / 1000)
            check_versions((*outer_blocks, block), version)
            # Nested blocks of one hold need only one confirmation, which the innermost of them gets.
            blocks_by_hold = {covering.hold.hold_id: covering for covering in (*outer_blocks, block)}
            for covering in blocks_by_hold.values():
                covering.allowed_puts[attempt] = AllowedPut(version, write_id)
        ticket = self._tickets.get(str(request.get("ticket")))
        try:
            # A missing footprint counts as touching the whole table.
            block.check_footprint(request.get("footprint", {}))
            members = self._choose_members(ticket, block, request)
            # While a table is moved, two ensembles grant its lock: a commit needs a hold and an intent in each of them.
            for covering in blocks_by_hold.values():
                waiting = covering.hold.intend(
                    version,
                    txn=request.get("txn"),
                    attempt=attempt,
                    table=covering.table,
                    members={contender: append.write_id for contender, append in members.items()},
                )
                members = {contender: members[contender] for contender in waiting}
        except Exception as error:
            for covering in blocks_by_hold.values():
                del covering.allowed_puts[attempt]
                covering.hold.intents_of(covering.table).settle([attempt])
            if not isinstance(error, EnsembleUnavailableError | EnsembleRefusedError):
                raise
            emit(Event.UNAVAILABLE, block.table, error=type(error).__name__)
            # Whether the hold stands is unknown, so the commit is refused as if it were lost.
            raise LockLostError(
                resource=block.hold.resource, hold_id=block.hold.hold_id, reason=f"not confirmed: {error}"
            ) from error
        if request.get("metadata") and request.get("operation") != UNSET_PROPERTIES:
            block.has_new_metadata = True
        answer: dict[str, Any] = {"holds": list(blocks_by_hold), "stamp": block.stamp(write_id)}
        if isinstance(ticket, Ticket):
            ticket.allow_members(members)
            tracing.current().link(append.traceparent for append in members.values())
            answer["members"] = members_of(members.values())
        if isinstance(ticket, AutomaticTicket) and (restoration := ticket.restoration()) is not None:
            answer["restoration"] = restoration
        return answer

    def _choose_members(
        self, ticket: Ticket | AutomaticTicket | None, block: GuardedBlock, request: Mapping[str, Any]
    ) -> dict[str, OfferedAppend]:
        """Return the waiting appends that the commit of a request takes along, by contender."""
        if not isinstance(ticket, Ticket) or "group" not in request:
            return {}
        return GroupTerms.of(request["group"]).choose(block.hold.offers())

    def _automatic_ticket(self, request: Mapping[str, Any]) -> AutomaticTicket:
        ticket = self._open_ticket(request)
        if not isinstance(ticket, AutomaticTicket):
            raise LockNotHeldError(f"{ticket.name} is no automatic ticket", resource=ticket.table)
        return ticket

    def _open_ticket(self, request: Mapping[str, Any]) -> Ticket | AutomaticTicket:
        """Return the ticket of a request, and open it if it is automatic and new."""
        name = str(request["ticket"])
        with self._lock:
            # The ``end`` of a ticket may arrive before a ``turn`` request that its thread no longer waits for.
            is_new = name not in self._tickets and name not in self._ended_tickets
            if request.get("automatic") and is_new and self.automatic is not None:
                self._tickets[name] = self.automatic.open(request, self)
        return self._ticket(request)

    def _end(self, name: str, puts: Collection[Mapping[str, Any]] = ()) -> None:
        with self._lock:
            ticket = self._tickets.pop(name, None)
            self._ended_tickets[name] = None
            while len(self._ended_tickets) > _MAX_ENDED_TICKETS:
                self._ended_tickets.popitem(last=False)
        if isinstance(ticket, AutomaticTicket):
            ticket.end(puts)

    def _ticket(self, request: Mapping[str, Any]) -> Ticket | AutomaticTicket:
        ticket = self._tickets.get(str(request.get("ticket")))
        if ticket is None:
            raise LockNotHeldError(
                f"version {request['version']} of {request['table']} was not committed: its write has already ended",
                resource=str(request["table"]),
            )
        return ticket

    def _covering_blocks(self, request: Mapping[str, Any]) -> list[GuardedBlock]:
        """Return the blocks that allow a commit, the innermost last."""
        try:
            uri = canonical_table_uri(request["table"])
        except ResourceError as error:
            raise LockNotHeldError(str(error), resource=str(request["table"])) from error
        commit = f"version {request['version']} of {uri} ({request.get('operation') or 'unknown operation'})"
        if request.get("ticket"):
            granted = self._ticket(request).granted_block(request.get("write"))
            if granted.table != uri:
                raise LockNotHeldError(
                    f"{commit} was not committed: its write holds only {granted.hold.resource}", resource=uri
                )
            return [granted]
        if not request.get("blocks"):
            raise LockNotHeldError(
                f"{commit} was not committed: the thread is bound to no lock; write inside "
                "`with locked(spark, table):`, in the same thread or a pyspark.InheritableThread",
                resource=uri,
            )
        blocks = self._bound_blocks(request)
        covering = [block for block in blocks if block.table == uri]
        if not covering:
            resources = ", ".join(dict.fromkeys(block.hold.resource for block in blocks))
            reason = (
                f"its thread holds only {resources}; lock this table, too"
                if resources
                else "the lock of its thread was released; write inside the `with locked(spark, table):` block"
            )
            raise LockNotHeldError(f"{commit} was not committed: {reason}", resource=uri)
        exclusive = [block for block in covering if not block.hold.scope[uri].shared]
        if not exclusive:
            raise LockNotHeldError(
                f"{commit} was not committed: its thread holds a shared lock, which is for readers; acquire an "
                "exclusive lock",
                resource=uri,
            )
        return exclusive

    def _innermost_block(self, request: Mapping[str, Any]) -> GuardedBlock | None:
        """Return the innermost block of a commit's table to which its thread is bound; None if there is none."""
        with self._lock:
            blocks = self._bound_blocks(request)
        with suppress(ResourceError):
            table = canonical_table_uri(request["table"])
            return next((block for block in reversed(blocks) if block.table == table), None)
        return None

    def _bound_blocks(self, request: Mapping[str, Any]) -> list[GuardedBlock]:
        """Return the open blocks to which the thread of a commit is bound, the innermost last."""
        names = [name.removesuffix(PARTITIONS_SUFFIX) for name in (request.get("blocks") or "").split(",")]
        return [self._blocks[name] for name in dict.fromkeys(names) if name in self._blocks]
