"""A job under ``spark-submit``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any


class SubmittedJob:
    """A running job: its output so far, and methods to wait for its end or to kill it."""

    def __init__(self, program: str, command: list[str], environment: dict[str, str], errors: Path) -> None:
        self._program = program
        self._errors = errors
        self.lines: list[str] = []
        with errors.open("w") as stderr:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, start_new_session=True
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            self.lines.extend(iter(stream.readline, ""))

    def __contains__(self, event_and_commit: tuple[str, int]) -> bool:
        return event_and_commit in [(event["event"], event["commit"]) for event in self.events]

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in list(self.lines)]

    @property
    def commits(self) -> list[dict[str, Any]]:
        return [event for event in self.events if event["event"] == "commit"]

    @property
    def python_pid(self) -> int:
        """Id of the process that runs the program. Its parent is the JVM, which starts other processes, too."""
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(FileNotFoundError, ProcessLookupError):
                name, _, fields = (folder / "stat").read_text().rpartition(")")
                words = (folder / "cmdline").read_text().split("\0")
                if int(fields.split()[1]) == self.process.pid and "(python" in name and self._program in words[1]:
                    pids.append(int(folder.name))
        (python,) = pids
        return python

    def wait(self, seconds: float = 300) -> int:
        code = self.process.wait(seconds)
        self._reader.join(10)
        return code

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.wait()

    @property
    def error(self) -> str:
        return self._errors.read_text()

    @property
    def error_lines(self) -> list[str]:
        """The job's own lines on standard error, without those of Spark."""
        return [line for line in self.error.splitlines() if line.startswith(f"{self._program}: ")]
