"""The writers of a soak as processes, and methods that disturb them from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import lock_manager
from lock_manager.testing.embedded import send_signal
from soak.engines import ENGINES
from soak.tcp_proxy import Link
from soak.worker import WorkerOptions

_SUPERVISOR = Path(__file__).with_name("_supervise_group.py")
_GRACE_SECONDS = 5.0

Events = SimpleQueue[dict[str, Any]]
"""Events of all writers: lines of the history with ``worker`` and ``incarnation``; each process ends with ``ended``."""


class WriterProcess:
    """A running writer: Python and its JVM. Both end with this process, even if it is killed.

    Args:
        options: Options of the writer.
        environment: Environment variables in addition to those of this process.
        link: Its connection to the coordinator; None if the run cannot disturb it.
        s3_link: Connection of its JVM to the embedded S3; None with another S3.
        events: Receives its events.

    Attributes:
        name: Name of the writer.
        options: Options of the writer.
        link: Its connection to the coordinator; :meth:`end` closes it.
        s3_link: Connection of its JVM to the embedded S3; :meth:`end` closes it.
        python: Process id of Python; None until the writer is ready.
        jvm: Process id of the JVM; None until the writer is ready.

    """

    def __init__(
        self,
        options: WorkerOptions,
        environment: Mapping[str, str],
        link: Link | None,
        s3_link: Link | None,
        events: Events,
    ) -> None:
        self.name = options.name
        self.options = options
        self.link = link
        self.s3_link = s3_link
        self.python: int | None = None
        self.jvm: int | None = None
        self._events = events
        root = str(Path(lock_manager.__file__).parents[1])
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        with Path(options.log).open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), sys.executable, "-m", ENGINES[options.engine].program,
                 options.argument()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, "PYTHONPATH": path, **environment},
                # The group can be killed as a whole, and a Ctrl-C at the terminal does not reach it.
                start_new_session=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name=self.name, daemon=True)
        self._reader.start()

    def send(self, command: str) -> None:
        """Send a command to the writer; see :mod:`soak.worker`."""
        assert self._process.stdin is not None  # noqa: S101 (stdin=PIPE)
        with suppress(OSError):
            self._process.stdin.write(command.encode() + b"\n")
            self._process.stdin.flush()

    def signal(self, number: signal.Signals, *, python: bool, jvm: bool) -> None:
        """Send a signal to its Python, to its JVM or to both; see :func:`lock_manager.testing.embedded.send_signal`."""
        for pid in (self.python if python else None, self.jvm if jvm else None):
            if pid is not None:
                send_signal(pid, number)

    def end(self) -> None:
        """Kill the writer and its JVM, even if they are stopped."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join(_GRACE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        for link in (self.link, self.s3_link):
            if link is not None:
                link.close()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 (stdout=PIPE)
        origin = {"worker": self.name, "incarnation": self.options.incarnation}
        for line in self._process.stdout:
            # A writer may be killed in the middle of a line.
            with suppress(ValueError):
                event = json.loads(line)
                if event["event"] == "ready":
                    self.python, self.jvm = event["python"], event["jvm"]
                self._events.put({**event, **origin})
        self._events.put({"event": "ended", **origin})
