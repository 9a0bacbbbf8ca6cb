"""A listing of intents that stalls, so that the intent of a valid hold looks unfinished.

A request for a partition lists the queues first and the intents last (``Acquisition._send_listing``). If a holder of
another partition comes in between and stores an intent, the first list lacks the holder, and the second list has the
intent. Writers of the soak lock whole tables, so no holder can come in between. Therefore the step uses a separate
table without commits. No public method runs between the two listings, so this module replaces a private one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, cast

from lock_manager import PartitionColumn, PartitionSchema
from lock_manager.coordinator import Hold, LockManager
from lock_manager.deadline import Deadline
from lock_manager.errors import SluiceError
from lock_manager.zookeeper.held_lock import HeldLock
from lock_manager.zookeeper.queue import Acquisition
from lock_manager.zookeeper.znodes import intent_node

#: Partition columns of the step's table.
SCHEMA = PartitionSchema((PartitionColumn("part", "integer"),))

# Short, because faults may strike meanwhile, and other writers wait for the table that the writer holds.
_TIMEOUT_SECONDS = 5.0
_FIRST_PART, _SECOND_PART = 1, 2
_VERSION = 7
_ANY_VERSION = -1


def take_stalled_listing_step(manager: LockManager, resource: str, clear: Callable[[Hold], None]) -> dict[str, Any]:
    """Let one hold read the intent of another valid hold as unfinished, and clear that intent after it has changed.

    Both holds are released.

    Args:
        manager: Lock manager of both holds.
        resource: Table that no other program uses.
        clear: Clears the intents that a hold has read.

    Returns:
        Fields of the history's event: ``met``, whether the intent was read as unfinished; ``stays``, whether the intent
        and its hold existed afterwards, None if that is unknown; ``lost``, whether a hold was lost; ``error``, the name
        of the error that ended the step, or None.

    """
    step: dict[str, Any] = {"met": False, "stays": None, "error": None}
    holds: dict[int, Hold] = {}
    with ThreadPoolExecutor(2) as threads:

        def acquire(part: int, seconds: float) -> Hold:
            partition = SCHEMA.partition({"part": part})
            holds[part] = manager.acquire(resource, partitions=[partition], timeout_seconds=seconds)
            return holds[part]

        def acquire_first() -> None:
            first = threads.submit(acquire, _FIRST_PART, _TIMEOUT_SECONDS).result()
            first.intend(_VERSION, txn=None, attempt="first")

        def acquire_second() -> Hold:
            with stalled_listing(acquire_first):
                return acquire(_SECOND_PART, 2 * _TIMEOUT_SECONDS)

        try:
            second = threads.submit(acquire_second).result()
            first = holds[_FIRST_PART]
            step["met"] = first.hold_id in second.intents.unfinished
            second.intents.read()
            first.intend(_VERSION + 1, txn=None, attempt="second")
            clear(second)
            step["stays"] = threads.submit(_has_first_intent, first, _TIMEOUT_SECONDS).result()
        except SluiceError as error:
            step["error"] = type(error).__name__
        step["lost"] = any(hold.lost is not None for hold in holds.values())
        for hold in holds.values():
            hold.intents.settle(hold.intents.open)
            with suppress(SluiceError):
                hold.release()
    return step


@contextmanager
def stalled_listing(meanwhile: Callable[[], None]) -> Iterator[None]:
    """Stall the next acquire of this thread once, between the listing of the queues and that of the intents.

    This must not be the main thread, because another thread sends its requests (:mod:`lock_manager.signals`).

    Args:
        meanwhile: Called in this thread while the listing stalls. An error ends the acquire.

    """
    send_listing, thread = Acquisition._send_listing, threading.current_thread()  # noqa: SLF001
    stalled = False

    def stall(self: Acquisition, indices: Iterable[int]) -> Any:
        nonlocal stalled
        queues, intents = send_listing(self, indices)
        if stalled or threading.current_thread() is not thread:
            return queues, intents
        for request in queues.values():
            self._wait(request)
        stalled = True
        meanwhile()
        return queues, send_listing(self, indices)[1]

    Acquisition._send_listing = stall  # type: ignore[method-assign]  # noqa: SLF001
    try:
        yield
    finally:
        Acquisition._send_listing = send_listing  # type: ignore[method-assign]  # noqa: SLF001


def _has_first_intent(hold: Hold, timeout_seconds: float) -> bool:
    """Return whether a hold has the intent that it stored first. One request checks the intent and the hold.

    Args:
        hold: A :class:`HeldLock` of one table.
        timeout_seconds: Seconds to wait for the answer.

    Raises:
        LockLostError, LockNotHeldError: The hold is not valid.
        EnsembleUnavailableError, EnsembleRefusedError: See :meth:`HeldLock.check`.

    """
    held = cast("HeldLock", hold)
    # A hold whose intent was cleared stores the next one under another name.
    node = intent_node(held.intents._node, held.hold_id)  # noqa: SLF001

    def check_node(transaction: Any) -> None:
        transaction.check(node, _ANY_VERSION)

    hold_state = held._life  # noqa: SLF001
    return hold_state.confirm(Deadline(timeout_seconds), "looking for an intent", check_node) is None
