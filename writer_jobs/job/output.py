"""The output of a job: JSON lines on standard output, a sentence on standard error, and a report in a file."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Any

from pyspark import SparkContext

from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.delta.session import driver_conf, running_session
from writer_jobs.late_rows.result import COUNTERS as ROW_COUNTERS
from writer_jobs.merge.result import COUNTERS
from writer_jobs.progress import clear_line

# The report of a stream has this many of its last commits. A stream can make millions.
_MAX_REPORTED_COMMITS = 20
_COUNTERS = dict.fromkeys((*COUNTERS, *ROW_COUNTERS))


class JvmStandardError(io.TextIOBase):
    """The standard error of the driver's JVM.

    ``spark-submit`` redirects Python's standard error to its standard output (``PythonRunner``), which would mix
    sentences, warnings and stack traces with the JSON lines.
    """

    def __init__(self) -> None:
        self._state = threading.local()

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Print a text at once. If the JVM is gone, the text is dropped: nothing else reads Python's output."""
        if text and not getattr(self._state, "is_writing", False):
            # The call of the JVM can log, and a log handler can write here. Such a nested text is dropped.
            self._state.is_writing = True
            try:
                with suppress(*JVM_ERRORS):
                    SparkContext._ensure_initialized()  # noqa: SLF001 (connects to the JVM, starts nothing)
                    jvm = SparkContext._jvm  # noqa: SLF001
                    jvm.java.lang.System.err.print(text)
            finally:
                self._state.is_writing = False
        return len(text)


class JobOutput:
    """The JSON lines of a job, and the commits for its report.

    ``commit_count`` is the number of commits. If it is None, the report has the last commits, and totals.
    """

    def __init__(self, commit_count: int | None) -> None:
        self._commits: deque[dict[str, Any]] = deque(maxlen=_MAX_REPORTED_COMMITS if commit_count is None else None)
        self._totals: Counter[str] = Counter()
        self._commit_count = commit_count
        self._last_committed = 0

    @property
    def report_fields(self) -> dict[str, Any]:
        """Fields of the report about the commits so far."""
        commits = {"commits": list(self._commits)}
        return commits if self._commit_count is not None else {**commits, "totals": dict(self._totals)}

    def begun(self, commit: int, begun_at: float, **fields: Any) -> None:
        """Print that the work on a commit has started. The lock is requested now, or when the rows are written."""
        self.event("begun", commit=commit, commits=self._commit_count, begun_at=begun_at, **fields)

    def holding(self, commit: int, token: int, acquired_at: float, **fields: Any) -> None:
        """Print that the lock is held."""
        count = self._commit_count
        self.event("holding", commit=commit, commits=count, token=token, acquired_at=acquired_at, **fields)

    def commit(self, commit: int, result: CommitResult | None, **fields: Any) -> None:
        """Print a commit with the job's counts.

        ``commit`` is its number, from 1. ``result`` is None without a write: the table already had the commit or, with
        ``already_committed=False``, there was nothing to commit.
        """
        names = ("token", "hold_id", "commit_id", "requested_at", "acquired_at", "released_at")
        line = {
            "commit": commit,
            "commits": self._commit_count,
            "version": result.version if result else None,
            "rows": result.rows if result else None,
            "already_committed": result.already_committed if result else True,
            "waited_s": round(result.waited_seconds, 6) if result else 0.0,
            "held_s": round(result.held_seconds, 6) if result else 0.0,
            **{name: getattr(result, name, None) for name in names},
            **fields,
        }
        self._commits.append({"event": "commit", **line})
        if line["version"] is not None or line["already_committed"]:
            self._last_committed = commit
        self._totals["commits"] += 1
        self._totals.update({name: line[name] for name in _COUNTERS if line.get(name) is not None})
        self.event("commit", **line)

    def event(self, event: str, **fields: Any) -> None:
        """Print an event; its fields are JSON values."""
        clear_line()
        try:
            print(json.dumps({"event": event, **fields}), flush=True)
        except BrokenPipeError:
            # The reader is gone. The load continues; the exit code and the report have its outcome.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (as long as the process)

    def committed_suffix(self) -> str:
        """Return the end of an error's sentence, which states the commits in the table; empty if there are none."""
        if not self._last_committed:
            return ""
        total = "" if self._commit_count is None else f" of {self._commit_count}"
        commits = f"commits 1 to {self._last_committed}{total} are" if self._last_committed > 1 else "commit 1 is"
        return f" ({commits} in the table)"


def driver_files() -> HadoopFiles:
    """Return the file systems of this driver, without starting a session."""
    session = running_session()
    return HadoopFiles.without_session(driver_conf()) if session is None else HadoopFiles.of(session)


class Report:
    """The JSON report for schedulers that do not get the exit code. ``exit_code`` is null until the end.

    Args:
        uri: The report's file; None for no report.
        table: The table as the arguments name it.
        fields: More fields that are known at the start of the job; JSON values.

    """

    def __init__(self, uri: str | None, *, table: str | None = None, **fields: Any) -> None:
        self._uri = uri
        self._fields = {
            "exit_code": None,
            "error": None,
            "table": table,
            **fields,
            "application": None,
            "started_at": time.time(),
            "finished_at": None,
            "commits": [],
        }
        #: Whether the last write failed.
        self.write_failed = False

    def write(self, **fields: Any) -> None:
        """Add fields, and write the report if the arguments have a URI for it.

        Raises:
            StorageError: The report cannot be written.

        """
        if self._uri is None:
            return
        self._fields |= fields
        self.write_failed = True
        driver_files().write_text(self._uri, json.dumps(self._fields, indent=1) + "\n")
        self.write_failed = False
