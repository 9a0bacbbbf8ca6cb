"""Figures of the group commits of a run, and the faults that struck while an append was offered to a holder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from soak.evidence import Event, Evidence
from soak.fault_context import OUTCOMES

_WAIT_ENDS = OUTCOMES | {"holding", "killed"}
# The holder knows the outcome of its put.
_PUT_ENDS = frozenset({"stored", "refused", "taken"})


def group_figures(evidence: Evidence) -> dict[str, Any]:
    """Return the figures of group commits.

    Returns:
        * ``versions``: Number of versions with several writers.
        * ``members``: Number of their appends without those of the holders.
        * ``largest``: Largest number of writers of a version.
        * ``offers``: Number of waits with an offer.
        * ``plain``: Number of versions with one writer.
        * ``light``: Number of versions that were light commits of their holders.
        * ``faults``: For each class of faults, how often it struck while an append waited in the queue with an offer
          (``queued``), and while an intent named a member (``named``).

    """
    sizes = [len(commit.writes) for state in evidence.tables.values() for commit in state.commits]
    groups = [size for size in sizes if size > 1]
    light = {event["txn"] for event in evidence.history if event["event"] == "attempting" and event.get("light")}
    queued: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for fault, is_queued, is_named in _faults(evidence):
        queued[fault["kind"]] += is_queued
        named[fault["kind"]] += is_named
    return {
        "versions": len(groups),
        "members": sum(groups) - len(groups),
        "largest": max(groups, default=0),
        "offers": sum(event["event"] == "waiting" and bool(event.get("offer")) for event in evidence.history),
        "plain": len(sizes) - len(groups),
        "light": sum(commit.txn_id in light for state in evidence.tables.values() for commit in state.commits),
        "faults": {
            kind: {"queued": queued[kind], "named": named[kind]}
            for kind in sorted(queued)
            if queued[kind] or named[kind]
        },
    }


def _faults(evidence: Evidence) -> Iterator[tuple[Event, bool, bool]]:
    """Yield each fault, whether an append waited in the queue with an offer, and whether an intent named a member."""
    offering: set[str] = set()
    # The newest hold with an intent that names members, by table. The next hold settles the intent before it reads.
    naming: dict[str, int] = {}
    for event in evidence.history:
        kind, worker, table, token = (
            event["event"],
            str(event.get("worker")),
            str(event.get("table")),
            event.get("token"),
        )
        if kind == "fault":
            yield event, bool(offering), bool(naming)
        elif kind == "waiting" and event.get("offer"):
            offering.add(worker)
        elif kind == "grouped":
            naming[table] = int(token or 0)
        elif kind in _WAIT_ENDS:
            offering.discard(worker)
        if table in naming and token is not None:
            is_settled = kind in _PUT_ENDS and token == naming[table]
            is_read = kind == "read" and token > naming[table]
            if is_settled or is_read:
                del naming[table]
