"""A soak's writers as processes, and what can be done to them from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import lock_manager
from sluice.soak.engines import ENGINES
from sluice.soak.tcp_proxy import Link
from sluice.soak.worker import WorkerOptions

_KEEPER = Path(__file__).with_name("_keeper.py")
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.001
_GRACE_SECONDS = 5.0

Events = SimpleQueue[dict[str, Any]]
"""What writers say: each line of the history, with ``worker`` and ``incarnation``; ``ended`` is the last one."""


class WriterProcess:
    """A running writer: Python, and its JVM. Both end with this process, however this process ends.

    Args:
        options: for it.
        environment: variables for it, beside those of this process.
        link: its way to ZooKeeper.
        events: gets what it says.

    Attributes:
        name: of the writer.
        options: as given.
        link: as given; closed with it.
        python: process id, None before it is ready.
        jvm: likewise of its JVM.

    """

    def __init__(self, options: WorkerOptions, environment: Mapping[str, str], link: Link, events: Events) -> None:
        self.name = options.name
        self.options = options
        self.link = link
        self.python: int | None = None
        self.jvm: int | None = None
        self._events = events
        here = str(Path(lock_manager.__file__).parents[1])
        path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        with Path(options.log).open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_KEEPER), sys.executable, "-m", ENGINES[options.engine].program,
                 options.argument()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                env={**os.environ, "PYTHONPATH": path, **environment},
                # A group of its own, so that it can be ended as a whole, and not by a Ctrl-C at the terminal.
                start_new_session=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name=self.name, daemon=True)
        self._reader.start()

    def tell(self, words: str) -> None:
        """Write a line to it: see :mod:`sluice.soak.worker`."""
        assert self._process.stdin is not None  # noqa: S101 (a pipe was asked for)
        with suppress(OSError):
            self._process.stdin.write(words.encode() + b"\n")
            self._process.stdin.flush()

    def signal(self, number: signal.Signals, *, python: bool, jvm: bool) -> None:
        """Send a signal to its Python, to its JVM or to both; see :func:`send_signal`."""
        for pid in (self.python if python else None, self.jvm if jvm else None):
            if pid is not None:
                send_signal(pid, number)

    def join(self, timeout_seconds: float) -> bool:
        """Wait until its Python has ended; tell whether it has."""
        self._reader.join(timeout_seconds)
        return not self._reader.is_alive()

    def end(self) -> None:
        """End it and its JVM, whatever state they are in."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_GRACE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.link.close()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 (a pipe was asked for)
        origin = {"worker": self.name, "incarnation": self.options.incarnation}
        for line in self._process.stdout:
            # A writer may be killed in the middle of a line.
            with suppress(ValueError):
                said = json.loads(line)
                if said["event"] == "ready":
                    self.python, self.jvm = said["python"], said["jvm"]
                self._events.put({**said, **origin})
        self._events.put({"event": "ended", **origin})


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal, if the process is there; with SIGSTOP, return when all of its threads stand still.

    One thread takes the signal, when it gets a processor, and stops the others: until then they may act.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        deadline = time.monotonic() + _STOP_SECONDS
        while number is signal.SIGSTOP and not _stands_still(pid) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def _stands_still(pid: int) -> bool:
    # The state follows the name, which is in parentheses: stopped, or over already.
    states = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(ProcessLookupError, FileNotFoundError):
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return all(state in "TtZX" for state in states)
