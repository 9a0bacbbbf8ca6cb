"""The commit guard and the lock manager with one of their protections left out, for negative controls.

Nothing of this is in the product: each replaces one part of it by one that lacks one thing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

from lock_manager.coordinator import Hold
from lock_manager.errors import LockNotHeldError, SluiceError
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guarded_hold import PARTITIONS_SUFFIX, AllowedPut, GuardedHold
from lock_manager.resources import canonical_table_uri
from lock_manager.zookeeper.held_lock import HeldLock
from lock_manager.zookeeper.manager import ZookeeperLockManager

_ANY_VERSION = -1
_NEVER_MS = 1 << 50


def is_on_a_put(asked: Mapping[str, Any]) -> bool:
    """Tell whether a request asks for a put, not for the lock before it, and does not tell its outcome."""
    return asked.get("kind") == "commit"


class WatchedGuard(CommitGuard):
    """The commit guard with all its protections, and a place to stop at after its answer.

    Args:
        checked: called when an answer is known and not given yet.
        asked: called with each request, before anything is decided.

    """

    def __init__(self, checked: Callable[[], None], asked: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._checked = checked
        self._asked = asked

    def check(self, request: str) -> str:
        """Decide on one attempt; see :class:`lock_manager.guard.commit_guard.CommitGuard`."""
        asked = json.loads(request)
        self._asked(asked)
        answer = super().check(request)
        if is_on_a_put(asked):
            self._checked()
        return answer

    def hold_of(self, request: Mapping[str, Any]) -> str:
        """Return the id of the hold under which a commit would be made, by its ticket or block; empty if none."""
        if request.get("ticket"):
            ticket = self._tickets.get(str(request["ticket"]))
            block = None if ticket is None else ticket.block
        else:
            name = str(request.get("blocks") or "").rpartition(",")[2]
            block = self._blocks.get(name.rstrip(PARTITIONS_SUFFIX))
        return "" if block is None else block.hold.hold_id


class UnboundGuard(WatchedGuard):
    """A guard that asks which hold this process has on the table *now*."""

    def _covering_blocks(self, asked: Mapping[str, Any]) -> list[GuardedHold]:
        uri = canonical_table_uri(asked["table"])
        held = [block for block in list(self._blocks.values()) if block.table == uri and block.hold.lost is None]
        if not held:
            raise LockNotHeldError(f"this process has no lock on {uri}", resource=uri)
        return held[-1:]


class HoldNamedGuard(WatchedGuard):
    """A guard that knows a thread by its hold: each commit belongs to the innermost block and to its operation."""

    def _covering_blocks(self, request: Mapping[str, Any]) -> list[GuardedHold]:
        bound = super()._covering_blocks(request)[-1]
        blocks = [block for block in self._blocks.values() if block.hold is bound.hold and block.table == bound.table]
        return blocks[-1:]

    def _check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if not is_on_a_put(request) or request.get("ticket"):
            return super()._check(request)
        executed = self._covering_blocks(request)[-1]._attempts  # noqa: SLF001
        return super()._check({**request, "write": next(iter(executed), None), "retention_ms": _NEVER_MS})


class SharedIdentityGuard(WatchedGuard):
    """A guard whose empty commits have the write id of the operation that waits for them, and no mark."""

    def _check(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer = super()._check(request)
        waiting = [ticket for ticket in self._tickets.values() if ticket.block is None]
        if is_on_a_put(request) and not request.get("ticket") and waiting:
            answer["stamp"].pop("occupies", None)
            answer["stamp"] |= waiting[-1].attempt.note
        return answer


class ForgetfulGuard(WatchedGuard):
    """A guard that asks whether the hold stands, and notes no intent."""

    def _check(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if not is_on_a_put(asked):
            return super()._check(asked)
        guarded = self._covering_blocks(asked)[-1]
        guarded.allowed_puts[str(asked["attempt"])] = AllowedPut(int(asked["version"]), asked.get("write"))
        try:
            guarded.hold.check()
        except SluiceError:
            del guarded.allowed_puts[str(asked["attempt"])]
            raise
        return {"holds": [guarded.hold.hold_id], "stamp": guarded.stamp(asked.get("write"))}


class LonelyManager(ZookeeperLockManager):
    """A lock manager that knows the holds which it gave itself, and no other."""

    def _held_by(self, thread: threading.Thread) -> list[HeldLock]:
        return [hold for hold in super()._held_by(thread) if hold in self._holds]


def clear_changed_intents(hold: Hold) -> None:
    """Clear the unfinished intents that a hold has read, also those that have changed since: of holds that live.

    For a negative control: :meth:`HoldIntents.clear` leaves those in place.

    Args:
        hold: a :class:`HeldLock` of one table.

    Raises:
        LockLostError, LockNotHeldError, EnsembleUnavailableError, EnsembleRefusedError: as :meth:`HeldLock.check`.

    """
    intents = cast("HeldLock", hold).intents
    intents._read_versions = dict.fromkeys(intents._read_versions, _ANY_VERSION)  # noqa: SLF001
    intents.clear()
