"""The output of a job: JSON lines on standard output, a sentence on standard error, and a report in a file."""

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

from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.delta.session import driver_conf, running_session
from writer_jobs.late_rows.result import COUNTERS as COUNTED_OF_ROWS
from writer_jobs.merge.result import COUNTERS

# Commits of a stream in its report. A stream can make millions.
_MOST_REPORTED = 20
_COUNTED = dict.fromkeys((*COUNTERS, *COUNTED_OF_ROWS))


def under_spark_submit() -> bool:
    """Return whether ``spark-submit`` started this Python process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


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
        """Print a text at once. Without the JVM, which reads Python's pipe, the text is dropped."""
        if text and not getattr(self._state, "is_writing", False):
            # py4j logs, and a handler of its log can write here.
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

    Args:
        commits: Number of commits that the job makes; None for a stream, whose report has its last commits and totals.

    """

    def __init__(self, commits: int | None) -> None:
        self._commits: deque[dict[str, Any]] = deque(maxlen=_MOST_REPORTED if commits is None else None)
        self._totals: Counter[str] = Counter()
        self._commit_count = commits
        self._last_committed = 0

    @property
    def report_fields(self) -> dict[str, Any]:
        """Fields of the report about the commits so far."""
        commits = {"commits": list(self._commits)}
        return commits if self._commit_count is not None else {**commits, "totals": dict(self._totals)}

    def begun(self, commit: int, begun_at: float, **fields: Any) -> None:
        """Print that the work on a commit has started. The lock is requested now, or when the rows are written."""
        self._print(event="begun", commit=commit, commits=self._commit_count, begun_at=begun_at, **fields)

    def holding(self, commit: int, token: int, acquired_at: float, **fields: Any) -> None:
        """Print that the lock is held."""
        self._print(
            event="holding", commit=commit, commits=self._commit_count, token=token, acquired_at=acquired_at, **fields
        )

    def commit(self, commit: int, result: CommitResult | None, **fields: Any) -> None:
        """Print a commit.

        Args:
            commit: Number of the commit, from 1.
            result: Result of the write; None for a commit that the table already had, found without the lock.
            fields: Counts of the job; JSON values.

        """
        line = {
            "event": "commit",
            "commit": commit,
            "commits": self._commit_count,
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
            **fields,
        }
        self._commits.append(line)
        if line["version"] is not None or line["already_committed"]:
            self._last_committed = commit
        self._totals["commits"] += 1
        self._totals.update({name: line[name] for name in _COUNTED if line.get(name) is not None})
        self._print(**line)

    def event(self, event: str, **fields: Any) -> None:
        """Print an event that is not a commit of a table; JSON values."""
        self._print(event=event, **fields)

    def committed_suffix(self) -> str:
        """Return which commits are in the table, for the end of an error's sentence; empty if none are."""
        if not self._last_committed:
            return ""
        total = "" if self._commit_count is None else f" of {self._commit_count}"
        commits = f"commits 1 to {self._last_committed}{total} are" if self._last_committed > 1 else "commit 1 is"
        return f" ({commits} in the table)"

    def _print(self, **fields: Any) -> None:
        try:
            print(json.dumps(fields), flush=True)
        except BrokenPipeError:
            # The reader is gone. The load continues; the exit code and the report have its outcome.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 (as long as the process)


def driver_files() -> HadoopFiles:
    """Return the file systems of this driver, without starting a session."""
    session = running_session()
    return HadoopFiles.without_session(driver_conf()) if session is None else HadoopFiles.of(session)


class Report:
    """The JSON report for schedulers that do not get the exit code. ``exit_code`` is null until the end.

    Args:
        uri: URI that Spark can write to.
        fields: Fields that are known at the start.

    """

    def __init__(self, uri: str, fields: dict[str, Any]) -> None:
        self._uri = uri
        self._fields = fields
        #: Whether the last write failed.
        self.failed = False

    def write(self, **fields: Any) -> None:
        """Add fields, and write the report.

        Raises:
            StorageError: The report cannot be written.

        """
        self._fields |= fields
        self.failed = True
        driver_files().write_text(self._uri, json.dumps(self._fields, indent=1) + "\n")
        self.failed = False
