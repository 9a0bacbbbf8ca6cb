"""The guard of a soak's writers, and what it becomes with one of its protections left out, for negative controls.

What lacks a protection is in :mod:`soak.unprotected`; here is which run gets what.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any

from lock_manager import Hold, LockManager, ZookeeperLockManager
from soak.unprotected import (
    ForgetfulGuard,
    HoldNamedGuard,
    LonelyManager,
    SharedIdentityGuard,
    UnboundGuard,
    WatchedGuard,
    clear_changed_intents,
)


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
    #: An empty commit has the write id of the operation that waits for it, and is taken for that operation.
    IDENTITY = "identity"
    #: A thread is known by its hold: each commit belongs to the innermost block, whichever thread makes it.
    BLOCK = "block"


def begin_block(without: Protection | None, hold: Hold) -> None:
    """Do what a run in which this protection is left out does before another block of a hold."""
    if without is Protection.ATTEMPTS:
        hold.intents.settle(hold.intents.open)


def clear_intents(without: Protection | None, hold: Hold) -> None:
    """Have a hold clear the intents that it has read, in a run in which this protection is left out."""
    if without is Protection.VERSION:
        clear_changed_intents(hold)
    else:
        hold.intents.clear()


def make_manager(without: Protection | None, hosts: str, **settings: Any) -> LockManager:
    """Return a lock manager for a run in which this protection is left out."""
    kind = LonelyManager if without is Protection.REGISTRY else ZookeeperLockManager
    return kind(hosts, **settings)


def make_guard(
    without: Protection | None, checked: Callable[[], None], asked: Callable[[Mapping[str, Any]], None]
) -> WatchedGuard:
    """Return the guard for a run in which this protection is left out."""
    kinds: dict[Protection | None, type[WatchedGuard]] = {
        Protection.BINDING: UnboundGuard,
        Protection.INTENT: ForgetfulGuard,
        Protection.IDENTITY: SharedIdentityGuard,
        Protection.BLOCK: HoldNamedGuard,
    }
    return kinds.get(without, WatchedGuard)(checked, asked)


def stamped(line: str, answer: str, attempt: str) -> str:
    """Return a ``commitInfo`` line with the guard's stamp, as the guarded store writes it.

    For the control that puts through Delta's own store, which asks no guard.
    """
    action = json.loads(line)
    info = {"sluice": {**json.loads(answer)["stamp"], "attempt": attempt}, **action["commitInfo"]}
    return json.dumps({"commitInfo": info}, separators=(",", ":"))
