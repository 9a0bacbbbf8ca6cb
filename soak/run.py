"""The run of a soak: services, writers, faults by a seeded plan, and what they left behind."""

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
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.testing.queues import LockQueues
from sluice.demo.processes import spark_submit
from sluice.local.jars import jar_paths
from soak.containers import ContainerZooKeeper
from soak.controls import Protection
from soak.engines import ENGINES, SPARK
from soak.evidence import Evidence, read_table
from soak.fault_context import FaultContext, Incident, advance
from soak.faults import CLASSES
from soak.hadoop import hadoop_settings
from soak.options import SoakOptions
from soak.pairs import Pair
from soak.plan import plan_of
from soak.processes import Events, WriterProcess
from soak.s3_faults import FaultyS3
from soak.tcp_proxy import Link
from soak.worker import WorkerOptions

_BUCKET = "lake"
_POLL_SECONDS = 0.05
_STALL_SESSIONS = 5
_EXPIRY_SECONDS = 10.0
_CLOSE_SECONDS = 60.0
_TICK_SECONDS = 0.5
# ZooKeeper's own default, of 20 ticks.
_LONGEST_SESSION_MS = 10_000
_USUAL_TICK_SECONDS = 2.0
_MOST_COMMITS_PER_TABLE = 250


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        counts: events by kind.
        faults: faults by class.
        chances: turns of each class in the plan: it lay in wait for a writer at a point, whether it struck or not.
        now: the class of fault under way.

    """

    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    chances: Counter[str] = field(default_factory=Counter)
    now: str = ""


class Soak:
    """One run: services, writers, faults. Use it with ``with``; everything is ended with the block.

    Args:
        options: what to do.

    Attributes:
        history: every event so far.
        writers: running, by name.
        context: where faults act.
        progress: for people.
        hosts: of ZooKeeper.
        tables: that were written to so far, by URI.

    """

    def __init__(self, options: SoakOptions) -> None:
        self.options = options
        self._engine = ENGINES[options.engine]
        self.history: list[dict[str, Any]] = []
        self.writers: dict[str, WriterProcess] = {}
        self.progress = Progress()
        self._events = Events()
        self._gone: list[WriterProcess] = []
        self._incarnations = 0
        self._stack = ExitStack()
        self._file: IO[str] | None = None
        self._per_table: Counter[str] = Counter()
        self._resting = False
        self._idle: set[str] = set()
        self._started = int(time.time())
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
        """Start all writers and wait until they are ready."""
        for number in range(1, self.options.writers + 1):
            self._start_writer(f"writer-{number}")
        ready = 0
        deadline = time.monotonic() + self._engine.ready_seconds
        while ready < self.options.writers:
            event = self.next_event()
            ready += event is not None and event["event"] == "ready"
            if time.monotonic() > deadline:
                raise SettingsError(f"the writers did not start: see {self.options.output}/writer-1.log")

    def run(self, show: Callable[[Progress], None] = lambda _: None) -> None:
        """Commit, with faults, until enough is acknowledged or the time is over; then have the writers finish."""
        end = time.monotonic() + 60 * (self.options.minutes or 0)
        plan = plan_of(self.options, self.context.gate)
        incident: Incident | None = None
        acknowledged_then = 0
        stall_seconds = self._engine.stall_seconds + _STALL_SESSIONS * self.context.session_seconds
        moved_at = time.monotonic()
        while True:
            event = self.next_event()
            show(self.progress)
            if incident is not None or (event is not None and event["event"] == "acknowledged"):
                moved_at = time.monotonic()
            if incident is not None:
                incident = advance(incident, event)
                acknowledged_then = self.progress.counts["acknowledged"]
                if incident is None:
                    self.progress.now = ""
                continue
            done = self.progress.counts["acknowledged"]
            enough = time.monotonic() > end if self.options.minutes else done >= (self.options.commits or 0)
            if enough:
                break
            if time.monotonic() - moved_at > stall_seconds:
                self._say("stalled", seconds=stall_seconds)
                break
            if self.options.faults and done - acknowledged_then >= self.options.commits_between_faults:
                incident = self._begin(next(plan))
        self.finish()

    def _begin(self, pair: Pair) -> Incident | None:
        self.progress.now = f"{pair.first.name} at {pair.point} of {pair.writer}"
        if pair.second is not None:
            self.progress.now += f", {pair.second.name} at {pair.second_point} of the {pair.meeting}"
        for fault in filter(None, (pair.first, pair.second)):
            self._say("chance", kind=fault.name, writer=pair.writer)
        return advance(pair.strike(self.context), None)

    def play(self, incident: Incident, seconds: float = 120.0) -> None:
        """Let one fault happen, to its end."""
        deadline = time.monotonic() + seconds
        current = advance(incident, None)
        while current is not None:
            current = advance(current, self.next_event())
            if time.monotonic() > deadline:
                raise TimeoutError("the fault did not come to its end")

    def next_event(self) -> dict[str, Any] | None:
        """Take the next event into the history and return it; None if there was none for a moment."""
        try:
            event = self._events.get(timeout=_POLL_SECONDS)
        except Empty:
            return None
        self._note(event)
        if event["event"] == "ended":
            self._replace(str(event["worker"]), int(event["incarnation"]))
        return event

    def rest(self) -> None:
        """Have all writers end what they do, and stand idle with their sessions open."""
        self._resting = True
        for writer in self.writers.values():
            writer.tell("finish")
            writer.tell("go")
        self._await_writers(self._engine.finish_seconds, lambda: self.writers.keys() - self._idle)

    def finish(self) -> None:
        """Have all writers rest, look what is in the queues then, and have the writers end."""
        if not self._resting:
            self.rest()
        self._look_at_queues()
        for writer in self.writers.values():
            writer.tell("close")
        self._await_writers(_CLOSE_SECONDS, self.writers.keys)
        self._end_writers()
        while self.next_event() is not None:
            pass

    def evidence(self) -> Evidence:
        """Gather what the run left behind."""
        credentials = self._s3.environment if self._s3 else {}
        applications = {event["transaction"][0] for event in self.history if event.get("transaction")}
        states = {table: read_table(table, credentials, sorted(applications)) for table in self.tables}
        unasked = self.options.without == Protection.GUARD
        return Evidence(
            history=self.history,
            tables=states,
            puts=tuple(self._s3.gate.puts) if self._s3 else (),
            session_seconds=self.context.session_seconds,
            tick_seconds=_TICK_SECONDS if self.context.zookeeper else _USUAL_TICK_SECONDS,
            # Spark's own name of a transaction is known when the guard is asked; without it, when all is over.
            engine="" if unasked and self._engine is SPARK else self._engine.signs,
        )

    # -- services ------------------------------------------------------------------------------------------------

    def _start_services(self) -> None:
        options = self.options
        if self._engine is SPARK:
            # Said here in a sentence, and not by each writer in its log.
            spark_submit()
            jar_paths()
        options.output.mkdir(parents=True, exist_ok=True)
        for old in options.output.glob("writer-*.log"):
            old.unlink()
        self._file = self._stack.enter_context((options.output / "history.jsonl").open("w", encoding="utf-8"))
        zookeeper = None if options.zookeeper else self._zookeeper()
        self.hosts = options.zookeeper or (zookeeper.hosts if zookeeper else "")
        self._s3 = self._stack.enter_context(FaultyS3()) if options.table is None else None
        if self._s3 is not None:
            self._s3.create_bucket(_BUCKET)
            self._s3.gate.on_arrival(
                lambda writer, version, _: self._events.put(
                    {"event": "put-arrived", "worker": writer, "version": version, "monotonic": time.monotonic()}
                )
            )
        self._queues = self._stack.enter_context(LockQueues(self.hosts))
        self._next_table()
        self.context = FaultContext(
            writers=self.writers,
            session_seconds=options.session_seconds,
            gate=self._s3.gate if self._s3 else None,
            zookeeper=zookeeper,
            queues=self._queues,
            say=self._say,
            history=self.history,
            slack_seconds=self._engine.slack_seconds,
            random=random.Random(f"{options.seed}/acts"),  # noqa: S311 (to be repeated, not to be secret)
        )
        self._stack.callback(self._end_writers)

    def _zookeeper(self) -> EmbeddedZooKeeper | ContainerZooKeeper:
        servers = 3 if any(CLASSES[name].needs in ("zookeeper", "container") for name in self.options.faults) else 1
        tick_ms, longest_ms = int(_TICK_SECONDS * 1000), _LONGEST_SESSION_MS
        if image := self.options.zookeeper_image:
            return self._stack.enter_context(
                ContainerZooKeeper(image, servers, tick_ms=tick_ms, max_session_timeout_ms=longest_ms)
            )
        return self._stack.enter_context(EmbeddedZooKeeper(servers, tick_ms=tick_ms, max_session_timeout_ms=longest_ms))

    def _next_table(self) -> None:
        # In a store that outlives the run, its tables have names that no earlier run has had.
        base = f"{self.options.table.rstrip('/')}-{self._started}" if self.options.table else f"s3a://{_BUCKET}/soak"
        self.tables.append(f"{base}-{len(self.tables)}")
        for writer in self.writers.values():
            writer.tell(f"table {self.tables[-1]}")

    def _start_writer(self, name: str) -> None:
        link = Link(self.hosts)
        s3_link = Link(self._s3.endpoint.removeprefix("http://")) if self._s3 else None
        options = WorkerOptions(
            name=name,
            incarnation=self._incarnations,
            table=self.tables[-1],
            hosts=link.hosts,
            session_timeout_seconds=self.options.session_seconds,
            hadoop=hadoop_settings(name, self._s3, s3_link),
            without=self.options.without,
            rows=self.options.rows,
            seed=self.options.seed,
            engine=self.options.engine,
            hold=self.options.hold,
            log=str(self.options.output / f"{name}.log"),
        )
        self._incarnations += 1
        environment = self._s3.environment if self._s3 else {}
        self.writers[name] = WriterProcess(options, environment, link, s3_link, self._events)

    def _replace(self, name: str, incarnation: int) -> None:
        writer = self.writers.get(name)
        if writer is None or writer.options.incarnation != incarnation:
            return
        # Its JVM may be putting still: it is ended at the end of the run, or by itself.
        self._gone.append(self.writers.pop(name))
        if not self._resting:
            self._start_writer(name)

    def _end_writers(self) -> None:
        for writer in (*self.writers.values(), *self._gone):
            writer.end()
        self._gone.clear()
        self.writers.clear()

    def _await_writers(self, seconds: float, busy: Callable[[], Collection[str]]) -> None:
        """Wait until no writer is busy any more; end those that are late."""
        deadline = time.monotonic() + seconds
        while busy() and time.monotonic() < deadline:
            self.next_event()
        for name in list(busy()):
            writer = self.writers.pop(name)
            self._say("killed", worker=name, incarnation=writer.options.incarnation, late=True)
            writer.end()

    def _look_at_queues(self) -> None:
        """Note what is left in the queues, when those whose writers were killed have had the time to go."""
        deadline = time.monotonic() + self.context.session_seconds + _EXPIRY_SECONDS
        for table in self.tables:
            while (left := self._queues.contenders(table)) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
            self._say("queue", table=table, left=left)

    # -- history and plan ----------------------------------------------------------------------------------------

    def _say(self, event: str, **more: Any) -> None:
        self._note({"event": event, "wall": time.time(), "monotonic": time.monotonic(), **more})

    def _note(self, event: dict[str, Any]) -> None:
        event.setdefault("monotonic", time.monotonic())
        self.history.append(event)
        if self._file is not None and not self._file.closed:
            self._file.write(json.dumps(event) + "\n")
            self._file.flush()
        kind = event["event"]
        self.progress.counts[kind] += 1
        if kind == "idle":
            self._idle.add(event["worker"])
        if kind == "ready":
            self.context.session_seconds = event["session_seconds"]
        if kind == "fault":
            self.progress.faults[event["kind"]] += 1
        if kind == "chance":
            self.progress.chances[event["kind"]] += 1
        if kind == "acknowledged":
            self._per_table[event["table"]] += 1
            if event["table"] == self.tables[-1] and self._per_table[event["table"]] >= _MOST_COMMITS_PER_TABLE:
                self._next_table()
