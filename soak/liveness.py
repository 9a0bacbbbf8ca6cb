"""The invariants about the writers themselves: each hears its outcome, acquires, releases and ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from soak.evidence import Event, Evidence
from soak.steps import DONE, SAME
from soak.violation import Violation, piece_of, who

_SCHEDULING_SECONDS = 2.0
_STRIKES = frozenset({"holder-gone", "killed", "fault"})
_OUTCOMES = frozenset({"stored", "filled", "refused", "unknown"})


def nobody_skips_in_silence(evidence: Evidence) -> Iterator[Violation]:
    """I6: whoever attempts a version hears what became of it, unless it dies."""
    attempted: dict[tuple[int, str], Event] = {}
    # A version that was another's is no answer yet: the hold goes on to the next one, or says that it does not.
    outrun: dict[tuple[int, int], Event] = {}
    dead: set[int] = set()
    for event in evidence.history:
        kind, incarnation = event["event"], int(event.get("incarnation", -1))
        transaction, hold = (incarnation, str(event.get("txn"))), (incarnation, int(event.get("token", -1)))
        if kind == "attempting":
            outrun.pop(hold, None)
            attempted[transaction] = event
        elif kind == "taken":
            outrun[hold] = attempted.pop(transaction, event)
        elif kind in _OUTCOMES:
            outrun.pop(hold, None)
            attempted.pop(transaction, None)
        elif kind == "gave-up":
            outrun.pop(hold, None)
        elif kind == "jvm-gone" or (kind == "killed" and not event.get("late")):
            dead.add(incarnation)
    for (incarnation, _), event in (*attempted.items(), *outrun.items()):
        if incarnation not in dead:
            sentence = f"{who(event)} attempted version {event['version']}, and was never told what became of it"
            yield Violation("I6", sentence, piece_of(evidence, event["table"], {event["txn"]}))


def waiters_get_in(evidence: Evidence) -> Iterator[Violation]:
    """I7: after a holder is gone a waiter has the lock within the session time-out, one tick and 2 s."""
    bound = _longest_takeover(evidence)
    for death, taken in takeovers(evidence):
        if taken is None:
            yield Violation("I7", f"nobody got the lock after {who(death)} was gone, though others waited", [death])
        elif taken["monotonic"] > death["monotonic"] + bound:
            took = taken["monotonic"] - death["monotonic"]
            sentence = f"{who(taken)} got the lock {took:.1f} s after {who(death)} was gone; bound: {bound:.1f} s"
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
    """I8: who leaves a queue leaves nothing in it: seen after a cancelled wait, and when all writers are idle."""
    looks = [event for event in evidence.history if event["event"] == "queue"]
    for look in looks:
        if look["left"]:
            whose = f"of {look['worker']} " if look.get("worker") else ""
            yield Violation("I8", f"contenders {whose}are left in the queue of {look['table']}: {look['left']}", [look])
    for table in evidence.tables:
        # What nobody looked at is not known to be empty.
        if not any(look["table"] == table and not look.get("worker") for look in looks):
            yield Violation("I8", f"nobody looked at the queue of {table} while all writers were idle")


def work_goes_on(evidence: Evidence) -> Iterator[Violation]:
    """I9: there is no deadlock: something is acknowledged, and whoever is not killed ends, when it is told to."""
    history = evidence.history
    if not any(event["event"] == "acknowledged" for event in history):
        yield Violation("I9", "nothing was acknowledged")
    accounted = {event.get("incarnation") for event in history if event["event"] in ("killed", "jvm-gone", "finished")}
    for event in history:
        if event["event"] == "stalled":
            sentence = f"nothing was acknowledged for {event['seconds']:.0f} s, with no fault under way"
            yield Violation("I9", sentence, [*_last_words(history, event), event])
        elif event["event"] == "killed" and event.get("late"):
            sentence = f"{event['worker']} was told to finish, and had to be killed"
            yield Violation("I9", sentence, [*_last_words(history, event, event["worker"]), event])
        elif event["event"] == "ended" and event["incarnation"] not in accounted:
            sentence = f"{event['worker']} ended of itself, though nobody had told it to"
            yield Violation("I9", sentence, [*_last_words(history, event, event["worker"]), event])


def two_managers_are_one(evidence: Evidence) -> Iterator[Violation]:
    """I10: what a thread holds it gets again through another lock manager, and LockOrderError for what comes before."""
    for event in evidence.history:
        # A lost hold cannot be acquired again.
        if event["event"] != "step" or event["kind"] != "two-managers" or event["lost"]:
            continue
        # A manager that never had a connection does not know its ensemble.
        unknown = set() if event["connected"] else {"EnsembleUnavailableError"}
        if event["again"] not in {SAME, *unknown}:
            sentence = f"{who(event)} asked again for what it holds, through another manager: {event['again']}"
            yield Violation("I10", sentence, [event])
        if event["order"] not in {"LockOrderError", *unknown}:
            sentence = f"{who(event)} asked through another manager for a table that comes before: {event['order']}"
            yield Violation("I10", sentence, [event])


def a_living_intent_stays(evidence: Evidence) -> Iterator[Violation]:
    """I11: the intent of a hold that lives stays, also when another hold takes it for left behind and clears it."""
    for event in evidence.history:
        # That the hold was lost, or that nobody answered, is said as an error: then nothing is known of its intent.
        if event["event"] == "step" and event["kind"] == "stalled-listing" and event["stays"] is False:
            sentence = f"{who(event)} had the intent of a hold cleared away that lives and had noted another version"
            yield Violation("I11", sentence, [event])


def both_threads_are_served(evidence: Evidence) -> Iterator[Violation]:
    """I12: each statement of two threads in one block that is reported as done is in the table."""
    for event in evidence.history:
        # A step that could not read the table afterwards shows nothing.
        if event["event"] != "step" or event["kind"] != "two-threads" or event["left"] is None:
            continue
        if event["deleted"] == DONE and event["left"]:
            sentence = f"{who(event)} was told that a DELETE is done, and {event['left']} of its rows are in the table"
            yield Violation("I12", sentence, [event])
        if event["inserted"] == DONE and event["there"] != 1:
            sentence = f"{who(event)} was told that an INSERT is done, and its row is there {event['there']} times"
            yield Violation("I12", sentence, [event])


def _last_words(history: Sequence[Event], end: Event, worker: str | None = None) -> list[Event]:
    """Return the last that this writer had said by then, or the last of each."""
    last: dict[str, Event] = {}
    for event in history[: history.index(end)]:
        if event.get("worker"):
            last[str(event["worker"])] = event
    return [event for name, event in last.items() if worker in (None, name)]


def _longest_takeover(evidence: Evidence) -> float:
    return evidence.session_seconds + evidence.tick_seconds + _SCHEDULING_SECONDS


def _takes_over(event: Event, death: Event) -> bool:
    same = event["event"] == "holding" and event.get("table") == death["table"]
    return same and bool(event["token"] > death["token"])


def _waiting_at(history: Sequence[Event], death: Event) -> list[str]:
    """Return the other writers that stood in the queue at the end of this history."""
    last: dict[str, bool] = {}
    for event in history:
        worker = str(event.get("worker"))
        if event["event"] in ("waiting", "holding", "gave-up", "ended", "killed"):
            last[worker] = event["event"] == "waiting" and event.get("table") == death["table"]
    return [worker for worker, waits in last.items() if waits and worker != death.get("worker")]
