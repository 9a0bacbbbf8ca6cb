"""The lock that admits one maintainer of a table at a time, and the wait until no writer waits for the table."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from lock_manager import Hold, LockManager, TableResource, TableScope, tracing
from lock_manager.coordinator import Cancellation, Inspector
from lock_manager.queue_entry import QueueEntry

#: Path below a table's location. The maintainer of the table holds the lock on this path.
MAINTENANCE_LOCK = "_delta_log/_sluice_maintenance"
_POLL_SECONDS = 0.2


@contextmanager
def exclusive_run(manager: LockManager, table: str, timeout_seconds: float | None) -> Iterator[Hold]:
    """Hold the maintenance lock of a table for the block, so that one maintainer at a time works on the table.

    This lock does not lock the table: writers do not wait for it. A thread of its own holds it, because the writes of
    the block would otherwise be nested in this hold.

    Args:
        table: Canonical URI.
        timeout_seconds: Seconds to wait for another maintainer; None: the manager's default.

    Raises:
        LockTimeoutError: Another maintainer holds the lock.
        SluiceError: The lock cannot be acquired.

    """
    scope, cancellation = TableScope.of(f"{table}/{MAINTENANCE_LOCK}"), Cancellation()
    outcomes: SimpleQueue[Hold | BaseException] = SimpleQueue()
    block_ended, parent = threading.Event(), tracing.current()

    def hold_lock() -> None:
        try:
            with (
                parent.current(),
                manager.acquire_all([scope], timeout_seconds=timeout_seconds, cancellation=cancellation) as hold,
            ):
                outcomes.put(hold)
                block_ended.wait()
        except BaseException as error:  # noqa: BLE001 (raised in the thread of the block)
            outcomes.put(error)

    thread = threading.Thread(target=hold_lock, name="sluice-maintenance-lock", daemon=True)
    thread.start()
    try:
        outcome = outcomes.get()
        if isinstance(outcome, BaseException):
            raise outcome
        yield outcome
    finally:
        block_ended.set()
        cancellation.request()
        thread.join()


def give_way(
    inspector: Inspector,
    table: str,
    max_seconds: float,
    *,
    stopped: threading.Event | None = None,
    is_ignored: Callable[[QueueEntry], bool] = lambda _: False,
) -> float:
    """Wait until no contender waits for a table or a part of it, and return the seconds waited.

    Args:
        table: Canonical URI.
        max_seconds: Longest time to wait, in seconds.
        stopped: Event that ends the wait early.
        is_ignored: Returns whether a waiting contender does not count, such as a contender of the caller.

    Raises:
        EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError: The locks cannot be read.

    """
    stopped = threading.Event() if stopped is None else stopped
    resource, start = TableResource.of(table), time.monotonic()
    while any(not is_ignored(entry) for entry in inspector.table(resource).waiters):
        waited_seconds = time.monotonic() - start
        if waited_seconds >= max_seconds or stopped.wait(min(_POLL_SECONDS, max_seconds - waited_seconds)):
            break
    return time.monotonic() - start


def belongs_to_this_process(entry: QueueEntry) -> bool:
    """Return whether an entry of a lock's queue belongs to this process."""
    return (entry.data.get("host"), entry.data.get("pid")) == (socket.gethostname(), os.getpid())
