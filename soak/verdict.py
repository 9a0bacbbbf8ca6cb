"""The verdict on a soak: thirteen invariants, each a pure function of the evidence.

The history contains the events that the writers report; the log and the rows are the final state of the tables. Times
are ``time.monotonic`` of one machine. The first line of an invariant's docstring is its text in the report.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise

from sluice.audit.checks import check_tokens
from sluice.audit.log_files import LogCommit
from soak.evidence import Event, Evidence, TableState
from soak.liveness import (
    all_attempts_have_outcomes,
    all_queues_are_empty,
    all_writers_progress,
    living_intents_remain,
    managers_share_holds,
    reported_statements_are_in_table,
    waiters_follow_dead_holders,
)
from soak.s3_faults import Put
from soak.unknown_outcomes import unknown_outcomes_are_explained
from soak.violation import Violation, hold_of, related_events


def judge(evidence: Evidence) -> list[Violation]:
    """Return the violations of all invariants."""
    return [violation for invariant in INVARIANTS.values() for violation in invariant(evidence)]


def _acknowledged_exactly_once(evidence: Evidence) -> Iterator[Violation]:
    """I1: every acknowledged operation is in its table exactly once, with its version and its transaction."""
    for table, state in evidence.tables.items():
        if state.read_error:
            yield Violation("I1", f"{table} cannot be read: {state.read_error}")
            continue
        counts, to_delete = Counter(state.row_ids), _rows_to_delete(evidence, table)
        for event in _events(evidence, "acknowledged", table):
            for problem in _missing_effects(event, state, counts, to_delete):
                sentence = f"{hold_of(event)} acknowledged version {event['version']}, but {problem}"
                yield Violation("I1", sentence, related_events(evidence, table, {event["txn"]}, event["version"]))


def _unacknowledged_at_most_once(evidence: Evidence) -> Iterator[Violation]:
    """I2: no row, write or transaction is in a table twice, and no refused or unattempted one is in a table."""
    for table, state in evidence.tables.items():
        yield from _repeated_writes(evidence, table, state)
        yield from _uncommitted_in_table(evidence, table, state)
        # Only the holder of a group commit makes an attempt; its transaction is that of the version.
        attempted = {event["txn"] for event in _events(evidence, "attempting", table)}
        for commit in state.commits:
            is_from_writer = bool(evidence.engine_info) and (commit.engine or "").startswith(evidence.engine_info)
            if is_from_writer and commit.txn_id not in attempted:
                sentence = f"version {commit.version} of {table} belongs to a transaction that no writer attempted"
                yield Violation("I2", sentence)


def _repeated_writes(evidence: Evidence, table: str, state: TableState) -> Iterator[Violation]:
    """Find transactions, writes and rows that are in a table more than once."""
    for txn, versions in _versions_by(state, lambda write: write.txn_id).items():
        if len(versions) > 1:
            sentence = f"transaction {txn} is in {table} {len(versions)} times: versions {versions}"
            yield Violation("I2", sentence, related_events(evidence, table, {txn}))
    for commit_id, versions in _versions_by(state, _commit_id).items():
        if len(versions) > 1:
            yield Violation("I2", f"write {commit_id} is in {table} {len(versions)} times: versions {versions}")
    for row, count in Counter(state.row_ids).items():
        if count > 1:
            yield Violation("I2", f"row {row} is in {table} {count} times")


def _uncommitted_in_table(evidence: Evidence, table: str, state: TableState) -> Iterator[Violation]:
    """Find operations that are in a table although their writer reported that they were not committed."""
    versions_by_txn, rows = _versions_by(state, lambda write: write.txn_id), set(state.row_ids)
    for event in _events(evidence, "refused", table):
        if event["txn"] in versions_by_txn:
            sentence = (
                f"{hold_of(event)} reported that its transaction was not committed ({event['error']}), but it is "
                f"version {versions_by_txn[event['txn']][0]}"
            )
            yield Violation("I2", sentence, related_events(evidence, table, {event["txn"]}))
    # A writer that made no attempt may be a member of a group commit: its rows prove the commit.
    for event in _events(evidence, "gave-up", table):
        row = next((row for row in event.get("ids", ()) if row in rows), None)
        if row is not None:
            sentence = (
                f"{hold_of(event)} reported that its operation was not committed ({event['error']}), but its row {row} "
                f"is in {table}"
            )
            yield Violation("I2", sentence, [event])


def _versions_never_change(evidence: Evidence) -> Iterator[Violation]:
    """I3: each version file was stored once and never changed, and versions have no gaps."""
    stored: dict[tuple[str, int], list[Put]] = defaultdict(list)
    for put in evidence.puts:
        if put.digest:
            stored[put.key, put.version].append(put)
    for (key, version), puts in stored.items():
        if len(puts) > 1:
            writers = ", then ".join(f"{put.writer or 'unknown writer'} ({put.txn})" for put in puts)
            contents = "different contents" if len({put.digest for put in puts}) > 1 else "the same content"
            table = next((name for name in evidence.tables if f"/{name.rpartition('/')[2]}/_delta_log" in key), "")
            txns = {put.txn for put in puts}
            sentence = f"version {version} of {table or key} was stored {len(puts)} times with {contents}: by {writers}"
            yield Violation("I3", sentence, related_events(evidence, table, txns, version))
    for table, state in evidence.tables.items():
        before_gaps = [version for version, successor in pairwise(state.versions) if successor != version + 1]
        if before_gaps:
            yield Violation("I3", f"versions of {table} have gaps: after {before_gaps}")
        if state.versions and state.versions[0] != 0:
            yield Violation("I3", f"versions of {table} begin with {state.versions[0]} instead of 0")
        for message in state.unreadable:
            yield Violation("I3", f"{table}: {message}")
        if not state.read_error and list(state.history_versions) != list(state.versions):
            yield Violation("I3", f"deltalake's history of {table} does not have the versions of its log")


def _tokens_in_order(evidence: Evidence) -> Iterator[Violation]:
    """I4: fencing tokens rise with versions, in the stamps of the log and in the history."""
    for table, state in evidence.tables.items():
        for problem in check_tokens(state.commits):
            yield Violation("I4", f"{table}: {problem}")
        highest, highest_version = -1, -1
        for version, token, txn in _tokens(evidence, table, state):
            if token < highest:
                sentence = (
                    f"version {version} of {table} belongs to the hold with token {token}, after version "
                    f"{highest_version} of the later hold {highest}"
                )
                yield Violation("I4", sentence, related_events(evidence, table, {txn}, tokens={token, highest}))
            else:
                highest, highest_version = token, version


def _nothing_after_a_later_read(evidence: Evidence) -> Iterator[Violation]:
    """I5: no hold commits a version after a later holder has read the table without that version."""
    for table, state in evidence.tables.items():
        # The first read of each hold.
        reads = {event["token"]: event for event in reversed(_events(evidence, "read", table))}
        begins = {event["token"]: event["monotonic"] for event in _events(evidence, "holding", table)}
        ends = {event["version"]: event["monotonic"] for event in _events(evidence, "stored", table)}
        for version, token, txn in _tokens(evidence, table, state):
            missed = [
                read
                for read_token, read in reads.items()
                if read_token > token
                and read["version"] < version
                # An inferred read may miss a version that was stored just before its hold began.
                and not (read.get("inferred") and ends.get(version, math.inf) < begins[read_token])
            ]
            if missed:
                earliest = min(missed, key=lambda read: read["monotonic"])
                sentence = (
                    f"version {version} of {table} was committed by the hold with token {token}, although the later "
                    f"hold {earliest['token']} had read the table at version {earliest['version']}"
                )
                events = related_events(evidence, table, {txn}, tokens={token, earliest["token"]})
                yield Violation("I5", sentence, events)


#: The function that checks each invariant, by its number in docs/reliability.md.
INVARIANTS: Mapping[str, Callable[[Evidence], Iterator[Violation]]] = {
    "I1": _acknowledged_exactly_once,
    "I2": _unacknowledged_at_most_once,
    "I3": _versions_never_change,
    "I4": _tokens_in_order,
    "I5": _nothing_after_a_later_read,
    "I6": all_attempts_have_outcomes,
    "I7": waiters_follow_dead_holders,
    "I8": all_queues_are_empty,
    "I9": all_writers_progress,
    "I10": managers_share_holds,
    "I11": living_intents_remain,
    "I12": reported_statements_are_in_table,
    "I13": unknown_outcomes_are_explained,
}


def _events(evidence: Evidence, kind: str, table: str) -> list[Event]:
    return [event for event in evidence.history if event["event"] == kind and event.get("table") == table]


def _versions_by(state: TableState, identity: Callable[[LogCommit], str | None]) -> dict[str, list[int]]:
    """Return the versions of each write by its identity; writes without one are left out."""
    versions: dict[str, list[int]] = defaultdict(list)
    for commit in state.commits:
        for write in commit.writes:
            if (name := identity(write)) is not None:
                versions[name].append(commit.version)
    return versions


def _commit_id(write: LogCommit) -> str | None:
    return write.stamp.commit_id if write.stamp else None


def _is_acknowledged(event: Event, write: LogCommit) -> bool:
    """Return whether an ``acknowledged`` event is about this write.

    A member of a group commit makes no attempt, so its event has no transaction, but a commit id.
    """
    identity = _commit_id(write) if event["txn"] is None else write.txn_id
    return identity is not None and identity in (event["txn"], event.get("commit_id"))


def _tokens(evidence: Evidence, table: str, state: TableState) -> list[tuple[int, int, str]]:
    """Return version, token and transaction of each commit that a writer of the history attempted.

    The token of a group commit is that of its holder.
    """
    tokens = {event["txn"]: event["token"] for event in _events(evidence, "attempting", table)}
    commits = ((commit.version, commit.txn_id or "") for commit in state.commits)
    return [(version, tokens[txn], txn) for version, txn in commits if txn in tokens]


def _rows_to_delete(evidence: Evidence, table: str) -> set[int]:
    """Return the rows of a table that may be missing: those of each delete that was not refused."""
    refused = {event["txn"] for event in evidence.history if event["event"] == "refused"}
    return {
        row
        for event in evidence.history
        if event["event"] == "attempting" and event["table"] == table and event["txn"] not in refused
        for row in event.get("deletes", ())
    }


def _missing_effects(
    event: Event, state: TableState, counts: Counter[int], to_delete: Collection[int]
) -> Iterator[str]:
    """Yield a message for each effect of an acknowledged operation that its table lacks.

    Args:
        event: The ``acknowledged`` event of the operation.
        state: Final state of the table.
        counts: Number of occurrences of each row in the table.
        to_delete: Result of :func:`_rows_to_delete`.

    """
    commit = next((commit for commit in state.commits if commit.version == event["version"]), None)
    if commit is None and event["version"] is not None:
        yield f"its version {event['version']} is not in the log"
    elif commit is not None and not any(_is_acknowledged(event, write) for write in commit.writes):
        txns = ", ".join(str(write.txn_id) for write in commit.writes)
        yield f"that version belongs to another transaction ({txns})"
    wrong = {row: counts[row] for row in event["ids"] if counts[row] != 1 and (counts[row] or row not in to_delete)}
    for row, count in list(wrong.items())[:1]:
        yield f"{len(wrong)} of its {len(event['ids'])} rows are not there exactly once (row {row}: {count} times)"
    deletes = event.get("deletes", ())
    remaining = [row for row in deletes if counts[row]]
    if remaining:
        yield f"{len(remaining)} of the {len(deletes)} rows that it deleted are in the table (row {remaining[0]})"
    if event.get("transaction"):
        application, number = event["transaction"]
        if state.transactions.get(application, -1) < number:
            yield f"the table does not record its transaction {number} of {application}"
