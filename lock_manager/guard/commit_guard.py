"""The commit guard, Python side: the log store asks it at each commit whether the lock is held.

Just before it puts a version, the log store (``log_store/``, in the driver's JVM) sends one JSON object, and puts the
version only after a yes. A commit belongs to the blocks to which its thread is bound. That this process holds *some*
lock on the table does not count, nor does another block under the same hold.

Knows nothing of Spark: :mod:`writer_jobs.commit.driver_guard` brings the question here.
"""

from __future__ import annotations

import copy
import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from lock_manager.errors import (
    EnsembleRefusedError,
    EnsembleUnavailableError,
    LockLostError,
    LockNotHeldError,
    NotStagedError,
    ResourceError,
    SluiceError,
)
from lock_manager.events import Event, emit
from lock_manager.guard.guarded_hold import OF_PARTITIONS, AllowedPut, GuardedHold
from lock_manager.guard.ticket import Ticket
from lock_manager.resources import canonical_table_uri
from lock_manager.table_records.adoption import UNSET_PROPERTIES

log = logging.getLogger(__name__)

_REMEMBERED_REFUSALS = 256
_MILLIS = 1000


class CommitGuard:
    """Decides on commits by the holds that it knows; one for a process.

    Attributes:
        observed: how many commits it would have refused, had the driver not been told to observe only.

    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: dict[str, GuardedHold] = {}
        self._tickets: dict[str, Ticket] = {}
        self._refusals: OrderedDict[str, SluiceError] = OrderedDict()
        self.observed = 0

    def add(self, guarded: GuardedHold) -> None:
        """Allow the commits of threads that are bound to this block, as long as the ensemble confirms its hold."""
        with self._lock:
            self._blocks[guarded.block_id] = guarded

    def remove(self, guarded: GuardedHold) -> None:
        """Refuse the block's commits from now on."""
        with self._lock:
            self._blocks.pop(guarded.block_id, None)

    def open(self, ticket: Ticket) -> None:
        """Have commits wait that belong to this ticket, until it is granted or refused."""
        with self._lock:
            self._tickets[ticket.name] = ticket

    def close(self, ticket: Ticket) -> None:
        """Refuse the commits of this ticket from now on."""
        with self._lock:
            self._tickets.pop(ticket.name, None)

    def others_of(self, guarded: GuardedHold) -> list[GuardedHold]:
        """Return the other open blocks under the same hold: of other tables, of other threads, or around this one."""
        hold_id = guarded.hold.hold_id
        with self._lock:
            blocks = list(self._blocks.values())
        return [block for block in blocks if block is not guarded and block.hold.hold_id == hold_id]

    def refusal(self, attempt: str) -> SluiceError | None:
        """Return with what error an attempt was refused, if that was not long ago."""
        with self._lock:
            found = self._refusals.get(attempt)
        # A copy, for every raise adds to what it raises.
        return copy.copy(found)

    def refusal_in(self, text: str) -> SluiceError | None:
        """Return the refusal whose message ``text`` repeats: of an exception that went through Java as text."""
        with self._lock:
            return next((error for error in reversed(self._refusals.values()) if str(error) in text), None)

    def check(self, request: str) -> str:
        """Decide on one attempt; never raises. See ``CommitGuard.java`` for both objects."""
        attempt, observe, table = "", False, "unknown"
        awaits_turn = has_ticket = False
        try:
            asked: dict[str, Any] = json.loads(request)
            attempt, observe, table = asked["attempt"], bool(asked.get("observe")), str(asked["table"])
            awaits_turn, has_ticket = "staged" in asked, bool(asked.get("ticket"))
            with suppress(ResourceError):
                table = canonical_table_uri(table)
            return json.dumps(self._check(asked))
        except SluiceError as error:
            refusal = error
        except Exception as error:  # whatever it is, the commit must not be written for it
            log.exception("the commit guard failed")
            reason = f"the commit guard failed: {type(error).__name__}: {error}"
            refusal = LockLostError(resource=table, hold_id="", reason=reason)
        if not awaits_turn and not (has_ticket and isinstance(refusal, NotStagedError)):
            # A commit without a turn was not refused: it has no lock yet, or is repeated with the lock held throughout.
            emit(Event.REFUSED, table, error=type(refusal).__name__)
        with self._lock:
            if attempt:
                self._refusals[attempt] = refusal
            while len(self._refusals) > _REMEMBERED_REFUSALS:
                self._refusals.popitem(last=False)
            self.observed += observe
        if observe:
            log.warning("required mode would refuse (the %d. time in this driver): %s", self.observed, refusal)
        return json.dumps({"refused": type(refusal).__name__, "message": str(refusal)})

    def _check(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        version, attempt = int(asked["version"]), str(asked["attempt"])
        if "staged" in asked:
            return {"turn": self._ticket(asked).has_turn(asked["staged"])}
        if "outcome" in asked:
            self._ticket(asked).ended(asked)
            return {}
        with self._lock:
            *others, guarded = self._covering(asked)
            if guarded.refusal is not None:
                raise guarded.refusal
            write_id = asked.get("write")
            guarded.check_write(write_id, asked.get("retention_ms", 0) / _MILLIS)
            # A hold that this block is around, or inside of, is asked once, for the innermost block.
            gates = {each.hold.hold_id: each for each in (*others, guarded)}
            for each in gates.values():
                each.passed[attempt] = AllowedPut(version, write_id)
        try:
            if guarded.name.endswith(OF_PARTITIONS):
                # A log store of another release, which does not say what is touched, counts as touching all.
                guarded.check_footprint(asked.get("footprint", {}))
            # While a table is moved two ensembles grant its lock: a commit needs both holds, and an intent at both.
            for each in gates.values():
                each.hold.intend(version, txn=asked.get("txn"), attempt=attempt, table=each.table)
        except (EnsembleUnavailableError, EnsembleRefusedError) as error:
            self._withdraw(gates.values(), attempt)
            # Whether it stands is not known: to a commit that is as good as lost.
            raise LockLostError(
                resource=guarded.hold.resource, hold_id=guarded.hold.hold_id, reason=f"not confirmed: {error}"
            ) from error
        except Exception:
            self._withdraw(gates.values(), attempt)
            raise
        if asked.get("metadata") and asked.get("operation") != UNSET_PROPERTIES:
            guarded.new_metadata = True
        return {"holds": list(gates), "stamp": guarded.stamp(write_id)}

    @staticmethod
    def _withdraw(gates: Iterable[GuardedHold], attempt: str) -> None:
        """Forget an attempt that is refused: it is not made, whichever gate let it pass."""
        for each in gates:
            del each.passed[attempt]
            each.hold.intents_of(each.table).settle([attempt])

    def _ticket(self, asked: Mapping[str, Any]) -> Ticket:
        ticket = self._tickets.get(str(asked.get("ticket")))
        if ticket is None:
            raise LockNotHeldError(
                f"version {asked['version']} of {asked['table']} was not committed: the write that was to have the "
                "lock for it is over",
                resource=str(asked["table"]),
            )
        return ticket

    def _covering(self, asked: Mapping[str, Any]) -> list[GuardedHold]:
        try:
            uri = canonical_table_uri(asked["table"])
        except ResourceError as error:
            raise LockNotHeldError(str(error), resource=str(asked["table"])) from error
        what = f"version {asked['version']} of {uri} ({asked.get('operation') or 'unknown operation'})"
        if asked.get("ticket"):
            granted = self._ticket(asked).hold(asked.get("write"))
            if granted.table != uri:
                raise LockNotHeldError(f"{what} was not committed: it holds {granted.hold.resource}", resource=uri)
            return [granted]
        names = [name.rstrip(OF_PARTITIONS) for name in (asked.get("blocks") or "").split(",") if name]
        if not names:
            raise LockNotHeldError(
                f"{what} was not committed: the thread is bound to no lock; write it inside "
                "`with locked(spark, table):`, in the same thread or a pyspark.InheritableThread",
                resource=uri,
            )
        bound = [self._blocks[name] for name in dict.fromkeys(names) if name in self._blocks]
        covering = [guarded for guarded in bound if guarded.table == uri]
        if not covering:
            others = ", ".join(dict.fromkeys(guarded.hold.resource for guarded in bound))
            held = f"it holds {others}" if others else "the lock to which its thread is bound was given back"
            raise LockNotHeldError(f"{what} was not committed: {held}", resource=uri)
        exclusive = [guarded for guarded in covering if not guarded.hold.scope[uri].shared]
        if not exclusive:
            raise LockNotHeldError(
                f"{what} was not committed: the lock is shared, and shared locks are for readers", resource=uri
            )
        return exclusive
