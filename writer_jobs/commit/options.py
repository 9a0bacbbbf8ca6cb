"""The options that the operations of :class:`~writer_jobs.LockedDeltaWriter` share: documented and checked here."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, cast, get_args

from lock_manager import Hold, LockManager
from lock_manager.deadline import Deadline
from writer_jobs.commit.lock_target import Lock
from writer_jobs.commit.result import CommitResult

LockDuring = Literal["commit", "write"]
"""Part of a write during which the lock is held: its commit, or the whole write."""


class WriteOptions(TypedDict, total=False):
    """Keyword arguments of every operation of :class:`~writer_jobs.LockedDeltaWriter`.

    Attributes:
        lock: ``"table"`` (the default) locks the whole table. ``"partitions"`` locks the partitions that the operation
            touches, or the whole table if it is not partitioned or does not exist. To find the partitions, the
            operation reads its rows once more before it requests the lock; cache the rows if they are expensive. A list
            of partitions by column, such as ``[{"year": 2013}]``, locks these: a commit that touches another partition
            is refused.
        lock_during: ``"write"`` holds the lock over the whole write. ``"commit"`` prepares the write without the lock,
            requests the lock when the write is ready to commit, and releases it as soon as the commit is stored. After
            a conflict with another writer, the write is repeated with the lock held over the whole write. Some writes
            need the lock over the whole write with ``"commit"``, too: docs/gate.md lists them. The default is
            ``"commit"`` for :meth:`append`, :meth:`optimize`, :meth:`purge` and :meth:`rewrite`, and ``"write"`` for
            the others.
        lock_timeout_seconds: Total seconds to wait for the lock; 0 takes the lock only if it is free now. By default
            the manager's ``timeout_seconds``.
        metadata: JSON values that the commit records in addition to its id, its hold and its token.
        before_write: Called with the hold before anything is written or, if the lock is held for the commit alone,
            before the commit. An exception that it raises ends the write. It is called again if the write is repeated
            with the lock held, unless ``before_write`` itself has committed: then a conflict raises
            WriteConflictError.
        hold: Deprecated name of ``lock_during``; removed in the next release.

    """

    lock: Lock
    lock_during: LockDuring
    lock_timeout_seconds: float | None
    metadata: Mapping[str, Any] | None
    before_write: Callable[[Hold], None] | None
    hold: LockDuring


class RewriteOptions(WriteOptions, total=False):
    """Keyword arguments of the operations that put the same rows into other files.

    Attributes:
        again: Whether to rewrite again, with the lock held, if another writer was faster; true by default. If false,
            WriteConflictError is raised.
        held_at_most_seconds: Seconds that the lock may be held over the whole rewrite. A rewrite that takes longer is
            cancelled and raises HeldTooLongError. None, the default: no limit.

    """

    again: bool
    held_at_most_seconds: float | None


def check_options(
    operation: str, options: WriteOptions, *, lock_during: LockDuring, allowed: type[WriteOptions] = WriteOptions
) -> RewriteOptions:
    """Return the options of an operation with its default of ``lock_during``.

    The operation itself must call this, so that the deprecation warning points to the operation's caller.

    Args:
        allowed: Type whose keys the operation takes.

    Raises:
        TypeError: An option does not exist, or has both its old and its new name.
        ValueError: ``lock_during`` is neither ``"commit"`` nor ``"write"``.

    """
    for name in options:
        if name not in allowed.__annotations__:
            raise TypeError(f"{operation}() got an unexpected keyword argument {name!r}")
    checked_options = cast("RewriteOptions", {"lock_during": lock_during, **options})
    if "hold" in checked_options:
        if "lock_during" in options:
            raise TypeError(f"{operation}() got both hold and lock_during: hold is the old name, leave it out")
        warnings.warn(
            f"{operation}(hold=…) is deprecated and will be removed in the next release: use lock_during=…",
            DeprecationWarning,
            stacklevel=3,
        )
        checked_options["lock_during"] = checked_options.pop("hold")
    if checked_options["lock_during"] not in get_args(LockDuring):
        choices = " or ".join(map(repr, get_args(LockDuring)))
        raise ValueError(f"lock_during={checked_options['lock_during']!r}: choose {choices}")
    return checked_options


def lock_deadline(options: WriteOptions, manager: LockManager) -> Deadline:
    """Return a deadline for acquiring the lock, which starts now."""
    seconds = options.get("lock_timeout_seconds")
    return Deadline(manager.settings.timeout_seconds if seconds is None else seconds)


def options_of_next_write(options: WriteOptions, manager: LockManager, commit: CommitResult | None) -> WriteOptions:
    """Return the options of the write after a batch's commit: the remaining seconds for the lock, and the metadata."""
    waited_seconds = 0.0 if commit is None else commit.waited_seconds
    return WriteOptions(
        lock_timeout_seconds=max(0.0, lock_deadline(options, manager).seconds - waited_seconds),
        metadata=options.get("metadata"),
    )
