"""A listing that stalls: at that moment the intent of a live hold looks unfinished.

Whoever asks for a partition lists the queues first and the intents last. A holder of another partition that comes in
between and notes an intent is missing in the first list, and its intent is in the second. Writers of the soak lock
whole tables, where nobody can come in between, so this is played on a table of its own, to which nothing is committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, cast

from lock_manager import HeldLock, Hold, LockManager, PartitionColumn, PartitionSchema, SluiceError, TableResource
from lock_manager.deadline import Deadline
from lock_manager.zookeeper.queue import Acquisition
from lock_manager.zookeeper.znodes import intent_node, intents_node, table_node

SCHEMA = PartitionSchema((PartitionColumn("part", "integer"),))
"""How such a table is partitioned."""

# Faults may strike meanwhile, and others wait for the table that the writer holds.
_PATIENCE_SECONDS = 5.0
_LIVING, _LATE = 1, 2
_VERSION = 7
_ANY_VERSION = -1


def stall_a_listing(manager: LockManager, resource: str, clear: Callable[[Hold], None]) -> dict[str, Any]:
    """Have one thread find the intent of another's living hold, and clear it when it has changed; give all back.

    Args:
        manager: gives both holds.
        resource: table that nobody else uses.
        clear: has a hold clear the intents that it has read.

    Returns:
        What to say of it: ``met``, whether the one thread took the other's intent for left behind; ``stays``, whether
        the intent was there afterwards, and its hold too, None if it did not come to that; ``lost``, whether a hold was
        lost meanwhile; ``error``, the name of the error that ended it.

    """
    said: dict[str, Any] = {"met": False, "stays": None, "error": None}
    holds: dict[int, Hold] = {}
    with ThreadPoolExecutor(2) as threads:

        def acquire(part: int, seconds: float) -> Hold:
            partition = SCHEMA.partition({"part": part})
            holds[part] = manager.acquire(resource, partitions=[partition], timeout_seconds=seconds)
            return holds[part]

        def come_in_between() -> None:
            living = threads.submit(acquire, _LIVING, _PATIENCE_SECONDS).result()
            living.intend(_VERSION, txn=None, attempt="first")

        def come_late() -> Hold:
            with _stalled_listing(come_in_between):
                return acquire(_LATE, 2 * _PATIENCE_SECONDS)

        try:
            late = threads.submit(come_late).result()
            living = holds[_LIVING]
            said["met"] = living.hold_id in late.intents.unfinished
            late.intents.read()
            living.intend(_VERSION + 1, txn=None, attempt="second")
            clear(late)
            node = intents_node(table_node(manager.settings.lock_root, TableResource.of(resource)))
            said["stays"] = threads.submit(_is_noted, living, node).result()
        except SluiceError as error:
            said["error"] = type(error).__name__
        said["lost"] = any(hold.lost is not None for hold in holds.values())
        for hold in holds.values():
            hold.intents.settle(hold.intents.open)
            with suppress(SluiceError):
                hold.release()
    return said


@contextmanager
def _stalled_listing(meanwhile: Callable[[], None]) -> Iterator[None]:
    """Have the next acquire of this thread stall once, between the queues' answer and the question for intents."""
    listing, thread = Acquisition._list, threading.current_thread()  # noqa: SLF001 (there is no other way in between)
    stalled = False

    def stall(self: Acquisition, indices: Iterable[int]) -> Any:
        nonlocal stalled
        queues, intents = listing(self, indices)
        if stalled or threading.current_thread() is not thread:
            return queues, intents
        for asked in queues.values():
            self._answer(asked)
        stalled = True
        meanwhile()
        return queues, listing(self, indices)[1]

    Acquisition._list = stall  # type: ignore[method-assign]  # noqa: SLF001
    try:
        yield
    finally:
        Acquisition._list = listing  # type: ignore[method-assign]  # noqa: SLF001


def _is_noted(hold: Hold, node: str) -> bool:
    """Ask in one request whether a hold stands and its intent is there.

    Raises:
        LockLostError: it does not stand.

    """

    def look(transaction: Any) -> None:
        transaction.check(intent_node(node, hold.hold_id), _ANY_VERSION)

    standing = cast("HeldLock", hold)._standing  # noqa: SLF001 (asked together, in one request)
    return standing.confirmed(Deadline(_PATIENCE_SECONDS), "looking for an intent", look) is None
