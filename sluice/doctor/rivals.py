"""Lets clients write one object at the same moment: only one of them may succeed.

Some gateways to S3 refuse the second of two writers in sequence, but accept two concurrent ones.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

RIVALS = 8
"""Number of clients that write at the same moment."""

_ROUNDS = 8
# Seconds after which no further round starts.
_SECONDS = 2.0
# Seconds that a rival waits for the others before it sends its request.
_BARRIER_SECONDS = 5.0


class ContestedObject(Protocol):
    """An object that one rival may write.

    Attributes:
        location: Its URI or path, for messages.

    """

    location: str

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        """Write the object if no other rival has written it. Return whether it was written.

        Several threads may call this at the same time. ``ready`` is called right before the request is sent.
        """

    def read(self) -> bytes | None:
        """Return the content; None if the object does not exist."""


@dataclass(frozen=True)
class Contest:
    """The result of rounds of rivals.

    Attributes:
        rounds: Number of rounds.
        complete_rounds: Number of rounds whose rivals all sent their requests at the same moment.
        won_rounds: Complete rounds with one winner. Other complete rounds have no winner.
        violation: Description of a fault of the store; empty if there is none.

    """

    rounds: int
    complete_rounds: int
    won_rounds: int
    violation: str = ""

    @property
    def obstacle(self) -> str:
        """Why the result does not show whether the store accepts two concurrent writers; empty if it does."""
        if self.won_rounds:
            return ""
        if self.complete_rounds:
            return f"it refused all of {RIVALS} concurrent ones, {self.complete_rounds} times"
        return f"{RIVALS} rivals never sent their requests together, in {self.rounds} rounds"

    def __str__(self) -> str:
        """Return the figures as the end of a sentence."""
        return f"by {RIVALS} concurrent rivals, with one winner in {self.won_rounds} of {self.complete_rounds} rounds"


def run_contest(next_object: Callable[[], ContestedObject]) -> Contest:
    """Let rivals write an object at the same moment, in several rounds.

    Args:
        next_object: Returns the object of a round.

    Raises:
        ScratchObjectError and so on: See the object.

    """
    complete_rounds = won_rounds = number = 0
    end = time.monotonic() + _SECONDS
    with ThreadPoolExecutor(RIVALS) as pool:
        for number in range(1, _ROUNDS + 1):
            contested = next_object()
            barrier = threading.Barrier(RIVALS)
            puts = {
                content: pool.submit(_put_together, contested, content, barrier)
                for content in (f"rival {rival}".encode() for rival in range(RIVALS))
            }
            results = {content: put.result() for content, put in puts.items()}
            winners = [content for content, (is_written, _) in results.items() if is_written]
            violation = _violation(contested, winners)
            if violation:
                return Contest(number, complete_rounds, won_rounds, f"{violation} (round {number})")
            if all(sent_together for _, sent_together in results.values()):
                complete_rounds += 1
                won_rounds += len(winners)
            if time.monotonic() > end:
                break
    return Contest(number, complete_rounds, won_rounds)


def _violation(contested: ContestedObject, winners: list[bytes]) -> str:
    if len(winners) > 1:
        return f"{len(winners)} of {RIVALS} rivals wrote {contested.location} at the same moment"
    if winners and contested.read() != winners[0]:
        return f"{contested.location} does not have the content of the rival that wrote it"
    return ""


def _put_together(contested: ContestedObject, content: bytes, barrier: threading.Barrier) -> tuple[bool, bool]:
    """Return whether this rival wrote the object, and whether it sent its request together with all others."""
    sent_together = False

    def ready() -> None:
        nonlocal sent_together
        with suppress(threading.BrokenBarrierError):  # a rival failed before its request; the others continue
            barrier.wait(_BARRIER_SECONDS)
            sent_together = True

    return contested.put(content, ready), sent_together
