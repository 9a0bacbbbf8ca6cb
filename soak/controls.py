"""The protections that a negative control can leave out, and the functions of a writer that leave them out.

The parts that lack a protection are in :mod:`soak.unprotected`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

from lock_manager import Hold, LockManager, LockSettings
from lock_manager.managers import manager_of
from soak.unprotected import (
    GuardCallbacks,
    InnermostBlockGuard,
    IntentlessGuard,
    IsolatedLeaseManager,
    IsolatedManager,
    SharedIdentityGuard,
    UnboundGuard,
    UnconditionalManager,
    WatchedGuard,
    clear_changed_intents,
)


class Protection(StrEnum):
    """A protection that ``--without`` leaves out. Each comment describes a run without it."""

    #: The commit does not check that the lock is held.
    GUARD = "guard"
    #: The PUT overwrites an existing version file, as Delta's own store for S3 does.
    CONDITION = "condition"
    #: A commit passes under any hold that the process has on the table.
    BINDING = "binding"
    #: No intent is stored before a PUT, so the next holder does not know of the PUT.
    INTENT = "intent"
    #: A lock manager does not know the holds that a thread has through other lock managers.
    REGISTRY = "registry"
    #: A later block of a hold forgets an earlier block's puts without an answer.
    ATTEMPTS = "attempts"
    #: An intent that was read is removed even if it has changed since.
    VERSION = "version"
    #: An empty commit gets the write id of the operation that waits for it, and so proves that operation.
    IDENTITY = "identity"
    #: Each commit belongs to the innermost block of the hold, regardless of its thread.
    BLOCK = "block"
    #: The object of a queue on S3 is replaced even if another client has changed it.
    LEASE_CONDITION = "lease-condition"
    # Protections of group commits; soak.group_controls describes a run without each.
    NAMED_MEMBERS = "named-members"
    WAITING_MEMBERS = "waiting-members"
    REMAINING_MEMBERS = "remaining-members"
    MEMBER_ASKS = "member-asks"
    INTENTS_FIRST = "intents-first"
    MEMBER_LOOKS = "member-looks"
    COMMITTED_OFFERS = "committed-offers"
    MEMBER_STAMPS = "member-stamps"
    MEMBER_ACTIONS = "member-actions"
    KEPT_FILES = "kept-files"
    LOG_PROVES = "log-proves"


def begin_block(without: Protection | None, hold: Hold) -> None:
    """Prepare a hold for another block. Without ``attempts``, forget its puts without an answer."""
    if without is Protection.ATTEMPTS:
        hold.intents.settle(hold.intents.open)


def clear_intents(without: Protection | None, hold: Hold) -> None:
    """Clear the intents that a hold has read. Without ``version``, clear them even if they have changed since."""
    if without is Protection.VERSION:
        clear_changed_intents(hold)
    else:
        hold.intents.clear()


def make_manager(without: Protection | None, url: str, **fields: Any) -> LockManager:
    """Return a lock manager for a run without this protection.

    Args:
        without: The protection, or None.
        url: URL of the coordinator.
        fields: Fields of :class:`LockSettings`.

    """
    settings = LockSettings.from_url(url, **fields)
    if without is Protection.LEASE_CONDITION:
        return UnconditionalManager(settings)
    if without is Protection.REGISTRY:
        return IsolatedLeaseManager(settings) if settings.lock_url else IsolatedManager(settings)
    return manager_of(settings)


def make_guard(without: Protection | None, callbacks: GuardCallbacks) -> WatchedGuard:
    """Return the guard for a run without this protection."""
    guards: dict[Protection | None, type[WatchedGuard]] = {
        Protection.BINDING: UnboundGuard,
        Protection.INTENT: IntentlessGuard,
        Protection.IDENTITY: SharedIdentityGuard,
        Protection.BLOCK: InnermostBlockGuard,
    }
    return guards.get(without, WatchedGuard)(callbacks)


def add_stamp(line: str, answer: str, attempt: str) -> str:
    """Return a ``commitInfo`` line with the stamp of the guard's answer, as the guarded store writes it.

    The control ``condition`` needs this function: it puts through Delta's own store, which asks no guard.
    """
    action = json.loads(line)
    info = {"sluice": {**json.loads(answer)["stamp"], "attempt": attempt}, **action["commitInfo"]}
    return json.dumps({"commitInfo": info}, separators=(",", ":"))
