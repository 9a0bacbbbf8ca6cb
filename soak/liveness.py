"""The invariants about the writers: each gets its outcomes, acquires and releases locks, and ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from soak.evidence import Event, Evidence
from soak.steps import DONE, SAME
from soak.violation import Violation, hold_of, related_events

_SCHEDULING_SECONDS = 2.0
_STRIKES = frozenset({"holder-gone", "killed", "fault"})
_OUTCOMES = frozenset({"stored", "filled", "refused", "unknown"})
_WAIT_ENDS = frozenset({"holding", "acknowledged", "unknown", "gave-up", "ended", "killed"})


def all_attempts_have_outcomes(evidence: Evidence) -> Iterator[Violation]:
    """I6: every attempt to commit a version gets an outcome, unless a fault kills the writer or its JVM."""
    attempted: dict[tuple[int, str], Event] = {}
    # `taken` is not an outcome: the hold tries the next version, or reports that it gives up.
    outrun_attempts: dict[tuple[int, int], Event] = {}
    dead_incarnations: set[int] = set()
    for event in evidence.history:
        kind, incarnation = event["event"], int(event.get("incarnation", -1))
        transaction, hold = (incarnation, str(event.get("txn"))), (incarnation, int(event.get("token", -1)))
        if kind == "attempting":
            outrun_attempts.pop(hold, None)
            attempted[transaction] = event
        elif kind == "taken":
            outrun_attempts[hold] = attempted.pop(transaction, event)
        elif kind in _OUTCOMES:
            outrun_attempts.pop(hold, None)
            attempted.pop(transaction, None)
        elif kind == "gave-up":
            outrun_attempts.pop(hold, None)
        elif kind == "jvm-gone" or (kind == "killed" and not event.get("late")):
            dead_incarnations.add(incarnation)
    for (incarnation, _), event in (*attempted.items(), *outrun_attempts.items()):
        if incarnation not in dead_incarnations:
            sentence = f"{hold_of(event)} attempted version {event['version']} and got no outcome"
            yield Violation("I6", sentence, related_events(evidence, event["table"], {event["txn"]}))


def waiters_follow_dead_holders(evidence: Evidence) -> Iterator[Violation]:
    """I7: a waiter follows a dead holder within the session timeout plus one tick plus 2 s.

    The tick of locks on S3 is the time between three reads of a waiter.
    """
    bound = _longest_takeover(evidence)
    for death, successor in takeovers(evidence):
        if successor is None:
            yield Violation("I7", f"no waiter got the lock after {hold_of(death)} was gone", [death])
        elif successor["monotonic"] > death["monotonic"] + bound:
            seconds = successor["monotonic"] - death["monotonic"]
            delay = f"{seconds:.1f} s after {hold_of(death)} was gone; bound: {bound:.1f} s"
            yield Violation("I7", f"{hold_of(successor)} got the lock {delay}", [death, successor])


def takeovers(evidence: Evidence) -> Iterator[tuple[Event, Event | None]]:
    """Yield each end of a holder that had waiters, with the ``holding`` event of the next holder, or None.

    An end is skipped if a fault is recorded for another writer before the takeover, if no waiter waits until then, or
    if the history ends within the bound of I7 and before a takeover.
    """
    bound = _longest_takeover(evidence)
    history = evidence.history
    for index, death in enumerate(history):
        waiters = _waiters(history[: index + 1], death) if death["event"] == "holder-gone" else []
        if not waiters:
            continue
        latest_takeover, later_events = death["monotonic"] + bound, history[index + 1 :]
        successor = next((event for event in later_events if _takes_over(event, death)), None)
        until = latest_takeover if successor is None else min(latest_takeover, successor["monotonic"])
        if any(
            event["event"] in _STRIKES and event.get("worker") != death.get("worker") and event["monotonic"] < until
            for event in later_events
        ):
            continue
        if all(_ends_without_hold(later_events, waiter, until) for waiter in waiters):
            # The dead holder had committed their appends.
            continue
        if successor is not None or history[-1]["monotonic"] > latest_takeover:
            yield death, successor


def all_queues_are_empty(evidence: Evidence) -> Iterator[Violation]:
    """I8: no contender remains in a queue after a cancelled wait, or when all writers are idle."""
    checks = [event for event in evidence.history if event["event"] == "queue"]
    for check in checks:
        if check["left"]:
            owner = f"of {check['worker']} " if check.get("worker") else ""
            sentence = f"contenders {owner}are left in the queue of {check['table']}: {check['left']}"
            yield Violation("I8", sentence, [check])
    for table in evidence.tables:
        if not any(check["table"] == table and not check.get("worker") for check in checks):
            yield Violation("I8", f"the queue of {table} was not checked while all writers were idle")


def all_writers_progress(evidence: Evidence) -> Iterator[Violation]:
    """I9: there is no deadlock: commits are acknowledged, and every writer ends on request and not before."""
    history = evidence.history
    if not any(event["event"] == "acknowledged" for event in history):
        yield Violation("I9", "nothing was acknowledged")
    explained_incarnations = {
        event.get("incarnation") for event in history if event["event"] in ("killed", "jvm-gone", "finished")
    }
    for event in history:
        if event["event"] == "stalled":
            sentence = f"nothing was acknowledged for {event['seconds']:.0f} s, while no fault was running"
            yield Violation("I9", sentence, [*_last_events(history, event), event])
        elif event["event"] == "killed" and event.get("late"):
            sentence = f"{event['worker']} did not end in time on request, and was killed"
            yield Violation("I9", sentence, [*_last_events(history, event, event["worker"]), event])
        elif event["event"] == "ended" and event["incarnation"] not in explained_incarnations:
            sentence = f"{event['worker']} ended without a request"
            yield Violation("I9", sentence, [*_last_events(history, event, event["worker"]), event])


def managers_share_holds(evidence: Evidence) -> Iterator[Violation]:
    """I10: if a thread requests a held table through another manager, it gets the same hold.

    A request that breaks the lock order is refused.
    """
    for event in evidence.history:
        # A lost hold cannot be acquired again.
        if event["event"] != "step" or event["kind"] != "two-managers" or event["lost"]:
            continue
        # A manager that was never connected does not know its ensemble.
        allowed = set() if event["connected"] else {"EnsembleUnavailableError"}
        if event["again"] not in {SAME, *allowed}:
            sentence = f"{hold_of(event)} requested its own table through another manager: {event['again']}"
            yield Violation("I10", sentence, [event])
        if event["order"] not in {"LockOrderError", *allowed}:
            sentence = f"{hold_of(event)} requested an earlier table through another manager: {event['order']}"
            yield Violation("I10", sentence, [event])


def living_intents_remain(evidence: Evidence) -> Iterator[Violation]:
    """I11: no hold removes the intent of another, valid hold, even if the intent looks unfinished."""
    for event in evidence.history:
        # If the hold was lost or the ensemble did not answer, ``stays`` is None: the intent's state is unknown.
        if event["event"] == "step" and event["kind"] == "stalled-listing" and event["stays"] is False:
            sentence = f"{hold_of(event)} removed the intent of a valid hold, although that hold stored a newer intent"
            yield Violation("I11", sentence, [event])


def reported_statements_are_in_table(evidence: Evidence) -> Iterator[Violation]:
    """I12: with two threads in one block, each statement that is reported as done is in the table."""
    for event in evidence.history:
        # If the step could not read the table, ``left`` is None.
        if event["event"] != "step" or event["kind"] != "two-threads" or event["left"] is None:
            continue
        if event["deleted"] == DONE and event["left"]:
            sentence = f"a DELETE of {hold_of(event)} is reported as done, but {event['left']} of its rows remain"
            yield Violation("I12", sentence, [event])
        if event["inserted"] == DONE and event["there"] != 1:
            sentence = (
                f"an INSERT of {hold_of(event)} is reported as done, but the table has its row {event['there']} times"
            )
            yield Violation("I12", sentence, [event])


def _last_events(history: Sequence[Event], end: Event, worker: str | None = None) -> list[Event]:
    """Return the last event before ``end`` of this writer, or of each writer."""
    last_events: dict[str, Event] = {}
    for event in history[: history.index(end)]:
        if event.get("worker"):
            last_events[str(event["worker"])] = event
    return [event for name, event in last_events.items() if worker in (None, name)]


def _longest_takeover(evidence: Evidence) -> float:
    return evidence.session_seconds + evidence.tick_seconds + _SCHEDULING_SECONDS


def _takes_over(event: Event, death: Event) -> bool:
    is_hold_of_table = event["event"] == "holding" and event.get("table") == death["table"]
    return is_hold_of_table and bool(event["token"] > death["token"])


def _ends_without_hold(later_events: Sequence[Event], waiter: str, until: float) -> bool:
    """Return whether the wait of a writer ends before this time, and without the lock."""
    end = next(
        (event for event in later_events if event.get("worker") == waiter and event["event"] in _WAIT_ENDS), None
    )
    return end is not None and end["event"] != "holding" and bool(end["monotonic"] < until)


def _waiters(history: Sequence[Event], death: Event) -> list[str]:
    """Return the other writers that wait in the queue of the table at the end of this history, and were not struck."""
    waits: dict[str, bool] = {}
    for event in history:
        worker = str(event.get("worker"))
        if event["event"] in _WAIT_ENDS | {"waiting"} or str(event.get("kind")).endswith("-queued"):
            waits[worker] = event["event"] == "waiting" and event.get("table") == death["table"]
    return [worker for worker, is_waiting in waits.items() if is_waiting and worker != death.get("worker")]
