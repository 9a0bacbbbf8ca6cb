"""One maintainer at a time for each table, and the way for writers who wait."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from lock_manager import Hold, LockManager, TableResource, TableScope
from lock_manager.coordinator import Cancellation, Inspector
from lock_manager.queue_entry import QueueEntry

#: Who looks after a table holds the lock on this name below it.
TURN = "_delta_log/_sluice_maintenance"
_LOOK_SECONDS = 0.2


@contextmanager
def turn_of(manager: LockManager, table: str, timeout_seconds: float | None) -> Iterator[Hold]:
    """Be the only one who looks after a table, for the block.

    It is no lock on the table: writers go on. It is held by a thread of its own, because the writes of the block would
    be nested in it otherwise.

    Args:
        manager: gives the lock.
        table: canonical URI.
        timeout_seconds: to wait for another maintainer; None: the manager's.

    Raises:
        LockTimeoutError: another one is at it.
        SluiceError: no lock.

    """
    scope, cancellation = TableScope.of(f"{table}/{TURN}"), Cancellation()
    begun: SimpleQueue[Hold | BaseException] = SimpleQueue()
    over = threading.Event()

    def hold() -> None:
        try:
            with manager.acquire_all([scope], timeout_seconds=timeout_seconds, cancellation=cancellation) as held:
                begun.put(held)
                over.wait()
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            begun.put(error)

    thread = threading.Thread(target=hold, name="sluice-maintenance-turn", daemon=True)
    thread.start()
    try:
        found = begun.get()
        if isinstance(found, BaseException):
            raise found
        yield found
    finally:
        over.set()
        cancellation.request()
        thread.join()


def give_way(
    inspector: Inspector,
    table: str,
    seconds: float,
    *,
    stopped: threading.Event | None = None,
    is_own: Callable[[QueueEntry], bool] = lambda _: False,
) -> float:
    """Wait until nobody waits for a table's lock, or for a part of it, but not for long; return how long, in seconds.

    Args:
        inspector: looks at the locks.
        table: canonical URI.
        seconds: at most.
        stopped: no longer than until this is set.
        is_own: tells of who waits whether it is the one who gives way.

    Raises:
        EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError: the locks cannot be looked at.

    """
    stopped = threading.Event() if stopped is None else stopped
    resource, begun = TableResource.of(table), time.monotonic()
    while any(not is_own(each) for each in inspector.table(resource).waiters):
        if (waited := time.monotonic() - begun) >= seconds or stopped.wait(min(_LOOK_SECONDS, seconds - waited)):
            break
    return time.monotonic() - begun


def is_of_this_process(entry: QueueEntry) -> bool:
    """Tell whether an entry in a queue is of this process."""
    return (entry.data.get("host"), entry.data.get("pid")) == (socket.gethostname(), os.getpid())
