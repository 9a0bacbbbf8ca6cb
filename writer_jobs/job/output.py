"""What a job says: JSON lines on standard output, one sentence on standard error, a report in a file."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections import Counter, deque
from contextlib import suppress
from typing import Any

from pyspark import SparkContext

from writer_jobs.commit.held_write import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.delta.session import driver_conf, running_session
from writer_jobs.late_rows.result import COUNTERS as COUNTED_OF_ROWS
from writer_jobs.merge.result import COUNTERS

# A stream may make millions.
_LAST = 20
_COUNTED = dict.fromkeys((*COUNTERS, *COUNTED_OF_ROWS))


def under_spark_submit() -> bool:
    """Tell whether this Python is the child of a JVM that ``spark-submit`` started."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class JvmStandardError(io.TextIOBase):
    """Standard error of the driver's JVM, for a Python whose own was joined to its standard output.

    ``spark-submit`` does that (``PythonRunner`` redirects the error stream), which would put sentences, warnings and
    stack traces between the JSON lines.
    """

    def __init__(self) -> None:
        self._busy = threading.local()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Print ``text`` there at once; drop it if the JVM is gone, for then nobody listens to the pipe either."""
        if text and not getattr(self._busy, "writing", False):
            # py4j logs, and a handler for that may write here.
            self._busy.writing = True
            try:
                with suppress(*JVM_ERRORS):
                    SparkContext._ensure_initialized()  # noqa: SLF001 (connects to the JVM, starts nothing)
                    jvm = SparkContext._jvm  # noqa: SLF001
                    jvm.java.lang.System.err.print(text)
            finally:
                self._busy.writing = False
        return len(text)


class JobOutput:
    """The lines of a job that makes a number of commits, and its report.

    Args:
        commits: how many it is to make; None: a stream, of which the report has the last ones and totals.

    """

    def __init__(self, commits: int | None) -> None:
        self._commits: deque[dict[str, Any]] = deque(maxlen=_LAST if commits is None else None)
        self._totals: Counter[str] = Counter()
        self._number = commits
        self._last_committed = 0

    @property
    def made(self) -> dict[str, Any]:
        """What the report says of the commits."""
        commits = {"commits": list(self._commits)}
        return commits if self._number is not None else {**commits, "totals": dict(self._totals)}

    def begun(self, commit: int, begun_at: float, **more: Any) -> None:
        """Print that the work on a commit has begun; its lock is requested now, or when its rows are written."""
        self._line(event="begun", commit=commit, commits=self._number, begun_at=begun_at, **more)

    def holding(self, commit: int, token: int, acquired_at: float, **more: Any) -> None:
        """Say that the lock is held."""
        self._line(event="holding", commit=commit, commits=self._number, token=token, acquired_at=acquired_at, **more)

    def commit(self, commit: int, result: CommitResult | None, **more: Any) -> None:
        """Say that a commit was made; None: that it was found in the table, without asking for the lock.

        Args:
            commit: its number, from 1.
            result: of the write.
            more: what else the job counts; JSON values.

        """
        line = {
            "event": "commit",
            "commit": commit,
            "commits": self._number,
            "version": result.version if result else None,
            "rows": result.rows if result else None,
            "already_committed": result.already_committed if result else True,
            "waited_s": round(result.waited_seconds, 6) if result else 0.0,
            "held_s": round(result.held_seconds, 6) if result else 0.0,
            "token": result.token if result else None,
            "hold_id": result.hold_id if result else None,
            "commit_id": result.commit_id if result else None,
            "requested_at": result.requested_at if result else None,
            "acquired_at": result.acquired_at if result else None,
            "released_at": result.released_at if result else None,
            **more,
        }
        self._commits.append(line)
        if line["version"] is not None or line["already_committed"]:
            self._last_committed = commit
        self._totals["commits"] += 1
        self._totals.update({name: line[name] for name in _COUNTED if line.get(name) is not None})
        self._line(**line)

    def said(self, event: str, **fields: Any) -> None:
        """Say what is no commit of a table; JSON values."""
        self._line(event=event, **fields)

    def made_before(self) -> str:
        """Return which commits are in the table, for the end of an error's sentence; empty if none are."""
        if not self._last_committed:
            return ""
        last, of = self._last_committed, "" if self._number is None else f" of {self._number}"
        several = f"commits 1 to {last}{of} are" if last > 1 else "commit 1 is"
        return f" ({several} in the table)"

    def _line(self, **fields: Any) -> None:
        try:
            print(json.dumps(fields), flush=True)
        except BrokenPipeError:
            # Nobody reads any more. The load goes on; its outcome is in the exit code and the report.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (as long as the process)


def driver_files() -> HadoopFiles:
    """Return the file systems that this driver can reach; no session is started."""
    running = running_session()
    return HadoopFiles.without_session(driver_conf()) if running is None else HadoopFiles.of(running)


class Report:
    """The outcome in a JSON file, for schedulers that do not get the exit code. ``exit_code`` is null until the end.

    Args:
        uri: any place that Spark can write to.
        facts: what is known from the start.

    """

    def __init__(self, uri: str, facts: dict[str, Any]) -> None:
        self._uri = uri
        self._facts = facts
        #: Whether it could not be written the last time.
        self.failed = False

    def write(self, **facts: Any) -> None:
        """Write what is known by now.

        Raises:
            StorageError: it cannot be written.

        """
        self._facts |= facts
        self.failed = True
        driver_files().write_text(self._uri, json.dumps(self._facts, indent=1) + "\n")
        self.failed = False
