"""The invariant about unknown outcomes. Without it, writers that never learn their outcomes would pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from soak.evidence import Event, Evidence
from soak.violation import Violation, hold_of

_ACKNOWLEDGED_PER_EXCEPTION = 100
_ENSEMBLE = "zookeeper-"


@dataclass
class _Strike:
    """A fault that struck.

    Attributes:
        start: Index in the history at which it struck.
        end: Index at which it and its partner had ended.
        remaining: Number of turns whose unknown outcome it may still explain.

    """

    start: int
    end: int
    remaining: int


@dataclass(frozen=True)
class _Turn:
    """A turn of a writer with an unknown outcome: indexes of its wait and its outcome, and the outcome."""

    start: int
    end: int
    outcome: Event


def unknown_outcomes_are_explained(evidence: Evidence) -> Iterator[Violation]:
    """I13: a fault explains each unknown outcome, with one exception per hundred acknowledged operations.

    A fault explains the outcome of one turn that it overlaps, a fault of the ensemble that of one turn per writer.
    """
    strikes = sorted(_strikes(evidence), key=lambda strike: strike.end)
    unexplained: list[Event] = []
    for turn in _turns(evidence):
        overlapping = (strike for strike in strikes if strike.start < turn.end and turn.start < strike.end)
        strike = next((strike for strike in overlapping if strike.remaining), None)
        if strike is None:
            unexplained.append(turn.outcome)
        else:
            strike.remaining -= 1
    acknowledged = sum(event["event"] == "acknowledged" for event in evidence.history)
    if len(unexplained) > acknowledged // _ACKNOWLEDGED_PER_EXCEPTION:
        first = unexplained[0]
        sentence = (
            f"no fault explains {len(unexplained)} unknown outcomes beside {acknowledged} acknowledged operations; "
            f"the first is that of {hold_of(first)}: {first['error']}"
        )
        yield Violation("I13", sentence, unexplained[:1])


def _strikes(evidence: Evidence) -> Iterator[_Strike]:
    history = evidence.history
    writers = len({event["worker"] for event in history if event["event"] == "waiting"})
    ends = [index for index, event in enumerate(history) if event["event"] == "pair"]
    for index, event in enumerate(history):
        if event["event"] == "fault":
            end = next((end for end in ends if end > index), len(history))
            yield _Strike(index, end, writers if event["kind"].startswith(_ENSEMBLE) else 1)


def _turns(evidence: Evidence) -> Iterator[_Turn]:
    """Yield each turn with an unknown outcome once: its empty commit and its own commit may both have one."""
    waits: dict[tuple[str, int], int] = {}
    previous: dict[tuple[str, int], int] = {}
    for index, event in enumerate(evidence.history):
        thread = (str(event.get("worker")), int(event.get("thread", 1)))
        if event["event"] == "waiting":
            waits[thread] = index
        elif event["event"] == "unknown" and previous.get(thread) != waits.get(thread, 0):
            previous[thread] = waits.get(thread, 0)
            yield _Turn(previous[thread], index, event)
