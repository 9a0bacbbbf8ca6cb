"""Automatic tickets: the lock for the commit of a program that requests no lock.

A commit whose thread has neither a block nor a ticket gets a ticket of its own from the log store
(``AutomaticTicket.java``), when it waits for its lock or when its transaction begins. A thread of this process acquires
the table's lock and keeps it until the log store reports that the transaction needs it no longer.

If the statement ran without the lock, the rules of the gate apply (:func:`staging_obstacle`). A commit that breaks one
of them is allowed only if no other commit was made since the version that its transaction has read. Otherwise the log
store raises Delta's own exception for a concurrent change, which such programs handle.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from lock_manager import tracing
from lock_manager.coordinator import Cancellation, Hold, LockManager
from lock_manager.errors import LockNotHeldError, LockTimeoutError, NotStagedError, SluiceError
from lock_manager.events import Event, emit
from lock_manager.guard.guarded_block import GuardedBlock, is_definite
from lock_manager.guard.table_reads import own_read_reason
from lock_manager.guard.ticket import TURN_SECONDS, StagedCommit, staging_obstacle
from lock_manager.guard.write_attempt import too_old_reason
from lock_manager.resources import TableResource, canonical_table_uri
from lock_manager.scope import TableScope
from lock_manager.table_records.adoption import UNSET_PROPERTIES, Adoption

log = logging.getLogger(__name__)

# An in-commit timestamp may be older than the acquisition of the lock by at most this time.
_TIMESTAMP_SECONDS = 5.0
# Delta's name of a hook that commits. It cannot run while another hook keeps the lock.
_COMMITTING_HOOK = "Auto Compact"


class BlockGuard(Protocol):
    """The part of the commit guard that a ticket needs."""

    def add(self, block: GuardedBlock) -> None:
        """Allow the commits of a block."""

    def remove(self, block: GuardedBlock) -> None:
        """Refuse the later commits of a block."""


class AutomaticTicket:
    """The ticket of one transaction of a program that requests no lock.

    Args:
        name: Name that the log store gave it.
        table: Canonical URI.
        manager: Lock manager.
        job: Name of the job, for the stamp of the commit.
        waits: Whether to wait for the lock; otherwise it is acquired only if it is free.
        guard: Guard that allows the commits of the block while the lock is held.

    Attributes:
        block: The block under the hold; None until the lock is held.

    """

    def __init__(
        self,
        name: str,
        table: str,
        manager: LockManager,
        job: str,
        *,
        waits: bool,
        guard: BlockGuard,
    ) -> None:
        self.name = name
        self.table = table
        self.block: GuardedBlock | None = None
        self._manager = manager
        self._note = {"job": job}
        self._waits = waits
        self._guard = guard
        self._staged: StagedCommit | None = None
        self._refusal: SluiceError | None = None
        self._has_committed = False
        self._start_lock = threading.Lock()
        self._decided = threading.Event()
        self._ended = threading.Event()
        self._cancellation = Cancellation()
        self._thread = threading.Thread(target=self._run, name="sluice-ticket", daemon=True)

    # -- for the guard, in its own threads -----------------------------------------------------------------------

    def has_turn(self, request: Mapping[str, Any]) -> bool:
        """Record that a commit has arrived, wait briefly for its lock, and return whether the commit may be made.

        ``request`` is the log store's, see ``PythonGuard.java``.

        Raises:
            NotStagedError: The statement must run again.
            LockNotHeldError: The commit would be refused again, so its statement must not run again unchanged.
            SluiceError: The lock was not acquired.

        """
        self._staged = staged = StagedCommit.of(request["staged"])
        if not self._wait():
            return False
        hold = self.granted_block(None).hold
        adoption = Adoption.of(staged.properties)
        if adoption is not None:
            adoption.check(ensemble=hold.ensemble_id, table=self.table)
        self._refuse_never_safe(staged, request["staged"])
        self._refuse_stale(staged, request, hold.acquired_at)
        return True

    def has_lock(self) -> bool:
        """Wait briefly for the lock of a transaction that begins later, and return whether it is held.

        Raises:
            SluiceError: The lock was not acquired.

        """
        if not self._wait():
            return False
        self.granted_block(None)
        return True

    def granted_block(self, write_id: str | None) -> GuardedBlock:
        """Return the block of the held lock; a commit of a program without a writer has no ``write_id``.

        Raises:
            LockNotHeldError: The lock is not held, or the commit was made.
            SluiceError: The lock was not acquired, or was lost.

        """
        if self._refusal is not None:
            # A copy, because each raise extends the traceback of the error.
            raise copy.copy(self._refusal)
        if self.block is None or self._has_committed or self._ended.is_set() or write_id is not None:
            raise LockNotHeldError(
                f"a commit to {self.table} was refused: its automatic lock is not held, or belongs to another commit",
                resource=self.table,
            )
        return self.block

    def record_outcome(self, report: Mapping[str, Any]) -> None:
        """Record the outcome of a put, and release the lock after a commit, unless hooks need it."""
        if self.block is None:
            return
        hold, intents = self.block.hold, self.block.hold.intents_of(self.table)
        if is_definite(report):
            intents.settle([str(report["attempt"])])
        if report["outcome"] != "committed":
            return
        self._has_committed = True
        hold.record_commit(int(report["version"]), self.table)
        unfinished_intents, event = intents.unfinished, Event.INTENT_SETTLED
        try:
            # The commit has the version that unfinished intents may name, so their puts can only fail.
            intents.clear()
        except SluiceError as error:
            log.info("unfinished intents of %s are left to the next holder: %s", self.table, error)
            event = Event.INTENT_LEFT
        for _ in unfinished_intents:
            emit(event, self.table)
        if not report.get("keeps_lock"):
            self.end()

    def restoration(self) -> dict[str, Any] | None:
        """Return the adoption to restore after this commit, and the block of the commit that restores it."""
        staged, block = self._staged, self.block
        if staged is None or block is None or staged.new_properties is None or staged.operation == UNSET_PROPERTIES:
            return None
        adoption = Adoption.to_restore(
            Adoption.of(staged.properties),
            Adoption.of(staged.new_properties),
            Adoption(block.hold.ensemble_id, self.table),
        )
        return None if adoption is None else {"properties": adoption.properties, "block": block.name}

    @property
    def has_ended(self) -> bool:
        """Whether the lock is released, or no longer requested."""
        return self._ended.is_set()

    def end(self, puts: Collection[Mapping[str, Any]] = ()) -> None:
        """Release the lock, or end the wait for it. ``puts`` are the attempts under the hold (``Attempts.java``)."""
        try:
            if self.block is not None:
                self.block.settle(puts)
        finally:
            self._ended.set()
            self._cancellation.request()

    # -- in its own thread ---------------------------------------------------------------------------------------

    def _wait(self) -> bool:
        """Request the lock at the first call; wait briefly, and return whether it is acquired or refused."""
        with self._start_lock:
            if self._thread.ident is None:
                self._thread.start()
        return self._decided.wait(TURN_SECONDS)

    def _run(self) -> None:
        scope = TableScope.of(TableResource.of(self.table))
        seconds = self._manager.settings.timeout_seconds if self._waits else 0
        try:
            with (
                tracing.span("commit", {"sluice.table": self.table}, parent=tracing.parent_of_process()),
                self._manager.acquire_all([scope], timeout_seconds=seconds, cancellation=self._cancellation) as hold,
            ):
                self._hold(hold)
        except SluiceError as error:
            if self._has_committed:
                # The commit passed while the hold stood. The next holder comes after it.
                log.warning("the commit to %s is stored, but its lock failed afterwards: %s", self.table, error)
            elif not self._ended.is_set() and not (isinstance(error, LockTimeoutError) and not self._waits):
                log.info("the lock on %s was not acquired: %s", self.table, error)
            self._refusal = error
        except Exception as error:
            log.exception("an automatic ticket failed")
            self._refusal = LockNotHeldError(f"the lock on {self.table} failed: {error}", resource=self.table)
        finally:
            self._decided.set()

    def _hold(self, hold: Hold) -> None:
        intents = hold.intents_of(self.table)
        if intents.unfinished:
            intents.read()
        self.block = GuardedBlock(hold, self._note, table=self.table)
        self._guard.add(self.block)
        try:
            self._decided.set()
            self._ended.wait()
        finally:
            self._guard.remove(self.block)

    # -- the rules -----------------------------------------------------------------------------------------------

    def _refuse_never_safe(self, staged: StagedCommit, description: Mapping[str, Any]) -> None:
        """Raise LockNotHeldError if the commit would be refused again, so that programs do not repeat its statement."""
        reason = None
        hooks = staged.hooks or ()
        if staged.read_version is None:
            reason = "Delta's transaction is not known, as in commits through Delta Kernel: write under a lock"
        elif len(hooks) > 1 and _COMMITTING_HOOK in hooks:
            reason = f"Delta runs {', '.join(hooks)} after it: turn auto-compaction off"
        elif "begun_ms" in description:
            # The wait for the lock counts, too.
            age_seconds = time.time() - description["begun_ms"] / 1000
            reason = too_old_reason(self.table, age_seconds, description["retention_ms"] / 1000)
        if reason is not None:
            raise LockNotHeldError(f"a commit to {self.table} was refused: {reason}", resource=self.table)

    def _refuse_stale(self, staged: StagedCommit, request: Mapping[str, Any], acquired_at: float) -> None:
        """Raise NotStagedError if the statement must run again."""
        description = request["staged"]
        if staged.is_dated and acquired_at - description["timestamp"] / 1000 > _TIMESTAMP_SECONDS:
            raise NotStagedError(
                f"the in-commit timestamp of the commit to {self.table} is more than {_TIMESTAMP_SECONDS:g} s older "
                "than its lock: run the statement again"
            )
        read_version = staged.read_version
        if int(request["version"]) - 1 != read_version and (reason := self._obstacle(staged, description)):
            raise NotStagedError(
                f"another writer has changed {self.table} since the transaction began with version {read_version}, and "
                f"{reason}: run the statement again"
            )

    def _obstacle(self, staged: StagedCommit, description: Mapping[str, Any]) -> str | None:
        """Return why Delta's conflict check is not enough for a commit after another writer's; None if it is."""
        # The lock is kept for hooks, and the timestamp is checked above.
        without_hooks = None if staged.hooks is None else ()
        if reason := staging_obstacle(replace(staged, hooks=without_hooks, is_dated=False), appends=False):
            return reason
        if not staged.changes_rows:
            return None
        # Delta registers ``newest`` reads, and checks them for conflicts. A blind append has registered no read.
        unregistered = [read for read in description["reads"] if staged.is_blind or not read.get("newest")]
        return own_read_reason(unregistered, self.table, description.get("table_id"))


class AutomaticTickets:
    """Opens an automatic ticket for each transaction of a program that requests no lock.

    Args:
        manager: Lock manager.
        job: Name of the job, for the stamps of the commits.

    """

    def __init__(self, manager: LockManager, job: str) -> None:
        self._manager = manager
        self._job = job

    def open(self, request: Mapping[str, Any], guard: BlockGuard) -> AutomaticTicket:
        """Return a new ticket for the commit of a request; see :class:`AutomaticTicket`."""
        return AutomaticTicket(
            str(request["ticket"]),
            canonical_table_uri(request["table"]),
            self._manager,
            self._manager.settings.job or self._job,
            waits=not request.get("observe"),
            guard=guard,
        )
