"""Read all locks below a lock root and break one; acquire no lock and create no znode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self, TypeVar

from kazoo.exceptions import NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleRefusedError
from lock_manager.queue_entry import QueueEntry, TableLocks
from lock_manager.resources import TableResource
from lock_manager.settings import LockSettings
from lock_manager.signals import SignalIsolation
from lock_manager.zookeeper import lock_root
from lock_manager.zookeeper.follower import LockFollower
from lock_manager.zookeeper.queue_reader import QueueReader
from lock_manager.zookeeper.responses import failure_in, retry_unanswered
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import child_node, is_table_name, table_uri

_R = TypeVar("_R")

ANSWER_SECONDS = 15.0
"""Time limit of each method, including the connection, in seconds."""


class LockInspector:
    """Reads and breaks locks through a separate session.

    Implements :class:`lock_manager.coordinator.Inspector`, which documents the methods and their errors.

    Args:
        settings: Ensemble and lock root.
        answer_seconds: Time limit of each method, including the connection, in seconds; 15 by default.

    """

    def __init__(self, settings: LockSettings, *, answer_seconds: float | None = None) -> None:
        self.settings = settings
        self._session = Session(settings)
        self._isolation = SignalIsolation()
        self._reader = QueueReader(self._session)
        self._seconds = ANSWER_SECONDS if answer_seconds is None else answer_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._session.close()
        self._isolation.close()

    def ensemble_id(self) -> str | None:
        """Return the UUID of the ensemble; None if no table was ever locked below this lock root."""
        return self._run(lambda deadline: lock_root.read_ensemble_id(self._session, deadline))

    def tables(self) -> list[TableLocks]:
        """Return every table that was ever locked, sorted by URI.

        This takes two requests for each table, one for each contender, and more for queues of partitions. Requests for
        all tables are sent together.
        """
        return self._run(self._read_tables)

    def table(self, resource: TableResource) -> TableLocks:
        """Return one table, without entries if it was never locked."""
        return self._run(lambda deadline: self._reader.table(resource.key, deadline, uri=resource.uri))

    def follow(self) -> LockFollower:
        """Return a follower of all tables, which uses this inspector's session."""
        return LockFollower(self._session, self._reader, self._run)

    def remove(self, table: TableLocks, holder: QueueEntry) -> bool:
        """Delete all contenders of a holder or none; see :meth:`lock_manager.coordinator.Inspector.remove`.

        The holder's session stays alive. The next request of its guard or of its keepalive reports the loss.
        """
        may_be_removed = False

        def remove(deadline: Deadline) -> bool:
            nonlocal may_be_removed
            current = self._reader.table(table.key, deadline, uri=table.uri)
            entry = next((entry for entry in current.holders if entry.hold_id == holder.hold_id), None)
            if entry is None or entry.token != holder.token:
                # After a request without a response, that request has most likely removed the holder.
                return may_be_removed
            transaction = self._session.client.transaction()
            for node in entry.nodes:
                transaction.delete(node.path)
            result, may_be_removed = transaction.commit_async(), True
            responses = self._session.wait(result, deadline)
            may_be_removed = False
            failure = failure_in(responses)
            if failure is not None and not isinstance(failure.error, NoNodeError):
                raise EnsembleRefusedError(self.settings.zk_hosts, type(failure.error).__name__)
            return failure is None

        return self._run(remove)

    def _run(self, query: Callable[[Deadline], _R]) -> _R:
        deadline = Deadline(self._seconds)

        def check_root_and_query() -> _R:
            lock_root.read_ensemble_id(self._session, deadline)
            return query(deadline)

        def connect_and_query() -> _R:
            self._session.wait_for_connection(deadline)
            return retry_unanswered(self._session, deadline, check_root_and_query, "read the locks")

        return self._isolation.run(connect_and_query)

    def _read_tables(self, deadline: Deadline) -> list[TableLocks]:
        root = self.settings.lock_root
        names = self._reader.children([root], deadline).get(root, [])
        keys = {child_node(root, name): name for name in names if is_table_name(name)}
        data = self._reader.read_nodes(keys, deadline)
        uris = {keys[node]: table_uri(content) for node, (content, _) in data.items()}
        tables = self._reader.tables(uris, deadline)
        return sorted(tables, key=lambda table: (table.uri is None, table.uri or table.key))
