"""Read the queues of all tables and remove a holder; acquire no lock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Self, TypeVar

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleFormatError
from lock_manager.queue_entry import WHOLE_TABLE, QueuedNode, QueueEntry, TableLocks
from lock_manager.resources import TableResource, table_key
from lock_manager.s3_lease import root, state
from lock_manager.s3_lease.queue_object import FOLDER, QueueObject
from lock_manager.s3_lease.state import Entry, Queue
from lock_manager.s3_lease.store import ObjectStore
from lock_manager.settings import LockSettings, bucket_and_prefix

log = logging.getLogger(__name__)

_R = TypeVar("_R")

ANSWER_SECONDS = 15.0
"""Time limit of each method, in seconds."""

_PARALLEL_READS = 16


class LeaseInspector:
    """Reads and breaks locks; implements :class:`lock_manager.coordinator.Inspector`, which documents the methods.

    Args:
        settings: Settings with a ``lock_url``.

    """

    def __init__(self, settings: LockSettings) -> None:
        self.settings = settings
        self._store = ObjectStore(settings.lock_url, *bucket_and_prefix(settings.lock_url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ensemble_id(self) -> str | None:
        """Return the UUID of the coordinator; None if no table was ever locked there."""
        return self._answer(lambda: root.read_id(self._store))

    def tables(self) -> list[TableLocks]:
        """Return every table that was ever locked, sorted by URI. Takes a GET for each."""
        self.ensemble_id()
        return sorted(self._changed_queues({}, skip_malformed=False), key=lambda table: table.name)

    def table(self, resource: TableResource) -> TableLocks:
        """Return one table; it has no entries if it was never locked."""
        self.ensemble_id()
        return _table_locks(QueueObject(self._store, resource.uri).refresh(Deadline(ANSWER_SECONDS), "read a queue"))

    def follow(self) -> LeaseFollower:
        """Return a follower of all tables. It leaves out objects that cannot be parsed, and logs them."""
        return LeaseFollower(self._changed_queues, self.ensemble_id)

    def _changed_queues(self, known_etags: dict[str, str], *, skip_malformed: bool = True) -> list[TableLocks]:
        """Return the tables whose objects have other ETags than the known ones, which are updated.

        Takes a LIST, and a GET for each changed object.
        """
        etags = self._answer(lambda: self._store.etags(FOLDER))

        def read(key: str) -> Queue | None:
            try:
                return self._answer(lambda: self._read(key))
            except EnsembleFormatError as error:
                if not skip_malformed:
                    raise
                log.warning("%s", error)
                return None

        keys = [key for key, etag in etags.items() if known_etags.get(key) != etag]
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            queues = list(pool.map(read, keys))
        for key in known_etags.keys() - etags.keys():
            del known_etags[key]
        known_etags |= {key: etags[key] for key in keys}
        return [_table_locks(queue) for queue in queues if queue is not None]

    def remove(self, table: TableLocks, holder: QueueEntry) -> bool:
        """Remove a holder; see :meth:`lock_manager.coordinator.Inspector.remove`."""
        was_there = False

        def change(queue: Queue) -> Queue:
            nonlocal was_there
            entry = queue.find(holder.hold_id)
            was_there = entry is not None and entry.token == holder.token and queue.holds(holder.hold_id)
            return state.leave(queue, holder.hold_id) if was_there else queue

        queue_object = QueueObject(self._store, table.name)
        queue_object.update(change, Deadline(ANSWER_SECONDS), "remove a holder", is_urgent=True)
        # A request without an answer has most likely removed the holder.
        return was_there or queue_object.was_unanswered

    def _read(self, key: str) -> Queue | None:
        stored = self._store.read(key)
        try:
            return None if stored is None else Queue.parse(stored.data)
        except ValueError as error:
            raise EnsembleFormatError(f"{self._store.url}: object {key} cannot be read: {error}") from None

    def _answer(self, request: Callable[[], _R]) -> _R:
        return self._store.answered(request, Deadline(ANSWER_SECONDS), "read the locks")


class LeaseFollower:
    """Reads the changed objects at each call; implements :class:`lock_manager.coordinator.Follower`.

    Holders and waiters renew their entries, so their objects change all the time.

    Args:
        read: Returns the tables whose objects have changed; see :meth:`LeaseInspector._changed_queues`.
        read_id: Returns the UUID of the coordinator, which never changes; None if it has none yet.

    """

    def __init__(self, read: Callable[[dict[str, str]], list[TableLocks]], read_id: Callable[[], str | None]) -> None:
        self._read = read
        self._read_id = read_id
        self._ensemble_id: str | None = None
        self._known_etags: dict[str, str] = {}
        self._read_at = float("-inf")

    def changes(self, seconds: float) -> list[TableLocks]:
        """Return the tables that may have changed; see :meth:`lock_manager.coordinator.Follower.changes`."""
        time.sleep(max(0.0, min(seconds, self._read_at + seconds - time.monotonic())))
        self._read_at = time.monotonic()
        # Reading it checks the format of the coordinator.
        self._ensemble_id = self._ensemble_id or self._read_id()
        return self._read(self._known_etags)

    @property
    def keys(self) -> Collection[str]:
        """Keys of all tables; see :attr:`lock_manager.coordinator.Follower.keys`."""
        return {key.removeprefix(FOLDER).removesuffix(".json") for key in self._known_etags}


def _table_locks(queue: Queue) -> TableLocks:
    entries = tuple(_queue_entry(queue, entry) for entry in queue.entries)
    return TableLocks(uri=queue.uri, key=table_key(queue.uri), entries=entries)


def _queue_entry(queue: Queue, entry: Entry) -> QueueEntry:
    nodes = {
        name: QueuedNode(
            partition=name, path=f"{table_key(queue.uri)}/{name}", shared=entry.shared, is_ancestor=is_ancestor,
            token=entry.token,
        )
        for name, is_ancestor in _places(entry).items()
    }  # fmt: skip
    requested_at = entry.data.get("requested_at")
    return QueueEntry(
        hold_id=entry.hold_id,
        nodes=tuple(nodes.values()),
        waits_for=tuple(other.hold_id for other in queue.ahead_of(entry)),
        data=entry.data,
        created_at=float(requested_at) if isinstance(requested_at, int | float) else 0.0,
    )


def _places(entry: Entry) -> Mapping[str, bool]:
    """Return the table and the partitions of an entry, by name, and whether each contains only the requested ones."""
    if entry.partitions is None:
        return {WHOLE_TABLE: False}
    places = {WHOLE_TABLE: True}
    for partition in entry.partitions:
        places |= dict.fromkeys(state.ancestors(partition), True)
    return places | dict.fromkeys(entry.partitions, False)
