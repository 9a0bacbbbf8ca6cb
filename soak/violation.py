"""A violated invariant, and the part of the history that shows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from soak.evidence import Event, Evidence

_MAX_EVENTS = 14
_HOLD_EVENTS = frozenset({"holding", "read", "lost", "holder-gone", "stored"})


@dataclass(frozen=True)
class Violation:
    """A violation of an invariant.

    Attributes:
        invariant: ``I1`` to ``I13``.
        sentence: Description of the violation.
        piece: Part of the history that shows it, in order.

    """

    invariant: str
    sentence: str
    piece: Sequence[Event] = field(default_factory=tuple)

    def __str__(self) -> str:
        return f"{self.invariant}: {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry of ``verdict.json``."""
        return {"invariant": self.invariant, "sentence": self.sentence, "piece": list(self.piece)}


def hold_of(event: Event) -> str:
    """Return the writer and the hold of an event, for a message."""
    return f"{event.get('worker', 'unknown writer')} (hold {event.get('token', '?')})"


def related_events(
    evidence: Evidence, table: str, txns: Collection[str], version: int | None = None, tokens: Collection[int] = ()
) -> list[Event]:
    """Return the events about these transactions, holds or version of a table; of more than 14, seven at each end."""
    events = [
        event
        for event in evidence.history
        if event.get("table") == table
        and (
            event.get("txn") in txns
            or (event.get("token") in tokens and event["event"] in _HOLD_EVENTS)
            or (version is not None and event.get("version") == version and event["event"] in ("stored", "taken"))
        )
    ]
    return events if len(events) <= _MAX_EVENTS else [*events[: _MAX_EVENTS // 2], *events[-_MAX_EVENTS // 2 :]]
