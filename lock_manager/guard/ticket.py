"""A ticket: what a write has in place of a hold, if it acquires the lock for its commit alone.

The thread that writes is bound to the ticket. Its commit waits in the log store, in front of a free version. Another
thread of the same process acquires the lock and grants the ticket; then the commit passes. The lock can be released as
soon as the log store says what became of the put.

A commit may be made in this way if it depends on nothing that the lock protects: see :func:`why_not_staged`. Knows
nothing of Spark.
"""

from __future__ import annotations

import _thread
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lock_manager.errors import LockNotHeldError, NotStagedError, SluiceError
from lock_manager.guard.guarded_hold import DEFINITE, OF_ANY_PARTITION, OF_PARTITIONS, GuardedHold
from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.intents import NO_VERSION

_TURN_SECONDS = 0.5
"""How long a commit waits for its turn before it looks again whether its version is still free."""
_OF_NEW_TABLE = frozenset({"protocol", "metaData"})
"""Actions of the first version of a table."""


@dataclass(frozen=True)
class StagedCommit:
    """What is waiting for its lock, as the log store describes it (``CommitBody.java``, ``ReadVersion.java``).

    Attributes:
        blind: whether Delta says that nothing of the table was read for it.
        removes: whether it takes files out of the table.
        dated: Whether it has an in-commit timestamp and may change rows.
        actions: names of its actions that are of the whole table.
        read_version: Version of the table that the transaction read; -1: there was no table; None: not known.
        properties: of that version, those of ours.
        hooks: Names of Delta's post-commit hooks that are not known to be harmless behind the gate
            (``PostCommitHooks.java``); None if the transaction is not known.

    """

    blind: bool
    removes: bool
    dated: bool
    actions: tuple[str, ...] = ()
    read_version: int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    hooks: tuple[str, ...] | None = None

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> StagedCommit:
        """Read what the log store says."""
        read = said.get("read") or {}
        return cls(
            blind=bool(said["blind"]),
            removes=bool(said["removes"]),
            dated=bool(said["dated"]),
            actions=tuple(said["actions"]),
            read_version=int(read["version"]) if "version" in read else None,
            properties=dict(read.get("properties", {})),
            hooks=None if said.get("hooks") is None else tuple(said["hooks"]),
        )


def why_not_staged(commit: StagedCommit, *, appends: bool) -> str | None:
    """Return why a commit cannot be made under a lock that was not held while it was prepared; None if it can.

    Args:
        commit: as the log store describes it.
        appends: whether it is an append: then it must not depend on what the table holds, for Delta would let another
            append pass before it. Of all other operations Delta's conflict check says whether what they have read
            stands.

    """
    # Whatever another writer puts as version 0 has these actions, too, and is a conflict to Delta.
    of_new_table = _OF_NEW_TABLE if commit.read_version == NO_VERSION else frozenset()
    table_actions = [name for name in commit.actions if name not in OF_ANY_PARTITION | of_new_table]
    reasons = (
        (commit.read_version is None, "the version that it read is not known"),
        (table_actions, f"it changes the table's {', '.join(table_actions)}"),
        # Delta takes the timestamp before the wait, and after a conflict only makes it larger than the other commit's.
        (commit.dated, "its in-commit timestamp would be older than its turn"),
        (commit.hooks is None, "Delta's transaction, and its post-commit hooks, are not known"),
        (commit.hooks, f"Delta runs after the commit: {', '.join(commit.hooks or ())}"),
        (appends and (commit.removes or not commit.blind), "its rows depend on the table's"),
    )
    return next((reason for applies, reason in reasons if applies), None)


class Ticket:
    """The place of one commit in front of its lock.

    Args:
        table: canonical URI.
        attempt: to which the commit belongs.
        of_partitions: whether the lock will be of partitions only.
        appends: whether the write is an append; see :func:`why_not_staged`.
        on_change: called in other threads when there is something new to see here: a commit that has come, or the
            outcome of a put. It has to be quick.

    Attributes:
        name: to which the thread that writes is bound: the write id, with a suffix if the lock is of partitions.
        attempt: to which the commit belongs.
        staged: the commit that waits, as it came first; None before.
        bound: the hold, once it is granted.
        committed: what the log store says of the put that was stored: ``version`` and ``metrics``; None before.

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
        self.name = attempt.write_id + (OF_PARTITIONS if of_partitions else "")
        self.table = table
        self.attempt = attempt
        self.appends = appends
        self.staged: StagedCommit | None = None
        self.bound: GuardedHold | None = None
        self.committed: Mapping[str, Any] | None = None
        self._refusal: SluiceError | None = None
        self._on_change = on_change
        # Plain lock, open once it is decided: what a signal handler raises cannot leave it half taken.
        self._decided = _thread.allocate_lock()
        self._decided.acquire()

    # -- for the thread that grants it ---------------------------------------------------------------------------

    def grant(self, bound: GuardedHold) -> None:
        """Let the commit pass under this hold, from now on; only once."""
        self.bound = bound
        self._decided.release()

    def refuse(self, error: SluiceError) -> None:
        """Let nothing pass any more; the commit fails with this error, if it was not put yet."""
        undecided = self._refusal is None and self.bound is None
        self._refusal = self._refusal or error
        if undecided:
            self._decided.release()

    # -- for the guard, in threads of its own --------------------------------------------------------------------

    def has_turn(self, said: Mapping[str, Any]) -> bool:
        """Note that a commit is there, wait a little for its lock, and tell whether it is held.

        Args:
            said: of the commit, see :class:`StagedCommit`.

        Raises:
            NotStagedError: it needs the lock from its beginning.
            SluiceError: the lock was not acquired.

        """
        staged = StagedCommit.of(said)
        if (reason := why_not_staged(staged, appends=self.appends)) is not None:
            raise NotStagedError(f"the write to {self.table} needs the lock from its beginning: {reason}")
        if self.staged is None:
            self.staged = staged
            self._on_change()
        if staged.read_version != self.staged.read_version:
            # OPTIMIZE does so itself after a conflict. What was looked at in the name of the first is not true of it.
            raise NotStagedError(f"the write to {self.table} was begun anew, from version {staged.read_version}")
        if not self._decided.acquire(timeout=_TURN_SECONDS):
            return False
        self._decided.release()
        self.hold(self.attempt.write_id)
        return True

    def hold(self, write_id: str | None) -> GuardedHold:
        """Return the granted block, for the one commit of this ticket.

        Args:
            write_id: of the attempt to which the commit belongs.

        Raises:
            LockNotHeldError: there is none, the one commit was made, or the commit is not of the ticket's attempt.
            SluiceError: it was refused.

        """
        if self._refusal is not None:
            # A copy, for every raise adds to what it raises.
            raise copy.copy(self._refusal)
        if self.bound is None or self.committed is not None or write_id != self.attempt.write_id:
            raise LockNotHeldError(
                f"a write to {self.table} commits a second time, and its lock was given back", resource=self.table
            )
        return self.bound

    def ended(self, said: Mapping[str, Any]) -> None:
        """Note what became of a put, and have the hold know it."""
        if self.bound is None:
            return
        if said["outcome"] in DEFINITE:
            self.bound.hold.intents_of(self.table).settle([str(said["attempt"])])
        if said["outcome"] == "committed":
            self.committed = {"version": int(said["version"]), "metrics": dict(said.get("metrics") or {})}
            self._on_change()
