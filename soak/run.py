"""The run of a soak: its services, its writers, the faults of a seeded plan, and the evidence."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass, field
from queue import Empty
from typing import IO, Any, Self

from lock_manager import SettingsError
from lock_manager.settings import S3_LEASE
from sluice.demo.processes import spark_submit
from sluice.local.jars import jar_paths
from soak.controls import Protection
from soak.engines import ENGINES, SPARK
from soak.evidence import Evidence, read_table
from soak.fault_context import FaultContext, Incident, advance
from soak.hadoop import hadoop_settings
from soak.lock_services import LeaseService, LockService, ZookeeperService
from soak.options import SoakOptions
from soak.pairs import Pair
from soak.plan import plan_faults
from soak.processes import Events, WriterProcess
from soak.s3_faults import FaultyS3, S3Fault
from soak.worker import WorkerOptions

_BUCKET = "lake"
_POLL_SECONDS = 0.05
_STALL_SESSIONS = 5
_EXPIRY_SECONDS = 10.0
_CLOSE_SECONDS = 60.0
_MAX_COMMITS_PER_TABLE = 250


@dataclass
class Progress:
    """The progress of a run.

    Attributes:
        counts: Number of events by kind.
        faults: Number of faults by class.
        chances: Number of times that the plan chose each class, whether the fault struck or not.
        current_fault: Description of the running fault, or empty.

    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    chances: Counter[str] = field(default_factory=Counter)
    current_fault: str = ""


class Soak:
    """One run: services, writers and faults. Leaving the ``with`` block ends all processes.

    Args:
        options: Options of the run.

    Attributes:
        options: Options of the run.
        history: All events so far.
        writers: Running writers by name.
        context: Environment of the faults.
        progress: Counts for the progress line and the report.
        locks: The coordinator.
        tables: URIs of the tables so far; the current table is the last.

    """

    def __init__(self, options: SoakOptions) -> None:
        self.options = options
        self._engine = ENGINES[options.engine]
        self.history: list[dict[str, Any]] = []
        self.writers: dict[str, WriterProcess] = {}
        self.progress = Progress()
        self._events = Events()
        self._replaced: list[WriterProcess] = []
        self._incarnations = 0
        self._stack = ExitStack()
        self._history_file: IO[str] | None = None
        self._commits_by_table: Counter[str] = Counter()
        self._is_finishing = False
        self._idle: set[str] = set()
        self.tables: list[str] = []

    def __enter__(self) -> Self:
        with self._stack:
            self._start_services()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- the run -------------------------------------------------------------------------------------------------

    def start_writers(self) -> None:
        """Start all writers and wait until they are ready.

        Raises:
            SettingsError: The writers were not ready in time.

        """
        for number in range(1, self.options.writers + 1):
            self._start_writer(f"writer-{number}")
        ready = 0
        deadline = time.monotonic() + self._engine.ready_seconds
        while ready < self.options.writers:
            event = self.next_event()
            ready += event is not None and event["event"] == "ready"
            if time.monotonic() > deadline:
                raise SettingsError(
                    f"not every writer was ready within {self._engine.ready_seconds:g} s; "
                    f"see {self.options.output}/writer-*.log"
                )

    def run(self, show: Callable[[Progress], None] = lambda _: None) -> None:
        """Commit and inject faults until the goal is reached, then finish.

        Args:
            show: Called with the progress after each event, and every 50 ms while there is no event.

        """
        end = time.monotonic() + 60 * (self.options.minutes or 0)
        plan = plan_faults(self.options, self.context.gate)
        incident: Incident | None = None
        acknowledged_at_fault = 0
        stall_seconds = self._engine.stall_seconds + _STALL_SESSIONS * self.context.session_seconds
        last_progress = time.monotonic()
        while True:
            event = self.next_event()
            show(self.progress)
            if incident is not None or (event is not None and event["event"] == "acknowledged"):
                last_progress = time.monotonic()
            if incident is not None:
                incident = advance(incident, event)
                acknowledged_at_fault = self.progress.counts["acknowledged"]
                if incident is None:
                    self.progress.current_fault = ""
                continue
            acknowledged = self.progress.counts["acknowledged"]
            is_over = time.monotonic() > end if self.options.minutes else acknowledged >= (self.options.commits or 0)
            if is_over:
                break
            if time.monotonic() - last_progress > stall_seconds:
                self._record("stalled", seconds=stall_seconds)
                break
            if self.options.faults and acknowledged - acknowledged_at_fault >= self.options.commits_between_faults:
                incident = self._begin(next(plan))
        self.finish()

    def _begin(self, pair: Pair) -> Incident | None:
        self.progress.current_fault = f"{pair.first.name} at {pair.point} of {pair.writer}"
        if pair.second is not None:
            self.progress.current_fault += f", {pair.second.name} at {pair.second_point} ({pair.meeting})"
        for fault in filter(None, (pair.first, pair.second)):
            self._record("chance", kind=fault.name, writer=pair.writer)
        return advance(pair.strike(self.context), None)

    def run_fault(self, incident: Incident, seconds: float = 120.0) -> None:
        """Run one fault until it ends.

        Raises:
            TimeoutError: The fault did not end within ``seconds``.

        """
        deadline = time.monotonic() + seconds
        current = advance(incident, None)
        while current is not None:
            current = advance(current, self.next_event())
            if time.monotonic() > deadline:
                raise TimeoutError(f"the fault did not end within {seconds:g} s")

    def next_event(self) -> dict[str, Any] | None:
        """Add the next event to the history and return it; None if no event arrives within 50 ms."""
        try:
            event = self._events.get(timeout=_POLL_SECONDS)
        except Empty:
            return None
        self._add_to_history(event)
        if event["event"] == "ended":
            self._replace_writer(str(event["worker"]), int(event["incarnation"]))
        return event

    def wait_until_idle(self) -> None:
        """Let all writers end their transactions, and wait until they are idle. Their sessions stay open."""
        self._is_finishing = True
        for writer in self.writers.values():
            writer.send("finish")
            writer.send("go")
        self._await_writers(self._engine.finish_seconds, lambda: self.writers.keys() - self._idle)

    def finish(self) -> None:
        """Wait until all writers are idle, record the contenders in the queues, and end the writers."""
        if not self._is_finishing:
            self.wait_until_idle()
        self._record_queues()
        for writer in self.writers.values():
            writer.send("close")
        self._await_writers(_CLOSE_SECONDS, self.writers.keys)
        self._end_writers()
        while self.next_event() is not None:
            pass

    def evidence(self) -> Evidence:
        """Read the tables, and return the evidence of the run."""
        credentials = self._s3.environment if self._s3 else {}
        applications = {event["transaction"][0] for event in self.history if event.get("transaction")}
        states = {table: read_table(table, credentials, sorted(applications)) for table in self.tables}
        # A Spark writer records an attempt when Spark asks the guard. Without a guard it does not record every attempt.
        is_recorded = self._engine is not SPARK or self.options.without != Protection.GUARD
        return Evidence(
            history=self.history,
            tables=states,
            puts=tuple(self._s3.gate.puts) if self._s3 else (),
            session_seconds=self.context.session_seconds,
            tick_seconds=self.locks.tick_seconds,
            engine_info=self._engine.engine_info if is_recorded else "",
        )

    # -- services ------------------------------------------------------------------------------------------------

    def _start_services(self) -> None:
        options = self.options
        if self._engine is SPARK:
            # Report a missing Spark or jar here, and not in the log of each writer.
            spark_submit()
            jar_paths()
        options.output.mkdir(parents=True, exist_ok=True)
        for log in options.output.glob("writer-*.log"):
            log.unlink()
        history_path = options.output / "history.jsonl"
        self._history_file = self._stack.enter_context(history_path.open("w", encoding="utf-8"))
        self._s3 = self._stack.enter_context(FaultyS3()) if options.table is None else None
        if self._s3 is not None:
            self._s3.create_bucket(_BUCKET)
            self._s3.gate.on_arrival(self._report_arrival)
        # In a store that outlives the run, the names of its tables differ from those of earlier runs.
        self._base = f"{options.table.rstrip('/')}-{int(time.time())}" if options.table else f"s3a://{_BUCKET}/soak"
        self.locks = self._start_locks()
        self._next_table()
        self.context = FaultContext(
            writers=self.writers,
            session_seconds=options.session_seconds,
            gate=self._s3.gate if self._s3 else None,
            zookeeper=self.locks.zookeeper,
            queues=self.locks.queues,
            record=self._record,
            history=self.history,
            slack_seconds=self._engine.slack_seconds,
            makes_groups=self.options.makes_groups,
            random=random.Random(f"{options.seed}/acts"),  # noqa: S311 (a repeatable choice, no secret)
        )
        self._stack.callback(self._end_writers)

    def _start_locks(self) -> LockService:
        if self.options.coordinator == S3_LEASE:
            return LeaseService(self.options, self._s3, self._base)
        return ZookeeperService(self.options, self._stack)

    def _report_arrival(self, writer: str, version: int | None, _: S3Fault) -> None:
        """Report that the first request of a fault has arrived at S3."""
        kind = "request-arrived" if version is None else "put-arrived"
        self._events.put({"event": kind, "worker": writer, "version": version, "monotonic": time.monotonic()})

    def _next_table(self) -> None:
        self.tables.append(f"{self._base}-{len(self.tables)}")
        for writer in self.writers.values():
            writer.send(f"table {self.tables[-1]}")

    def _start_writer(self, name: str) -> None:
        access = self.locks.access(name)
        s3_link = self._s3.connect() if self._s3 else None
        options = WorkerOptions(
            name=name,
            incarnation=self._incarnations,
            table=self.tables[-1],
            lock_url=access.url,
            session_timeout_seconds=self.options.session_seconds,
            hadoop=hadoop_settings(name, self._s3, s3_link),
            without=self.options.without,
            rows=self.options.rows,
            seed=self.options.seed,
            engine=self.options.engine,
            lock_during=self.options.lock_during,
            group_commits=self.options.makes_groups,
            appends_only=self.options.appends_only,
            prepared_for=self.options.prepared_for,
            log=str(self.options.output / f"{name}.log"),
        )
        self._incarnations += 1
        environment = {**(self._s3.environment if self._s3 else {}), **access.environment}
        self.writers[name] = WriterProcess(options, environment, access.link, s3_link, self._events)

    def _replace_writer(self, name: str, incarnation: int) -> None:
        writer = self.writers.get(name)
        if writer is None or writer.options.incarnation != incarnation:
            return
        # The JVM of the ended writer may still put a version. It ends by itself or at the end of the run.
        self._replaced.append(self.writers.pop(name))
        if not self._is_finishing:
            self._start_writer(name)

    def _end_writers(self) -> None:
        for writer in (*self.writers.values(), *self._replaced):
            writer.end()
        self._replaced.clear()
        self.writers.clear()

    def _await_writers(self, seconds: float, busy: Callable[[], Collection[str]]) -> None:
        """Wait until no writer is busy, and kill the writers that are still busy after ``seconds``."""
        deadline = time.monotonic() + seconds
        while busy() and time.monotonic() < deadline:
            self.next_event()
        for name in list(busy()):
            writer = self.writers.pop(name)
            self._record("killed", worker=name, incarnation=writer.options.incarnation, late=True)
            writer.end()

    def _record_queues(self) -> None:
        """Record the contenders in the queues, without those of killed writers."""
        until = time.monotonic() + self.context.session_seconds + _EXPIRY_SECONDS
        living = {writer.python for writer in self.writers.values() if writer.python is not None}
        for table in self.tables:
            self._record("queue", table=table, left=self.locks.contenders_left(table, living, until))

    # -- history -------------------------------------------------------------------------------------------------

    def _record(self, event: str, **fields: Any) -> None:
        self._add_to_history({"event": event, "wall": time.time(), "monotonic": time.monotonic(), **fields})

    def _add_to_history(self, event: dict[str, Any]) -> None:
        event.setdefault("monotonic", time.monotonic())
        self.history.append(event)
        if self._history_file is not None and not self._history_file.closed:
            self._history_file.write(json.dumps(event) + "\n")
            self._history_file.flush()
        kind = event["event"]
        self.progress.counts[kind] += 1
        if kind == "idle":
            self._idle.add(event["worker"])
        elif kind == "ready":
            self.context.session_seconds = event["session_seconds"]
        elif kind == "fault":
            self.progress.faults[event["kind"]] += 1
        elif kind == "chance":
            self.progress.chances[event["kind"]] += 1
        elif kind == "acknowledged":
            table = event["table"]
            self._commits_by_table[table] += 1
            if table == self.tables[-1] and self._commits_by_table[table] >= _MAX_COMMITS_PER_TABLE:
                self._next_table()
