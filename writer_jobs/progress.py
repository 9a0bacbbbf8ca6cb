"""The progress of a write, in the terminal or the notebook of its program.

Nothing is shown if standard error is a file or a pipe, as in logs.
"""

from __future__ import annotations

import contextvars
import functools
import logging
import os
import shutil
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TextIO

from pyspark.sql import SparkSession

from lock_manager import SettingsError, waits
from lock_manager.deadline import Deadline
from lock_manager.errors import describe_queue
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.delta.session import under_spark_submit

log = logging.getLogger(__name__)

#: ``auto``, the default: show the progress in terminals and notebooks. ``off``: never.
PROGRESS = "spark.sluice.progress"
_AUTO, _OFF = "auto", "off"

FIRST_SECONDS = 1.0
"""Time after which a write is shown, in seconds. Shorter writes are not shown."""

INTERVAL_SECONDS = 0.5
"""Time between two updates, in seconds."""

_END_SECONDS = 1.0
_WAITING = "waiting for the lock"
_BEGINNING_OF_LINE, _REST_OF_LINE = "\r", "\x1b[K"


class Progress:
    """How far one write is.

    Args:
        table: Canonical URI.
        tag: Tag of the write's Spark jobs; empty if only the wait for the lock is shown.

    Attributes:
        outcome: How the write ended.

    """

    def __init__(self, table: str, tag: str = "") -> None:
        self.outcome = "failed"
        self._table = table
        self._tag = tag
        self._deadline = Deadline(0.0)
        self._phase = "planning" if tag else _WAITING
        self._file_count: int | None = None
        self._wait: waits.Wait | None = None

    def observe(self, wait: waits.Wait) -> None:
        """Record the requests before that of the write."""
        if self._table in wait.resource:
            self._wait = wait

    def writes(self) -> None:
        """Record that the write computes its rows and writes its files."""
        self._phase, self._wait = "writing", None

    def waits(self, file_count: int | None = None) -> None:
        """Record that the write requests the lock, and the number of its data files if they are written."""
        self._phase, self._file_count = _WAITING, file_count

    def commits(self) -> None:
        """Record that the write has the lock and commits its files."""
        self._phase, self._wait = "committing", None

    def finishes(self) -> None:
        """Record that the commit is stored, and that Delta does more."""
        self._phase = "committed; Delta finishes its work"

    def text(self, spark: SparkSession) -> str:
        """Return the progress as one line, the most important first."""
        parts = [self._phase]
        if self._wait is not None:
            parts.append(describe_queue(self._wait.ahead, self._wait.holder))
        elif self._tag and (tasks := _describe_tasks(spark, self._tag)):
            parts.append(tasks)
        if self._file_count is not None:
            parts.append(f"{self._file_count:,} {'file' if self._file_count == 1 else 'files'} written")
        return self._line(", ".join(parts))

    def last_text(self) -> str:
        """Return the outcome as one line."""
        return self._line(self.outcome)

    def _line(self, text: str) -> str:
        return f"{text} ({self._deadline.elapsed():.0f} s): {self._table}"


class Display(Protocol):
    """A place that shows one line, which later lines replace."""

    def show(self, text: str) -> None:
        """Show a line."""

    def end(self, text: str) -> None:
        """Replace the line by a last one, or remove it."""


class Terminal:
    """The last line of a terminal."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._has_line = False

    def show(self, text: str) -> None:
        """Show a line. The cursor returns to its beginning, so that other output overwrites it."""
        columns = shutil.get_terminal_size().columns
        with suppress(OSError, ValueError):
            columns = os.get_terminal_size(self._stream.fileno()).columns or columns
        self._print(text[: columns - 1])
        self._has_line = True

    def end(self, text: str) -> None:  # noqa: ARG002 (nothing stays)
        """Remove the line."""
        self.clear()

    def clear(self) -> None:
        """Remove the line until the next one is shown."""
        if self._has_line:
            self._print("")
            self._has_line = False

    def _print(self, text: str) -> None:
        with suppress(OSError, ValueError):  # the terminal is gone
            self._stream.write(f"{_BEGINNING_OF_LINE}{text}{_REST_OF_LINE}{_BEGINNING_OF_LINE}")
            self._stream.flush()


class Notebook:
    """The output of a notebook's cell, in a process that IPython runs."""

    def __init__(self) -> None:
        self._display: Any = sys.modules["IPython"].display.display
        self._handle: Any = None

    def show(self, text: str) -> None:
        """Show a line."""
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def end(self, text: str) -> None:
        """Leave a last line, because an output cannot be removed."""
        if self._handle is not None:
            self.show(text)


@contextmanager
def shown(progress: Progress, spark: SparkSession) -> Iterator[None]:
    """Show the progress of a write during the block, in the terminal or the notebook of this process.

    Only writes of the main thread are shown, because a terminal has one last line. Of writes within a write, the
    outer one is shown.

    Raises:
        SettingsError: The setting ``spark.sluice.progress`` has an unknown value.

    """
    global _display  # noqa: PLW0603 (a process has one terminal)
    is_free = _display is None and threading.current_thread() is threading.main_thread()
    display = _find_display() if is_free else None
    if display is None or not _is_wanted(spark):
        yield
        return
    has_ended = threading.Event()

    def show() -> None:
        seconds = FIRST_SECONDS
        try:
            while not has_ended.wait(seconds):
                display.show(progress.text(spark))
                seconds = INTERVAL_SECONDS
            display.end(progress.last_text())
        except Exception:  # any error of a notebook's front end
            log.debug("the progress is not shown any more", exc_info=True)

    # The output of a notebook belongs to the cell of the context.
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(show,), name="sluice-progress", daemon=True)
    stop_observing = waits.observe(progress.observe)
    _display = display
    try:
        thread.start()
        yield
    finally:
        _display = None
        stop_observing()
        has_ended.set()
        # A terminal that is stopped by Ctrl-S does not stop the write.
        thread.join(_END_SECONDS)


def clear_line() -> None:
    """Remove the line of a terminal before other output, until the progress is shown again."""
    if isinstance(_display, Terminal):
        _display.clear()


_display: Display | None = None


def _is_wanted(spark: SparkSession) -> bool:
    value = _AUTO
    with suppress(*JVM_ERRORS):  # the write reports that the JVM is gone
        value = str(spark.conf.get(PROGRESS, _AUTO)).strip().lower()
    if value not in (_AUTO, _OFF):
        raise SettingsError(f"{PROGRESS} is {value!r}: set {_AUTO} or {_OFF}")
    return value == _AUTO


def _find_display() -> Display | None:
    """Return the notebook or the terminal of this process; None if it has neither."""
    ipython = sys.modules.get("IPython")
    if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
        return Notebook()
    stream = _terminal_of_jvm() if under_spark_submit() else sys.stderr
    with suppress(AttributeError, ValueError):  # standard error is closed, or another object
        if stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb":
            return Terminal(stream)
    return None


@functools.cache
def _terminal_of_jvm() -> TextIO | None:
    """Return the terminal of ``spark-submit``, whose JVM has started this process with pipes; None without one."""
    file = Path(f"/proc/{os.getppid()}/fd/2")
    try:
        if not stat.S_ISCHR(file.stat().st_mode):
            return None
        return os.fdopen(os.open(file, os.O_WRONLY | os.O_NOCTTY), "w", encoding="utf-8")
    except OSError:  # not on Linux, or the process is another user's
        return None


def _describe_tasks(spark: SparkSession, tag: str) -> str:
    """Return how many tasks of the running stages are done; empty if none runs."""
    total = ended = 0
    with suppress(*JVM_ERRORS):
        tracker: Any = spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 (PySpark's finds no jobs by tag)
        for job_id in tracker.getJobIdsForTag(tag):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.get().stageIds() if job.isDefined() else ():
                stage = tracker.getStageInfo(stage_id)
                if stage.isDefined() and stage.get().numActiveTasks():
                    total += stage.get().numTasks()
                    ended += stage.get().numCompletedTasks()
    return f"{ended:,} of {total:,} tasks" if total else ""
