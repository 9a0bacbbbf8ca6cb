"""The steps that writers take in addition to their transactions.

A step is not a fault: it makes ordinary requests. The seed chooses a writer's steps. The writer records the result of
each step (event ``step`` in the history) for the verdict; see :mod:`soak.liveness`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lock_manager import Hold, LockManager, SluiceError
from soak.controls import Protection, begin_block, clear_intents
from soak.engines import SPARK
from soak.stalls import take_stalled_listing_step

#: Moment after a writer has acquired the lock. A moment has the name of the event that starts it.
ACQUIRED = "holding"
#: Moment after a transaction with an unknown outcome.
UNKNOWN = "unknown"
#: Result of a second request for a held table: the same hold.
SAME = "same"
#: Result of a statement of the two-threads step that raised no error.
DONE = "done"
_ANOTHER = "another"
_SHARE = 0.25
# The longest timeout that an embedded server grants, so that the session sends few heartbeats.
_SESSION_SECONDS = 10.0


@dataclass(frozen=True)
class Step:
    """A kind of step.

    Attributes:
        name: Name in the history and in the verdict.
        description: One line for ``--list-faults``.
        moment: Moment at which the step may be taken. Each event of this kind is a chance.
        take: Takes the step under a hold, and returns the fields of its event.
        share: Share of its chances that the step uses, from 0 to 1.
        needs_spark: Whether only a Spark driver can take it.
        needs_zookeeper: Whether it is about requests to ZooKeeper.

    """

    name: str
    description: str
    moment: str
    take: Callable[[Steps, StepContext], dict[str, Any]]
    share: float = _SHARE
    needs_spark: bool = False
    needs_zookeeper: bool = False


@dataclass(frozen=True)
class StepContext:
    """A hold under which steps are taken.

    Attributes:
        hold: The hold.
        read_in_new_block: Opens another block under the hold, and returns the newest version of the table.
        commit_in_two_threads: Commits to a separate table under a lock of this manager; None without Spark.

    """

    hold: Hold
    read_in_new_block: Callable[[], int]
    commit_in_two_threads: Callable[[LockManager], dict[str, Any]] | None = None


class Steps:
    """The steps of one writer.

    Args:
        name: Name of the writer, with its incarnation.
        seed: Seed that chooses the steps.
        kinds: Kinds of steps to choose from, by name.
        make_manager: Makes a lock manager of the same ensemble with this session timeout, in seconds.
        without: Protection that the run leaves out, or None.

    """

    def __init__(
        self,
        name: str,
        seed: int,
        kinds: Mapping[str, Step],
        make_manager: Callable[[float], LockManager],
        without: Protection | None = None,
    ) -> None:
        self.name = name
        self._kinds = kinds
        self._random = random.Random(f"{seed}/{name}/steps")  # noqa: S311 (a repeatable choice, no secret)
        self._make_manager = make_manager
        self.without = without
        self._second_manager: LockManager | None = None
        #: Whether a two-managers step has reached the coordinator. Then the second manager knows its ensemble.
        self.connected = False

    def take(self, moment: str, context: StepContext) -> Iterator[dict[str, Any]]:
        """Take the steps that the seed chooses for this moment; yield the fields of the event of each."""
        for step in self._kinds.values():
            if step.moment == moment and self._random.random() < step.share:
                yield {"kind": step.name, **step.take(self, context)}

    @property
    def second_manager(self) -> LockManager:
        """The writer's second lock manager, which connects when it is used first."""
        if self._second_manager is None:
            self._second_manager = self._make_manager(_SESSION_SECONDS)
        return self._second_manager

    def close(self) -> None:
        """End the session of the second manager, if there is one."""
        if self._second_manager is not None:
            self._second_manager.close()


def _use_two_managers(steps: Steps, context: StepContext) -> dict[str, Any]:
    """Request the held table through another manager, and then a table that comes before it in the order."""
    hold = context.hold
    connected = steps.connected
    same_table = _try_acquire(steps.second_manager, hold.resource, hold)
    # A prefix of a name comes before the name.
    earlier_table = _try_acquire(steps.second_manager, hold.resource[:-1], hold)
    steps.connected = connected or SAME in (same_table, earlier_table) or earlier_table == "LockOrderError"
    return {"again": same_table, "order": earlier_table, "connected": connected, "lost": hold.lost is not None}


def _try_acquire(manager: LockManager, resource: str, hold: Hold) -> str:
    """Acquire without waiting and release; return ``same`` for this hold, ``another``, or the name of the error."""
    try:
        acquired = manager.acquire(resource, timeout_seconds=0)
    except SluiceError as error:
        return type(error).__name__
    with suppress(SluiceError):
        acquired.release()
    return SAME if acquired is hold else _ANOTHER


def _open_second_block(steps: Steps, context: StepContext) -> dict[str, Any]:
    """Read in another block under the hold, which must first settle the open attempts of the earlier block."""
    intents = context.hold.intents
    open_count = len(intents.open)
    begin_block(steps.without, context.hold)
    version = context.read_in_new_block()
    return {"open": open_count, "left": len(intents.open), "version": version, "lost": context.hold.lost is not None}


def _stall_listing(steps: Steps, context: StepContext) -> dict[str, Any]:
    """Read the intent of a valid hold as unfinished, on a separate table."""
    table = f"{context.hold.resource}-partitions/{steps.name}"
    return take_stalled_listing_step(steps.second_manager, table, lambda hold: clear_intents(steps.without, hold))


def _commit_in_two_threads(steps: Steps, context: StepContext) -> dict[str, Any]:
    """Commit in two threads of one block, to a separate table."""
    assert context.commit_in_two_threads is not None  # noqa: S101 (the step needs Spark)
    return context.commit_in_two_threads(steps.second_manager)


_ALL = (
    Step("two-managers", "a second lock manager requests the held table, and then a table before it in the lock order",
         ACQUIRED, _use_two_managers),
    Step("stalled-listing", "a listing of intents stalls while the holder of another partition stores its intent",
         ACQUIRED, _stall_listing, needs_zookeeper=True),
    Step("second-block", "after a transaction with an unknown outcome, the writer reads in another block of the hold",
         UNKNOWN, _open_second_block, share=1.0),
    Step("two-threads", "in one block on a separate table, a thread deletes with LockedDeltaWriter and another inserts",
         ACQUIRED, _commit_in_two_threads, share=0.05, needs_spark=True),
)  # fmt: skip
#: Kinds of steps by name.
STEPS: Mapping[str, Step] = {step.name: step for step in _ALL}


def steps_of(engine: str, *, has_lease: bool) -> dict[str, Step]:
    """Return the kinds of steps that the writers of an engine can take, by name.

    Args:
        engine: Name of the engine.
        has_lease: Whether the locks are in objects on S3. There one object has the queue and all intents of a table, so
            that no listing can stall between them.

    """
    return {
        name: step
        for name, step in STEPS.items()
        if (engine == SPARK.name or not step.needs_spark) and not (has_lease and step.needs_zookeeper)
    }
