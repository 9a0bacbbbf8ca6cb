"""Looks at every lock below a lock root, and breaks one; takes none itself, and makes nothing.

The layout that it reads: a table's queue is ``<lock root>/<sha256 of its URI>``, whose data is ``{"uri": …}``. Below
its child ``partitions`` there is one queue for each value of the first partition column (``month=1``, escaped as Hive
does), which may have a child ``partitions`` again, and so on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

from kazoo.exceptions import NoNodeError, RolledBackError, RuntimeInconsistency

from lock_manager.errors import EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.resources import TableResource
from lock_manager.settings import LockSettings
from lock_manager.zookeeper import lock_root
from lock_manager.zookeeper.queue import parse_queue
from lock_manager.zookeeper.queue_view import WHOLE_TABLE, Claim, Found, claims_of
from lock_manager.zookeeper.session import NO_ANSWER, SESSION_GONE, Deadline, Session, SessionState

_R = TypeVar("_R")

PARTITIONS = "partitions"
ANSWER_SECONDS = 15.0
"""How long one question may take, connecting included."""

_TABLE = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class TableLocks:
    """Who holds a table or its partitions, and who waits.

    Attributes:
        uri: canonical URI; None if its znode does not say, because another program made it.
        key: name of its znode.
        claims: in the order in which they queued up.

    """

    uri: str | None
    key: str
    claims: tuple[Claim, ...] = ()

    @property
    def name(self) -> str:
        """URI, or what there is instead."""
        return self.uri or f"znode {self.key}"

    @property
    def holders(self) -> tuple[Claim, ...]:
        """Those that hold, first come first."""
        return tuple(claim for claim in self.claims if claim.holds)

    @property
    def waiters(self) -> tuple[Claim, ...]:
        """Those that wait, first come first."""
        return tuple(claim for claim in self.claims if not claim.holds)


class LockInspector:
    """A session of its own for looking at locks; also a context manager.

    Args:
        settings: which ensemble and which lock root.
        answer_seconds: how long one question may take, connecting included; 15 by default.

    Every method raises EnsembleUnavailableError if ZooKeeper does not answer in time, EnsembleRefusedError if it
    refuses, and EnsembleFormatError if the lock root was written by an unknown release.
    """

    def __init__(self, settings: LockSettings, *, answer_seconds: float | None = None) -> None:
        self.settings = settings
        self._session = Session(settings)
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
        """Return one table; one without claims if nobody ever asked for it."""
        return self._asked(lambda deadline: self._table(resource.key, deadline, uri=resource.uri))

    def remove(self, table: TableLocks, holder: Claim) -> bool:
        """Delete the contenders of a holder, all of them or none, so that it is fenced and the next one gets the lock.

        Its own session lives on: the next question of its guard, or of its keeper, tells it that the lock was lost.

        Args:
            table: as it was looked at.
            holder: one of its claims. It is removed only if it is still the one that was looked at, by the names of
                its contenders and by their tokens.

        Returns:
            False if it does not hold any more; then nothing was removed.

        """
        unsure = False

        def remove(deadline: Deadline) -> bool:
            nonlocal unsure
            fresh = self._table(table.key, deadline, uri=table.uri)
            same = [claim for claim in fresh.holders if claim.claim_id == holder.claim_id]
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
        # The one that failed stands among others that were rolled back for it.
        reasons = [
            answer
            for answer in answers
            if isinstance(answer, Exception) and not isinstance(answer, RolledBackError | RuntimeInconsistency)
        ]
        if reasons and not isinstance(reasons[0], NoNodeError):
            raise EnsembleRefusedError(self.settings.zk_hosts, type(reasons[0]).__name__)
        return not any(isinstance(answer, Exception) for answer in answers)

    def _asked(self, question: Callable[[Deadline], _R]) -> _R:
        deadline = Deadline(self._seconds)
        while True:
            self._session.wait_for_connection(deadline)
            if self._session.state is SessionState.CONNECTED:
                try:
                    lock_root.known_ensemble(self._session, deadline)
                    return question(deadline)
                except NO_ANSWER + SESSION_GONE:
                    pass
            if deadline.remaining() == 0:
                raise EnsembleUnavailableError(self.settings.zk_hosts, deadline.elapsed(), "looking at locks")

    def _tables(self, deadline: Deadline) -> list[TableLocks]:
        root = self.settings.lock_root
        below = self._children([root], deadline).get(root, [])
        keys = [name for name in below if _TABLE.fullmatch(name)]
        uris = self._uris(keys, deadline)
        children = self._children([f"{root}/{key}" for key in uris], deadline)
        tables = []
        for key, uri in uris.items():
            names = children.get(f"{root}/{key}", [])
            # Most tables are idle: one look at all of them together is enough for those.
            is_busy = PARTITIONS in names or parse_queue(names)
            tables.append(self._table(key, deadline, uri=uri) if is_busy else TableLocks(uri=uri, key=key))
        return sorted(tables, key=lambda table: (table.uri is None, table.uri or table.key))

    def _uris(self, keys: Iterable[str], deadline: Deadline) -> dict[str, str | None]:
        nodes = {f"{self.settings.lock_root}/{key}": key for key in keys}
        found: dict[str, str | None] = {}
        for node, (data, _) in self._got(nodes, deadline).items():
            try:
                found[nodes[node]] = str(json.loads(data)["uri"])
            except (ValueError, KeyError, TypeError):
                found[nodes[node]] = None
        return found

    def _table(self, key: str, deadline: Deadline, *, uri: str | None) -> TableLocks:
        node = f"{self.settings.lock_root}/{key}"
        seen = self._newest_change(node, deadline)
        node_of, queues = self._queues(node, deadline)
        paths = [f"{node_of[partition]}/{name}" for partition, names in queues.items() for name in names]
        # The queues are listed one after the other. Who came meanwhile may be missing from the first ones, and who left
        # from the last ones: neither is told.
        found = {
            path: Found(data, stat.czxid, stat.ctime / 1000)
            for path, (data, stat) in self._got(paths, deadline).items()
            if stat.czxid <= seen
        }
        return TableLocks(uri=uri, key=key, claims=tuple(claims_of(queues, found, node_of)))

    def _newest_change(self, node: str, deadline: Deadline) -> int:
        """Return the zxid of a change after which everything is listed that was made before it."""
        client = self._session.client
        # Another server than ours may have answered those who hold.
        self._session.wait(client.sync_async(node), deadline)
        self._session.wait(client.exists_async(node), deadline)
        return int(client.last_zxid)

    def _queues(self, node: str, deadline: Deadline) -> tuple[dict[str, str], dict[str, list[str]]]:
        """Return the znodes and the contenders of the queues of a table and of its partitions, both by partition."""
        node_of: dict[str, str] = {}
        queues: dict[str, list[str]] = {}
        level = {WHOLE_TABLE: node}
        while level:
            children = self._children(level.values(), deadline)
            for partition, path in level.items():
                if path in children:
                    node_of[partition] = path
                    queues[partition] = [contender.name for contender in parse_queue(children[path])]
            deeper = {
                f"{path}/{PARTITIONS}": partition
                for partition, path in level.items()
                if PARTITIONS in children.get(path, ())
            }
            level = {
                f"{deeper[folder]}/{name}".lstrip("/"): f"{folder}/{name}"
                for folder, names in self._children(deeper, deadline).items()
                for name in names
            }
        return node_of, queues

    def _children(self, paths: Iterable[str], deadline: Deadline) -> dict[str, list[str]]:
        """List the children of several nodes at once; those that are not there are left out."""
        return self._answers({path: self._session.client.get_children_async(path) for path in paths}, deadline)

    def _got(self, paths: Iterable[str], deadline: Deadline) -> dict[str, tuple[bytes, Any]]:
        return self._answers({path: self._session.client.get_async(path) for path in paths}, deadline)

    def _answers(self, asked: Mapping[str, Any], deadline: Deadline) -> dict[str, Any]:
        answers = {}
        for path, answer in asked.items():
            try:
                answers[path] = self._session.wait(answer, deadline)
            except NoNodeError:
                continue
        return answers
