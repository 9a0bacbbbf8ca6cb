"""The processes of the demo's writers. Each is a ``spark-submit`` in its own process group."""

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
from sluice.local.spark import LOCAL_DRIVER, QUICK_JVM
from sluice.submit.distribution import conf_arguments, jar_arguments

#: Folder of the packages of this distribution.
PACKAGES = Path(lock_manager.__file__).parents[1]
_GRACE_SECONDS = 5.0

#: Events of writers: the writer's number and one JSON object. The last one is ``{"event": "exit", "code": …}``.
Events = SimpleQueue[tuple[int, dict[str, Any]]]


def spark_submit() -> Path:
    """Return the path of ``spark-submit``: of ``$SPARK_HOME`` if it is set, else of PySpark.

    Raises:
        SparkSubmitError: ``spark-submit`` was not found.

    """
    home = os.environ.get("SPARK_HOME")
    spec = None if home else find_spec("pyspark")
    base = Path(home) if home else Path(spec.origin).parent if spec and spec.origin else None
    if base is not None and (base / "bin" / "spark-submit").is_file():
        return base / "bin" / "spark-submit"
    if home:
        raise SparkSubmitError(f"SPARK_HOME={home} has no bin/spark-submit: correct it or unset it")
    raise SparkSubmitError("PySpark was not found: pip install '.[spark]' in a clone of Sluice, or set SPARK_HOME")


def submit_command(job: Path, arguments: Sequence[str], *, conf: Mapping[str, str]) -> list[str]:
    """Return the command that runs a job in a local driver with the pinned jars. ``conf`` overrides the defaults."""
    settings = {**LOCAL_DRIVER, "spark.sql.shuffle.partitions": "1", "spark.driver.extraJavaOptions": QUICK_JVM, **conf}
    return [
        str(spark_submit()),
        "--master", "local[1]",
        "--driver-memory", "1g",
        *jar_arguments(),
        *conf_arguments(settings),
        str(job),
        *arguments,
    ]  # fmt: skip


class WriterProcess:
    """A running ``spark-submit``. It ends with this process, even if this process is killed.

    Args:
        number: Number of the writer, from 1. Each of its events in the queue is paired with it.
        command: Command line to start.
        environment: Environment variables in addition to those of this process, except for ZooKeeper's credentials.
        folder: Folder for ``writer-N.out`` and ``writer-N.err``.
        events: Queue for the JSON objects that the process prints, and for its exit.

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
                env={**_environment(), **environment},
                # Ctrl-C at the terminal must reach only this process, which then ends the process group of each writer:
                # spark-submit's JVM and the JVM's Python.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"writer-{number}", daemon=True)
        self._reader.start()

    @property
    def stderr_tail(self) -> list[str]:
        """The last 12 lines of its standard error."""
        return self.errors.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-12:]

    def signal(self, number: int) -> bool:
        """Send a signal to its process group. Return whether the group exists."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
            return True
        return False

    def reap(self, deadline: float) -> None:
        """Wait until its process group has ended. Send SIGKILL after ``deadline`` (of ``time.monotonic``)."""
        # Signal 0 tests whether the process group exists.
        while self._process.poll() is None or self.signal(0):
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
        assert self._process.stdout is not None  # noqa: S101 (it is a pipe)
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
    """End the process groups of all writers: by SIGTERM, and by SIGKILL after 5 s."""
    for process in processes:
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + _GRACE_SECONDS
    for process in processes:
        process.reap(deadline)


def _environment() -> dict[str, str]:
    """Return this process's environment, changed so that a driver uses this Python and these packages.

    ZooKeeper credentials are removed, because the demo's ZooKeeper would refuse them.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith(SECURITY_PREFIX)} | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PACKAGES), os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
