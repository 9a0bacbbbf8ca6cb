"""One writer of a soak: a process that commits over and over, and says in JSON lines what it does.

``python -m sluice.soak.worker OPTIONS``, started by :mod:`sluice.soak.processes`. On standard input it is told where to
stop for a fault (``stop-at POINT``), to go on (``go``), to have a second thread commit (``second``), which table to
write (``table URI``) and to end (``finish``).
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lock_manager import SluiceError, ZookeeperLockManager
from sluice.soak.controls import Protection, make_guard
from sluice.soak.cycle import Cycle
from sluice.soak.jvm import JvmGoneError, StoreJvm

_PAUSE_SECONDS = 0.1
POINTS = ("acquired", "read", "data", "checked", "stored")
"""Where a writer can be stopped: it has the lock; it has read; its data files are there; the guard has said yes and the
log store does not know it yet; the version is stored and nobody was told."""


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
    log: str

    def argument(self) -> str:
        """Return it as an argument for the command line."""
        return json.dumps(asdict(self))


class Worker:
    """The state of the process."""

    def __init__(self, options: WorkerOptions) -> None:
        self.options = options
        self.without = Protection(options.without) if options.without else None
        self.table = options.table
        self.finished = False
        self.ids = itertools.count((options.incarnation + 1) * 10**12)
        self._stop_at: str | None = None
        self._go = threading.Event()
        self.first_is_through = threading.Event()
        self._second: threading.Thread | None = None
        #: Table and token of the first thread's hold.
        self.held: dict[str, Any] = {}
        self._say = threading.Lock()
        self.guard = make_guard(self.without, lambda: self.point("checked"))
        threading.Thread(target=self._listen, daemon=True).start()
        self.jvm = StoreJvm(
            hadoop=options.hadoop,
            guard=self.guard,
            mode="off" if self.without is Protection.GUARD else "required",
            conditional=self.without is not Protection.CONDITION,
            errors=Path(options.log),
        )
        self.manager = ZookeeperLockManager(
            options.hosts,
            timeout_seconds=600,
            session_timeout_seconds=options.session_timeout_seconds,
            job=options.name,
        )

    def say(self, event: str, **more: Any) -> None:
        """Write one line of the history; it is whole, and out, when this returns."""
        line = {"event": event, "wall": time.time(), "monotonic": time.monotonic(), **more}
        with self._say:
            os.write(1, (json.dumps(line) + "\n").encode())

    def point(self, name: str) -> None:
        """Stop here, if that was asked for, until told to go on."""
        if self._stop_at == name:
            self._stop_at = None
            self._go.clear()
            self.say("stopped", point=name, **self.held)
            self._go.wait()

    def run(self) -> None:
        """Commit until told to end."""
        self.jvm.warm_up(self.table)
        self.manager.connect(60)
        self.say("ready", python=os.getpid(), jvm=self.jvm.pid)
        while not self.finished:
            self.first_is_through.clear()
            try:
                Cycle(self, self.table).run()
            except JvmGoneError as error:
                self.say("jvm-gone", message=str(error))
                self.manager.close()
                return
            except SluiceError as error:
                self.say("gave-up", error=type(error).__name__, message=str(error))
                time.sleep(_PAUSE_SECONDS)
            self._join_second()
        self.manager.close()
        self.jvm.close()
        self.say("finished")

    def _start_second(self) -> None:
        """Have another thread of this process take the lock and commit, while the first one is stopped."""

        def work() -> None:
            try:
                Cycle(self, self.table, second=True).run()
            except SluiceError as error:
                self.say("gave-up", thread=2, error=type(error).__name__, message=str(error))

        self._second = threading.Thread(target=work, daemon=True)
        self._second.start()

    def _join_second(self) -> None:
        # The JVM serves one thread at a time; see there.
        self.first_is_through.set()
        if self._second is not None:
            self._second.join()
            self._second = None

    def _listen(self) -> None:
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "stop-at":
                self._stop_at = rest
            elif word == "go":
                self._go.set()
            elif word == "second":
                self._start_second()
            elif word == "table":
                self.table = rest
            elif word == "finish":
                self.finished = True
                self._stop_at = None


def main() -> None:
    """Run with the options in the first argument."""
    logging.basicConfig(level=logging.ERROR)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    Worker(WorkerOptions(**json.loads(sys.argv[1]))).run()
    os._exit(0)


if __name__ == "__main__":
    main()
