"""The protocols of a coordinator: what grants locks, and what the rest of this project needs of it.

The only coordinator today is ZooKeeper (:mod:`lock_manager.zookeeper`). The commit guard, the writer, the jobs and the
commands ``adopt``, ``status`` and ``break`` use these protocols. They name ZooKeeper's classes only where they make a
manager or an inspector. The commands ``doctor`` and ``ensemble`` are about ZooKeeper and ask it directly.
``tests/unit/test_imports.py`` lists every module of ``sluice`` and ``writer_jobs`` that may import
:mod:`lock_manager.zookeeper`.

``tests/contract`` is the contract that each coordinator keeps: its LockManager, its Hold and its Intents. It does not
cover the Inspector.

**What a coordinator's id means.** Fencing tokens compare within one coordinator only, and a table counts the locks of
one coordinator only. So each has a UUID that it keeps where the locks are: ZooKeeper at the lock root. It is made once
and lives as long as the coordinator's data. It is stored in every commit
(:mod:`lock_manager.table_records.commit_stamp`) and in the properties of adopted tables
(:mod:`lock_manager.table_records.adoption`), in both as ``ensemble``. That word stays for another coordinator, too,
because it is in tables: read it as "the coordinator". The same holds for the errors: ``EnsembleUnavailableError`` (no
answer in time), ``EnsembleRefusedError`` (an answer that is a refusal), ``EnsembleFormatError`` (what is kept there was
written by another release), ``EnsembleMismatchError`` (the table counts the locks of another one).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from lock_manager.intents import Intent
from lock_manager.partitions import Partition
from lock_manager.queue_entry import QueueEntry, TableLocks
from lock_manager.resources import TableResource
from lock_manager.scope import TableScope
from lock_manager.settings import LockSettings

WAITING_LOGGER = "lock_manager.zookeeper.queue"
"""Name of the logger on which a coordinator says now and then, at level INFO, whom a waiter waits for.

It is the name of ZooKeeper's module for queues. It stays, because programs set the level of this logger.
"""


class Cancellation:
    """Makes one acquire give up, which waits in another thread or has not begun yet."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._wake: Callable[[], None] = lambda: None

    def request(self) -> None:
        """Make the acquire raise LockCancelledError, now or when it begins."""
        self.requested.set()
        self._wake()

    def wakes(self, wake: Callable[[], None]) -> None:
        """Call ``wake`` at each :meth:`request` from now on."""
        self._wake = wake


class Intents(Protocol):
    """What a hold is about to put into the log of one table, and what holds before it left unfinished.

    Attributes:
        unfinished: names of unfinished intents that were found when the hold began, and are not cleared yet.

    """

    @property
    def unfinished(self) -> tuple[str, ...]: ...

    @property
    def open(self) -> Mapping[str, int]:
        """Attempts of this hold whose outcome is not known yet: the version that each may put, by name."""

    @property
    def settled(self) -> bool:
        """Whether the hold has noted an intent, and what became of all that it put is known."""

    def settle(self, attempts: Iterable[str]) -> None:
        """Note that the outcome of these attempts is known: each was stored, or never will be."""

    def read(self) -> list[Intent]:
        """Return the unfinished intents of holds before this one.

        Raises:
            EnsembleUnavailableError: no answer in time.
            LockLostError, LockNotHeldError: this hold is over.

        """

    def clear(self) -> None:
        """Forget the unfinished intents, as they were read: their versions are filled now.

        An intent that has changed since it was read is of a hold that lives. It stays.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError: as :meth:`Hold.check`.

        """


class Hold(Protocol):
    """A lock on a table, on partitions of it, or on several, held by this process until released or lost.

    Attributes:
        hold_id: unique name of this hold.
        resource: what is held, for people.
        scope: what is held of each table, by canonical URI.
        shared: whether other shared holders may hold at the same time.
        tokens: fencing token by key of each locked node; a later exclusive hold of a node has a larger one.
        exclusive_keys: keys of the nodes that it holds alone.
        ensemble_id: UUID of the coordinator; see the module.
        requested_at: when ``acquire`` was called, seconds since the epoch.
        acquired_at: acquisition time, seconds since the epoch.
        waited_seconds: from one to the other, on the monotonic clock.
        released_at: when the release was asked for, seconds since the epoch; None before.
        thread: that acquired it, for the rule on nested acquires.

    """

    @property
    def hold_id(self) -> str: ...
    @property
    def resource(self) -> str: ...
    @property
    def scope(self) -> Mapping[str, TableScope]: ...
    @property
    def shared(self) -> bool: ...
    @property
    def tokens(self) -> Mapping[str, int]: ...
    @property
    def exclusive_keys(self) -> Collection[str]: ...
    @property
    def ensemble_id(self) -> str: ...
    @property
    def requested_at(self) -> float: ...
    @property
    def acquired_at(self) -> float: ...
    @property
    def waited_seconds(self) -> float: ...
    @property
    def released_at(self) -> float | None: ...
    @property
    def thread(self) -> threading.Thread: ...

    @property
    def token(self) -> int:
        """The largest fencing token: of a hold on one table the only one."""

    @property
    def lost(self) -> str | None:
        """How the hold was lost, None as long as that is not known."""

    @property
    def over(self) -> bool:
        """Whether it is known to be lost, was released, or ended with the manager that gave it."""

    @property
    def intents(self) -> Intents:
        """The intents on the one table; see :meth:`intents_of`.

        Raises:
            ValueError: there are several.

        """

    def intents_of(self, table: str) -> Intents:
        """Return the intents on a table, by its canonical URI."""

    def covers(self, other: Mapping[str, TableScope]) -> bool:
        """Tell whether this hold includes all of ``other``."""

    def enter_again(self) -> bool:
        """Count one more acquire by the thread that has it; each is to be followed by a release.

        Returns:
            False if it is over by now.

        """

    def is_valid(self) -> bool:
        """Tell, without asking anybody, whether nobody else can have been given the lock yet."""

    def check(self, timeout_seconds: float | None = None) -> None:
        """Ask the coordinator whether this hold stands. Wakes nobody, changes nothing.

        Raises:
            LockLostError: it does not stand.
            LockNotHeldError: it was released.
            EnsembleUnavailableError: no answer in time; whether it stands is not known.
            EnsembleRefusedError: an answer that says neither; likewise.
            ClosedError: the manager was closed, or belongs to the parent of a fork.

        """

    def intend(self, version: int, *, txn: str | None, attempt: str, table: str | None = None) -> None:
        """Ask as :meth:`check` does and, in the same request, note that ``version`` is about to be put.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError, ClosedError: as
                :meth:`check`. The version must not be put then.

        """

    def on_loss(self, callback: Callable[[Self], None]) -> None:
        """Have ``callback`` called once with this hold when it turns out to be lost, in a thread of its own."""

    def record_commit(self, version: int, table: str | None = None) -> None:
        """Note that ``version`` of the table was committed under a check that this hold passed."""

    @property
    def commits(self) -> Mapping[str, tuple[int, ...]]:
        """Versions that were recorded by :meth:`record_commit`, by table."""

    def release(self) -> None:
        """Give the lock back; takes at most some seconds, also in an outage.

        Raises:
            LockLostError: it had been lost before.
            LockNotHeldError: it was released before.
            ClosedError: in a forked child: the hold is the parent's.

        """

    def __enter__(self) -> Self:
        """Begin a block that ends with the release."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release, unless the block did."""


class LockManager(Protocol):
    """Hands out locks on Delta tables, in the order in which they were asked for.

    Attributes:
        settings: with which it was made.

    """

    @property
    def settings(self) -> LockSettings: ...

    @property
    def session_timeout_seconds(self) -> float:
        """How long after the death of a holder its locks are given to others, in seconds."""

    def connect(self, timeout_seconds: float = ...) -> None:
        """Connect now; ``acquire`` does it by itself.

        Raises:
            EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError, ClosedError: it cannot be used.

        """

    def acquire(
        self,
        resource: str | os.PathLike[str] | TableResource,
        *,
        partitions: Collection[Partition | Mapping[str, object]] | None = None,
        shared: bool = False,
        timeout_seconds: float | None = None,
    ) -> Hold:
        """Lock a table, or partitions of it; see :meth:`ZookeeperLockManager.acquire` for arguments and errors."""

    def acquire_all(
        self,
        scopes: Sequence[TableScope | str | os.PathLike[str] | TableResource],
        *,
        timeout_seconds: float | None = None,
        cancellation: Cancellation | None = None,
    ) -> Hold:
        """Lock several tables, or partitions of them, under one hold: all or nothing, and without a deadlock."""

    def cancel(self, resource: str | os.PathLike[str] | TableResource) -> int:
        """Have every ``acquire`` of this manager that waits for ``resource`` give up; count them."""

    def close(self) -> None:
        """Cancel who waits, and end every lock of this manager; bounded, also in an outage."""


class Inspector(Protocol):
    """Looks at the locks of all tables, and takes one away; acquires none. Also a context manager.

    Every method raises EnsembleUnavailableError if the coordinator does not answer in time, EnsembleRefusedError if it
    refuses, and EnsembleFormatError if what is kept there was written by an unknown release.
    """

    def ensemble_id(self) -> str | None:
        """Return the UUID of the coordinator; None if nothing was ever locked there."""

    def tables(self) -> list[TableLocks]:
        """Return every table that was ever locked, by URI."""

    def table(self, resource: TableResource) -> TableLocks:
        """Return one table; one without entries if nobody ever asked for it."""

    def remove(self, table: TableLocks, holder: QueueEntry) -> bool:
        """Take the lock away from a holder, so that it is fenced and the next one gets the lock.

        Args:
            table: as it was looked at.
            holder: one of its entries. It is removed only if it is still the one that was looked at, by its id and its
                token.

        Returns:
            False if it does not hold any more; then nothing was removed.

        """

    def __enter__(self) -> Self:
        """Begin a block that ends with the close."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what the looking needed."""
