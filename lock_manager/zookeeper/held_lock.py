"""A held lock on ZooKeeper: its checks, its intents and its release."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from lock_manager.base_hold import BaseHold
from lock_manager.deadline import Deadline
from lock_manager.intents import Intent
from lock_manager.settings import check_seconds
from lock_manager.signals import SignalIsolation
from lock_manager.zookeeper.cleanup import Cleanup
from lock_manager.zookeeper.hold_contenders import HoldContenders
from lock_manager.zookeeper.hold_intents import HoldIntents
from lock_manager.zookeeper.hold_state import HoldState
from lock_manager.zookeeper.keepalive import KeepAlive
from lock_manager.zookeeper.request import AcquireResult, Request
from lock_manager.zookeeper.session import Session
from lock_manager.zookeeper.znodes import Mode, intents_node

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 10.0
"""Time limit of a release, in seconds. Then the contender is deleted in the background or ends with its session."""

_OFFERS_SECONDS = 2.0
"""Time limit for the offers of waiting contenders, in seconds. Without them, the hold commits alone."""


@dataclass(frozen=True)
class HoldServices:
    """The parts of a manager that its holds share. ``forget`` removes a hold from the manager's list."""

    keepalive: KeepAlive
    cleanup: Cleanup
    isolation: SignalIsolation
    forget: Callable[[HeldLock], None]


class HeldLock(BaseHold[HoldIntents]):
    """A lock on a table, on partitions of it, or on several tables, held by this process until released or lost.

    Implements :class:`lock_manager.coordinator.Hold`, which documents its attributes. It is also a context manager. If
    its thread acquires it again, it must be released as many times.

    It does **not** promise that a write which takes place now is safe. The operating system may pause a process for
    longer than its session lives, and the process detects that only afterwards. Call :meth:`check` as late as possible,
    and let the store refuse to overwrite.

    The names of the hold's contenders begin with ``hold_id``. A fencing token is the czxid of a contender. Tokens of
    different ensembles do not compare.
    """

    def __init__(
        self,
        session: Session,
        request: Request,
        acquire_result: AcquireResult,
        *,
        waited_seconds: float,
        thread: threading.Thread,
        services: HoldServices,
    ) -> None:
        super().__init__(
            hold_id=acquire_result.hold_id,
            resource=request.resource,
            scope=request.scope,
            tokens={entry.queue.key: entry.token for entry in acquire_result.entries},
            exclusive_keys=frozenset(
                entry.queue.key for entry in acquire_result.entries if entry.queue.mode is Mode.EXCLUSIVE
            ),
            ensemble_id=session.ensemble_id or "",
            waited_seconds=waited_seconds,
            thread=thread,
            isolation=services.isolation,
            forget=services.forget,
        )
        self._contenders = HoldContenders(session, acquire_result)
        self._session = session
        self._services = services
        self._life: HoldState = HoldState(
            session,
            self._contenders,
            acquire_result.session_id,
            request,
            acquired_at=self.acquired_at,
            on_lost=self._on_lost,
            end_error=self._end_error,
        )
        confirm, unfinished = self._life.confirm, acquire_result.unfinished
        self._intents = {
            table: HoldIntents(
                self.hold_id, confirm, session, services.isolation, intents_node(node), unfinished[table]
            )
            for table, node in request.tables.items()
        }
        self._begin()

    # -- checks and commits --------------------------------------------------------------------------------------

    def is_valid(self) -> bool:
        """Return, without a request, whether the ensemble cannot have granted the lock to another client yet.

        Assumes that no operator removes the contender (``sluice break``), which only the next request detects.
        Conservative: False as soon as the connection is suspended, ``max_hold_seconds`` are over, or 0.4 of the
        *granted* session timeout has passed since the sending of the last quorum request that got a response; see
        ``session.VALID_FRACTION``. The clock is the monotonic one, which may stand still on a suspended machine. Call
        :meth:`check` where that matters.
        """
        return self._life.is_valid()

    def check(self, timeout_seconds: float | None = None) -> None:
        """Ask the ensemble, through its quorum, whether this hold stands. This wakes no client and changes nothing.

        The request is one ``multi`` of ``check`` on the contender. A plain read, even after ``sync``, may come from a
        server that does not know yet that the session has ended.

        It waits at most 0.4 of the session timeout for the response. A later response would prove nothing. The errors
        are those of :meth:`lock_manager.coordinator.Hold.check`.
        """
        self._life.raise_if_known_over()
        if timeout_seconds is not None:
            check_seconds("timeout_seconds", timeout_seconds)
        deadline = self._session.response_deadline(timeout_seconds)
        self._isolation.run(lambda: self._life.confirm(deadline, "check a hold"))

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

        Call ``intents.settle([attempt])`` when the attempt's outcome is known. After an error of :meth:`check`, the
        version must not be put. For ``members`` see :meth:`lock_manager.coordinator.Hold.intend`.
        """
        self._life.raise_if_known_over()
        intents = self.intents_of(self._table_or_only(table))
        intent = Intent(hold_id=self.hold_id, version=version, txn=txn, attempt=attempt, token=self.token)
        return self._isolation.run(lambda: intents.record(intent, members))

    def offers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the offers behind this hold; see :meth:`lock_manager.coordinator.Hold.offers`."""
        deadline = self._session.response_deadline(_OFFERS_SECONDS)
        return self._isolation.run(lambda: self._contenders.read_offers(deadline))

    def dismiss(self, members: Collection[str]) -> None:
        """Remove committed members from the queue; see :meth:`lock_manager.coordinator.Hold.dismiss`."""
        self._contenders.delete_members(members)

    # -- parts of BaseHold ---------------------------------------------------------------------------------------

    @property
    def _is_closed(self) -> bool:
        return self._session.closed

    def _check_usable(self) -> None:
        self._session.check_usable()

    def _is_proven(self) -> bool:
        return self._life.is_proven

    def _start_checks(self) -> None:
        self._services.keepalive.add(self._life)

    def _stop_checks(self) -> None:
        self._services.keepalive.remove(self._life)

    def _after_release(self) -> None:
        self._services.cleanup.record_use(self._contenders.queues)

    def _leave(self, *, was_proven: bool) -> str | None:
        """Delete the contenders; see :meth:`BaseHold._leave`."""
        deadline = Deadline(min(_RELEASE_SECONDS, self._session.granted_seconds))
        deletion = self._contenders.delete(self._intents.values(), deadline, was_proven=was_proven)
        if deletion is not None:
            return deletion.lost
        self._discard()
        if was_proven:
            log.warning(
                "ZooKeeper did not answer the release of the lock on %s: the lock ends with its session at the latest",
                self.resource,
            )
            return None
        return "the ensemble did not answer, so another client may have the lock"

    def _discard(self) -> None:
        self._services.cleanup.discard(self._contenders.queues, self.hold_id, wait_seconds=0)
