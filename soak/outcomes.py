"""Effects that an acknowledged operation must have on its table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from soak.evidence import Event, Evidence, TableState


def rows_to_delete(evidence: Evidence, table: str) -> set[int]:
    """Return the rows of a table that may be gone: those of every delete that was not refused."""
    refused = {event["txn"] for event in evidence.history if event["event"] == "refused"}
    return {
        row
        for event in evidence.history
        if event["event"] == "attempting" and event["table"] == table and event["txn"] not in refused
        for row in event.get("deletes", ())
    }


def missing_of(event: Event, state: TableState, counts: Counter[int], to_delete: Collection[int]) -> Iterator[str]:
    """Yield a sentence for each effect of an acknowledged operation that its table lacks.

    Args:
        event: ``acknowledged``, of the operation.
        state: of the table.
        counts: how often each row is in the table.
        to_delete: see :func:`rows_to_delete`.

    """
    commit = next((commit for commit in state.commits if commit.version == event["version"]), None)
    if commit is not None and commit.txn_id != event["txn"]:
        yield f"that version is of another transaction ({commit.txn_id})"
    wrong = {row: counts[row] for row in event["ids"] if counts[row] != 1 and (counts[row] or row not in to_delete)}
    for row, count in list(wrong.items())[:1]:
        yield f"{len(wrong)} of its {len(event['ids'])} rows are not there once (row {row}: {count} times)"
    deletes = event.get("deletes", ())
    remaining = [row for row in deletes if counts[row]]
    if remaining:
        yield f"{len(remaining)} of the {len(deletes)} rows that it deletes are there (row {remaining[0]})"
    if event.get("transaction"):
        application, number = event["transaction"]
        if state.transactions.get(application, -1) < number:
            yield f"its transaction {number} of {application} is not recorded"
