"""The protocols of a coordinator, the service that grants locks.

The coordinators are ZooKeeper (:mod:`lock_manager.zookeeper`), objects on S3 (:mod:`lock_manager.s3_lease`), and none
(:mod:`lock_manager.optimistic`), whose holds exclude no other. The commit guard, the writer, the jobs and the commands
``adopt``, ``status`` and ``break`` use these protocols; :mod:`lock_manager.managers` creates managers and inspectors.
The command ``ensemble`` is about ZooKeeper, ``doctor`` examines ZooKeeper or a bucket, and both use them directly.
``tests/unit/test_imports.py`` lists the modules outside this package that may import :mod:`lock_manager.zookeeper`.

``tests/contract`` tests the contract of each coordinator: its LockManager, its Hold and its Intents. It does not cover
the Inspector.

Fencing tokens compare within one coordinator only, and only the locks of one coordinator count for a table. So each
coordinator has a UUID, which it creates once and stores beside its locks. Commits and the properties of adopted tables
contain it as ``ensemble``. Read that word, also in the names of errors, as "coordinator". It stays, because tables
contain it (docs/concepts.md).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, Protocol, Self

from lock_manager.intents import Intent
from lock_manager.partitions import Partition
from lock_manager.queue_entry import QueueEntry, TableLocks
from lock_manager.resources import TableResource
from lock_manager.scope import TableScope
from lock_manager.settings import LockSettings


class Cancellation:
    """Cancels one acquire, which waits in another thread or begins later."""

    def __init__(self) -> None:
        self.requested = threading.Event()
        self._callback: Callable[[], None] = lambda: None

    def request(self) -> None:
        """Make the acquire raise LockCancelledError, now or when it begins."""
        self.requested.set()
        self._callback()

    def on_request(self, callback: Callable[[], None]) -> None:
        """Let each later :meth:`request` call ``callback`` instead of the previous callback."""
        self._callback = callback


class Offer:
    """An append that a holder may commit for a request while the request waits in the queue.

    Args:
        data: The offer (JSON values), see :mod:`lock_manager.guard.group_commit`.

    Attributes:
        write_id: Write id of the append.
        requests: Ids of the requests that had the offer in the queue.
        is_uncertain: Whether a request with the offer may appear in the queue later.

    """

    def __init__(self, write_id: str, data: Mapping[str, Any]) -> None:
        self.write_id = write_id
        self.data = data
        self.requests: list[str] = []
        self.is_uncertain = False


class Intents(Protocol):
    """The intents of a hold on one table, and the unfinished intents of earlier holds.

    Attributes:
        unfinished: Names of the unfinished intents that existed when the hold began and are not cleared yet.

    """

    @property
    def unfinished(self) -> tuple[str, ...]: ...

    @property
    def open(self) -> Mapping[str, int]:
        """Attempts of this hold whose outcome is unknown: the version that each may still put, by attempt id."""

    @property
    def settled(self) -> bool:
        """Whether the hold has written an intent, and the outcome of all its puts is known."""

    def settle(self, attempts: Iterable[str]) -> None:
        """Record that the outcome of these attempts is known: each was stored, or never will be."""

    def read(self) -> list[Intent]:
        """Return the unfinished intents of earlier holds.

        Raises:
            EnsembleUnavailableError: There was no answer in time.
            LockLostError, LockNotHeldError: This hold has ended.

        """

    def clear(self) -> None:
        """Delete the unfinished intents that :meth:`read` returned. Their versions must exist by now.

        An intent that has changed since it was read belongs to a live hold and stays.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError: See :meth:`Hold.check`.

        """


class Hold(Protocol):
    """A lock on one or several tables or on partitions of them, held by this process until it is released or lost.

    Attributes:
        hold_id: Unique id of this hold.
        resource: Names of the locked tables and partitions, for people.
        scope: Held scope of each table, by canonical URI.
        shared: Whether other shared holders may hold at the same time.
        excludes: Whether no other holder can have a conflicting lock while the hold stands; false for ``optimistic://``.
        needs_adoption: Whether the hold counts only for tables that are adopted, with ``fallback=optimistic``.
        tokens: Fencing token of each locked node, by key. A later exclusive hold of a node has a larger token.
        exclusive_keys: Keys of the nodes that are locked exclusively.
        ensemble_id: UUID of the coordinator; see the module.
        requested_at: When ``acquire`` was called, seconds since the epoch.
        acquired_at: When the lock was acquired, seconds since the epoch.
        waited_seconds: Time between these two, on the monotonic clock.
        released_at: When ``release`` was called or the manager closed, seconds since the epoch; None before.
        thread: Thread that acquired the hold, for the rule on nested acquires.

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
    def excludes(self) -> bool: ...
    @property
    def needs_adoption(self) -> bool: ...
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
        """The largest fencing token; a hold on one whole table has only one."""

    @property
    def lost(self) -> str | None:
        """How the hold was lost; None while no loss is known."""

    @property
    def over(self) -> bool:
        """Whether the hold has ended: known to be lost, released, or its manager closed."""

    @property
    def intents(self) -> Intents:
        """The intents on the only table; see :meth:`intents_of`.

        Raises:
            ValueError: The hold has several tables.

        """

    def intents_of(self, table: str) -> Intents:
        """Return the intents on a table, given by its canonical URI."""

    def covers(self, other: Mapping[str, TableScope]) -> bool:
        """Return whether this hold includes all of ``other``."""

    def enter_again(self) -> bool:
        """Count one more acquire by its thread. Each acquire needs its own release.

        Returns:
            False if the hold has ended, for example because another thread has released it. Then nothing is counted.

        """

    def is_valid(self) -> bool:
        """Return, without a request, whether it is certain that no other contender has got the lock."""

    def check(self, timeout_seconds: float | None = None) -> None:
        """Ask the coordinator whether this hold stands. The request changes nothing and wakes no waiter.

        Raises:
            LockLostError: The hold does not stand.
            LockNotHeldError: The hold was released.
            EnsembleUnavailableError: There was no answer in time; whether the hold stands is unknown.
            EnsembleRefusedError: The request was refused; whether the hold stands is unknown.
            ClosedError: The manager was closed, or belongs to the parent of a fork.

        """

    def intend(
        self,
        version: int,
        *,
        txn: str | None,
        attempt: str,
        table: str | None = None,
        members: Mapping[str, str] = MappingProxyType({}),
    ) -> Mapping[str, str]:
        """Check the hold as :meth:`check` does and, in the same request, write the intent to put ``version``.

        Args:
            members: Write ids of waiting requests whose offers the version will contain, by key of :meth:`offers`.

        Returns:
            The members that still waited at that time. The intent names their write ids.

        Raises:
            LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError, ClosedError: See
                :meth:`check`. The version must not be put.

        """

    def offers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the offers of the requests behind this exclusive hold of one table, in queue order, by any key.

        They end before the first request that has no offer. If they cannot be read soon, there are none.
        """

    def dismiss(self, members: Collection[str]) -> None:
        """Remove requests, given by their keys, from the queue, because their offers are committed.

        Does not wait, and raises no error: a request that remains in the queue finds its commit in the log.
        """

    def on_loss(self, callback: Callable[[Self], None]) -> None:
        """Call ``callback`` once with this hold, in a separate thread, when the loss of the hold is noticed."""

    def record_commit(self, version: int, table: str | None = None) -> None:
        """Record that ``version`` of the table was committed under a successful check of this hold."""

    @property
    def commits(self) -> Mapping[str, tuple[int, ...]]:
        """Versions that :meth:`record_commit` recorded, by table."""

    def release(self) -> None:
        """Release the lock; this takes some seconds at most, also in an outage.

        Raises:
            LockLostError: The hold was lost, so it did not cover all of the work since its acquisition.
            LockNotHeldError: The hold was already released.
            ClosedError: The hold belongs to the parent of a fork.

        """

    def __enter__(self) -> Self:
        """Return the hold; the end of the block releases it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the hold, unless the block did."""


class LockManager(Protocol):
    """A source of locks on Delta tables, granted in the order of the requests.

    Attributes:
        settings: Its settings.

    """

    @property
    def settings(self) -> LockSettings: ...

    @property
    def session_timeout_seconds(self) -> float:
        """Seconds after the death of a holder until other contenders get its locks."""

    def connect(self, timeout_seconds: float = ...) -> None:
        """Connect now instead of at the first ``acquire``.

        Raises:
            EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError, ClosedError: The coordinator cannot be
                used.

        """

    def check_reachable(self, timeout_seconds: float) -> None:
        """Raise if it is certain that the coordinator cannot be reached. This takes less time than :meth:`connect`.

        Raises:
            EnsembleUnavailableError: It cannot be reached.

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
        offer: Offer | None = None,
        needs_exclusion: bool = True,
    ) -> Hold:
        """Lock several tables, or partitions of them, under one hold: all or none, and without a deadlock.

        Args:
            needs_exclusion: Whether the caller relies on the lock; see :meth:`.BaseManager.acquire_all`.

        Raises:
            ContenderGoneError: The request has an offer, and has left the queue: a holder may have committed the offer.

        """

    def is_offered(self, table: str, offer: Offer, timeout_seconds: float) -> bool:
        """Return whether a holder may still commit an offer of an earlier acquire on a table.

        Raises:
            EnsembleUnavailableError, EnsembleRefusedError: The coordinator gave no answer.

        """

    def cancel(self, resource: str | os.PathLike[str] | TableResource) -> int:
        """Cancel every ``acquire`` of this manager that waits for ``resource``; return their number."""

    def close(self) -> None:
        """Cancel the waiting acquires and end every lock of this manager, in bounded time also in an outage."""

    def __enter__(self) -> Self:
        """Return the manager; the end of the block closes it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the manager."""


class Follower(Protocol):
    """A view of the locks of all tables that is read again and again; of one thread."""

    def changes(self, seconds: float) -> list[TableLocks]:
        """Return the tables that may have changed since the last call, after waiting for up to ``seconds``.

        The first call returns all tables. It raises the errors of :class:`Inspector`; after an error the next call
        returns what this call would have returned, too.
        """

    @property
    def keys(self) -> Collection[str]:
        """Keys of all tables that existed at the last call of :meth:`changes`; see :attr:`TableLocks.key`."""


class Inspector(Protocol):
    """A view of the locks of all tables, which can also remove a holder; also a context manager.

    It acquires no lock. Every method raises EnsembleUnavailableError if the coordinator does not answer in time,
    EnsembleRefusedError if it refuses, and EnsembleFormatError if an unknown release wrote its data.
    """

    def ensemble_id(self) -> str | None:
        """Return the UUID of the coordinator; None if no table was ever locked there."""

    def tables(self) -> list[TableLocks]:
        """Return every table that was ever locked, sorted by URI."""

    def table(self, resource: TableResource) -> TableLocks:
        """Return one table; it has no entries if it was never locked."""

    def follow(self) -> Follower:
        """Return a follower of all tables. It lives as long as this inspector."""

    def remove(self, table: TableLocks, holder: QueueEntry) -> bool:
        """Remove a holder, so that it is fenced and the next contender gets the lock.

        Args:
            table: Table as returned by this inspector.
            holder: One of its entries. It is removed only if its id and token are still the same.

        Returns:
            False if it no longer holds the lock; nothing is removed then.

        """

    def __enter__(self) -> Self:
        """Return the inspector; the end of the block closes it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the resources of the inspector."""
