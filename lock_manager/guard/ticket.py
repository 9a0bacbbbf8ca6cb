"""A ticket: the substitute for a hold while a write acquires the lock for its commit alone.

The thread that writes is bound to the ticket. Its commit waits in the log store, in front of a free version. Another
thread of the same process acquires the lock and grants the ticket; then the commit passes. The lock can be released as
soon as the log store reports the outcome of the put.

Only a commit that does not depend on the protection of the lock may wait in this way, see :func:`staging_obstacle`.
This module does not depend on Spark.
"""

from __future__ import annotations

import _thread
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lock_manager.errors import LockNotHeldError, NotStagedError, SluiceError
from lock_manager.guard.guarded_block import ALLOWED_TABLE_ACTIONS, PARTITIONS_SUFFIX, GuardedBlock, is_definite
from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.intents import NO_VERSION

# Time that a commit waits for its turn before the log store checks again whether its version is free.
_TURN_SECONDS = 0.5
# Actions of the first version of a table.
_NEW_TABLE_ACTIONS = frozenset({"protocol", "metaData"})


@dataclass(frozen=True)
class StagedCommit:
    """A commit that waits for its lock, as the log store describes it (``CommitBody.java``, ``ReadVersion.java``).

    Attributes:
        blind: Whether its transaction read nothing of the table, according to Delta.
        removes: Whether it removes files from the table.
        dated: Whether it has an in-commit timestamp and may change rows.
        actions: Names of its actions that concern the whole table.
        read_version: Version of the table that the transaction read; -1: the table did not exist; None: unknown.
        properties: Sluice's table properties of that version.
        hooks: Names of Delta's post-commit hooks that are not known to be harmless behind the gate
            (``PostCommitHooks.java``); None if the transaction is unknown.

    """

    blind: bool
    removes: bool
    dated: bool
    actions: tuple[str, ...] = ()
    read_version: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] | None = None

    @classmethod
    def of(cls, description: Mapping[str, Any]) -> StagedCommit:
        """Parse the log store's description."""
        read = description.get("read") or {}
        return cls(
            blind=bool(description["blind"]),
            removes=bool(description["removes"]),
            dated=bool(description["dated"]),
            actions=tuple(description["actions"]),
            read_version=int(read["version"]) if "version" in read else None,
            properties=dict(read.get("properties", {})),
            hooks=None if description.get("hooks") is None else tuple(description["hooks"]),
        )


def staging_obstacle(commit: StagedCommit, *, appends: bool) -> str | None:
    """Return why a commit cannot be made under a lock that was not held while it was prepared; None if it can.

    An append must not depend on the table's rows, because Delta lets other appends pass before it. For all other
    operations Delta's conflict check decides whether their reads are still valid.
    """
    # Every version 0 has these actions, so Delta detects the conflict with another writer's.
    new_table_actions = _NEW_TABLE_ACTIONS if commit.read_version == NO_VERSION else frozenset()
    table_actions = [name for name in commit.actions if name not in ALLOWED_TABLE_ACTIONS | new_table_actions]
    reasons = (
        (commit.read_version is None, "the version that it read is not known"),
        (table_actions, f"it changes the table's {', '.join(table_actions)}"),
        # Delta takes the timestamp before the wait. After a conflict it only exceeds the other commit's timestamp.
        (commit.dated, "its in-commit timestamp would be older than its turn"),
        (commit.hooks is None, "Delta's transaction, and its post-commit hooks, are not known"),
        (commit.hooks, f"Delta runs after the commit: {', '.join(commit.hooks or ())}"),
        (appends and (commit.removes or not commit.blind), "its rows depend on the table's"),
    )
    return next((reason for applies, reason in reasons if applies), None)


class Ticket:
    """The place of one commit in front of its lock, on the table or (``of_partitions``) on partitions of it only.

    ``on_change`` is called in other threads when a commit arrives or a put is stored. It must return quickly.

    Attributes:
        name: Name to which the writing thread is bound: the write id, with a suffix if the lock is on partitions.
        table: Canonical URI.
        attempt: Attempt to which the commit belongs.
        appends: Whether the write is an append; see :func:`staging_obstacle`.
        staged: The waiting commit as it first arrived; None before.
        block: The block under the hold; None until the ticket is granted.
        committed: ``version`` and ``metrics`` of the stored put, from the log store; None before.

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
        self.committed: Mapping[str, Any] | None = None
        self._refusal: SluiceError | None = None
        self._on_change = on_change
        # A plain lock, released by the decision: an exception in a signal handler cannot leave it half taken.
        self._decided = _thread.allocate_lock()
        self._decided.acquire()

    # -- for the thread that grants it ---------------------------------------------------------------------------

    def grant(self, block: GuardedBlock) -> None:
        """Let the commit pass in this block; call it only once."""
        self.block = block
        self._decided.release()

    def refuse(self, error: SluiceError) -> None:
        """Refuse every later request with this error; a commit that is not yet put fails."""
        undecided = self._refusal is None and self.block is None
        self._refusal = self._refusal or error
        if undecided:
            self._decided.release()

    # -- for the guard, in its own threads -----------------------------------------------------------------------

    def has_turn(self, description: Mapping[str, Any]) -> bool:
        """Record that a commit has arrived, wait briefly for its lock, and return whether the lock is held.

        Raises:
            NotStagedError: The commit needs the lock from its beginning.
            SluiceError: The lock was not acquired.

        """
        staged = StagedCommit.of(description)
        if (reason := staging_obstacle(staged, appends=self.appends)) is not None:
            raise NotStagedError(f"the write to {self.table} needs the lock from its beginning: {reason}")
        if self.staged is None:
            self.staged = staged
            self._on_change()
        if staged.read_version != self.staged.read_version:
            # OPTIMIZE restarts by itself after a conflict. The checks of the first commit do not apply to the second.
            raise NotStagedError(f"the write to {self.table} was started again, from version {staged.read_version}")
        if not self._decided.acquire(timeout=_TURN_SECONDS):
            return False
        self._decided.release()
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
            raise LockNotHeldError(
                f"a write to {self.table} commits a second time, and its lock was given back", resource=self.table
            )
        return self.block

    def record_outcome(self, outcome: Mapping[str, Any]) -> None:
        """Record the log store's ``outcome``, ``attempt``, ``version`` and ``metrics`` of a put, also in the hold."""
        if self.block is None:
            return
        if is_definite(outcome):
            self.block.hold.intents_of(self.table).settle([str(outcome["attempt"])])
        if outcome["outcome"] == "committed":
            self.committed = {"version": int(outcome["version"]), "metrics": dict(outcome.get("metrics") or {})}
            self._on_change()
