"""Tickets: a write that acquires the lock only for its commit has a ticket until the lock is held.

The thread that writes is bound to the ticket. Its commit waits in the log store before its version is put. Another
thread of the same process acquires the lock and grants the ticket. Then the commit is put. The lock can be released as
soon as the log store reports the outcome of the put.

Such a commit is prepared without the lock. :func:`staging_obstacle` returns why a commit needs the lock from the
beginning of its write, if it does. This module does not depend on Spark.
"""

from __future__ import annotations

import _thread
import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lock_manager.errors import LockNotHeldError, NotStagedError, SluiceError
from lock_manager.guard.guarded_block import ALLOWED_TABLE_ACTIONS, PARTITIONS_SUFFIX, GuardedBlock, is_definite
from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.intents import NO_VERSION

#: Time that a commit waits for its turn before the log store checks again whether its version is free.
TURN_SECONDS = 0.5
# Maximum of that time. It doubles with each check if the log store reads all versions of other writers at once, because
# then the last check under the lock is short, or if a holder may make the commit.
_MAX_TURN_SECONDS = 4.0
# Actions of the first version of a table.
_NEW_TABLE_ACTIONS = frozenset({"protocol", "metaData"})


@dataclass(frozen=True)
class StagedCommit:
    """A commit that waits for its lock, as the log store describes it (``CommitBody.java``, ``ReadVersion.java``).

    Attributes:
        is_blind: Whether its transaction read nothing of the table, according to Delta.
        removes_files: Whether it removes files from the table.
        is_dated: Whether it has an in-commit timestamp and may change rows.
        actions: Names of its actions that concern the whole table.
        read_version: Version of the table that the transaction read; -1: the table did not exist; None: unknown.
        properties: Sluice's table properties of that version.
        hooks: Names of Delta's post-commit hooks that are not known to be harmless behind the gate
            (``PostCommitHooks.java``); None if the transaction is unknown.
        changes_rows: Whether a file of it may change rows.
        operation: Delta's name of the operation; None if the commit does not name it.
        new_properties: Table properties that the commit sets; None if it has no metadata.
        file_count: Number of data files that were written for it.

    """

    is_blind: bool
    removes_files: bool
    is_dated: bool
    actions: tuple[str, ...] = ()
    read_version: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] | None = None
    changes_rows: bool = True
    operation: str | None = None
    new_properties: Mapping[str, str] | None = None
    file_count: int = 0

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> StagedCommit:
        """Parse the log store's description."""
        read = description.get("read") or {}
        return cls(
            is_blind=bool(description["blind"]),
            removes_files=bool(description["removes"]),
            is_dated=bool(description["dated"]),
            actions=tuple(description["actions"]),
            read_version=int(read["version"]) if "version" in read else None,
            properties=dict(read.get("properties", {})),
            hooks=None if description.get("hooks") is None else tuple(description["hooks"]),
            changes_rows=bool(description.get("changes_rows", True)),
            operation=description.get("operation"),
            new_properties=description.get("configuration"),
            file_count=int(description.get("files", 0)),
        )


def staging_obstacle(commit: StagedCommit, *, appends: bool) -> str | None:
    """Return why a commit that was prepared without the lock cannot be made under it; None if it can.

    An append (``appends``) must not depend on the table's rows, because Delta's conflict check accepts appends of other
    writers before it. For all other operations the conflict check decides whether their reads are still valid.
    """
    # Every version 0 has these actions, so Delta detects the conflict with another writer's version 0.
    new_table_actions = _NEW_TABLE_ACTIONS if commit.read_version == NO_VERSION else frozenset()
    table_actions = [name for name in commit.actions if name not in ALLOWED_TABLE_ACTIONS | new_table_actions]
    reasons = (
        (commit.read_version is None, "the version that it read is not known"),
        (table_actions, f"it changes the table's {', '.join(table_actions)}"),
        # Delta takes the timestamp before the wait. After a conflict Delta only moves it behind the other commit's.
        (commit.is_dated, "its in-commit timestamp would be older than the acquisition of its lock"),
        (commit.hooks is None, "Delta's transaction and its post-commit hooks are not known"),
        (commit.hooks, f"Delta runs after the commit: {', '.join(commit.hooks or ())}"),
        (appends and (commit.removes_files or not commit.is_blind), "its rows depend on the table's rows"),
    )
    return next((reason for is_obstacle, reason in reasons if is_obstacle), None)


class Ticket:
    """The ticket of one write, whose commit waits in the log store until the lock is held.

    The commit is confined to partitions with ``of_partitions``. ``on_change`` is called in other
    threads when a commit arrives or a put is stored. It must return quickly.

    Attributes:
        name: Name to which the thread that writes is bound: the write id, with a suffix if the commit is confined to
            partitions.
        table: Canonical URI.
        attempt: Attempt to which the commit belongs.
        appends: Whether the write is an append; see :func:`staging_obstacle`.
        staged: The waiting commit as it first arrived; None before.
        block: The block under the hold; None until the ticket is granted.
        offer: The waiting commit as a holder may make it (``LightTransaction.java``); None if no holder may.
        checked_version: Version up to which the log store has checked that the log does not contain the commit.
        committed: ``version`` and ``metrics`` of the stored put, from the log store; None before.
        is_member: Whether another holder has made the commit together with its own.
        refused_hooks: Names of Delta's post-commit hooks for which the commit was refused.

    """

    def __init__(
        self,
        table: str,
        attempt: WriteAttempt,
        on_change: Callable[[], None],
        *,
        of_partitions: bool = False,
        appends: bool = True,
    ) -> None:
        self.name = attempt.write_id + (PARTITIONS_SUFFIX if of_partitions else "")
        self.table = table
        self.attempt = attempt
        self.appends = appends
        self.staged: StagedCommit | None = None
        self.block: GuardedBlock | None = None
        self.offer: Mapping[str, Any] | None = None
        self.checked_version = NO_VERSION
        self.committed: Mapping[str, Any] | None = None
        self.is_member = False
        self.refused_hooks: Sequence[str] = ()
        self._members: Collection[str] = ()
        self._turn_seconds = TURN_SECONDS
        self._refusal: SluiceError | None = None
        self._on_change = on_change
        # The grant or the refusal releases this lock. It is a plain lock: an exception in a signal handler cannot leave
        # it half acquired.
        self._decision_lock = _thread.allocate_lock()
        self._decision_lock.acquire()
        # Acquired by the first decision.
        self._first_decision = _thread.allocate_lock()

    # -- for the thread that grants it ---------------------------------------------------------------------------

    def grant(self, block: GuardedBlock) -> None:
        """Allow the commit in this block; call it only once."""
        self.block = block
        self._decide()

    def refuse(self, error: SluiceError) -> None:
        """Refuse every later request with this error, or with that of an earlier refusal.

        A commit that is not put yet fails.
        """
        self._refusal = self._refusal or error
        self._decide()

    def record_commit(self, version: int, metrics: Mapping[str, Any], *, is_member: bool) -> None:
        """Record the commit in the granted block or, with ``is_member``, in another holder's version."""
        if self.block is not None:
            self.block.hold.dismiss(self._members)
        self.is_member = is_member
        self.committed = {"version": version, "metrics": dict(metrics)}
        self._decide()

    def _decide(self) -> None:
        if self._first_decision.acquire(blocking=False):
            self._decision_lock.release()

    # -- for the guard, in its own threads -----------------------------------------------------------------------

    def has_turn(self, request: Mapping[str, Any]) -> bool:
        """Record that a commit has arrived, wait briefly for its lock, and return whether the lock is held.

        The result is also true if a holder has made the commit, see :attr:`is_member`.

        ``request`` is the log store's, see ``PythonGuard.java``.

        Raises:
            NotStagedError: The commit needs the lock from its beginning.
            SluiceError: The lock was not acquired.

        """
        staged = StagedCommit.of(request["staged"])
        self.refused_hooks = staged.hooks or ()
        if (reason := staging_obstacle(staged, appends=self.appends)) is not None:
            raise NotStagedError(f"the write to {self.table} needs the lock from its beginning: {reason}")
        self.checked_version = int(request["version"]) - 1
        if self.staged is None:
            self.offer = request["staged"].get("offer")
            self.staged = staged
            self._on_change()
        if staged.read_version != self.staged.read_version:
            # OPTIMIZE restarts by itself after a conflict. The checks of the first commit do not hold for the second.
            raise NotStagedError(
                f"the write to {self.table} read version {staged.read_version} in a second transaction, and needs the "
                "lock from its beginning"
            )
        if not self._decision_lock.acquire(timeout=self._turn_seconds):
            if self.offer is not None or request["staged"].get("reads_ahead"):
                self._turn_seconds = min(2 * self._turn_seconds, _MAX_TURN_SECONDS)
            return False
        self._decision_lock.release()
        if self.is_member:
            return True
        self.granted_block(self.attempt.write_id)
        return True

    def granted_block(self, write_id: str | None) -> GuardedBlock:
        """Return the granted block, for the only commit of this ticket.

        Raises:
            LockNotHeldError: No block is granted, the only commit was made, or the commit is of another attempt.
            SluiceError: The ticket was refused.

        """
        if self._refusal is not None:
            # A copy, because each raise extends the traceback of the error.
            raise copy.copy(self._refusal)
        if self.block is None or self.committed is not None or write_id != self.attempt.write_id:
            reason = "is not held yet" if self.block is None else "covers one commit only, and this is another one"
            raise LockNotHeldError(
                f"a commit to {self.table} was refused: the lock of its write {reason}", resource=self.table
            )
        return self.block

    def allow_members(self, members: Collection[str]) -> None:
        """Record the contenders whose appends the next put contains, see :meth:`Hold.offers`."""
        self._members = members

    def record_outcome(self, report: Mapping[str, Any]) -> None:
        """Record the outcome of a put in the ticket and in the hold.

        ``report`` is the log store's: ``outcome``, ``attempt``, ``version`` and ``metrics``.
        """
        if self.block is not None and is_definite(report):
            self.block.hold.intents_of(self.table).settle([str(report["attempt"])])
        if report["outcome"] == "committed":
            # The log store reports another holder's version without an attempt.
            is_member = not report["attempt"]
            self.record_commit(int(report["version"]), report.get("metrics") or {}, is_member=is_member)
            self._on_change()
