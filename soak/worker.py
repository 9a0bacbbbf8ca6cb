"""One writer of a soak: a process that commits over and over, and says in JSON lines what it does.

``python -m soak.store_writer OPTIONS`` (with Spark ``soak.spark_writer``), started by
:mod:`soak.processes`. On standard input it is told where to stop for a fault (``stop-at POINT``), not to stop
there after all (``pass POINT``), to go on (``go``), to cancel its wait for the lock (``cancel``), to have a second
thread commit (``second``), which table to write (``table URI``), to commit no more (``finish``), and then to end its
session and itself (``close``).
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
from lock_manager.guard_registry import declare_installed
from soak.controls import Protection, make_guard, make_manager
from soak.errors import JvmGoneError
from soak.jvm import StoreJvm
from soak.stall import SCHEMA
from soak.steps import Steps

_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """What a writer is told at its start.

    Attributes:
        name: ``writer-3``.
        incarnation: how many writers of the run were started before this one; makes its row ids unique.
        table: URI.
        hosts: of ZooKeeper, through this writer's own link.
        session_timeout_seconds: of its session.
        hadoop: Hadoop's settings.
        without: the protection to leave out.
        rows: per commit.
        seed: of the steps that it takes; see :mod:`soak.steps`.
        engine: ``store`` or ``spark``.
        hold: of whole Spark drivers: ``commit`` or ``write``.
        log: file for what its JVM says.

    """

    name: str
    incarnation: int
    table: str
    hosts: str
    session_timeout_seconds: float
    hadoop: dict[str, str]
    without: str | None
    rows: int
    seed: int = 1
    engine: str = "store"
    hold: str = "commit"
    log: str

    def argument(self) -> str:
        """Return it as an argument for the command line."""
        return json.dumps(asdict(self))


class Worker(ABC):
    """The state of the process, whatever it commits with.

    Args:
        options: what it was told.
        output: file descriptor for the history.

    """

    def __init__(self, options: WorkerOptions, output: int = 1) -> None:
        self.options = options
        self._output = output
        self.without = Protection(options.without) if options.without else None
        self.table = options.table
        self.finished = False
        self.ids = itertools.count((options.incarnation + 1) * 10**12)
        self._stop_at: set[str] = set()
        self._stopped_at: str | None = None
        self._stops = threading.Lock()
        #: Whether a step commits to a table of its own: no point is reached then.
        self.takes_step = False
        self._go = threading.Event()
        self._close = threading.Event()
        self.first_is_through = threading.Event()
        self._second: threading.Thread | None = None
        #: Table of the first thread, and token of its hold if it has one.
        self.held: dict[str, Any] = {}
        self._say = threading.Lock()
        self.guard = make_guard(self.without, lambda: self.point("checked"), self.asked)
        threading.Thread(target=self._listen, daemon=True).start()
        self.jvm_pid = self.start_jvm()
        self.manager = self._make_manager(options.session_timeout_seconds)
        name = f"{options.name}/{options.incarnation}"
        self.steps = Steps(name, options.seed, self._make_manager, self.without)

    def _make_manager(self, session_seconds: float) -> LockManager:
        return make_manager(
            self.without,
            self.options.hosts,
            timeout_seconds=600,
            session_timeout_seconds=session_seconds,
            job=self.options.name,
        )

    @abstractmethod
    def start_jvm(self) -> int:
        """Start the JVM with what commits; return its process id."""

    @abstractmethod
    def warm_up(self) -> None:
        """Load what the first look at a table loads, before any lock waits for it."""

    @abstractmethod
    def cycle(self, *, second: bool) -> None:
        """Take the lock once, and commit."""

    @abstractmethod
    def end_jvm(self) -> None:
        """End the JVM."""

    def asked(self, request: Mapping[str, Any]) -> None:  # noqa: B027 (most need not know)
        """Hear what the log store asks the guard, before it is answered."""

    def thread(self, work: Callable[[], None]) -> threading.Thread:
        """Return a thread for a second hold."""
        return threading.Thread(target=work, daemon=True)

    def say(self, event: str, **more: Any) -> None:
        """Write one line of the history; it is whole, and out, when this returns."""
        line = {"event": event, "wall": time.time(), "monotonic": time.monotonic(), **more}
        with self._say:
            os.write(self._output, (json.dumps(line) + "\n").encode())

    def point(self, name: str) -> None:
        """Stop here, if that was asked for, until told to go on."""
        with self._stops:
            if name not in self._stop_at or self.takes_step:
                return
            self._stop_at.discard(name)
            self._stopped_at = name
            self._go.clear()
        self.say("stopped", point=name, **self.held)
        self._go.wait()
        self._stopped_at = None

    def run(self) -> None:
        """Commit until told to finish, and end when told to close."""
        self.warm_up()
        self.manager.connect(60)
        granted = self.manager.session_timeout_seconds
        self.say("ready", python=os.getpid(), jvm=self.jvm_pid, session_seconds=granted)
        while not self.finished:
            self.first_is_through.clear()
            try:
                self.cycle(second=False)
            except JvmGoneError as error:
                self.say("jvm-gone", message=str(error))
                self.manager.close()
                return
            except SluiceError as error:
                self.say("gave-up", error=type(error).__name__, message=str(error))
                time.sleep(_PAUSE_SECONDS)
            self._join_second()
        # With the session open: what is in a queue now was left there.
        self.say("idle")
        self._close.wait()
        self.steps.close()
        self.manager.close()
        self.end_jvm()
        self.say("finished")

    def _start_second(self) -> None:
        """Have another thread of this process take the lock and commit, while the first one is stopped."""

        def work() -> None:
            try:
                self.cycle(second=True)
            except SluiceError as error:
                self.say("gave-up", thread=2, error=type(error).__name__, message=str(error))

        self._second = self.thread(work)
        self._second.start()

    def _join_second(self) -> None:
        # The JVM of a StoreWorker serves one thread at a time; see there.
        self.first_is_through.set()
        if self._second is not None:
            self._second.join()
            self._second = None

    def _cancel(self) -> None:
        with suppress(SluiceError):
            self.manager.cancel(self.held["table"])

    def _set_stop(self, point: str, *, stops: bool) -> None:
        with self._stops:
            if stops:
                self._stop_at.add(point)
                return
            self._stop_at.discard(point)
            if self._stopped_at == point:
                self._go.set()

    def _listen(self) -> None:
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word in ("stop-at", "pass"):
                self._set_stop(rest, stops=word == "stop-at")
            elif word == "go":
                self._go.set()
            elif word == "cancel":
                self._cancel()
            elif word == "second":
                self._start_second()
            elif word == "table":
                self.table = rest
            elif word == "finish":
                self.finished = True
                self._stop_at.clear()
            elif word == "close":
                self._close.set()


class StoreWorker(Worker):
    """A writer whose JVM has the guarded log store, and no Spark."""

    def start_jvm(self) -> int:
        """Start the JVM; return its process id."""
        guarded = self.without is not Protection.GUARD
        if guarded:
            # The only log store that it has asks the guard. So partitions can be locked, as the step does that stalls.
            declare_installed(lambda _: SCHEMA)
        self.jvm = StoreJvm(
            hadoop=self.options.hadoop,
            guard=self.guard,
            mode="required" if guarded else "off",
            conditional=self.without is not Protection.CONDITION,
            errors=Path(self.options.log),
        )
        return self.jvm.pid

    def warm_up(self) -> None:
        """Load what the first list loads."""
        self.jvm.warm_up(self.table)

    def end_jvm(self) -> None:
        """End the JVM."""
        self.jvm.close()


def quiet() -> None:
    """Have libraries say errors only, and ZooKeeper's client less than that: faults are what is wanted here."""
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
