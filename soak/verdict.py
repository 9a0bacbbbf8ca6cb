"""The verdict on a soak: twelve invariants, each a pure function over what the soak left behind.

A writer's word is in its history, what is so is in the log. Time is ``time.monotonic`` of one machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

from sluice.audit.checks import check_tokens
from soak.evidence import Event, Evidence, TableState
from soak.liveness import (
    a_living_intent_stays,
    both_threads_are_served,
    no_contender_left,
    nobody_skips_in_silence,
    two_managers_are_one,
    waiters_get_in,
    work_goes_on,
)
from soak.outcomes import missing_of, rows_to_delete
from soak.violation import Violation, piece_of, who


def judge(evidence: Evidence) -> list[Violation]:
    """Return every violation of every invariant."""
    return [violation for invariant in INVARIANTS.values() for violation in invariant(evidence)]


def _acknowledged_exactly_once(evidence: Evidence) -> Iterator[Violation]:
    """I1: every acknowledged operation is in its table: its rows once, deleted rows gone, its transaction."""
    for table, state in evidence.tables.items():
        if state.unread:
            yield Violation("I1", f"{table} cannot be read: {state.unread}")
            continue
        counts, to_delete = Counter(state.rows), rows_to_delete(evidence, table)
        for event in _of(evidence, "acknowledged", table):
            claim = f"{who(event)} was told that version {event['version']} is committed, and"
            for problem in missing_of(event, state, counts, to_delete):
                yield Violation("I1", f"{claim} {problem}", piece_of(evidence, table, {event["txn"]}, event["version"]))


def _unacknowledged_at_most_once(evidence: Evidence) -> Iterator[Violation]:
    """I2: nothing is there twice; what was reported as not committed is not there; what is not known is said to be."""
    for table, state in evidence.tables.items():
        versions = _versions_by_txn(state)
        for txn, found in versions.items():
            if len(found) > 1:
                sentence = f"transaction {txn} is in {table} {len(found)} times: versions {found}"
                yield Violation("I2", sentence, piece_of(evidence, table, {txn}))
        for event in _of(evidence, "refused", table):
            if event["txn"] in versions:
                sentence = (
                    f"{who(event)} was told that its transaction was not committed ({event['error']}), "
                    f"and it is version {versions[event['txn']][0]}"
                )
                yield Violation("I2", sentence, piece_of(evidence, table, {event["txn"]}))
        known = {event["txn"] for event in _of(evidence, "attempting", table)}
        for row, count in Counter(state.rows).items():
            if count > 1:
                yield Violation("I2", f"row {row} is in {table} {count} times")
        for commit in state.commits:
            ours = bool(evidence.engine) and (commit.engine or "").startswith(evidence.engine)
            if ours and commit.txn_id not in known:
                yield Violation("I2", f"version {commit.version} of {table} is of a transaction that nobody attempted")


def _versions_never_change(evidence: Evidence) -> Iterator[Violation]:
    """I3: each version file was stored once and never changed, and versions have no gaps."""
    by_key: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for put in evidence.puts:
        if put.digest:
            by_key[put.key, put.version].append(put)
    for (key, version), puts in by_key.items():
        if len(puts) > 1:
            by = ", then ".join(f"{put.writer or 'somebody'} ({put.txn})" for put in puts)
            changed = "its content changed" if len({put.digest for put in puts}) > 1 else "with the same content"
            table = next((name for name in evidence.tables if f"/{name.rpartition('/')[2]}/_delta_log" in key), "")
            txns = {put.txn for put in puts}
            sentence = f"version {version} was stored {len(puts)} times, {changed}: by {by}"
            yield Violation("I3", sentence, piece_of(evidence, table, txns, version))
    for table, state in evidence.tables.items():
        gaps = [(one, other) for one, other in pairwise(state.versions) if other != one + 1]
        if gaps or (state.versions and state.versions[0] != 0):
            yield Violation("I3", f"versions of {table} have gaps: after {[one for one, _ in gaps] or 'none'}")
        for sentence in state.unreadable:
            yield Violation("I3", f"{table}: {sentence}")
        if not state.unread and list(state.history_versions) != list(state.versions):
            yield Violation("I3", f"deltalake's history of {table} is not what is in its log")


def _tokens_in_order(evidence: Evidence) -> Iterator[Violation]:
    """I4: fencing tokens rise with the versions, as noted in the log and as the writers remember them."""
    for table, state in evidence.tables.items():
        for sentence in check_tokens(state.commits):
            yield Violation("I4", f"{table}: {sentence}")
        highest, before = -1, -1
        for version, token, txn in _tokens(evidence, table, state):
            if token < highest:
                sentence = (
                    f"version {version} of {table} is of the hold with token {token}, after version {before} "
                    f"of the later hold {highest}"
                )
                yield Violation("I4", sentence, piece_of(evidence, table, {txn}, tokens={token, highest}))
            else:
                highest, before = token, version


def _nothing_after_a_later_read(evidence: Evidence) -> Iterator[Violation]:
    """I5: a hold commits nothing that a later holder, who has read already, did not see."""
    for table, state in evidence.tables.items():
        reads = {event["token"]: event for event in reversed(_of(evidence, "read", table))}
        for version, token, txn in _tokens(evidence, table, state):
            late = [read for other, read in reads.items() if other > token and read["version"] < version]
            if late:
                first = min(late, key=lambda read: read["monotonic"])
                sentence = (
                    f"version {version} of {table} was committed by the hold with token {token}, though the later "
                    f"hold {first['token']} had read the table at version {first['version']}"
                )
                piece = piece_of(evidence, table, {txn}, tokens={token, first["token"]})
                yield Violation("I5", sentence, piece)


#: What finds a violation of each invariant, by its number in docs/reliability.md.
INVARIANTS: Mapping[str, Callable[[Evidence], Iterator[Violation]]] = {
    "I1": _acknowledged_exactly_once,
    "I2": _unacknowledged_at_most_once,
    "I3": _versions_never_change,
    "I4": _tokens_in_order,
    "I5": _nothing_after_a_later_read,
    "I6": nobody_skips_in_silence,
    "I7": waiters_get_in,
    "I8": no_contender_left,
    "I9": work_goes_on,
    "I10": two_managers_are_one,
    "I11": a_living_intent_stays,
    "I12": both_threads_are_served,
}


def _of(evidence: Evidence, kind: str, table: str) -> list[Event]:
    return [event for event in evidence.history if event["event"] == kind and event.get("table") == table]


def _versions_by_txn(state: TableState) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for commit in state.commits:
        if commit.txn_id is not None:
            found[commit.txn_id].append(commit.version)
    return found


def _tokens(evidence: Evidence, table: str, state: TableState) -> list[tuple[int, int, str]]:
    """Return version, token and transaction of each commit that a writer of the history attempted."""
    by_txn = {event["txn"]: event["token"] for event in _of(evidence, "attempting", table)}
    known = ((each.version, each.txn_id or "") for each in state.commits)
    return [(version, by_txn[txn], txn) for version, txn in known if txn in by_txn]
