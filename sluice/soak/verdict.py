"""The verdict on a soak: eight invariants, each a pure function over what the soak left behind.

A writer's word is in its history, what is so is in the log. Time is ``time.monotonic`` of one machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sluice.checks import check_tokens
from sluice.soak.evidence import Event, Evidence, TableState

_PIECE = 14
_SCHEDULING_SECONDS = 2.0
_STRIKES = frozenset({"holder-gone", "killed", "fault"})
_OUTCOMES = frozenset({"stored", "occupied", "refused", "unknown", "taken"})


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        invariant: ``I1`` to ``I8``.
        sentence: what is wrong.
        piece: the part of the history that shows it, in order.

    """

    invariant: str
    sentence: str
    piece: Sequence[Event] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Return it for ``verdict.json``."""
        return {"invariant": self.invariant, "sentence": self.sentence, "piece": list(self.piece)}


def judge(evidence: Evidence) -> list[Violation]:
    """Return every violation of every invariant."""
    return [violation for invariant in INVARIANTS.values() for violation in invariant(evidence)]


def acknowledged_exactly_once(evidence: Evidence) -> Iterator[Violation]:
    """I1: every acknowledged row is in its table exactly once."""
    for table, state in evidence.tables.items():
        if state.unread:
            yield Violation("I1", f"{table} cannot be read: {state.unread}")
            continue
        counts = Counter(state.rows)
        for event in _of(evidence, "acknowledged", table):
            wrong = {row: counts[row] for row in event["ids"] if counts[row] != 1}
            if wrong:
                row, count = next(iter(wrong.items()))
                sentence = (
                    f"{_who(event)} was told that version {event['version']} is committed, and "
                    f"{len(wrong)} of its {len(event['ids'])} rows are not there once (row {row}: {count} times)"
                )
                yield Violation("I1", sentence, _piece(evidence, table, {event["txn"]}, event["version"]))


def unacknowledged_at_most_once(evidence: Evidence) -> Iterator[Violation]:
    """I2: nothing is there twice; what was reported as not committed is not there; what is not known is said to be."""
    for table, state in evidence.tables.items():
        versions = _versions_by_txn(state)
        for txn, found in versions.items():
            if len(found) > 1:
                sentence = f"transaction {txn} is in {table} {len(found)} times: versions {found}"
                yield Violation("I2", sentence, _piece(evidence, table, {txn}))
        for event in _of(evidence, "refused", table):
            if event["txn"] in versions:
                sentence = (
                    f"{_who(event)} was told that its transaction was not committed ({event['error']}), "
                    f"and it is version {versions[event['txn']][0]}"
                )
                yield Violation("I2", sentence, _piece(evidence, table, {event["txn"]}))
        known = {event["txn"] for event in _of(evidence, "attempting", table)}
        for row, count in Counter(state.rows).items():
            if count > 1:
                yield Violation("I2", f"row {row} is in {table} {count} times")
        for commit in state.commits:
            ours = bool(evidence.engine) and (commit.engine or "").startswith(evidence.engine)
            if ours and commit.txn_id not in known:
                yield Violation("I2", f"version {commit.version} of {table} is of a transaction that nobody attempted")


def versions_never_change(evidence: Evidence) -> Iterator[Violation]:
    """I3: each version file was stored once and never changed, and versions have no gaps."""
    by_key: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for put in evidence.puts:
        if put.digest:
            by_key[put.key, put.version].append(put)
    for (key, version), puts in by_key.items():
        if len(puts) > 1:
            who = ", then ".join(f"{put.writer or 'somebody'} ({put.txn})" for put in puts)
            changed = "its content changed" if len({put.digest for put in puts}) > 1 else "with the same content"
            table = next((name for name in evidence.tables if f"/{name.rpartition('/')[2]}/_delta_log" in key), "")
            txns = {put.txn for put in puts}
            sentence = f"version {version} was stored {len(puts)} times, {changed}: by {who}"
            yield Violation("I3", sentence, _piece(evidence, table, txns, version))
    for table, state in evidence.tables.items():
        gaps = [(one, other) for one, other in pairwise(state.versions) if other != one + 1]
        if gaps or (state.versions and state.versions[0] != 0):
            yield Violation("I3", f"versions of {table} have gaps: after {[one for one, _ in gaps] or 'none'}")
        for sentence in state.unreadable:
            yield Violation("I3", f"{table}: {sentence}")
        if not state.unread and list(state.history_versions) != list(state.versions):
            yield Violation("I3", f"deltalake's history of {table} is not what is in its log")


def tokens_in_order(evidence: Evidence) -> Iterator[Violation]:
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
                yield Violation("I4", sentence, _piece(evidence, table, {txn}, tokens={token, highest}))
            else:
                highest, before = token, version


def nothing_after_a_later_read(evidence: Evidence) -> Iterator[Violation]:
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
                piece = _piece(evidence, table, {txn}, tokens={token, first["token"]})
                yield Violation("I5", sentence, piece)


def nobody_skips_in_silence(evidence: Evidence) -> Iterator[Violation]:
    """I6: whoever attempts a version hears what became of it, unless it dies."""
    open_attempts: dict[tuple[str, int], Event] = {}
    ended: set[int] = set()
    for event in evidence.history:
        kind, place = event["event"], (str(event.get("txn")), int(event.get("incarnation", -1)))
        if kind == "attempting":
            open_attempts[place] = event
        elif kind in _OUTCOMES:
            open_attempts.pop(place, None)
        elif kind in ("killed", "jvm-gone"):
            ended.add(int(event["incarnation"]))
    for (txn, incarnation), event in open_attempts.items():
        if incarnation not in ended:
            sentence = f"{_who(event)} attempted version {event['version']}, and was never told what became of it"
            yield Violation("I6", sentence, _piece(evidence, event["table"], {txn}))


def waiters_get_in(evidence: Evidence) -> Iterator[Violation]:
    """I7: after a holder is gone a waiter has the lock within the session time-out, one tick and 2 s."""
    bound = _longest_takeover(evidence)
    for death, taken in takeovers(evidence):
        if taken is None:
            yield Violation("I7", f"nobody got the lock after {_who(death)} was gone, though others waited", [death])
        elif taken["monotonic"] > death["monotonic"] + bound:
            took = taken["monotonic"] - death["monotonic"]
            sentence = f"{_who(taken)} got the lock {took:.1f} s after {_who(death)} was gone; bound: {bound:.1f} s"
            yield Violation("I7", sentence, [death, taken])


def takeovers(evidence: Evidence) -> Iterator[tuple[Event, Event | None]]:
    """Yield each end of a holder that somebody waited behind, and who had the lock next.

    Left out where another fault struck too, or the history ends before the time is over.
    """
    bound = _longest_takeover(evidence)
    history = evidence.history
    for index, death in enumerate(history):
        if death["event"] != "holder-gone" or not _waiting_at(history[: index + 1], death):
            continue
        end, rest = death["monotonic"] + bound, history[index + 1 :]
        others = (event for event in rest if event["event"] in _STRIKES and event.get("worker") != death.get("worker"))
        taken = next((event for event in rest if _takes_over(event, death)), None)
        until = end if taken is None else min(end, taken["monotonic"])
        if any(event["monotonic"] < until for event in others):
            continue
        if taken is not None or history[-1]["monotonic"] > end:
            yield death, taken


def no_contender_left(evidence: Evidence) -> Iterator[Violation]:
    """I8: when all writers are gone, the queues are empty."""
    for table, state in evidence.tables.items():
        if state.contenders:
            yield Violation("I8", f"contenders are left in the queue of {table}: {list(state.contenders)}")


INVARIANTS: Mapping[str, Callable[[Evidence], Iterator[Violation]]] = {
    "I1": acknowledged_exactly_once,
    "I2": unacknowledged_at_most_once,
    "I3": versions_never_change,
    "I4": tokens_in_order,
    "I5": nothing_after_a_later_read,
    "I6": nobody_skips_in_silence,
    "I7": waiters_get_in,
    "I8": no_contender_left,
}


def _of(evidence: Evidence, kind: str, table: str) -> list[Event]:
    return [event for event in evidence.history if event["event"] == kind and event.get("table") == table]


def _who(event: Event) -> str:
    return f"{event.get('worker', 'somebody')} (hold {event.get('token', '?')})"


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


def _longest_takeover(evidence: Evidence) -> float:
    return evidence.session_seconds + evidence.tick_seconds + _SCHEDULING_SECONDS


def _takes_over(event: Event, death: Event) -> bool:
    same = event["event"] == "holding" and event.get("table") == death["table"]
    return same and bool(event["token"] > death["token"])


def _waiting_at(history: Sequence[Event], death: Event) -> list[str]:
    """Return the other writers that stood in the queue at the end of this history."""
    last: dict[str, str] = {}
    for event in history:
        worker = str(event.get("worker"))
        if event["event"] in ("waiting", "holding", "gave-up", "ended", "killed"):
            same = event["event"] == "waiting" and event.get("table") == death["table"]
            last[worker] = "waiting" if same else event["event"]
    return [worker for worker, state in last.items() if state == "waiting" and worker != death.get("worker")]


def _piece(
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
