"""A listing that stalls: at that moment the intent of a live hold looks unfinished.

Whoever asks for a partition lists the queues first and the intents last. A holder of another partition that comes in
between and notes an intent is missing in the first list, and its intent is in the second. Writers of the soak lock
whole tables, where nobody can come in between, so this is played on a table of its own, to which nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from lock_manager import Hold, LockManager, PartitionColumn, PartitionSchema, SluiceError
from soak.stalls import first_intent_is_there, stalled_listing

SCHEMA = PartitionSchema((PartitionColumn("part", "integer"),))
"""How such a table is partitioned."""

# Faults may strike meanwhile, and others wait for the table that the writer holds.
_PATIENCE_SECONDS = 5.0
_LIVING, _LATE = 1, 2
_VERSION = 7


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
            with stalled_listing(come_in_between):
                return acquire(_LATE, 2 * _PATIENCE_SECONDS)

        try:
            late = threads.submit(come_late).result()
            living = holds[_LIVING]
            said["met"] = living.hold_id in late.intents.unfinished
            late.intents.read()
            living.intend(_VERSION + 1, txn=None, attempt="second")
            clear(late)
            said["stays"] = threads.submit(first_intent_is_there, living, _PATIENCE_SECONDS).result()
        except SluiceError as error:
            said["error"] = type(error).__name__
        said["lost"] = any(hold.lost is not None for hold in holds.values())
        for hold in holds.values():
            hold.intents.settle(hold.intents.open)
            with suppress(SluiceError):
                hold.release()
    return said
