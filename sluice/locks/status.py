"""``sluice status``: lists the holders and the waiters of each lock, with their times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from lock_manager.coordinator import Inspector
from lock_manager.courtesy_queue import FALLBACK_FIELD
from lock_manager.queue_entry import QueueEntry, TableLocks
from lock_manager.resources import TableResource
from sluice.audit.checks import count_text
from sluice.console import make_table, table_console

_COLUMNS = ("", "scope", "token", "since (UTC)", "for", "host", "pid", "application", "job")
_NUMBER_COLUMNS = ("token", "for", "pid")
_UNITS = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))


@dataclass(frozen=True)
class Status:
    """The locks of some tables at one moment.

    Attributes:
        ensemble: UUID of the ensemble; None if no table was ever locked below this lock root.
        tables: The tables, with their holders and waiters.
        at: Time at which the locks were read, seconds since the epoch.

    """

    ensemble: str | None
    tables: Sequence[TableLocks]
    at: float = field(default_factory=time.time)

    def seconds(self, entry: QueueEntry) -> float:
        """Return the seconds for which an entry has held or waited, at least 0, because clocks differ."""
        return max(0.0, self.at - entry.since)

    def waiting_longer_than(self, seconds: float) -> list[tuple[TableLocks, QueueEntry]]:
        """Return the waiters that have waited for more than ``seconds``, each with its table."""
        return [(table, entry) for table in self.tables for entry in table.waiters if self.seconds(entry) > seconds]

    def to_json(self) -> dict[str, Any]:
        """Return the object that ``sluice status --json`` prints."""
        lists: dict[str, list[dict[str, Any]]] = {"tables": [], "internal": []}
        for table in self.tables:
            lists["internal" if table.is_internal else "tables"].append(
                {
                    "table": table.uri,
                    "key": table.key,
                    "holders": [self._entry_json(entry) for entry in table.holders],
                    "waiters": [self._entry_json(entry) for entry in table.waiters],
                }
            )
        return {"at": self.at, "ensemble": self.ensemble, **lists}

    def _entry_json(self, entry: QueueEntry) -> dict[str, Any]:
        return {
            "claim": entry.hold_id,
            "token": entry.token,
            "shared": entry.shared,
            "partitions": list(entry.partitions),
            "more_partitions": entry.more_partitions,
            "within": list(entry.within),
            "since": entry.since,
            "seconds": self.seconds(entry),
            "waits_for": list(entry.waits_for),
            FALLBACK_FIELD: bool(entry.data.get(FALLBACK_FIELD)),
            **{name: entry.data.get(name) for name in ("host", "pid", "app_id", "job")},
        }


def read_status(inspector: Inspector, resource: TableResource | None) -> Status:
    """Read the locks of one table, or of every table below the lock root.

    A name below a table's log is not a table. It is listed only while it has holders or waiters.

    Raises:
        EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError: See :class:`Inspector`.

    """
    ensemble = inspector.ensemble_id()
    if resource is not None:
        return Status(ensemble, [inspector.table(resource)])
    return Status(ensemble, [locks for locks in inspector.tables() if locks.entries or not locks.is_internal])


def describe(entry: QueueEntry) -> str:
    """Describe an entry by its process, its scope and its token, for use within a sentence."""
    job, application = _field(entry, "job"), _field(entry, "app_id")
    parts = [f"{_field(entry, 'host') or 'unknown host'} pid {_field(entry, 'pid') or '?'}"]
    parts += [f"job {job}"] if job else []
    parts += [f"application {application}"] if application else []
    parts += filter(None, [fallback_text(entry)])
    return ", ".join([*parts, scope_text(entry), f"token {entry.token}"])


def fallback_text(entry: QueueEntry) -> str | None:
    """Return the text for a writer that does not rely on the lock; None for every other writer."""
    return "goes on without the lock (fallback)" if entry.data.get(FALLBACK_FIELD) else None


def scope_text(entry: QueueEntry) -> str:
    """Return an entry's scope as text: the table or its partitions, and whether it is shared."""
    if entry.partitions:
        scope = ", ".join(map(printable, entry.partitions))
        scope += f" and {entry.more_partitions} more" if entry.more_partitions else ""
    elif entry.within:
        scope = ", ".join(f"partitions of {printable(partition) or 'the table'}" for partition in entry.within)
    else:
        scope = "the table"
    return f"{scope}, shared" if entry.shared else scope


def printable(text: object) -> str:
    """Replace the control characters in a text of another program: they could change the terminal."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


def format_duration(seconds: float) -> str:
    """Format a duration with at most two units, such as ``2 h 5 min``."""
    for (unit, unit_seconds), (next_unit, next_seconds) in pairwise(_UNITS):
        if seconds >= unit_seconds:
            return f"{int(seconds) // unit_seconds} {unit} {int(seconds) % unit_seconds // next_seconds} {next_unit}"
    return f"{int(seconds)} s"


@contextmanager
def display(console: Console) -> Iterator[Callable[[Status], None]]:
    """Yield a function that shows a status. On a terminal each status replaces the previous one."""
    if not console.is_terminal:
        yield lambda status: print_status(status, console)
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda status: live.update(_render(status), refresh=True)


def print_status(status: Status, console: Console) -> None:
    """Print a status for people."""
    table_console(console).print(_render(status))


def _render(status: Status) -> Group:
    """Return a list of entries for each table that is locked or awaited, and the number of the other tables."""
    busy_tables = [table for table in status.tables if table.entries]
    parts: list[Table | Text] = [_entries_table(status, table) for table in busy_tables]
    if len(status.tables) == 1 and not busy_tables:
        parts.append(Text(f"{printable(status.tables[0].name)}: no holders, no waiters"))
    elif not status.tables:
        parts.append(Text("no table was ever locked below this lock root"))
    elif len(busy_tables) < len(status.tables):
        idle_tables = count_text(len(status.tables) - len(busy_tables), "table")
        parts.append(Text(f"{idle_tables} without holders and waiters", style="dim"))
    return Group(*parts)


def _entries_table(status: Status, locks: TableLocks) -> Table:
    table = make_table(_COLUMNS, right=_NUMBER_COLUMNS, title=Text(printable(locks.name)))
    for entry in (*locks.holders, *locks.waiters):
        started_at = datetime.fromtimestamp(min(entry.since, status.at), UTC)
        cells = (
            "holds" if entry.holds else f"waits for {len(entry.waits_for)}" if entry.waits_for else "waits",
            scope_text(entry),
            str(entry.token),
            started_at.strftime("%Y-%m-%d %H:%M:%S"),
            format_duration(status.seconds(entry)),
            _field(entry, "host"),
            _field(entry, "pid"),
            _field(entry, "app_id"),
            _field(entry, "job") or _field(entry, "identifier"),
        )
        table.add_row(*map(Text, cells), style="bold" if entry.holds else None)
    return table


def _field(entry: QueueEntry, name: str) -> str:
    return printable(entry.data.get(name) or "")
