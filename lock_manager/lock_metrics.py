"""The metrics of locks and commits, and the observer that derives them from events."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

from lock_manager.events import Event, observe
from lock_manager.measurements import SECONDS, Exporter, Kind, Metric, export

_WAIT_SECONDS = Metric(
    Kind.HISTOGRAM, "sluice_lock_wait_seconds", "Seconds that an acquire took.", ("outcome",), SECONDS
)
_HOLD_SECONDS = Metric(
    Kind.HISTOGRAM, "sluice_lock_hold_seconds", "Seconds that a lock was held.", ("outcome",), SECONDS
)
_CONTENDERS = Metric(
    Kind.GAUGE, "sluice_lock_contenders", "Acquires of this process that wait or hold.", ("state",)
)  # fmt: skip
_OLDEST_REQUEST = Metric(
    Kind.GAUGE,
    "sluice_lock_oldest_request_timestamp_seconds",
    "Start of the oldest acquire of this process that waits; 0 if none waits.",
    unit=SECONDS,
)
_LOSSES = Metric(Kind.COUNTER, "sluice_lock_losses_total", "Holds that were lost.")
_FALLBACKS = Metric(
    Kind.COUNTER,
    "sluice_lock_fallbacks_total",
    "Acquires that did not wait, because ZooKeeper did not answer.",
)
_FAILURES = Metric(
    Kind.COUNTER,
    "sluice_coordinator_failures_total",
    "Acquires, commits and starts of jobs that failed because the coordinator did not answer or refused.",
    ("error",),
)
_INTENTS = Metric(
    Kind.COUNTER, "sluice_unfinished_intents_total", "Unfinished intents that a holder found.", ("outcome",)
)
_COMMITS = Metric(Kind.COUNTER, "sluice_commits_total", "Writes that were committed.")
_GROUPED_COMMITS = Metric(
    Kind.COUNTER, "sluice_grouped_commits_total", "Of these, writes in another writer's version."
)  # fmt: skip
_REFUSALS = Metric(Kind.COUNTER, "sluice_commit_refusals_total", "Commits that the guard refused.", ("error",))

#: Every metric of this module.
LOCK_METRICS = (
    _WAIT_SECONDS, _HOLD_SECONDS, _CONTENDERS, _OLDEST_REQUEST, _LOSSES, _FALLBACKS, _FAILURES, _INTENTS, _COMMITS,
    _GROUPED_COMMITS, _REFUSALS,
)  # fmt: skip

# Counters of events without further labels, and the value of the label ``outcome`` of the others.
_COUNTERS: Mapping[Event, Metric] = {
    Event.FELL_BACK: _FALLBACKS,
    Event.COMMITTED: _COMMITS,
    Event.GROUPED: _GROUPED_COMMITS,
}
_INTENT_OUTCOMES: Mapping[Event, str] = {Event.INTENT_SETTLED: "settled", Event.INTENT_LEFT: "left"}
_WAIT_OUTCOMES: Mapping[Event, str] = {
    Event.ACQUIRED: "acquired",
    Event.GAVE_UP: "gave_up",
    Event.DISMISSED: "dismissed",
}
_HOLD_OUTCOMES: Mapping[Event, str] = {Event.RELEASED: "released", Event.LOST: "lost"}


class LockMetrics:
    """An observer (see :mod:`lock_manager.events`) that passes the metrics of locks to one exporter.

    It knows the requests and holds that have begun since it was added.
    """

    def __init__(self, exporter: Exporter) -> None:
        self._export = exporter
        self._lock = threading.Lock()
        # Start of each request that waits, by table and thread: a thread waits for one request at a time.
        self._requested_at: dict[tuple[str, int], float] = {}
        self._holding: Counter[str] = Counter()

    def __call__(self, event: Event, table: str, *, seconds: float = 0.0, error: str = "") -> None:
        """Export the values of an event."""
        with self._lock:
            if event is Event.QUEUED:
                self._requested_at[table, threading.get_ident()] = time.time()
            elif event in _WAIT_OUTCOMES:
                self._requested_at.pop((table, threading.get_ident()), None)
            self._holding[table] += (event is Event.ACQUIRED) - (event in _HOLD_OUTCOMES)
            self._export_contenders(table)
        if (outcome := _WAIT_OUTCOMES.get(event)) is not None:
            self._export(_WAIT_SECONDS, seconds, table, outcome)
        elif (outcome := _HOLD_OUTCOMES.get(event)) is not None:
            self._export(_HOLD_SECONDS, seconds, table, outcome)
            if event is Event.LOST:
                self._export(_LOSSES, 1, table)
        elif (metric := _COUNTERS.get(event)) is not None:
            self._export(metric, 1, table)
        elif (outcome := _INTENT_OUTCOMES.get(event)) is not None:
            self._export(_INTENTS, 1, table, outcome)
        elif event is Event.UNAVAILABLE:
            self._export(_FAILURES, 1, table, error)
        elif event is Event.REFUSED:
            self._export(_REFUSALS, 1, table, error)

    def _export_contenders(self, table: str) -> None:
        """Export the gauges of a table. The caller holds the lock, so that the last exported value is the newest."""
        start_times = [start for (waiting_table, _), start in self._requested_at.items() if waiting_table == table]
        self._export(_CONTENDERS, len(start_times), table, "waiting")
        self._export(_CONTENDERS, self._holding[table], table, "holding")
        self._export(_OLDEST_REQUEST, min(start_times, default=0.0), table)


class MetricsExport:
    """An export of the metrics of this process until it is closed; also a context manager."""

    def __init__(self) -> None:
        self._on_close = ExitStack()

    def _begin(self, exporter: Exporter) -> None:
        """Pass all later values to an exporter, those of locks too."""
        self._on_close.callback(export(exporter))
        self._on_close.callback(observe(LockMetrics(exporter)))

    def close(self) -> None:
        """Stop passing values and serving; write a file for the last time."""
        self._on_close.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
