"""The state of all tables, which threads keep up to date: locks by watches, new commits, figures of Prometheus."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self, TypeVar

from lock_manager import LockSettings, SluiceError
from lock_manager.managers import inspector_of
from lock_manager.queue_entry import TableLocks, is_internal
from lock_manager.resources import TableResource
from lock_manager.table_records.pins import Pin
from sluice.audit.log_files import LogCommit
from sluice.audit.log_folder import parse_s3, s3_client
from sluice.ui.figures import NO_FIGURES, Prometheus, TableFigures
from sluice.ui.history import Operation, TableHistory
from sluice.ui.log_tail import LogTail
from sluice.ui.stored_reports import NO_REPORTS, ReportFile, StoredReports
from writer_jobs.maintenance.result import MaintenanceReport

log = logging.getLogger(__name__)

_T = TypeVar("_T")

_LOG_SECONDS = 3.0
"""Minimum time between two reads of a table's log, in seconds."""
_PINS_SECONDS = 30.0
_FIGURES_SECONDS = 15.0
_REPORT_SECONDS = 60.0
_VIEW_SECONDS = 10.0
"""Time for which a table counts as viewed after a request for it, in seconds."""
_FORGET_SECONDS = 600.0
"""Time after which the log of a table is forgotten that nobody views and in which nothing happens, in seconds."""
_READERS = 4
_RETRY_SECONDS = 2.0
_STOP_SECONDS = 3.0
"""Time to wait for the threads at the end, in seconds. A store that does not answer must not delay the end."""
_NO_NAME = "another program has created the lock, and has not stored the location of its table"
#: Time limits of requests to S3. A page shows a problem rather than waiting for a minute.
_S3_LIMITS: Mapping[str, Any] = {"connect_timeout": 5, "read_timeout": 10, "retries": {"total_max_attempts": 2}}


@dataclass(frozen=True)
class TableView:
    """One table at one moment.

    Attributes:
        locks: Its queue.
        figures: Figures of Prometheus.
        report: Report of its last maintenance; None without one.
        failure: Why its last maintenance failed; None if it did not.
        generation: Number of the last change of the table.

    """

    locks: TableLocks
    figures: TableFigures = NO_FIGURES
    report: MaintenanceReport | None = None
    failure: str | None = None
    generation: int = 0

    @property
    def uri(self) -> str:
        """Canonical URI, or the name of the znode."""
        return self.locks.name


@dataclass(frozen=True)
class Connection:
    """The coordinator, and whether it answers.

    Attributes:
        at: When the locks were read for the first time, seconds since the epoch; 0 before.
        ensemble: UUID of the coordinator.
        problem: Why the locks, the figures or the report could not be read; None if they were.

    """

    at: float
    ensemble: str | None
    problem: str | None


@dataclass(frozen=True)
class TableDetails:
    """A table with its history, its log and its pins.

    Attributes:
        connection: The coordinator.
        view: The table.
        operations: Operations of the last hour, by their start.
        commits: The newest commits, the newest last; see :attr:`LogTail.commits`.
        pins: Pins that have not expired.
        log_problem, pins_problem: Why they were not read; None if they were, or are not read yet.
        log_was_read, pins_were_read: Whether they were read.

    """

    connection: Connection
    view: TableView
    operations: tuple[Operation, ...]
    commits: tuple[LogCommit | str, ...]
    pins: tuple[Pin, ...]
    log_problem: str | None
    pins_problem: str | None
    log_was_read: bool
    pins_were_read: bool


@dataclass(frozen=True)
class Overview:
    """All tables at one moment.

    Attributes:
        connection: The coordinator.
        tables: The tables, by name.

    """

    connection: Connection
    tables: tuple[TableView, ...]


@dataclass
class _Table:
    locks: TableLocks
    history: TableHistory = field(default_factory=TableHistory)
    tail: LogTail | None = None
    commits: tuple[LogCommit | str, ...] = ()
    pins: tuple[Pin, ...] = ()
    log_problem: str | None = None
    pins_problem: str | None = None
    log_read_at: float = float("-inf")
    pins_read_at: float = float("-inf")
    log_is_due: bool = False
    is_reading: bool = False
    viewed_at: float = float("-inf")
    used_at: float = float("-inf")
    generation: int = 0
    #: Whether it is shown although it was never locked.
    is_permanent: bool = False

    @classmethod
    def never_locked(cls, resource: TableResource) -> Self:
        """Return a table without a queue."""
        return cls(TableLocks(uri=resource.uri, key=resource.key), is_permanent=True)

    @property
    def log_was_read(self) -> bool:
        return self.tail is not None

    @property
    def pins_were_read(self) -> bool:
        return self.pins_read_at > 0

    @property
    def log_fields(self) -> tuple[object, ...]:
        """The fields of the log and the pins that a page shows."""
        problems = self.log_problem, self.pins_problem
        return self.commits, self.pins, *problems, self.log_was_read, self.pins_were_read


class LiveState:
    """Keeps the state up to date until it is closed; a context manager.

    Args:
        settings: Settings of the coordinator.
        tables: Tables to show although they were never locked: locations.
        storage_options: Options of ``deltalake`` for the logs.
        prometheus: Server of the figures, or None.
        report: Report of maintenance, or None.
        interval: Longest time between two looks at the locks, in seconds.

    Raises:
        SettingsError: The coordinator has no locks.

    """

    def __init__(
        self,
        settings: LockSettings,
        tables: Collection[str] = (),
        storage_options: Mapping[str, str] | None = None,
        prometheus: Prometheus | None = None,
        report: ReportFile | None = None,
        interval: float = 1.0,
    ) -> None:
        self._inspector = inspector_of(settings)
        self._storage_options = dict(storage_options or {})
        self._interval = interval
        self._changed = threading.Condition()
        self._listeners: list[Callable[[], None]] = []
        self._tables: dict[str, _Table] = {}
        for location in tables:
            resource = TableResource.of(location)
            self._tables[resource.uri] = _Table.never_locked(resource)
        self._figures: Mapping[str, TableFigures] = {}
        self._figures_problem: str | None = None
        self._reports = NO_REPORTS
        self._reports_problem: str | None = None
        self._locks_problem: str | None = None
        self._ensemble: str | None = None
        self._read_at = 0.0
        self._generation = 1
        self._stopped = threading.Event()
        self._client_lock = threading.Lock()
        self._client: Any = None
        self._threads = [
            self._thread("locks", self._follow_locks),
            *(self._thread("log", self._read_logs) for _ in range(_READERS)),
        ]
        if prometheus is not None:
            poll_figures = partial(self._poll, prometheus.read, self._set_figures, _FIGURES_SECONDS)
            self._threads.append(self._thread("figures", poll_figures))
        if report is not None:
            poll_report = partial(self._poll, report.read, self._set_reports, _REPORT_SECONDS)
            self._threads.append(self._thread("report", poll_report))

    @staticmethod
    def _thread(name: str, work: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=work, name=f"sluice-ui-{name}", daemon=True)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        deadline = time.monotonic() + _STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def stop(self) -> None:
        """Keep the state up to date no longer."""
        self._stopped.set()
        with self._changed:
            self._announce()

    @property
    def is_stopped(self) -> bool:
        """Whether the state is no longer kept up to date."""
        return self._stopped.is_set()

    # -- views ---------------------------------------------------------------------------------------------------------

    def add_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change, in any thread. It must not block."""
        with self._changed:
            self._listeners.append(listener)

    def overview(self) -> Overview:
        """Return all tables."""
        with self._changed:
            views = tuple(self._view(uri, table) for uri, table in sorted(self._tables.items()))
            return Overview(self._connection, views)

    def version(self, uri: str | None) -> object:
        """Return a value that changes with the content of a page: that of a table, or with None that of all tables.

        None if the table is not known.
        """
        with self._changed:
            if uri is None:
                return self._generation
            return (self._tables[uri].generation, self._connection) if uri in self._tables else None

    def operations(self, uri: str) -> list[Operation]:
        """Return the operations of a table's last hour, by their start."""
        with self._changed:
            table = self._tables.get(uri)
            return [] if table is None else table.history.operations(time.time())

    def holds_since(self, uri: str, key: str) -> float | None:
        """Return when a hold began, as far as it is known."""
        with self._changed:
            table = self._tables.get(uri)
            return None if table is None else table.history.acquired_at(key)

    def details(self, uri: str) -> TableDetails | None:
        """Return a table, whose log is read again from now on as long as it is viewed; None if it is not known."""
        with self._changed:
            if (table := self._tables.get(uri)) is None:
                return None
            table.viewed_at = table.used_at = time.monotonic()
            self._changed.notify_all()
            return TableDetails(
                self._connection,
                self._view(uri, table),
                tuple(table.history.operations(time.time())),
                table.commits,
                table.pins,
                table.log_problem,
                table.pins_problem,
                log_was_read=table.log_was_read,
                pins_were_read=table.pins_were_read,
            )

    @property
    def _connection(self) -> Connection:
        problem = self._locks_problem or self._figures_problem or self._reports_problem
        return Connection(self._read_at, self._ensemble, problem)

    def _view(self, uri: str, table: _Table) -> TableView:
        return TableView(
            table.locks,
            self._figures.get(uri, NO_FIGURES),
            self._reports.reports.get(uri),
            self._reports.failures.get(uri),
            table.generation,
        )

    def _announce(self, *tables: _Table) -> None:
        """Count a change of these tables; the caller holds the lock."""
        self._generation += 1
        for table in tables:
            table.generation = self._generation
        self._changed.notify_all()
        for listener in self._listeners:
            listener()

    # -- locks ---------------------------------------------------------------------------------------------------------

    def _follow_locks(self) -> None:
        with self._inspector as inspector:
            follower, is_first = inspector.follow(), True
            while not self._stopped.is_set():
                try:
                    self._ensemble = self._ensemble or inspector.ensemble_id()
                    self._add_locks(follower.changes(self._interval), follower.keys, is_first=is_first)
                    is_first = False
                except Exception as error:  # noqa: BLE001 (the thread must go on, and the page shows the problem)
                    self._set_locks_problem(error)
                    self._stopped.wait(_RETRY_SECONDS)

    def _set_locks_problem(self, error: Exception) -> None:
        with self._changed:
            if (problem := _problem_text(error)) != self._locks_problem and not self._stopped.is_set():
                self._locks_problem = problem
                self._announce()

    def _add_locks(self, tables: Collection[TableLocks], keys: Collection[str], *, is_first: bool) -> None:
        """Add the tables that may have changed, and forget those whose keys do not exist any more."""
        now = time.time()
        with self._changed:
            known_locks = {uri: table.locks for uri, table in self._tables.items()}
        # Outside the lock: a comparison takes long if the queue is long.
        changed_uris = {
            locks.name for locks in tables
            if locks.name not in known_locks or _fields(locks) != _fields(known_locks[locks.name])
        }  # fmt: skip
        with self._changed:
            is_news = self._locks_problem is not None or not self._read_at
            self._locks_problem, self._read_at = None, self._read_at or now
            changed_tables = []
            for locks in tables:
                if is_internal(locks.uri or ""):
                    continue
                table = self._tables.setdefault(locks.name, _Table(locks))
                table.locks = locks
                # A hold that began and ended between two looks is in the log.
                table.log_is_due |= not is_first or bool(locks.entries)
                table.used_at = time.monotonic()
                table.history.observe(locks, now)
                if locks.name in changed_uris or not table.generation:
                    changed_tables.append(table)
            names = {locks.key: locks.name for locks in tables}
            removed_names = [
                name for name, table in self._tables.items()
                if (table.locks.key not in keys or names.get(table.locks.key, name) != name) and not table.is_permanent
            ]  # fmt: skip
            for name in removed_names:
                del self._tables[name]
            if is_news or changed_tables or removed_names:
                self._announce(*changed_tables)

    # -- logs ----------------------------------------------------------------------------------------------------------

    def _read_logs(self) -> None:
        """Read the logs of tables that have changed, and of tables whose page is open; several threads call it."""
        while not self._stopped.is_set():
            with self._changed:
                if (due := self._next_due_table()) is None:
                    self._changed.wait(self._interval)
                    continue
                uri, table = due
                now = time.monotonic()
                with_pins = now - table.viewed_at < _VIEW_SECONDS and now - table.pins_read_at > _PINS_SECONDS
                table.is_reading, table.log_is_due, table.log_read_at = True, False, now
            try:
                self._read_log(uri, table, with_pins=with_pins)
            finally:
                with self._changed:
                    table.is_reading = False

    def _next_due_table(self) -> tuple[str, _Table] | None:
        """Return the table whose log is read next, one that is viewed first; the caller holds the lock."""
        now = time.monotonic()
        due_tables = []
        for uri, table in self._tables.items():
            is_viewed = now - table.viewed_at < _VIEW_SECONDS
            if (is_viewed or table.log_is_due) and not table.is_reading and now - table.log_read_at >= _LOG_SECONDS:
                due_tables.append((not is_viewed, table.log_read_at, uri, table))
            elif table.tail is not None and now - max(table.viewed_at, table.used_at) > _FORGET_SECONDS:
                table.tail, table.commits = None, ()
        if not due_tables:
            return None
        *_, uri, table = min(due_tables, key=lambda due: due[:3])
        return uri, table

    def _read_log(self, uri: str, table: _Table, *, with_pins: bool) -> None:
        problem: str | None = None
        pins_problem, pins = table.pins_problem, table.pins
        commits: list[LogCommit] = []
        tail = table.tail
        try:
            if table.locks.uri is None:
                raise SluiceError(_NO_NAME)  # noqa: TRY301 (shown as every other problem)
            tail = tail or LogTail(uri, self._storage_options, self._s3_client(uri))
            commits = tail.read()
        except Exception as error:  # noqa: BLE001 (the thread must go on, and the page shows the problem)
            problem = _problem_text(error)
        if with_pins and tail is not None:
            try:
                pins, pins_problem = tuple(tail.pins()), None
            except Exception as error:  # noqa: BLE001 (the same)
                pins_problem = _problem_text(error)
        with self._changed:
            old_fields = table.log_fields
            table.tail, table.log_problem = tail, problem
            table.commits = tuple(tail.commits) if tail is not None else ()
            if with_pins:
                table.pins, table.pins_problem, table.pins_read_at = pins, pins_problem, time.monotonic()
            table.history.add_commits(commits, time.time())
            if table.log_fields != old_fields:
                self._announce(table)

    def _s3_client(self, uri: str) -> Any:
        """Return the client of S3 that all tables share; None for a table on a disk."""
        if parse_s3(uri) is None:
            return None
        # boto3 is not thread-safe while it makes a client.
        with self._client_lock:
            if self._client is None:
                self._client = s3_client(self._storage_options, **_S3_LIMITS)
            return self._client

    # -- figures and maintenance ---------------------------------------------------------------------------------------

    def _set_figures(self, figures: Mapping[str, TableFigures] | None, problem: str | None) -> None:
        with self._changed:
            figures = self._figures if figures is None else figures
            changed_tables = [
                table for uri, table in self._tables.items() if figures.get(uri) != self._figures.get(uri)
            ]
            has_changed = bool(changed_tables) or problem != self._figures_problem
            self._figures, self._figures_problem = figures, problem
            if has_changed:
                self._announce(*changed_tables)

    def _set_reports(self, reports: StoredReports | None, problem: str | None) -> None:
        with self._changed:
            reports = self._reports if reports is None else reports
            if reports is self._reports and problem == self._reports_problem:
                return
            self._reports, self._reports_problem = reports, problem
            for uri in {*reports.reports, *reports.failures}:
                if uri not in self._tables:
                    self._tables[uri] = _Table.never_locked(TableResource.of(uri))
                self._tables[uri].is_permanent = True
            self._announce(*self._tables.values())

    def _poll(self, read: Callable[[], _T], store: Callable[[_T | None, str | None], None], seconds: float) -> None:
        """Read again and again. ``store`` gets the result, or None and the reason why it could not be read."""
        while not self._stopped.is_set():
            try:
                result, problem = read(), None
            except Exception as error:  # noqa: BLE001 (the thread must go on, and the page shows the problem)
                result, problem = None, _problem_text(error)
            store(result, problem)
            self._stopped.wait(seconds)


def _fields(locks: TableLocks) -> list[tuple[object, ...]]:
    """Return the fields of a queue that a page shows. The entries' ``waits_for`` take long to compare."""
    return [(entry.hold_id, entry.holds, entry.token, entry.data) for entry in locks.entries]


def _problem_text(error: Exception) -> str:
    """Return an error as text for the page; log one that this program did not expect."""
    if isinstance(error, SluiceError):
        return str(error)
    log.error("unexpected error", exc_info=error)
    return f"{type(error).__name__}: {error}"
