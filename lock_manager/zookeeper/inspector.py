"""Reads every lock below a lock root, and breaks one; acquires no lock and creates no znode."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self, TypeVar

from kazoo.exceptions import NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleRefusedError
from lock_manager.queue_entry import QueueEntry, TableLocks
from lock_manager.resources import TableResource
from lock_manager.settings import LockSettings
from lock_manager.zookeeper import lock_root
from lock_manager.zookeeper.asking import failure_in, insist
from lock_manager.zookeeper.queue_reader import QueueReader
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import PARTITIONS, is_table_name, parse_queue, table_node_of

_R = TypeVar("_R")

ANSWER_SECONDS = 15.0
"""How long one question may take, connecting included."""


class LockInspector:
    """A session of its own for looking at locks; keeps :class:`lock_manager.coordinator.Inspector`.

    Args:
        settings: which ensemble and which lock root.
        answer_seconds: how long one question may take, connecting included; 15 by default.

    Every method raises EnsembleUnavailableError if ZooKeeper does not answer in time, EnsembleRefusedError if it
    refuses, and EnsembleFormatError if the lock root was written by an unknown release.
    """

    def __init__(self, settings: LockSettings, *, answer_seconds: float | None = None) -> None:
        self.settings = settings
        self._session = Session(settings)
        self._reader = QueueReader(self._session)
        self._seconds = ANSWER_SECONDS if answer_seconds is None else answer_seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def ensemble_id(self) -> str | None:
        """Return the UUID of the ensemble, None if nothing was ever locked below this lock root."""
        return self._asked(lambda deadline: lock_root.known_ensemble(self._session, deadline))

    def tables(self) -> list[TableLocks]:
        """Return every table that was ever locked, by URI: two requests for each, more for those with contenders."""
        return self._asked(self._tables)

    def table(self, resource: TableResource) -> TableLocks:
        """Return one table; one without entries if nobody ever asked for it."""
        return self._asked(lambda deadline: self._reader.table(resource.key, deadline, uri=resource.uri))

    def remove(self, table: TableLocks, holder: QueueEntry) -> bool:
        """Delete the contenders of a holder, all of them or none, so that it is fenced and the next one gets the lock.

        Its own session lives on: the next question of its guard, or of its keepalive, tells it that the lock was lost.

        Args:
            table: as it was looked at.
            holder: one of its entries. It is removed only if it is still the one that was looked at, by the names of
                its contenders and by their tokens.

        Returns:
            False if it does not hold any more; then nothing was removed.

        """
        unsure = False

        def remove(deadline: Deadline) -> bool:
            nonlocal unsure
            fresh = self._reader.table(table.key, deadline, uri=table.uri)
            same = [entry for entry in fresh.holders if entry.hold_id == holder.hold_id]
            if not same or same[0].token != holder.token:
                # After a request without an answer it is most likely our own that was done.
                return unsure
            transaction = self._session.client.transaction()
            for node in same[0].nodes:
                transaction.delete(node.path)
            asked, unsure = transaction.commit_async(), True
            answers = self._session.wait(asked, deadline)
            unsure = False
            return self._was_done(answers)

        return self._asked(remove)

    # -- inside --------------------------------------------------------------------------------------------------

    def _was_done(self, answers: list[object]) -> bool:
        failure = failure_in(answers)
        if failure is not None and not isinstance(failure.error, NoNodeError):
            raise EnsembleRefusedError(self.settings.zk_hosts, type(failure.error).__name__)
        return failure is None

    def _asked(self, question: Callable[[Deadline], _R]) -> _R:
        deadline = Deadline(self._seconds)

        def ask() -> _R:
            lock_root.known_ensemble(self._session, deadline)
            return question(deadline)

        self._session.wait_for_connection(deadline)
        return insist(self._session, deadline, ask, "looking at locks")

    def _tables(self, deadline: Deadline) -> list[TableLocks]:
        root = self.settings.lock_root
        below = self._reader.children([root], deadline).get(root, [])
        keys = [name for name in below if is_table_name(name)]
        uris = self._uris(keys, deadline)
        children = self._reader.children([table_node_of(root, key) for key in uris], deadline)
        tables = []
        for key, uri in uris.items():
            names = children.get(table_node_of(root, key), [])
            # Most tables are idle: one look at all of them together is enough for those.
            is_busy = PARTITIONS in names or parse_queue(names)
            tables.append(self._reader.table(key, deadline, uri=uri) if is_busy else TableLocks(uri=uri, key=key))
        return sorted(tables, key=lambda table: (table.uri is None, table.uri or table.key))

    def _uris(self, keys: Iterable[str], deadline: Deadline) -> dict[str, str | None]:
        nodes = {table_node_of(self.settings.lock_root, key): key for key in keys}
        found: dict[str, str | None] = {}
        for node, (data, _) in self._reader.got(nodes, deadline).items():
            try:
                found[nodes[node]] = str(json.loads(data)["uri"])
            except (ValueError, KeyError, TypeError):
                found[nodes[node]] = None
        return found
