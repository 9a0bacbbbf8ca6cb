"""One writer of a soak: a process that commits in a loop and writes JSON lines of the history to standard output.

:mod:`soak.processes` starts ``python -m soak.store_writer OPTIONS``, or ``soak.spark_writer`` with Spark. The writer
reads these commands from standard input, one per line:

* ``stop-at POINT``: Stop at this point of the next transaction that reaches it.
* ``pass POINT``: Do not stop at this point, or continue from it.
* ``go``: Continue.
* ``cancel``: Cancel the wait for the lock.
* ``second``: Acquire the lock and commit in a second thread.
* ``table URI``: Write to this table from now on.
* ``finish``: Commit no more.
* ``close``: End the session and the process.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lock_manager import LockManager, SluiceError
from lock_manager.guard_registry import declare_guard_installed
from lock_manager.settings import S3_LEASE
from soak.controls import Protection, make_guard, make_manager
from soak.errors import JvmGoneError
from soak.jvm import StoreJvm
from soak.stalls import SCHEMA
from soak.steps import Steps, steps_of
from soak.unprotected import GuardCallbacks

_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """The options of a writer process.

    Attributes:
        name: Name of the writer, for example ``writer-3``.
        incarnation: Number of writers of the run that were started earlier. It makes the row ids unique.
        table: URI of the first table.
        lock_url: URL of the coordinator. With ZooKeeper it names the TCP proxy of this writer.
        session_timeout_seconds: Session timeout that the writer requests, or its lease on S3, in seconds.
        hadoop: Hadoop's settings, without the prefix ``spark.hadoop.``.
        without: Protection to leave out, or None.
        rows: Rows per commit.
        seed: Seed of the writer's steps; see :mod:`soak.steps`.
        engine: ``store`` or ``spark``.
        lock_during: When a Spark driver holds the lock: for the ``commit`` only, or for the whole ``write``.
        group_commits: Whether it makes group commits.
        appends_only: Whether all of its operations are appends that a holder may commit.
        prepared_for: Control of group commits that the writer prepares for although it has all protections, or None.
        log: Path of the log file for the standard error of Python and the JVM.

    """

    name: str
    incarnation: int
    table: str
    lock_url: str
    session_timeout_seconds: float
    hadoop: dict[str, str]
    without: str | None
    rows: int
    seed: int
    engine: str
    lock_during: str
    group_commits: bool
    appends_only: bool
    prepared_for: str | None
    log: str

    def argument(self) -> str:
        """Return the options as a command line argument."""
        return json.dumps(asdict(self))


class Worker(ABC):
    """The state of a writer process, common to all engines.

    Args:
        options: Options of the writer.
        output: File descriptor for the history.

    """

    def __init__(self, options: WorkerOptions, output: int = 1) -> None:
        self.options = options
        self._output = output
        self.without = Protection(options.without) if options.without else None
        self.table = options.table
        self.finished = False
        self.ids = itertools.count((options.incarnation + 1) * 10**12)
        self._stop_points: set[str] = set()
        self._stopped_at: str | None = None
        self._stop_lock = threading.Lock()
        #: Whether a step commits to a separate table. While it is true, the writer stops at no points.
        self.in_step = False
        self._go = threading.Event()
        self._close = threading.Event()
        self.first_thread_done = threading.Event()
        self._second: threading.Thread | None = None
        #: ``table`` of the first thread, and ``token`` of its hold if it has one.
        self.hold_fields: dict[str, Any] = {}
        self._output_lock = threading.Lock()
        self.guard = make_guard(self.without, GuardCallbacks(self.on_guard_request, self.reach, self.on_guard_answer))
        threading.Thread(target=self._listen, daemon=True).start()
        self.jvm_pid = self.start_jvm()
        self.manager = self._make_manager(options.session_timeout_seconds)
        name = f"{options.name}/{options.incarnation}"
        steps = steps_of(options.engine, has_lease=options.lock_url.startswith(S3_LEASE))
        self.steps = Steps(name, options.seed, steps, self._make_manager, self.without)

    def _make_manager(self, session_seconds: float) -> LockManager:
        return make_manager(
            self.without,
            self.options.lock_url,
            timeout_seconds=600,
            session_timeout_seconds=session_seconds,
            job=self.options.name,
        )

    @abstractmethod
    def start_jvm(self) -> int:
        """Start the JVM that commits; return its process id."""

    @abstractmethod
    def warm_up(self) -> None:
        """Read a table once. This loads classes, so that no lock is held while they load."""

    @abstractmethod
    def cycle(self, *, second: bool) -> None:
        """Acquire the lock once and commit.

        Args:
            second: Whether the second thread of the process calls it.

        """

    @abstractmethod
    def end_jvm(self) -> None:
        """End the JVM."""

    def on_guard_request(self, request: Mapping[str, Any]) -> None:  # noqa: B027 (an optional hook)
        """Handle a request of the log store to the guard, before it is answered."""

    def on_guard_answer(self, request: Mapping[str, Any], answer: Mapping[str, Any]) -> None:  # noqa: B027
        """Handle the guard's answer to the request to put a version, before it is returned."""

    def make_thread(self, work: Callable[[], None]) -> threading.Thread:
        """Return a thread for a second hold."""
        return threading.Thread(target=work, daemon=True)

    def record(self, event: str, **fields: Any) -> None:
        """Write one line of the history. The whole line is in the pipe when this returns."""
        line = {"event": event, "wall": time.time(), "monotonic": time.monotonic(), **fields}
        with self._output_lock:
            os.write(self._output, (json.dumps(line) + "\n").encode())

    def reach(self, point: str) -> None:
        """Stop at this point until the command ``go``, if ``stop-at`` named it."""
        with self._stop_lock:
            if point not in self._stop_points or self.in_step:
                return
            self._stop_points.discard(point)
            self._stopped_at = point
            self._go.clear()
        self.record("stopped", point=point, **self.hold_fields)
        self._go.wait()
        self._stopped_at = None

    def run(self) -> None:
        """Commit until the command ``finish``, and end after the command ``close``."""
        self.warm_up()
        self.manager.connect(60)
        granted = self.manager.session_timeout_seconds
        self.record("ready", python=os.getpid(), jvm=self.jvm_pid, session_seconds=granted)
        while not self.finished:
            self.first_thread_done.clear()
            try:
                self.cycle(second=False)
            except JvmGoneError as error:
                self.record("jvm-gone", message=str(error))
                self.manager.close()
                return
            except SluiceError as error:
                self.record("gave-up", error=type(error).__name__, message=str(error))
                time.sleep(_PAUSE_SECONDS)
            self._join_second()
        # The manager is still open, so the coordinator has removed no contender: a contender in a queue now is a leak.
        self.record("idle")
        self._close.wait()
        self.steps.close()
        self.manager.close()
        self.end_jvm()
        self.record("finished")

    def _start_second(self) -> None:
        """Start a second thread that acquires the lock and commits, while the first thread is stopped."""

        def work() -> None:
            try:
                self.cycle(second=True)
            except SluiceError as error:
                self.record("gave-up", thread=2, error=type(error).__name__, message=str(error))

        self._second = self.make_thread(work)
        self._second.start()

    def _join_second(self) -> None:
        # The JVM of a StoreWorker serves one thread at a time, see soak.jvm.
        self.first_thread_done.set()
        if self._second is not None:
            self._second.join()
            self._second = None

    def _cancel(self) -> None:
        with suppress(SluiceError):
            self.manager.cancel(self.hold_fields["table"])

    def _set_stop(self, point: str, *, stops: bool) -> None:
        with self._stop_lock:
            if stops:
                self._stop_points.add(point)
                return
            self._stop_points.discard(point)
            if self._stopped_at == point:
                self._go.set()

    def _listen(self) -> None:
        for line in sys.stdin:
            command, _, argument = line.strip().partition(" ")
            if command in ("stop-at", "pass"):
                self._set_stop(argument, stops=command == "stop-at")
            elif command == "go":
                self._go.set()
            elif command == "cancel":
                self._cancel()
            elif command == "second":
                self._start_second()
            elif command == "table":
                self.table = argument
            elif command == "finish":
                self.finished = True
                self._stop_points.clear()
            elif command == "close":
                self._close.set()


class StoreWorker(Worker):
    """A writer whose JVM runs the guarded log store without Spark."""

    def start_jvm(self) -> int:
        """Start the JVM; return its process id."""
        guarded = self.without is not Protection.GUARD
        if guarded:
            # Partition locks require a guard. The only log store of this process is guarded, so the stalled-listing
            # step may lock partitions.
            declare_guard_installed(lambda _: SCHEMA)
        self.jvm = StoreJvm(
            hadoop=self.options.hadoop,
            guard=self.guard,
            mode="required" if guarded else "off",
            conditional=self.without is not Protection.CONDITION,
            stderr_path=Path(self.options.log),
        )
        return self.jvm.pid

    def warm_up(self) -> None:
        """List the versions of the table once."""
        self.jvm.warm_up(self.table)

    def end_jvm(self) -> None:
        """End the JVM."""
        self.jvm.close()


def silence_libraries() -> None:
    """Log only errors of libraries, and only critical errors of kazoo, because the soak provokes connection errors."""
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
