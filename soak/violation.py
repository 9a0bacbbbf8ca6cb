"""An invariant that does not hold, and the piece of history that shows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from soak.evidence import Event, Evidence

_PIECE = 14


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        invariant: ``I1`` to ``I12``.
        sentence: what is wrong.
        piece: the part of the history that shows it, in order.

    """

    invariant: str
    sentence: str
    piece: Sequence[Event] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Return it for ``verdict.json``."""
        return {"invariant": self.invariant, "sentence": self.sentence, "piece": list(self.piece)}


def who(event: Event) -> str:
    """Return whose event it is, for people."""
    return f"{event.get('worker', 'somebody')} (hold {event.get('token', '?')})"


def piece_of(
    evidence: Evidence, table: str, txns: Collection[str], version: int | None = None, tokens: Collection[int] = ()
) -> list[Event]:
    """Return the shortest part of the history that shows what happened to these transactions, holds or version."""
    found = [
        event
        for event in evidence.history
        if event.get("table") == table
        and (
            event.get("txn") in txns
            or (event.get("token") in tokens and event["event"] in ("holding", "read", "lost", "holder-gone", "stored"))
            or (version is not None and event.get("version") == version and event["event"] in ("stored", "taken"))
        )
    ]
    return found if len(found) <= _PIECE else [*found[: _PIECE // 2], *found[-_PIECE // 2 :]]
