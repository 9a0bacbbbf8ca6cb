"""The guard of a soak's writers, and what it becomes with one of its protections left out, for negative controls.

Nothing of this is in the product: each control replaces one part of it by one that lacks one thing.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from lock_manager import (
    HeldLock,
    Hold,
    LockManager,
    LockNotHeldError,
    SluiceError,
    ZookeeperLockManager,
    canonical_table_uri,
)
from lock_manager.commit_guard import CommitGuard
from lock_manager.commit_stamp import stamped_info
from lock_manager.guarded_hold import GuardedHold

log = logging.getLogger(__name__)

_ANY_VERSION = -1


class Protection(StrEnum):
    """What can be left out."""

    #: Nobody asks at the commit whether the lock is held.
    GUARD = "guard"
    #: The version file is put whether there is one or not, as Delta's own store for S3 does.
    CONDITION = "condition"
    #: Any hold that the process has on the table will do.
    BINDING = "binding"
    #: Nothing is noted before a put, so that the next holder does not know of it.
    INTENT = "intent"
    #: A lock manager does not know what a thread holds through another one.
    REGISTRY = "registry"
    #: A later block of a hold forgets what an earlier one left open.
    ATTEMPTS = "attempts"
    #: An intent that was read is removed, whatever it is by then.
    VERSION = "version"


def is_on_a_put(asked: Mapping[str, Any]) -> bool:
    """Tell whether a request asks for a put, not for the lock before it, and does not tell its outcome."""
    return "staged" not in asked and "outcome" not in asked


class SoakGuard(CommitGuard):
    """The commit guard, with a place to stop at after its answer.

    Args:
        checked: called when an answer is known and not given yet.
        asked: called with each request, before anything is decided.

    """

    def __init__(self, checked: Callable[[], None], asked: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._checked = checked
        self._asked = asked

    def check(self, request: str) -> str:
        """Decide on one attempt; see :class:`lock_manager.commit_guard.CommitGuard`."""
        asked = json.loads(request)
        self._asked(asked)
        answer = super().check(request)
        if is_on_a_put(asked):
            self._checked()
        return answer

    def granted_to(self, ticket: str) -> str:
        """Return the id of the hold under which a commit may pass that waits with a ticket; empty if there is none."""
        known = self._tickets.get(ticket)
        return "" if known is None or known.bound is None else known.bound.hold.hold_id


class UnboundGuard(SoakGuard):
    """A guard that asks which hold this process has on the table *now*."""

    def _covering(self, asked: Mapping[str, Any]) -> list[GuardedHold]:
        uri = canonical_table_uri(asked["table"])
        known = [each for guarded in list(self._holds.values()) for each in guarded]
        held = [each for each in known if each.table == uri and each.hold.lost is None]
        if not held:
            raise LockNotHeldError(f"this process has no lock on {uri}", resource=uri)
        return held[-1:]


class ForgetfulGuard(SoakGuard):
    """A guard that asks whether the hold stands, and notes no intent."""

    def _check(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        if not is_on_a_put(asked):
            return super()._check(asked)
        guarded = self._covering(asked)[-1]
        guarded.passed[str(asked["attempt"])] = int(asked["version"])
        try:
            guarded.hold.check()
        except SluiceError:
            del guarded.passed[str(asked["attempt"])]
            raise
        return {"holds": [guarded.hold.hold_id], "stamp": guarded.stamp()}


class LonelyManager(ZookeeperLockManager):
    """A lock manager that knows the holds which it gave itself, and no other."""

    def _held_by(self, thread: threading.Thread) -> list[HeldLock]:
        return [hold for hold in super()._held_by(thread) if hold in self._holds]


def begin_block(without: Protection | None, hold: Hold) -> None:
    """Do what a run in which this protection is left out does before another block of a hold."""
    if without is Protection.ATTEMPTS:
        hold.intents.settle(hold.intents.open)


def clear_intents(without: Protection | None, hold: Hold) -> None:
    """Have a hold clear the intents that it has read, in a run in which this protection is left out."""
    if without is Protection.VERSION:
        intents: Any = hold.intents
        intents._read_at = dict.fromkeys(intents._read_at, _ANY_VERSION)  # noqa: SLF001
    hold.intents.clear()


def make_manager(without: Protection | None, hosts: str, **settings: Any) -> LockManager:
    """Return a lock manager for a run in which this protection is left out."""
    kind = LonelyManager if without is Protection.REGISTRY else ZookeeperLockManager
    return kind(hosts, **settings)


def make_guard(
    without: Protection | None, checked: Callable[[], None], asked: Callable[[Mapping[str, Any]], None]
) -> SoakGuard:
    """Return the guard for a run in which this protection is left out."""
    kinds: dict[Protection | None, type[SoakGuard]] = {
        Protection.BINDING: UnboundGuard,
        Protection.INTENT: ForgetfulGuard,
    }
    return kinds.get(without, SoakGuard)(checked, asked)


def stamped(line: str, answer: str, attempt: str) -> str:
    """Return a ``commitInfo`` line with the guard's stamp, as the guarded store writes it.

    For the control that puts through Delta's own store, which asks no guard.
    """
    action = json.loads(line)
    info = stamped_info(action["commitInfo"], json.loads(answer)["stamp"], attempt)
    return json.dumps({"commitInfo": info}, separators=(",", ":"))
