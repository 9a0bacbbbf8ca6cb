"""A held lock on S3: its checks, its intents and its release."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from lock_manager.base_hold import BaseHold, HoldLife
from lock_manager.base_manager import AcquireRequest
from lock_manager.deadline import Deadline
from lock_manager.errors import ClosedError, EnsembleFormatError, EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.intents import Intent
from lock_manager.s3_lease.contender import GONE, GoneError, LeaseContender
from lock_manager.s3_lease.lease_intents import LeaseIntents
from lock_manager.s3_lease.state import Queue
from lock_manager.settings import check_seconds
from lock_manager.signals import SignalIsolation

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 10.0
"""Time limit of a release, in seconds. Then the entry leaves in the background or when its lease ends."""

_CHECK_FRACTION = 0.4
"""Part of the lease for which a check waits for its answer."""

_MAX_CHECK_SECONDS = 45.0
"""Longest time for which a check waits for its answer, in seconds: the log store waits a minute for the guard."""

_OFFERS_SECONDS = 2.0
"""Time limit for the offers of waiting requests, in seconds. Without them, the hold commits alone."""


class HeldLease(BaseHold[LeaseIntents]):
    """A lock on a table, on partitions of it, or on several tables, held by this process until released or lost.

    Implements :class:`lock_manager.coordinator.Hold`, which documents its attributes.

    Attributes:
        contenders: Its entries, one for each table, in the order of tables.

    Args:
        contenders: Entries that hold the lock, one for each table, in the order of tables.
        max_seconds: Time after which the hold is lost; None for no limit.
        check_usable: Raises ClosedError if the hold belongs to the parent of a fork.
        is_closed: Returns whether the manager was closed.
        discard: Removes entries from their queues in the background.

    """

    def __init__(
        self,
        request: AcquireRequest,
        contenders: Sequence[LeaseContender],
        *,
        hold_id: str,
        ensemble_id: str,
        lease_seconds: float,
        max_seconds: float | None,
        waited_seconds: float,
        thread: threading.Thread,
        isolation: SignalIsolation,
        forget: Callable[[HeldLease], None],
        check_usable: Callable[[], None],
        is_closed: Callable[[], bool],
        discard: Callable[[Sequence[LeaseContender]], None],
    ) -> None:
        super().__init__(
            hold_id=hold_id,
            resource=request.resource,
            scope=request.scope,
            tokens={
                key: contender.token
                for contender in contenders
                for key in (*request.scope[contender.table].ancestor_keys, *request.scope[contender.table].keys)
            },
            exclusive_keys=frozenset(key for scope in request.scope.values() if not scope.shared for key in scope.keys),
            ensemble_id=ensemble_id,
            waited_seconds=waited_seconds,
            thread=thread,
            isolation=isolation,
            forget=forget,
        )
        self._life = HoldLife(self._on_lost, max_seconds)
        self.contenders = contenders
        self._lease_seconds = lease_seconds
        self._usable, self._manager_is_closed, self._discard_entries = check_usable, is_closed, discard
        self._intents = {
            contender.table: LeaseIntents(contender, self._confirm, self.check) for contender in contenders
        }
        for contender in contenders:
            contender.has_settled_intents = self._settles(contender.table)
        self._begin()

    def _settles(self, table: str) -> Callable[[], bool]:
        return lambda: self._intents[table].settled

    # -- checks and commits --------------------------------------------------------------------------------------

    def is_valid(self) -> bool:
        """Return, without a request, whether no other client can have got the lock yet; see :class:`Hold`.

        Assumes that no operator removes the entry (``sluice break``), which only the next request detects. The clock is
        the monotonic one, which may stand still on a suspended machine. Call :meth:`check` where that matters.
        """
        try:
            self._usable()
        except ClosedError:
            return False
        return not self.over and time.monotonic() < self._life.ends_at and self._is_proven()

    def check(self, timeout_seconds: float | None = None) -> None:
        """Read the queues and look whether this hold stands. The errors are those of :meth:`Hold.check`."""
        self._raise_if_over()
        if timeout_seconds is not None:
            check_seconds("timeout_seconds", timeout_seconds)
        deadline = self._response_deadline() if timeout_seconds is None else Deadline(timeout_seconds)
        self._isolation.run(lambda: self._check(self.contenders, deadline))

    def _check(self, contenders: Sequence[LeaseContender], deadline: Deadline) -> None:
        try:
            for contender in contenders:
                contender.check(deadline)
        except GoneError:
            self._life.lose(GONE)
        self._raise_if_over()

    def intend(
        self,
        version: int,
        *,
        txn: str | None,
        attempt: str,
        table: str | None = None,
        members: Mapping[str, str] = MappingProxyType({}),
    ) -> Mapping[str, str]:
        """Write the intent to put ``version`` by a request that fails if the hold does not stand.

        See :meth:`lock_manager.coordinator.Hold.intend`.
        """
        self._raise_if_over()
        intents = self.intents_of(self._table_or_only(table))
        intent = Intent(hold_id=self.hold_id, version=version, txn=txn, attempt=attempt, token=self.token)
        others = [contender for contender in self.contenders if contender.table != self._table_or_only(table)]

        def record() -> Mapping[str, str]:
            self._check(others, self._response_deadline())
            return intents.record(intent, members)

        return self._isolation.run(record)

    def _confirm(self, contender: LeaseContender, request_name: str, change: Callable[[Queue], Queue]) -> None:
        """Change the queue of a table if the hold stands; see :class:`lease_intents.Confirm`."""
        self._raise_if_over()
        try:
            contender.confirm(self._response_deadline(), request_name, change)
        except GoneError:
            self._life.lose(GONE)
        self._raise_if_over()

    def _response_deadline(self) -> Deadline:
        return Deadline(min(_MAX_CHECK_SECONDS, _CHECK_FRACTION * self._lease_seconds))

    def _raise_if_over(self) -> None:
        self._check_usable()
        self._life.check_max_hold()
        for contender in self.contenders:
            if (loss := contender.loss_by_clock()) is not None:
                self._life.lose(loss)
        if self.over:
            raise self._end_error()

    def offers(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the offers behind this hold; see :meth:`lock_manager.coordinator.Hold.offers`."""
        self._check_usable()
        if len(self.contenders) != 1:
            return {}
        (contender,) = self.contenders
        try:
            self._isolation.run(lambda: contender.check(Deadline(_OFFERS_SECONDS)))
        except (GoneError, EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError):
            return {}
        return contender.offers()

    def dismiss(self, members: Collection[str]) -> None:
        """Remove committed members from the queue; see :meth:`lock_manager.coordinator.Hold.dismiss`."""
        (contender,) = self.contenders
        contender.dismiss(members)

    # -- parts of BaseHold ---------------------------------------------------------------------------------------

    @property
    def _is_closed(self) -> bool:
        return self._manager_is_closed()

    def _check_usable(self) -> None:
        self._usable()

    def _is_proven(self) -> bool:
        now = time.monotonic()
        return self.lost is None and all(now < contender.valid_until for contender in self.contenders)

    def _start_checks(self) -> None:
        for contender in self.contenders:
            contender.start_beats(self._life)

    def _stop_checks(self) -> None:
        for contender in self.contenders:
            contender.stop_beats()

    def _leave(self, *, was_proven: bool) -> str | None:
        """Remove the entries; see :meth:`BaseHold._leave`."""
        return self.leave(Deadline(min(_RELEASE_SECONDS, self._lease_seconds)), was_proven=was_proven)

    def leave(self, deadline: Deadline, *, was_proven: bool = True) -> str | None:
        """Remove the entries from their queues; return how the hold was lost, None if it was not."""
        for index, contender in enumerate(self.contenders):
            try:
                was_there = contender.leave(deadline)
            except (EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError) as error:
                self._discard_entries(self.contenders[index:])
                if not was_proven:
                    return "S3 did not answer, so another client may have the lock"
                log.warning("the lock on %s is free when its lease ends: %s", self.resource, error)
                return None
            if was_there is False or (was_there is None and not was_proven):
                self._discard_entries(self.contenders[index + 1 :])
                return GONE
        return None

    def _discard(self) -> None:
        self._discard_entries(self.contenders)
