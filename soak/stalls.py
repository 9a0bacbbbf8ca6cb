"""A listing of queues that stalls, and the intent of a living hold that it makes look unfinished.

Whoever asks for a partition lists the queues first and the intents last (``Acquisition._send_listing``). Nothing public
comes between the two listings, so this looks inside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from lock_manager.coordinator import Hold
from lock_manager.deadline import Deadline
from lock_manager.zookeeper.held_lock import HeldLock
from lock_manager.zookeeper.queue import Acquisition
from lock_manager.zookeeper.znodes import intent_node

_ANY_VERSION = -1


@contextmanager
def stalled_listing(meanwhile: Callable[[], None]) -> Iterator[None]:
    """Have the next acquire of this thread stall once, between the queues' answer and the question for intents.

    Not in the main thread, whose requests another one makes (:mod:`lock_manager.zookeeper.signals`).

    Args:
        meanwhile: called at that moment, in this thread. What it raises ends the acquire.

    """
    listing, thread = Acquisition._send_listing, threading.current_thread()  # noqa: SLF001
    stalled = False

    def stall(self: Acquisition, indices: Iterable[int]) -> Any:
        nonlocal stalled
        queues, intents = listing(self, indices)
        if stalled or threading.current_thread() is not thread:
            return queues, intents
        for asked in queues.values():
            self._wait(asked)
        stalled = True
        meanwhile()
        return queues, listing(self, indices)[1]

    Acquisition._send_listing = stall  # type: ignore[method-assign]  # noqa: SLF001
    try:
        yield
    finally:
        Acquisition._send_listing = listing  # type: ignore[method-assign]  # noqa: SLF001


def first_intent_is_there(hold: Hold, timeout_seconds: float) -> bool:
    """Ask in one request whether a hold stands and its intent is there, under the name that it had at first.

    Args:
        hold: a :class:`HeldLock` of one table.
        timeout_seconds: for the answer.

    Raises:
        LockLostError, LockNotHeldError: the hold does not stand.
        EnsembleUnavailableError, EnsembleRefusedError: as :meth:`HeldLock.check`.

    """
    held = cast("HeldLock", hold)
    # A hold whose intent was cleared away notes the next one under another name.
    node = intent_node(held.intents._node, held.hold_id)  # noqa: SLF001

    def look(transaction: Any) -> None:
        transaction.check(node, _ANY_VERSION)

    standing = held._hold_state  # noqa: SLF001
    return standing.confirm(Deadline(timeout_seconds), "looking for an intent", look) is None
