"""``sluice status``: who holds which lock and who waits, since when."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from lock_manager.coordinator import Inspector
from lock_manager.queue_entry import QueueEntry, TableLocks
from lock_manager.resources import TableResource
from sluice.console import table_console

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.table import Table

_COLUMNS = ("", "what", "token", "since (UTC)", "for", "host", "pid", "application", "job")
_NUMBERS = ("token", "for", "pid")
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True)
class Status:
    """What was seen at one moment.

    Attributes:
        ensemble: its UUID; None if nothing was ever locked below this lock root.
        tables: that were asked for.
        at: when, seconds since the epoch.

    """

    ensemble: str | None
    tables: Sequence[TableLocks]
    at: float = field(default_factory=time.time)

    def seconds(self, entry: QueueEntry) -> float:
        """For how long an entry holds or waits; never negative, whatever the clocks say."""
        return max(0.0, self.at - entry.since)

    def waiting_longer_than(self, seconds: float) -> list[tuple[TableLocks, QueueEntry]]:
        """Return those that wait for longer."""
        return [(table, entry) for table in self.tables for entry in table.waiters if self.seconds(entry) > seconds]

    def to_json(self) -> dict[str, Any]:
        """Return what ``sluice status --json`` prints."""
        lists: dict[str, list[dict[str, Any]]] = {"tables": [], "internal": []}
        for table in self.tables:
            lists["internal" if table.is_internal else "tables"].append(
                {
                    "table": table.uri,
                    "key": table.key,
                    "holders": [self._told(entry) for entry in table.holders],
                    "waiters": [self._told(entry) for entry in table.waiters],
                }
            )
        return {"at": self.at, "ensemble": self.ensemble, **lists}

    def _told(self, entry: QueueEntry) -> dict[str, Any]:
        said = {name: entry.data.get(name) for name in ("host", "pid", "app_id", "job")}
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
            **said,
        }


def look(inspector: Inspector, resource: TableResource | None) -> Status:
    """Look at one table, or at every one below the lock root.

    Names below a table's log are left out if no request is at them: they are not tables.

    Raises:
        EnsembleUnavailableError, EnsembleRefusedError, EnsembleFormatError: see :class:`Inspector`.

    """
    ensemble = inspector.ensemble_id()
    if resource is not None:
        return Status(ensemble, [inspector.table(resource)])
    return Status(ensemble, [locks for locks in inspector.tables() if locks.entries or not locks.is_internal])


def describe(entry: QueueEntry) -> str:
    """Say in half a sentence who it is: for questions and messages."""
    who = f"{_said(entry, 'host') or 'unknown host'} pid {_said(entry, 'pid') or '?'}"
    more = [f"{word} {_said(entry, name)}" for word, name in (("job", "job"), ("application", "app_id"))
            if _said(entry, name)]  # fmt: skip
    return ", ".join([who, *more, f"{what_of(entry)}, token {entry.token}"])


def what_of(entry: QueueEntry) -> str:
    """Say what an entry is for."""
    if entry.partitions:
        what = ", ".join(map(printable, entry.partitions))
        what += f" and {entry.more_partitions} more" if entry.more_partitions else ""
    elif entry.within:
        what = ", ".join(f"partitions of {printable(each) or 'it'}" for each in entry.within)
    else:
        what = "the table"
    return f"{what}, shared" if entry.shared else what


def printable(text: object) -> str:
    """Return a text that another program wrote without what would steer a terminal."""
    return "".join(character if character.isprintable() else "?" for character in str(text))


def duration(seconds: float) -> str:
    """Say how long in two units at most, such as ``2 h 5 min``."""
    whole = int(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE} s"
    if whole < _DAY:
        return f"{whole // _HOUR} h {whole % _HOUR // _MINUTE} min"
    return f"{whole // _DAY} d {whole % _DAY // _HOUR} h"


@contextmanager
def display(console: Console) -> Iterator[Callable[[Status], None]]:
    """Show what was seen last, in its place on a terminal, and below each other elsewhere."""
    if not console.is_terminal:
        yield lambda status: print_status(status, console)
        return
    from rich.live import Live  # noqa: PLC0415 (only people need it)

    with Live(console=console, auto_refresh=False) as live:
        yield lambda status: live.update(_render(status), refresh=True)


def print_status(status: Status, console: Console) -> None:
    """Print it for people."""
    table_console(console).print(_render(status))


def _render(status: Status) -> Group:
    """Return what people see: a list for each table with entries, and how many have none."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    busy = [table for table in status.tables if table.entries]
    parts: list[Table | Text] = [_table_of(status, table) for table in busy]
    if len(status.tables) == 1 and not busy:
        parts.append(Text(f"{printable(status.tables[0].name)}: nobody holds it, nobody waits"))
    elif not status.tables:
        parts.append(Text("no table was ever locked here"))
    elif len(busy) < len(status.tables):
        idle = len(status.tables) - len(busy)
        parts.append(Text(f"{idle} {'table' if idle == 1 else 'tables'} that nobody holds or waits for", style="dim"))
    return Group(*parts)


def _table_of(status: Status, locks: TableLocks) -> Table:
    from rich import box  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=box.SIMPLE_HEAD, title=Text(printable(locks.name)), title_justify="left", pad_edge=False)
    for name in _COLUMNS:
        table.add_column(name, justify="right" if name in _NUMBERS else "left", overflow="fold")
    for entry in (*locks.holders, *locks.waiters):
        since = datetime.fromtimestamp(min(entry.since, status.at), UTC)
        cells = (
            "holds" if entry.holds else f"waits for {len(entry.waits_for)}" if entry.waits_for else "waits",
            what_of(entry),
            str(entry.token),
            since.strftime("%Y-%m-%d %H:%M:%S"),
            duration(status.seconds(entry)),
            _said(entry, "host"),
            _said(entry, "pid"),
            _said(entry, "app_id"),
            _said(entry, "job") or _said(entry, "identifier"),
        )
        table.add_row(*map(Text, cells), style="bold" if entry.holds else None)
    return table


def _said(entry: QueueEntry, name: str) -> str:
    return printable(entry.data.get(name) or "")
