"""What writers do beside their transactions now and then: each kind of step by name, and at which moment of a hold.

A step is no fault: what it asks for is ordinary, and must work. A writer takes steps by the seed, and says what came of
them (``step`` in the history) for the verdict; see :mod:`soak.liveness`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from lock_manager import Hold, LockManager, SluiceError
from soak.controls import Protection, begin_block, clear_intents
from soak.stall import stall_a_listing

ACQUIRED = "holding"
"""The moment at which a writer has the lock and nothing else yet; by the event that says so."""
UNKNOWN = "unknown"
"""The moment after a transaction of which nobody knows whether it is there; likewise."""

#: How asking again for a table that is held has to end: with the same hold.
SAME = "same"
DONE = "done"
"""How a statement of the step with two threads ends that raises no error."""
_ANOTHER = "another"
_SHARE = 0.25
# The longest that an embedded server grants: such a session asks for little.
_SESSION_SECONDS = 10.0


@dataclass(frozen=True)
class Step:
    """A kind of step.

    Attributes:
        name: as in the history and in the verdict.
        what: one line for people.
        moment: when it may be taken; a chance of it is an event of this kind.
        take: does it in a turn, and returns what to say of it.
        share: of the turns in which it is taken.
        needs_spark: whether only a Spark driver can take it.

    """

    name: str
    what: str
    moment: str
    take: Callable[[Steps, Turn], dict[str, Any]]
    share: float = _SHARE
    needs_spark: bool = False


@dataclass(frozen=True)
class Turn:
    """A hold under which steps are taken.

    Attributes:
        hold: the hold.
        look: opens another block on it, which does no more than look for the newest version, and returns that.
        commit_in_two_threads: commits to a table beside, with a lock of this manager; None without Spark.

    """

    hold: Hold
    look: Callable[[], int]
    commit_in_two_threads: Callable[[LockManager], dict[str, Any]] | None = None


class Steps:
    """The steps of one writer.

    Args:
        name: of the writer and its incarnation.
        seed: of which steps it takes when.
        make_manager: makes another lock manager of the same ensemble, with a session of so many seconds.
        without: the protection that the run leaves out.

    """

    def __init__(
        self,
        name: str,
        seed: int,
        make_manager: Callable[[float], LockManager],
        without: Protection | None = None,
    ) -> None:
        self.name = name
        self._random = random.Random(f"{seed}/{name}/steps")  # noqa: S311 (to be repeated, not to be secret)
        self._make_manager = make_manager
        self.without = without
        self._other: LockManager | None = None
        #: Whether the other manager was connected before, and so knows its ensemble.
        self.connected = False

    def at(self, moment: str, turn: Turn) -> Iterator[dict[str, Any]]:
        """Take the steps that are due at this moment; yield what to say of each."""
        for step in STEPS.values():
            possible = step.moment == moment and (turn.commit_in_two_threads is not None or not step.needs_spark)
            if possible and self._random.random() < step.share:
                yield {"kind": step.name, **step.take(self, turn)}

    @property
    def other(self) -> LockManager:
        """The writer's second lock manager; connected at its first use."""
        if self._other is None:
            self._other = self._make_manager(_SESSION_SECONDS)
        return self._other

    def close(self) -> None:
        """End the session of the second manager, if there is one."""
        if self._other is not None:
            self._other.close()


def _use_two_managers(steps: Steps, turn: Turn) -> dict[str, Any]:
    """Ask through another manager for the table that is held, and for one that comes before it."""
    hold = turn.hold
    connected = steps.connected
    again = _asked(steps.other, hold.resource, hold)
    # Whatever it is, a part of a name comes before the name.
    order = _asked(steps.other, hold.resource[:-1], hold)
    steps.connected = connected or SAME in (again, order) or order == "LockOrderError"
    return {"again": again, "order": order, "connected": connected, "lost": hold.lost is not None}


def _asked(manager: LockManager, resource: str, hold: Hold) -> str:
    """Try to acquire without waiting, and give it back; return how it went: the same hold, another, or an error."""
    try:
        got = manager.acquire(resource, timeout_seconds=0)
    except SluiceError as error:
        return type(error).__name__
    with suppress(SluiceError):
        got.release()
    return SAME if got is hold else _ANOTHER


def _open_second_block(steps: Steps, turn: Turn) -> dict[str, Any]:
    """Look in another block of the hold, which has to settle first what the block before left open."""
    intents = turn.hold.intents
    before = len(intents.open)
    begin_block(steps.without, turn.hold)
    version = turn.look()
    return {"open": before, "left": len(intents.open), "version": version, "lost": turn.hold.lost is not None}


def _stall_a_listing(steps: Steps, turn: Turn) -> dict[str, Any]:
    """Have the intent of a living hold of a partition be taken for unfinished, on a table beside the writers' own."""
    beside = f"{turn.hold.resource}-partitions/{steps.name}"
    return stall_a_listing(steps.other, beside, lambda hold: clear_intents(steps.without, hold))


def _commit_in_two_threads(steps: Steps, turn: Turn) -> dict[str, Any]:
    """Have two threads of one block commit to a table beside the writers' own."""
    assert turn.commit_in_two_threads is not None  # noqa: S101 (the step needs Spark)
    return turn.commit_in_two_threads(steps.other)


STEPS: Mapping[str, Step] = {
    each.name: each
    for each in (
        Step(
            "two-managers",
            "what it holds it asks for again through a second manager, and then for a table that comes before it",
            ACQUIRED,
            _use_two_managers,
        ),
        Step(
            "stalled-listing",
            "of two partitions of a table beside, who asks for one takes the living holder of the other for gone",
            ACQUIRED,
            _stall_a_listing,
        ),
        Step(
            "second-block",
            "after a transaction of which nobody knows it opens another block on the same hold, and only looks",
            UNKNOWN,
            _open_second_block,
            share=1.0,
        ),
        Step(
            "two-threads",
            "in one block on a table beside, one thread deletes by the writer while another inserts by plain Spark",
            ACQUIRED,
            _commit_in_two_threads,
            share=0.05,
            needs_spark=True,
        ),
    )
}
"""Every kind of step, by name."""
