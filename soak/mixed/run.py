"""A mixed soak: feeds that write files, jobs that are killed and restarted, and a check of the table's rows."""

from __future__ import annotations

import random
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from typing import Any

from deltalake import DeltaTable

from lock_manager.errors import LocalServerError
from sluice.demo.processes import Events, WriterProcess, end_processes
from soak.mixed.feeds import APPEND, CDC, COLUMNS, FEEDS, Feed, Row
from soak.mixed.jobs import AVAILABLE_NOW, MAINTAIN, READER, Workspace, prepare_job, reader_job
from soak.mixed.retention import RetentionErrors, apply_change_feed, plant_orphans, read_changes

Command = Callable[..., list[str]]
"""A function that returns the command of a job: :func:`.jobs.locked_job`, or :func:`.jobs.stock_job` as control."""

_FILE_SECONDS = 4.0
_MESSAGES = 120
_APPENDED_MESSAGES = 400
_MAX_WAITING_APPENDS = 2
_MAX_FIRST_FAILURES = 2
_KILL_SECONDS = 25.0
_DRAIN_SECONDS = 240.0
_MAINTENANCE_PAUSE_SECONDS = 5.0
_RESTART_PAUSE_SECONDS = 0.5
_POLL_SECONDS = 0.2
_MAX_ERROR_LENGTH = 400
# Helper processes have greater numbers, because the smaller ones belong to jobs.
_MAX_JOB_NUMBER = 1000
_ERROR = re.compile(r"^\S*(Error|Exception)\b|^\S+\.py: ")


@dataclass
class Job:
    """One job and its current process.

    Attributes:
        name: Name of the feed, ``maintain`` or ``reader``.
        process: Its process; None if it must be started.
        started: Number of starts.
        killed: Number of kills by the soak.
        failures: Exits that the soak did not cause, each with its error message.
        commits: Events of its commits.
        done_events: Its ``done`` events without a commit.
        was_killed: Whether the soak has killed the current process.
        not_before: Monotonic time before which it must not be started.

    """

    name: str
    process: WriterProcess | None = None
    started: int = 0
    killed: int = 0
    failures: list[str] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    done_events: list[dict[str, Any]] = field(default_factory=list)
    was_killed: bool = False
    not_before: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a run.

    Attributes:
        jobs: All jobs.
        missing: Number of expected rows that the table lacks.
        surplus: Number of rows in the table that are not expected.
        rows: Number of expected rows.
        versions: Newest version of the table.
        lag: Lag of the change feed, once a second: seconds since the start, and the age in seconds of the oldest change
            that is not in the table; 0 if all changes are in the table.
        drained: Whether all messages were applied before the time limit.
        retention: Errors of maintenance; None for the control, which does not check them.

    """

    jobs: tuple[Job, ...]
    missing: int
    surplus: int
    rows: int
    versions: int
    lag: tuple[tuple[float, float], ...]
    drained: bool
    retention: RetentionErrors | None = None


class MixedRun:
    """One run of all jobs on one table.

    Args:
        command: Returns the command of each job.
        workspace: Ensemble, table and folders of the run.
        folder: Folder for the output of the jobs.
        seed: Seed of the data and of the kills.
        is_control: Whether no message is late or repeated, and maintenance is not checked.

    """

    def __init__(
        self, command: Command, workspace: Workspace, folder: Path, seed: int, *, is_control: bool = False
    ) -> None:
        self._command = command
        self._workspace = workspace
        self._folder = folder
        self._random = random.Random(seed)  # noqa: S311 (a repeatable choice, no secret)
        self._feeds = {name: Feed(name, workspace.landing / name, seed, in_order=is_control) for name in FEEDS}
        self._jobs = {name: Job(name) for name in (*FEEDS, MAINTAIN, *([] if is_control else [READER]))}
        self._is_control = is_control
        self._first_rows: list[Row] = []
        self._orphans: list[Path] = []
        self._jobs_by_number: dict[int, Job] = {}
        self._events: Events = Events()
        self._started = time.time()
        self._appends: list[Path] = []
        self._lag: list[tuple[float, float]] = []
        self._helpers = 0

    def run(self, seconds: float, show: Callable[[str], None]) -> Outcome:
        """Feed and disturb the jobs, let them finish, and compare the table with the expected rows.

        Args:
            seconds: Seconds to feed and disturb the jobs.
            show: Called with a line about the progress.

        Raises:
            LocalServerError: A helper job failed.
            queue.Empty: A helper job printed no event for 240 s.
            RuntimeError: The append job could not create the table.

        """
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._create_table()
            if not self._is_control:
                self._prepare()
            self._started = time.time()
            self._disturb(seconds, show)
            drained = self._drain(show)
        finally:
            end_processes([job.process for job in self._jobs.values() if job.process is not None])
        return self._outcome(drained=drained)

    def _create_table(self) -> None:
        """Let the first append create the table, before the other jobs start."""
        self._appends.append(self._feeds[APPEND].write(_MESSAGES))
        job = self._jobs[APPEND]
        while self._appends:
            self._start_if_due(job)
            self._take_events()
            time.sleep(_POLL_SECONDS)
            if len(job.failures) > _MAX_FIRST_FAILURES:
                raise RuntimeError(f"the append job did not create the table: {job.failures[-1]}")

    def _prepare(self) -> None:
        """Pin the table, start the slow reader's stream and plant orphans, before the other jobs start."""
        for folder in (self._workspace.checkpoints / READER, self._workspace.changes):
            folder.mkdir(parents=True, exist_ok=True)
        events = self._run_helper(prepare_job(self._workspace))
        version = next(int(event["version"]) for event in events if event.get("event") == "prepared")
        self._workspace = replace(self._workspace, pinned=version)
        self._first_rows = read_rows(self._workspace.table)
        # Maintenance keeps files for a stream only after its first batch.
        self._run_helper(reader_job(self._workspace, trigger=AVAILABLE_NOW))
        self._orphans = plant_orphans(self._workspace.table)

    def _run_helper(self, command: list[str]) -> list[dict[str, Any]]:
        """Run a command until it ends; return its events."""
        queue: Events = Events()
        self._helpers += 1
        process = WriterProcess(_MAX_JOB_NUMBER + self._helpers, command, {}, self._folder, queue)
        try:
            events = []
            while (event := queue.get(timeout=_DRAIN_SECONDS)[1]).get("event") != "exit":
                events.append(event)
        finally:
            end_processes([process])
        if event["code"] != 0:
            raise LocalServerError(f"a job of the soak ended with exit code {event['code']}: {_error_line(process)}")
        return events

    def _retention_errors(self) -> RetentionErrors | None:
        if self._is_control:
            return None
        self._run_helper(reader_job(self._workspace, trigger=AVAILABLE_NOW))
        table = self._workspace.table
        reader_rows = apply_change_feed(self._first_rows, read_changes(self._workspace.changes))
        return RetentionErrors(
            pinned=_count_differences(read_rows(table, self._workspace.pinned), self._first_rows),
            read=_count_differences(reader_rows, read_rows(table)),
            orphans=sum(path.exists() for path in self._orphans),
        )

    def _disturb(self, seconds: float, show: Callable[[str], None]) -> None:
        end = time.monotonic() + seconds
        next_file, next_kill = 0.0, time.monotonic() + _KILL_SECONDS
        while (now := time.monotonic()) < end:
            if now >= next_file:
                next_file = now + _FILE_SECONDS
                self._write_streams()
                if len(self._appends) < _MAX_WAITING_APPENDS:
                    self._appends.append(self._feeds[APPEND].write(_APPENDED_MESSAGES))
            if now >= next_kill:
                next_kill = now + _KILL_SECONDS
                self._kill_random_job()
            self._poll_jobs()
            show(self._progress(seconds - (end - now), seconds))
            time.sleep(_POLL_SECONDS)

    def _drain(self, show: Callable[[str], None]) -> bool:
        """Write the last files and wait for all expected rows; return whether the table has them in time."""
        self._write_streams(is_last=True)
        end = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < end:
            self._poll_jobs()
            show("the feeds have ended; waiting until all their rows are in the table")
            if not self._appends and self._difference() == (0, 0):
                return True
            time.sleep(1)
        return False

    def _write_streams(self, *, is_last: bool = False) -> None:
        for name, feed in self._feeds.items():
            if name != APPEND:
                feed.write(_MESSAGES, is_last=is_last)

    def _poll_jobs(self) -> None:
        for job in self._jobs.values():
            self._start_if_due(job)
        self._take_events()
        elapsed = time.time() - self._started
        if not self._lag or elapsed >= self._lag[-1][0] + 1:
            self._lag.append((elapsed, self._current_lag()))

    def _current_lag(self) -> float:
        """Return the age in seconds of the oldest change that is not in the table."""
        newest = max((int(commit.get("newest_sequence") or 0) for commit in self._jobs[CDC].commits), default=0)
        times = [written_at for position, written_at in self._feeds[CDC].written_at.items() if position > newest]
        return time.time() - min(times) if times else 0.0

    def _start_if_due(self, job: Job) -> None:
        if job.process is not None or time.monotonic() < job.not_before:
            return
        if job.name == APPEND and not self._appends:
            return
        file = self._appends[0] if job.name == APPEND else None
        job.started += 1
        job.was_killed = False
        number = len(self._jobs_by_number) + 1
        self._jobs_by_number[number] = job
        command = self._command(job.name, self._workspace, file=file)
        job.process = WriterProcess(number, command, {}, self._folder, self._events)

    def _take_events(self) -> None:
        while True:
            try:
                number, event = self._events.get_nowait()
            except Empty:
                return
            job = self._jobs_by_number[number]
            if event.get("event") == "exit":
                self._handle_exit(job, event["code"])
            elif event.get("event") == "commit" or (event.get("event") == "done" and event["version"] is not None):
                job.commits.append(event)
            elif event.get("event") == "done":
                job.done_events.append(event)

    def _handle_exit(self, job: Job, code: int) -> None:
        process, job.process = job.process, None
        assert process is not None  # noqa: S101 (the job's process has ended)
        process.reap(time.monotonic() + 5)
        if code == 0 and job.name == APPEND:
            self._appends.pop(0)
        if code != 0 and not job.was_killed:
            job.failures.append(f"exit code {code}: {_error_line(process)}")
        pause = _MAINTENANCE_PAUSE_SECONDS if job.name == MAINTAIN else _RESTART_PAUSE_SECONDS
        job.not_before = time.monotonic() + pause

    def _kill_random_job(self) -> None:
        running = [job for job in self._jobs.values() if job.process is not None and not job.was_killed]
        if running:
            job = self._random.choice(running)
            assert job.process is not None  # noqa: S101 (the job is running)
            job.was_killed = True
            job.killed += 1
            job.process.signal(signal.SIGKILL)

    def _progress(self, elapsed: float, seconds: float) -> str:
        commits = sum(len(job.commits) for job in self._jobs.values())
        killed = sum(job.killed for job in self._jobs.values())
        failed = sum(len(job.failures) for job in self._jobs.values())
        return f"{elapsed:,.0f} s of {seconds:,.0f} s: {commits:,} commits, {killed} killed, {failed} failed"

    def _difference(self) -> tuple[int, int]:
        """Return the number of missing and of surplus rows."""
        expected = [row for feed in self._feeds.values() for row in feed.expected_rows()]
        rows = read_rows(self._workspace.table)
        return len(_subtract(expected, rows)), len(_subtract(rows, expected))

    def _outcome(self, *, drained: bool) -> Outcome:
        missing, surplus = self._difference()
        return Outcome(
            jobs=tuple(self._jobs.values()),
            missing=missing,
            surplus=surplus,
            rows=sum(len(feed.expected_rows()) for feed in self._feeds.values()),
            versions=DeltaTable(str(self._workspace.table)).version(),
            lag=tuple(self._lag),
            drained=drained,
            retention=self._retention_errors(),
        )


def _error_line(process: WriterProcess) -> str:
    """Return the last error in the output of a process, at most 400 characters of it.

    Spark logs its shutdown after the error, and a stack trace may be anywhere.
    """
    texts = (path.read_text(encoding="utf-8", errors="replace") for path in (process.errors, process.output))
    errors = [line for text in texts for line in text.splitlines() if _ERROR.search(line)]
    return (errors or process.stderr_tail or ["no output"])[-1][:_MAX_ERROR_LENGTH]


def read_rows(table: Path, version: int | None = None) -> list[Row]:
    """Return all rows of a version, by default the newest, as ``deltalake`` reads them."""
    rows = []
    for row in DeltaTable(str(table), version=version).to_pyarrow_table(columns=list(COLUMNS)).to_pylist():
        row["at"] = f"{row['at']:%Y-%m-%dT%H:%M:%SZ}"
        rows.append(tuple(row[name] for name in COLUMNS))
    return rows


def _count_differences(rows: list[Row], other_rows: list[Row]) -> int:
    return len(_subtract(rows, other_rows)) + len(_subtract(other_rows, rows))


def _subtract(rows: list[Row], subtracted: list[Row]) -> list[Row]:
    """Return ``rows`` without ``subtracted``. A row is removed as many times as ``subtracted`` contains it."""
    return list((Counter(rows) - Counter(subtracted)).elements())
