"""A mixed soak: feeds that write files, jobs that are killed and started again, and what the table has in the end."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty
from typing import Any

from deltalake import DeltaTable

from lock_manager.errors import LocalServerError
from sluice.demo.processes import Events, WriterProcess, end_processes
from soak.mixed.feeds import APPEND, CDC, COLUMNS, FEEDS, Feed, Row
from soak.mixed.jobs import AVAILABLE_NOW, MAINTAIN, READER, Places, prepare_job, reader_job
from soak.mixed.keeps import Spared, changes_in, plant_orphans, rows_after

Command = Callable[..., list[str]]
"""Makes the line of a job: :func:`.jobs.our_job`, or that of the control."""

_FILE_SECONDS = 4.0
_MESSAGES = 120
_APPENDED = 400
_KILL_SECONDS = 25.0
_DRAIN_SECONDS = 240.0
_PAUSE_SECONDS = 5.0
_POLL_SECONDS = 0.2
# Numbers of the processes that are none of the jobs.
_OTHERS = 1000
_ERROR = re.compile(r"^\S*(Error|Exception)\b|^\S+\.py: ")


@dataclass
class Job:
    """One job, as its supervisor knows it.

    Attributes:
        name: of the feed, or ``maintain``.
        process: that runs it; None: it is to be started.
        started: how often it was.
        killed: how often the soak killed it.
        failures: exits that the soak has not caused, with the last words of each.
        commits: lines of its commits.
        done: lines of what it has done beside.
        was_killed: whether the soak has killed the process that runs.
        not_before: when it may be started, monotonic.

    """

    name: str
    process: WriterProcess | None = None
    started: int = 0
    killed: int = 0
    failures: list[str] = field(default_factory=list)
    commits: list[dict[str, Any]] = field(default_factory=list)
    done: list[dict[str, Any]] = field(default_factory=list)
    was_killed: bool = False
    not_before: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a run.

    Attributes:
        jobs: each of them.
        missing: rows that the table should have, and has not.
        surplus: rows that it has, and should not.
        rows: that it should have.
        versions: of the table.
        lag: of the change feed, every second: seconds since the begin, and how old its oldest change was that the
            table did not have; 0: it had all.
        drained: whether everything was applied before the soak gave up waiting.
        spared: what became of what care must spare; None: there was nothing.

    """

    jobs: tuple[Job, ...]
    missing: int
    surplus: int
    rows: int
    versions: int
    lag: tuple[tuple[float, float], ...]
    drained: bool
    spared: Spared | None = None


class MixedRun:
    """One run of all jobs on one table.

    Args:
        command: makes the line of each job.
        places: where they work.
        folder: for what they say.
        conf: Spark's settings.
        seed: of the data and of who is killed when.
        is_control: nothing that is fed is late or repeated, and there is nothing that care must spare.

    """

    def __init__(
        self,
        command: Command,
        places: Places,
        folder: Path,
        conf: Mapping[str, str],
        seed: int,
        *,
        is_control: bool = False,
    ) -> None:
        self._command = command
        self._places = places
        self._folder = folder
        self._conf = conf
        self._random = random.Random(seed)  # noqa: S311 (to be repeated, not to be secret)
        self._feeds = {name: Feed(name, places.landing / name, seed, in_order=is_control) for name in FEEDS}
        self._jobs = {name: Job(name) for name in (*FEEDS, MAINTAIN, *([] if is_control else [READER]))}
        self._is_control = is_control
        self._first_rows: list[Row] = []
        self._orphans: list[Path] = []
        self._numbers: dict[int, Job] = {}
        self._events: Events = Events()
        self._begun = time.time()
        self._appends: list[Path] = []
        self._lag: list[tuple[float, float]] = []
        self._others = 0

    def run(self, seconds: float, say: Callable[[str], None]) -> Outcome:
        """Feed and disturb them for so long, let them finish, and compare.

        Args:
            seconds: how long.
            say: told in a line how far it is.

        """
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._make_table()
            if not self._is_control:
                self._prepare()
            self._begun = time.time()
            self._disturb(seconds, say)
            drained = self._drain(say)
        finally:
            end_processes([job.process for job in self._jobs.values() if job.process is not None])
        return self._outcome(drained=drained)

    def _make_table(self) -> None:
        """Have the first append make it, before the others begin."""
        self._appends.append(self._feeds[APPEND].write(_MESSAGES))
        job = self._jobs[APPEND]
        while self._appends:
            self._look(job)
            self._take_events()
            time.sleep(_POLL_SECONDS)
            if len(job.failures) > 2:  # noqa: PLR2004 (it never will)
                raise RuntimeError(f"the table was not made: {job.failures[-1]}")

    def _prepare(self) -> None:
        """Give the table what care must spare, before the others begin."""
        for folder in (self._places.checkpoints / READER, self._places.changes):
            folder.mkdir(parents=True, exist_ok=True)
        said = self._run_once(prepare_job(self._places, self._conf))
        version = next(int(event["version"]) for event in said if event.get("event") == "prepared")
        self._places = replace(self._places, pinned=version)
        self._first_rows = read_rows(self._places.table)
        # A stream that has not begun is not known to need anything.
        self._run_once(reader_job(self._places, self._conf, trigger=AVAILABLE_NOW))
        self._orphans = plant_orphans(self._places.table)

    def _run_once(self, command: list[str]) -> list[dict[str, Any]]:
        """Run something to its end; return what it said."""
        events: Events = Events()
        self._others += 1
        process = WriterProcess(_OTHERS + self._others, command, {}, self._folder, events)
        try:
            said = []
            while (event := events.get(timeout=_DRAIN_SECONDS)[1]).get("event") != "exit":
                said.append(event)
        finally:
            end_processes([process])
        if event["code"] != 0:
            raise LocalServerError(f"a job of the soak ended with exit code {event['code']}: {_reason(process)[:400]}")
        return said

    def _spared(self) -> Spared | None:
        if self._is_control:
            return None
        self._run_once(reader_job(self._places, self._conf, trigger=AVAILABLE_NOW))
        table, version = self._places.table, self._places.pinned
        pinned, read = read_rows(table, version), rows_after(self._first_rows, changes_in(self._places.changes))
        return Spared(
            pinned=_differ(pinned, self._first_rows),
            read=_differ(read, read_rows(table)),
            orphans=sum(path.exists() for path in self._orphans),
        )

    def _disturb(self, seconds: float, say: Callable[[str], None]) -> None:
        end = time.monotonic() + seconds
        next_file = next_kill = 0.0
        next_kill = time.monotonic() + _KILL_SECONDS
        while (now := time.monotonic()) < end:
            if now >= next_file:
                next_file = now + _FILE_SECONDS
                for name, feed in self._feeds.items():
                    if name != APPEND:
                        feed.write(_MESSAGES)
                if len(self._appends) < 2:  # noqa: PLR2004 (one is read, one waits)
                    self._appends.append(self._feeds[APPEND].write(_APPENDED))
            if now >= next_kill:
                next_kill = now + _KILL_SECONDS
                self._kill_one()
            self._look_at_all()
            say(self._line(seconds - (end - now), seconds))
            time.sleep(_POLL_SECONDS)

    def _drain(self, say: Callable[[str], None]) -> bool:
        for name, feed in self._feeds.items():
            if name != APPEND:
                feed.write(_MESSAGES, is_last=True)
        end = time.monotonic() + _DRAIN_SECONDS
        while time.monotonic() < end:
            self._look_at_all()
            say("no more is written: waiting until all of it is in the table")
            if not self._appends and self._is_equal():
                return True
            time.sleep(1)
        return False

    def _look_at_all(self) -> None:
        for job in self._jobs.values():
            self._look(job)
        self._take_events()
        passed = time.time() - self._begun
        if not self._lag or passed >= self._lag[-1][0] + 1:
            self._lag.append((passed, self._lag_now()))

    def _lag_now(self) -> float:
        """Return how old the oldest change is that the change feed has not brought into the table yet, in seconds."""
        newest = max((int(each.get("newest_sequence") or 0) for each in self._jobs[CDC].commits), default=0)
        left = [at for position, at in self._feeds[CDC].written_at.items() if position > newest]
        return time.time() - min(left) if left else 0.0

    def _look(self, job: Job) -> None:
        """Start a job that does not run."""
        if job.process is not None or time.monotonic() < job.not_before:
            return
        if job.name == APPEND and not self._appends:
            return
        file = self._appends[0] if job.name == APPEND else None
        job.started += 1
        job.was_killed = False
        number = len(self._numbers) + 1
        self._numbers[number] = job
        command = self._command(job.name, self._places, self._conf, file=file)
        job.process = WriterProcess(number, command, {}, self._folder, self._events)

    def _take_events(self) -> None:
        while True:
            try:
                number, event = self._events.get_nowait()
            except Empty:
                return
            job = self._numbers[number]
            if event.get("event") == "exit":
                self._ended(job, event["code"])
            elif event.get("event") == "commit" or (event.get("event") == "done" and event["version"] is not None):
                job.commits.append(event)
            elif event.get("event") == "done":
                job.done.append(event)

    def _ended(self, job: Job, code: int) -> None:
        process, job.process = job.process, None
        assert process is not None  # noqa: S101 (it has ended)
        process.reap(time.monotonic() + 5)
        if code == 0 and job.name == APPEND:
            self._appends.pop(0)
        if code != 0 and not job.was_killed:
            job.failures.append(f"exit code {code}: {_reason(process)[:400]}")
        job.not_before = time.monotonic() + (_PAUSE_SECONDS if job.name == MAINTAIN else 0.5)

    def _kill_one(self) -> None:
        running = [job for job in self._jobs.values() if job.process is not None and not job.was_killed]
        if running:
            job = self._random.choice(running)
            assert job.process is not None  # noqa: S101 (it runs)
            job.was_killed = True
            job.killed += 1
            job.process.signal(signal.SIGKILL)

    def _line(self, passed: float, seconds: float) -> str:
        commits = sum(len(job.commits) for job in self._jobs.values())
        killed = sum(job.killed for job in self._jobs.values())
        failed = sum(len(job.failures) for job in self._jobs.values())
        return f"{passed:,.0f} s of {seconds:,.0f} s: {commits:,} commits, {killed} killed, {failed} failed"

    def _is_equal(self) -> bool:
        missing, surplus = self._difference()
        return not missing and not surplus

    def _difference(self) -> tuple[int, int]:
        expected = [row for feed in self._feeds.values() for row in feed.expected()]
        found = read_rows(self._places.table)
        return len(_without(expected, found)), len(_without(found, expected))

    def _outcome(self, *, drained: bool) -> Outcome:
        missing, surplus = self._difference()
        return Outcome(
            jobs=tuple(self._jobs.values()),
            missing=missing,
            surplus=surplus,
            rows=sum(len(feed.expected()) for feed in self._feeds.values()),
            versions=DeltaTable(str(self._places.table)).version(),
            lag=tuple(self._lag),
            drained=drained,
            spared=self._spared(),
        )


def _reason(process: WriterProcess) -> str:
    """Return the last line of an error: Spark says more behind it, of how it stops; a stack trace may be anywhere."""
    said = (path.read_text(encoding="utf-8", errors="replace") for path in (process.errors, process.output))
    errors = [line for text in said for line in text.splitlines() if _ERROR.search(line)]
    return (errors or process.stderr_tail or ["no word"])[-1]


def _differ(rows: list[Row], others: list[Row]) -> int:
    return len(_without(rows, others)) + len(_without(others, rows))


def read_rows(table: Path, version: int | None = None) -> list[Row]:
    """Read all rows of a version, by default the newest, with a reader that is not ours."""
    found = DeltaTable(str(table), version=version).to_pyarrow_table(columns=list(COLUMNS)).to_pylist()
    rows = []
    for each in found:
        each["at"] = f"{each['at']:%Y-%m-%dT%H:%M:%SZ}"
        rows.append(tuple(each[name] for name in COLUMNS))
    return rows


def _without(rows: list[Row], others: list[Row]) -> list[Row]:
    """Return what is in one list more often than in the other."""
    left: dict[Row, int] = {}
    for row in others:
        left[row] = left.get(row, 0) + 1
    found = []
    for row in rows:
        if left.get(row, 0) > 0:
            left[row] -= 1
        else:
            found.append(row)
    return found
