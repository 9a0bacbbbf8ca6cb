"""Commit guards and lock managers that each lack one protection, for negative controls.

The product does not contain these classes. Each replaces one part of it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lock_manager.coordinator import Hold
from lock_manager.errors import LockNotHeldError, SluiceError
from lock_manager.guard.automatic_ticket import AutomaticTicket
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.group_commit import OfferedAppend
from lock_manager.guard.guarded_block import PARTITIONS_SUFFIX, AllowedPut, GuardedBlock
from lock_manager.guard.ticket import Ticket
from lock_manager.resources import canonical_table_uri
from lock_manager.s3_lease.held_lease import HeldLease
from lock_manager.s3_lease.manager import S3LeaseManager
from lock_manager.s3_lease.queue_object import FOLDER
from lock_manager.s3_lease.store import ObjectStore
from lock_manager.settings import LockSettings, bucket_and_prefix
from lock_manager.zookeeper.held_lock import HeldLock
from lock_manager.zookeeper.manager import ZookeeperLockManager

_ANY_VERSION = -1
_ENDLESS_RETENTION_MS = 1 << 50


def is_put_request(request: Mapping[str, Any]) -> bool:
    """Return whether the request asks to put a version (kind ``commit``, not ``turn`` or ``outcome``)."""
    return request.get("kind") == "commit"


@dataclass(frozen=True)
class GuardCallbacks:
    """Callbacks of a guard.

    Attributes:
        on_request: Called with each request, before the guard decides.
        reach: Called with the points that the guard comes to: ``offers`` when the members of a commit are chosen, and
            ``checked`` when the answer to a put request is known.
        on_answer: Called with a put request and its answer, before the point ``checked``.

    """

    on_request: Callable[[Mapping[str, Any]], None]
    reach: Callable[[str], None]
    on_answer: Callable[[Mapping[str, Any], Mapping[str, Any]], None] = lambda *_: None


class WatchedGuard(CommitGuard):
    """The commit guard with all its protections, and callbacks around its answers."""

    def __init__(self, callbacks: GuardCallbacks) -> None:
        super().__init__()
        self._callbacks = callbacks

    def check(self, request: str) -> str:
        """Answer one request; see :class:`lock_manager.guard.commit_guard.CommitGuard`."""
        fields = json.loads(request)
        self._callbacks.on_request(fields)
        answer = super().check(request)
        if is_put_request(fields):
            self._callbacks.on_answer(fields, json.loads(answer))
            self._callbacks.reach("checked")
        return answer

    def _choose_members(
        self, ticket: Ticket | AutomaticTicket | None, block: GuardedBlock, request: Mapping[str, Any]
    ) -> dict[str, OfferedAppend]:
        members = super()._choose_members(ticket, block, request)
        if members:
            self._callbacks.reach("offers")
        return members

    def hold_of(self, request: Mapping[str, Any]) -> str:
        """Return the id of the hold that covers a commit, found by ticket or innermost block; "" if there is none."""
        if request.get("ticket"):
            ticket = self._tickets.get(str(request["ticket"]))
            block = None if ticket is None else ticket.block
        else:
            name = str(request.get("blocks") or "").rpartition(",")[2]
            block = self._blocks.get(name.rstrip(PARTITIONS_SUFFIX))
        return "" if block is None else block.hold.hold_id


class UnboundGuard(WatchedGuard):
    """A guard that accepts any hold that this process has on the table now."""

    def _covering_blocks(self, request: Mapping[str, Any]) -> list[GuardedBlock]:
        uri = canonical_table_uri(request["table"])
        blocks = [block for block in list(self._blocks.values()) if block.table == uri and block.hold.lost is None]
        if not blocks:
            raise LockNotHeldError(f"this process has no lock on {uri}", resource=uri)
        return blocks[-1:]


class InnermostBlockGuard(WatchedGuard):
    """A guard that binds each commit to the hold's innermost block and to that block's operation.

    The thread of the commit does not count.
    """

    def _covering_blocks(self, request: Mapping[str, Any]) -> list[GuardedBlock]:
        bound = super()._covering_blocks(request)[-1]
        blocks = [block for block in self._blocks.values() if block.hold is bound.hold and block.table == bound.table]
        return blocks[-1:]

    def _check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if not is_put_request(request) or request.get("ticket"):
            return super()._check(request)
        attempts = self._covering_blocks(request)[-1]._attempts  # noqa: SLF001
        return super()._check({**request, "write": next(iter(attempts), None), "retention_ms": _ENDLESS_RETENTION_MS})


class SharedIdentityGuard(WatchedGuard):
    """A guard whose empty commits have the write id of the waiting operation, and are not marked as empty."""

    def _check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = super()._check(request)
        tickets = [ticket for ticket in self._tickets.values() if isinstance(ticket, Ticket) and ticket.block is None]
        if is_put_request(request) and not request.get("ticket") and tickets:
            answer["stamp"].pop("occupies", None)
            answer["stamp"] |= tickets[-1].attempt.note
        return answer


class IntentlessGuard(WatchedGuard):
    """A guard that checks the hold, but stores no intent."""

    def _check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if not is_put_request(request):
            return super()._check(request)
        block, attempt = self._covering_blocks(request)[-1], str(request["attempt"])
        block.allowed_puts[attempt] = AllowedPut(int(request["version"]), request.get("write"))
        try:
            block.hold.check()
        except SluiceError:
            del block.allowed_puts[attempt]
            raise
        return {"holds": [block.hold.hold_id], "stamp": block.stamp(request.get("write"))}


class IsolatedManager(ZookeeperLockManager):
    """A lock manager on ZooKeeper that does not know the holds of other lock managers."""

    def _holds_of(self, thread: threading.Thread) -> list[HeldLock]:
        return [hold for hold in super()._holds_of(thread) if hold in self._holds]


class IsolatedLeaseManager(S3LeaseManager):
    """A lock manager on S3 that does not know the holds of other lock managers."""

    def _holds_of(self, thread: threading.Thread) -> list[HeldLease]:
        return [hold for hold in super()._holds_of(thread) if hold in self._holds]


class UnconditionalManager(S3LeaseManager):
    """A lock manager on S3 that replaces the object of a queue even if another client has changed it."""

    def __init__(self, settings: LockSettings) -> None:
        super().__init__(settings)
        self._store = _UnconditionalStore(settings.lock_url, *bucket_and_prefix(settings.lock_url))


class _UnconditionalStore(ObjectStore):
    def _call(self, name: str, **arguments: Any) -> Any:
        # The first use of a manager proves the conditions with another object.
        if name == "put_object" and FOLDER in arguments["Key"]:
            arguments = {key: value for key, value in arguments.items() if key not in ("IfMatch", "IfNoneMatch")}
        return super()._call(name, **arguments)


def clear_changed_intents(hold: Hold) -> None:
    """Clear the unfinished intents that a hold has read, even intents that changed later and so belong to valid holds.

    :meth:`HoldIntents.clear` keeps intents that have changed.

    Args:
        hold: A :class:`HeldLock` of one table.

    Raises:
        LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError: See :meth:`HeldLock.check`.

    """
    intents = cast("HeldLock", hold).intents
    intents._read_versions = dict.fromkeys(intents._read_versions, _ANY_VERSION)  # noqa: SLF001
    intents.clear()
