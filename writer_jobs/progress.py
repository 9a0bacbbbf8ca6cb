"""The progress of a write, in the terminal or the notebook of its program.

A write never waits for its display, and an error of the display changes nothing. Logs get no progress: nothing is shown
if standard error is a file or a pipe, and no notebook runs the program.
"""

from __future__ import annotations

import contextvars
import logging
import os
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

from lock_manager import SettingsError
from lock_manager.deadline import Deadline
from lock_manager.waits import Wait, observed_by
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

_COLUMNS = 80
_WAITING = "waiting for the lock"


class Progress:
    """How far one write is.

    Args:
        table: Canonical URI.
        tag: Tag of the write's Spark jobs; empty if only the wait for the lock is shown.

    Attributes:
        outcome: How the write ended.

    """

    def __init__(self, table: str, tag: str = "") -> None:
        self.outcome = "ended with an error"
        self._table = table
        self._tag = tag
        self._deadline = Deadline(0.0)
        self._phase = ""
        self._file_count: int | None = None
        self._wait: Wait | None = None
        self._begin("planning" if tag else _WAITING)

    def _begin(self, phase: str, file_count: int | None = None) -> None:
        self._phase, self._wait, self._file_count = phase, None, file_count

    def plans(self) -> None:
        """Record that the write is planned, for the first time or again."""
        self._begin("planning")

    def writes(self) -> None:
        """Record that the write computes its rows and writes its files."""
        self._begin("writing")

    def waits(self, file_count: int | None = None) -> None:
        """Record that the write requests the lock, and the number of its data files if they are written."""
        self._begin(_WAITING, file_count)

    def holds(self) -> None:
        """Record that the write has the lock."""
        self._begin("the lock is held", self._file_count)

    def commits(self) -> None:
        """Record that the write commits its files."""
        self._begin("committing", self._file_count)

    def finishes(self) -> None:
        """Record that the commit is stored, and that Delta does more."""
        self._begin("committed; Delta finishes its work")
        self.outcome = "committed"

    def observe(self, wait: Wait) -> None:
        """Record the requests before that of the write."""
        self._wait = wait

    def text(self, spark: SparkSession) -> str:
        """Return the progress as one line, the most important first."""
        wait, file_count = self._wait, self._file_count
        parts = [self._phase]
        if wait is not None:
            parts.append(wait.queue)
        elif self._tag and (tasks := _describe_tasks(spark, self._tag)):
            parts.append(tasks)
        if file_count is not None:
            parts.append(f"{file_count:,} {'file' if file_count == 1 else 'files'} written")
        return self._line(", ".join(parts))

    def last_text(self) -> str:
        """Return the outcome as one line."""
        return self._line(self.outcome)

    def _line(self, text: str) -> str:
        line = f"{self._deadline.elapsed():.0f} s: {text}: {self._table}"
        # The name of a job comes from another program.
        return "".join(character if character.isprintable() else "?" for character in line)


class Display(Protocol):
    """A place that shows one line, which later lines replace."""

    def show(self, text: str) -> None:
        """Show a line."""

    def end(self, text: str) -> None:
        """Replace the line by a last one, or remove it."""


class Terminal:
    """The last line of a terminal. A terminal that takes no output, for example after Ctrl-S, is not waited for.

    Args:
        descriptor: File descriptor of the terminal, in the mode ``O_NONBLOCK``. :meth:`end` closes it.

    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._width = 0

    def show(self, text: str) -> None:
        """Show a line. The cursor returns to its beginning, so that other output overwrites it."""
        with suppress(OSError):
            columns = os.get_terminal_size(self._descriptor).columns or _COLUMNS
            self._print(text[: columns - 1])

    def end(self, text: str) -> None:  # noqa: ARG002 (nothing stays)
        """Remove the line, and close the terminal."""
        self.clear()
        os.close(self._descriptor)

    def clear(self) -> None:
        """Remove the line until the next one is shown."""
        with suppress(OSError):
            self._print("")

    def _print(self, text: str) -> None:
        line, self._width = text.ljust(self._width), len(text)
        if line and self._is_in_foreground():
            os.write(self._descriptor, f"\r{line}\r".encode())

    def _is_in_foreground(self) -> bool:
        """Return whether this process may write to the terminal, which may stop a process in the background."""
        try:
            return os.tcgetpgrp(self._descriptor) == os.getpgrp()
        except OSError:  # not the terminal that controls this process
            return True


class Notebook:
    """The output of a notebook's cell, in a process that IPython runs."""

    def __init__(self) -> None:
        from IPython.display import display  # noqa: PLC0415 (a notebook has imported it)

        self._display: Any = display
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
    is_first = _shown.display is None and threading.current_thread() is threading.main_thread()
    display = _find_display() if _is_wanted(spark) and is_first else None
    if display is None:
        yield
        return
    thread = _ShowingThread(progress, spark, display)
    try:
        _shown.display = display
        with suppress(RuntimeError):  # this process can start no thread
            thread.start()
        with observed_by(progress.observe):
            yield
    finally:
        _shown.display = None
        thread.end()


def clear_line() -> None:
    """Remove the line of a terminal before other output, until the progress is shown again."""
    if isinstance(_shown.display, Terminal):
        _shown.display.clear()


class _Shown:
    """What this process shows."""

    display: Display | None = None


_shown = _Shown()


class _ShowingThread(threading.Thread):
    """Shows a progress until the write ends."""

    def __init__(self, progress: Progress, spark: SparkSession, display: Display) -> None:
        super().__init__(name="sluice-progress", daemon=True)
        self._progress, self._spark, self._display = progress, spark, display
        self._has_ended = threading.Event()
        self._display_lock = threading.Lock()
        # The output of a notebook belongs to the cell of the context.
        self._context = contextvars.copy_context()

    def run(self) -> None:
        """Show the progress from time to time."""
        seconds = FIRST_SECONDS
        while not self._has_ended.wait(seconds):
            text, seconds = self._progress.text(self._spark), INTERVAL_SECONDS
            with self._display_lock:
                if not self._has_ended.is_set():
                    self._do(self._display.show, text)

    def end(self) -> None:
        """Show the outcome."""
        self._has_ended.set()
        with self._display_lock:
            self._do(self._display.end, self._progress.last_text())

    def _do(self, show: Any, text: str) -> None:
        try:
            self._context.run(show, text)
        except Exception:  # any error of a notebook's front end
            log.debug("the progress is not shown", exc_info=True)


def _is_wanted(spark: SparkSession) -> bool:
    value = _AUTO
    with suppress(*JVM_ERRORS):  # the write reports that the JVM is gone
        value = str(spark.conf.get(PROGRESS, _AUTO)).strip().lower()
    if value not in (_AUTO, _OFF):
        raise SettingsError(f"{PROGRESS} is {value!r}: set {_AUTO} or {_OFF}")
    return value == _AUTO


def _find_display() -> Display | None:
    """Return the notebook or the terminal of this process; None if it has neither."""
    with suppress(Exception):  # another object is standard error, or a part of IPython is missing
        ipython = sys.modules.get("IPython")
        if ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None:
            return Notebook()
        if os.environ.get("TERM") != "dumb":
            # spark-submit's JVM has started this process with pipes.
            file = f"/proc/{os.getppid()}/fd/2" if under_spark_submit() else os.ttyname(sys.stderr.fileno())
            if (descriptor := _open_terminal(file)) is not None:
                return Terminal(descriptor)
    return None


def _open_terminal(file: str) -> int | None:
    """Return a descriptor of a terminal; None if the file is none.

    It is another one than that of standard error, whose mode other programs share.
    """
    if not stat.S_ISCHR(Path(file).stat().st_mode):
        return None
    descriptor = os.open(file, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC)
    if os.isatty(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _describe_tasks(spark: SparkSession, tag: str) -> str:
    """Return how many tasks of the running stages are done; empty if none runs."""
    total = ended = 0
    with suppress(*JVM_ERRORS):
        tracker: Any = spark.sparkContext._jsc.sc().statusTracker()  # noqa: SLF001 (PySpark's finds no jobs by tag)
        # Finished jobs keep their tags, too.
        for job_id in set(tracker.getJobIdsForTag(tag)) & set(tracker.getActiveJobIds()):
            job = tracker.getJobInfo(job_id)
            for stage_id in job.get().stageIds() if job.isDefined() else ():
                stage = tracker.getStageInfo(stage_id)
                if stage.isDefined() and stage.get().numActiveTasks():
                    total += stage.get().numTasks()
                    ended += stage.get().numCompletedTasks()
    return f"{ended:,} of {total:,} tasks" if total else ""
