"""The demo's writers: each is a ``spark-submit`` in its own process group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import lock_manager
from lock_manager.security import ENVIRONMENT_PREFIX as SECURITY_PREFIX
from lock_manager.testing.embedded import SUPERVISOR
from sluice.errors import SparkSubmitError
from sluice.local.jars import jar_paths
from sluice.local.spark import LOCAL_DRIVER, QUICK_JVM

_GRACE_SECONDS = 5.0
_LAST_WORDS = 12
_NOTHING = 0  # as a signal: asks whether somebody is there

Events = SimpleQueue[tuple[int, dict[str, Any]]]
"""What processes say: the writer's number and one JSON object; ``{"event": "exit", "code": …}`` is the last one."""


def spark_submit() -> Path:
    """Return PySpark's own ``spark-submit`` (or that of ``$SPARK_HOME``).

    Raises:
        SparkSubmitError: there is none.

    """
    home = os.environ.get("SPARK_HOME")
    spec = None if home else find_spec("pyspark")
    base = Path(home) if home else Path(spec.origin).parent if spec and spec.origin else None
    if base is None or not (base / "bin" / "spark-submit").is_file():
        raise SparkSubmitError("PySpark was not found: pip install '.[spark]' in a clone of Sluice, or set SPARK_HOME")
    return base / "bin" / "spark-submit"


def submit_command(
    job: Path, arguments: Sequence[str], *, conf: Mapping[str, str], memory: str = "1g", cores: int = 1
) -> list[str]:
    """Return the command that runs a job on this machine, in a driver with the pinned jars."""
    settings = {
        **LOCAL_DRIVER,
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        **conf,
    }
    return [
        str(spark_submit()),
        "--master", f"local[{cores}]",
        "--driver-memory", memory,
        "--jars", ",".join(map(str, jar_paths())),
        *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
        str(job),
        *arguments,
    ]  # fmt: skip


class WriterProcess:
    """A running ``spark-submit``. It ends with this process, however this process ends.

    Args:
        number: of the writer, from 1; goes with everything that it says.
        command: to run.
        environment: variables for it, beside those of this process.
        folder: gets ``writer-N.out`` and ``writer-N.err``.
        events: gets the JSON objects that it prints, and its end.

    """

    def __init__(
        self, number: int, command: Sequence[str], environment: Mapping[str, str], folder: Path, events: Events
    ) -> None:
        self.number = number
        self.errors = folder / f"writer-{number}.err"
        self.output = folder / f"writer-{number}.out"
        self._events = events
        with self.errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(SUPERVISOR), *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**_own_environment(), **_python_environment(), **environment},
                # A Ctrl-C at the terminal is for this process, which then ends the writers, and with each of them
                # its group: spark-submit's JVM and the JVM's Python.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"writer-{number}", daemon=True)
        self._reader.start()

    @property
    def last_words(self) -> list[str]:
        """The last lines that it wrote on standard error."""
        return self.errors.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-_LAST_WORDS:]

    def signal(self, number: int) -> bool:
        """Send a signal to it and to everything that it started; tell whether any of that was still there."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
            return True
        return False

    def reap(self, deadline: float) -> None:
        """Wait until it and everything that it started are gone; after ``deadline`` (monotonic) with SIGKILL."""
        while self._process.poll() is None or self.signal(_NOTHING):
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
                self._process.wait()
                break
            time.sleep(0.02)
        self._reader.join(_GRACE_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 (a pipe was asked for)
        with self.output.open("wb") as output:
            for line in self._process.stdout:
                output.write(line)
                output.flush()
                with suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict):
                        self._events.put((self.number, event))
        self._events.put((self.number, {"event": "exit", "code": self._process.wait()}))


def end_processes(processes: Sequence[WriterProcess]) -> None:
    """End all of them, and everything that they started: SIGTERM, and SIGKILL for what is left after 5 s."""
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        process.reap(deadline)


def _own_environment() -> dict[str, str]:
    """Return this process's environment without the user's credentials: the demo's ZooKeeper knows nobody."""
    return {name: value for name, value in os.environ.items() if not name.startswith(SECURITY_PREFIX)}


def _python_environment() -> dict[str, str]:
    """Return what makes a driver run this very Python with these very packages, installed or in a checkout."""
    here = str(Path(lock_manager.__file__).parents[1])
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
