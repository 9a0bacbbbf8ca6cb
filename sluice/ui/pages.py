"""The pages of `sluice ui`, as HTML, and the parts of them that are replaced while they are open."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import quote

from lock_manager.queue_entry import QueueEntry
from lock_manager.resources import table_key
from lock_manager.times import time_of
from sluice.audit.checks import count_text
from sluice.audit.log_files import LogCommit
from sluice.locks.status import fallback_text, format_duration, printable, scope_text
from sluice.ui import timeline
from sluice.ui.history import writer_of
from sluice.ui.live_state import Connection, LiveState, TableDetails, TableView
from writer_jobs.page.elements import Html, document, element, figures, join, table
from writer_jobs.page.health import health_parts, newest_findings

_STYLE = (
    timeline.STYLE
    + """
header p { margin: .2rem 0; } header { margin-bottom: 1rem; } .problem { color: var(--warn); font-weight: 600; }
.blocked.waiting { border-color: var(--wait); }
.blocked { border-left: 4px solid var(--line); background: var(--panel); padding: .5rem .8rem; margin: .5rem 0; }
input[type=search] { font: inherit; padding: .3rem .6rem; width: min(100%, 24rem); color: inherit;
  background: var(--panel); border: 1px solid var(--line); border-radius: .4rem; }
.hidden { display: none; } td.state { white-space: nowrap; } .held { font-weight: 600; }
nav { margin-bottom: .5rem; }
@media (max-width: 700px) { .wide { display: none; } body { padding: .6rem; }
  table.queue thead { display: none; } table.queue tr { display: block; border-bottom: 1px solid var(--line); }
  table.queue td { display: flex; justify-content: space-between; gap: 1rem; border: 0; padding: .1rem 0;
    text-align: right; }
  table.queue td:empty { display: none; }
  table.queue td::before { content: attr(data-title); color: var(--quiet); text-align: left; white-space: nowrap; } }
"""
)
_MINUTE = 60
_PICTURE_SECONDS = 30.0
_SHOWN_HOLDERS = 3
# Titles and classes of the columns.
_TITLES = (("table", "text"), ("state", "text state"), ("last hour", "text wide"), ("writes", "wide"))
_FIGURE_TITLES = (("refused", None), ("lost locks", None), ("lag", None))
_FINDINGS_TITLE = ("findings", "wide")
_SHOWN_LOCKED = 50
_SHOWN_ENTRIES = 100
_SHOWN_COMMITS = 50
_SHOWN_OPERATIONS = 50


@dataclass(frozen=True)
class Page:
    """One page at one moment.

    Attributes:
        title: Its title.
        fixed: Elements before the parts.
        parts: Parts by the id of their element. A part whose content changes is replaced while the page is open.
        rows: Rows within the part ``tables``, by id, which are replaced one by one.

    """

    title: str
    fixed: Html
    parts: Mapping[str, Html]
    rows: Mapping[str, Html] = field(default_factory=dict)

    def html(self, live: str) -> str:
        """Return the page as a file; ``live`` is the address of its changes."""
        head = (
            element("link", rel="icon", href="data:,"),
            element("script", src="/page.js", data_live=live, data_now=f"{time.time():.3f}", defer=True),
            element("noscript", element("meta", http_equiv="refresh", content="5")),
        )
        body = element("main", self.fixed, *self.parts.values())
        return document(self.title, body, style=_STYLE, head=join(*head))

    def changes(self, sent: dict[str, int]) -> dict[str, Html]:
        """Return the parts and rows that differ from those that were sent, by id; ``sent`` has the hashes of all."""
        parts = {**self.parts, **self.rows}
        hashes = {name: hash(part) for name, part in parts.items()}
        # Other tables than before, or another order: all rows are sent at once.
        left_out = {"tables"} if [*hashes] == [*sent] else self.rows.keys()
        changed_names = {name for name in hashes.keys() - left_out if hashes[name] != sent.get(name)}
        changes = {name: part for name, part in parts.items() if name in changed_names}
        sent.clear()
        sent.update(hashes)
        return changes


class Pages:
    """Makes the pages of a state; thread-safe.

    Args:
        state: The tables.
        coordinator: Address of the coordinator, for people.
        lock_options: Options of the coordinator for a command.
        has_figures: Whether the state has figures of Prometheus.
        has_report: Whether the state has the report of maintenance.

    """

    def __init__(
        self,
        state: LiveState,
        coordinator: str,
        lock_options: Sequence[str] = (),
        *,
        has_figures: bool,
        has_report: bool,
    ) -> None:
        self._state = state
        self._coordinator = coordinator
        self._lock_options = lock_options
        self._has_figures = has_figures
        self._has_report = has_report
        self._titles = _TITLES + (_FIGURE_TITLES if has_figures else ())
        self._titles += (_FINDINGS_TITLE,) if has_figures or has_report else ()
        # Rows of the page of all tables, with the generation and the time of their picture.
        self._rows: dict[str, tuple[tuple[int, float], Html]] = {}

    def page(self, uri: str | None) -> Page | None:
        """Return the page of all tables, or that of one table; None if the table is not known."""
        return self._overview_page() if uri is None else self._table_page(uri)

    def _overview_page(self) -> Page:
        overview = self._state.overview()
        busy_views = [view for view in overview.tables if view.locks.entries]
        # The tables with the most waiting requests first, of these the longest hold first.
        busy_views.sort(key=lambda view: (-len(view.locks.waiters), min(entry.since for entry in view.locks.entries)))
        rows = {_row_id(view): self._row(view) for view in overview.tables}
        blocked = [self._blocked(view) for view in busy_views[:_SHOWN_LOCKED]]
        if len(busy_views) > _SHOWN_LOCKED:
            blocked.append(element("p", f"and {len(busy_views) - _SHOWN_LOCKED:,} more locked tables"))
        if not blocked and overview.connection.at:
            blocked = [element("p", "No table is locked.")]
        parts = {
            "status": self._status(overview.connection, busy_views, count_text(len(overview.tables), "table")),
            "busy": element("section", element("h2", "Locked now"), *blocked, id="busy"),
            "tables": self._tables(list(rows.values())),
        }
        return Page("Sluice", element("h1", "Sluice"), parts, rows)

    def _table_page(self, uri: str) -> Page | None:
        details = self._state.details(uri)
        if details is None:
            return None
        view = details.view
        parts = {
            "status": self._status(details.connection, [view], None),
            "queue": _section("queue", "Lock", self._queue(view)),
            "hour": _section("hour", "Last hour", _hour(details)),
            "log": _section("log", "Commits", _commits(details)),
            "pins": _section("pins", "Pins", _pins(details)),
        }
        if self._has_figures:
            parts["figures"] = _section("figures", "Metrics", _figures(view))
        if self._has_report:
            parts["storage"] = _section("storage", "Storage health", _storage(view))
        back = element("nav", element("a", "All tables", href="/"))
        return Page(uri, join(back, element("h1", uri)), parts)

    def _status(self, connection: Connection, views: list[TableView], number_of_tables: str | None) -> Html:
        numbers = {
            "holder": sum(len(view.locks.holders) for view in views),
            "waiting request": sum(len(view.locks.waiters) for view in views),
        }
        texts = [number_of_tables, *(count_text(number, name) for name, number in numbers.items())]
        text = ", ".join(filter(None, texts))
        if not connection.at:
            text = "the locks are being read…" if connection.problem is None else ""
        source = f"Locks of {self._coordinator}"
        source += f", ensemble {connection.ensemble[:8]}" if connection.ensemble else ""
        source += ". This page updates itself."
        problem = element("p", connection.problem, class_="problem", role="alert") if connection.problem else None
        counts = element("p", text, id="counts", aria_live="polite")
        return element("div", counts, element("p", source, class_="quiet"), problem, id="status")

    def _blocked(self, view: TableView) -> Html:
        """Return the holders and the waiters of a table, in sentences."""
        holders, waiters = view.locks.holders, view.locks.waiters
        sentences = [
            element(
                "div",
                element("span", writer_of(holder), class_="held"),
                f" holds {scope_text(holder)} for ",
                self._since(view, holder),
                _since_text(self._start_of(view, holder)),
                _fallback_text(holder),
            )
            for holder in holders[:_SHOWN_HOLDERS]
        ]
        if len(holders) > _SHOWN_HOLDERS:
            sentences.append(element("div", f"and {len(holders) - _SHOWN_HOLDERS:,} more holders"))
        if waiters:
            first = waiters[0]
            text = f"{writer_of(first)} waits for it for "
            if len(waiters) > 1:
                text = f"{writer_of(first)} and {len(waiters) - 1:,} more wait for it, the first for "
            sentences.append(element("div", text, self._since(view, first)))
        return element("div", _table_link(view), *sentences, class_="blocked waiting" if waiters else "blocked")

    def _since(self, view: TableView, entry: QueueEntry) -> Html:
        """Return the duration of a hold or a wait, which the page's script keeps up to date."""
        return _age(self._start_of(view, entry)) or element("span", "an unknown time")

    def _start_of(self, view: TableView, entry: QueueEntry) -> float | None:
        # A hold stores its time after its first second.
        start = self._state.holds_since(view.uri, entry.hold_id) if entry.holds else None
        return start or time_of(entry.since)

    def _queue(self, view: TableView) -> Html:
        entries = (*view.locks.holders, *view.locks.waiters)
        if not entries:
            return element("p", "Nobody holds the lock or waits for it.")
        titles = ("state", "writer", "scope", "for", "since (UTC)", "application", "token")
        rows = [
            [
                _entry_state(entry),
                writer_of(entry),
                scope_text(entry),
                self._since(view, entry),
                _moment(self._start_of(view, entry)),
                printable(entry.data.get("app_id") or ""),
                str(entry.token),
            ]
            for entry in entries[:_SHOWN_ENTRIES]
        ]
        rest = len(entries) - len(rows)
        more = element("p", f"and {rest:,} more waiting requests") if rest else None
        return join(table("queue", titles, rows, text_columns=3), more, self._advice(view))

    def _advice(self, view: TableView) -> Html | None:
        """Return the advice about a holder that hangs; None if no request waits for a holder."""
        holders = view.locks.holders
        if not holders or not view.locks.waiters:
            return None
        advice = (
            "Does a holder hang? End its process: the lock is free at once or, if the process cannot release it, after "
            "its session timeout."
        )
        if view.locks.uri is None:
            return element("p", advice)
        options = ["--token", str(holders[0].token), *self._lock_options]
        return element(
            "p",
            advice,
            " Or remove the holder: " if len(holders) == 1 else " Or remove a holder, here the first: ",
            element("code", shlex.join(["sluice", "break", view.locks.uri, *options])),
            ". The guard refuses its later commits. A writer without the guard, such as delta-rs, or with a fallback "
            "is not stopped: end its process first.",
        )

    def _tables(self, rows: list[Html]) -> Html:
        head = element("tr", *(element("th", title, class_=style) for title, style in self._titles))
        find = element(
            "p",
            element("label", "Find a table: ", for_="filter"),
            element("input", type="search", id="filter", placeholder="part of its name, key /", autocomplete="off"),
        )
        whole_table = element("table", element("thead", head), element("tbody", *rows), class_="tables")
        return element(
            "section",
            element("h2", "All tables"),
            find,
            timeline.legend(),
            element("div", whole_table, class_="scroll"),
            id="tables",
        )

    def _row(self, view: TableView) -> Html:
        """Return the row of a table; the stored one if the table is unchanged."""
        picture_time = _picture_time()
        stored_row = self._rows.get(view.uri)
        if stored_row is not None and stored_row[0] in ((view.generation, picture_time), (view.generation, math.inf)):
            return stored_row[1]
        operations = self._state.operations(view.uri)
        writes = sum(len(operation.versions) for operation in operations)
        cells: list[object] = [
            _table_link(view),
            _state(view),
            timeline.strip(operations, picture_time),
            _number(writes),
        ]
        if self._has_figures:
            figures_of_table = view.figures
            cells += [_number(figures_of_table.refused), _number(figures_of_table.lost)]
            cells.append(_age(figures_of_table.newest))
        if self._has_figures or self._has_report:
            cells.append(_finding_codes(view))
        lines = (element("td", cell, class_=style) for cell, (_, style) in zip(cells, self._titles, strict=True))
        row = element("tr", *lines, id=_row_id(view))
        # Without operations there is no picture that moves.
        self._rows[view.uri] = (view.generation, picture_time if operations else math.inf), row
        return row


def _row_id(view: TableView) -> str:
    """Return the id of a table's row. The key would not do: a znode without a URI may have that of a shown table."""
    return f"t-{table_key(view.uri)}"


def _state(view: TableView) -> str:
    holders, waiters = len(view.locks.holders), len(view.locks.waiters)
    if not view.locks.entries:
        return "free"
    return f"{holders:,} holding, {waiters:,} waiting"


def _entry_state(entry: QueueEntry) -> str:
    state = "holds" if entry.holds else f"waits, {len(entry.waits_for):,} ahead"
    return state + _fallback_text(entry)


def _fallback_text(entry: QueueEntry) -> str:
    text = fallback_text(entry)
    return "" if text is None else f", {text}"


def _finding_codes(view: TableView) -> str:
    if view.failure is not None:
        return "maintenance failed"
    if view.report is None:
        return ", ".join(sorted(view.figures.findings))
    return ", ".join(sorted(finding.code for finding in newest_findings(view.report)))


def _storage(view: TableView) -> Html:
    failed = None
    if view.failure is not None:
        failed = element("p", f"The last maintenance failed: {view.failure}", class_="problem")
    if view.report is None:
        return failed or element("p", "The report of maintenance does not have this table.")
    return join(failed, *health_parts(view.report))


def _section(name: str, title: str, *children: object) -> Html:
    return element("section", element("h2", title), *children, id=name)


def _hour(details: TableDetails) -> Html:
    if not details.operations:
        return element("p", "No operation was seen in the last hour.")
    titles = ("writer", "wrote files", "waited", "held", "versions")
    rows = [
        [
            operation.writer,
            _span(operation.begun_at, operation.requested_at or operation.acquired_at),
            _span(operation.requested_at, operation.acquired_at or operation.ended_at or time.time()),
            _span(operation.acquired_at, operation.ended_at or time.time()),
            ", ".join(map(str, operation.versions)),
        ]
        for operation in details.operations[: -_SHOWN_OPERATIONS - 1 : -1]
    ]
    rest = len(details.operations) - len(rows)
    more = element("p", f"and {rest:,} earlier operations") if rest else None
    as_table = element(
        "details", element("summary", "As a table"), table("operations", titles, rows), more, id="operations"
    )
    picture = element("div", timeline.timeline(details.operations, _picture_time()), class_="scroll")
    return join(timeline.legend(), picture, as_table)


def _commits(details: TableDetails) -> Html:
    problem = None
    if details.log_problem is not None:
        text = f"This page cannot read the log (the locks are not affected): {details.log_problem}"
        problem = element("p", text, class_="warn")
    if not details.commits:
        text = "The table has no commits." if details.log_was_read else "The log is being read…"
        return problem or element("p", text)
    titles = ("version", "time (UTC)", "operation", "writer", "rows", "held the lock", "token")
    rows = [_commit_row(commit) for commit in details.commits[: -_SHOWN_COMMITS - 1 : -1]]
    return join(problem, table("commits", titles, rows, text_columns=4))


def _commit_row(commit: LogCommit | str) -> list[object]:
    if isinstance(commit, str):
        return ["", "", "", element("span", commit, class_="warn"), "", "", ""]
    stamp = commit.stamp
    if stamp is None:
        reason = f"no lock ({commit.observed})" if commit.observed else "no lock"
        writer: object = element("span", reason, class_="warn")
    elif commit.group:
        writer = ", ".join(write.stamp.job or "unnamed" for write in commit.group if write.stamp)
    else:
        writer = stamp.job or "unnamed"
    tokens = [*stamp.tokens.values(), *stamp.shared_tokens.values()] if stamp else []
    return [
        f"{commit.version:,}",
        _moment(time_of(commit.timestamp)),
        commit.operation or "",
        writer,
        "" if commit.rows is None else f"{commit.rows:,}",
        _span(time_of(stamp.acquired_at), time_of(commit.timestamp)) if stamp else "",
        str(max(tokens, default="")),
    ]


def _pins(details: TableDetails) -> Html:
    problem = details.pins_problem or details.log_problem
    if not details.pins and problem is not None:
        return element("p", f"This page cannot read the pins: {problem}", class_="warn")
    if not details.pins:
        return element("p", "The table has no pins." if details.pins_were_read else "The pins are being read…")
    titles = ("pin", "moment", "expires (UTC)", "version", "job")
    rows = []
    for pin in details.pins:
        version = next((pinned.version for pinned in pin.tables if pinned.table == details.view.uri), None)
        rows.append(
            [
                pin.name,
                "all rows" if pin.at is None else f"{pin.at:%Y-%m-%d %H:%M:%S}",
                _moment(pin.expires_at.timestamp()),
                "" if version is None else f"{version:,}",
                pin.job or "",
            ]
        )
    return table("pins", titles, rows, text_columns=2)


def _figures(view: TableView) -> Html:
    values = view.figures
    findings = ((f"finding {code}, worth", f"{worth:,.0f}") for code, worth in sorted(values.findings.items()))
    return figures(
        [
            ("refused commits, last hour", _number(values.refused) or "0"),
            ("lost locks, last hour", _number(values.lost) or "0"),
            ("lag of the slowest stream", _age(values.newest) or "no stream"),
            ("next pin expires (UTC)", _moment(time_of(values.pin_expiry)) or "no pin"),
            *findings,
        ]
    )


def _picture_time() -> float:
    """Return the time of the pictures, which move every 30 s, so that a part without news stays the same."""
    return math.ceil(time.time() / _PICTURE_SECONDS) * _PICTURE_SECONDS


# -- common parts ------------------------------------------------------------------------------------------------------


def table_address(uri: str) -> str:
    """Return the address of a table's page."""
    return f"/table?uri={quote(uri, safe='')}"


def _table_link(view: TableView) -> Html:
    return element("a", view.uri, href=table_address(view.uri))


def _span(start: float | None, end: float | None) -> str:
    if start is None or end is None:
        return ""
    seconds = max(0.0, end - start)
    return f"{seconds:.2f} s" if seconds < _MINUTE else format_duration(seconds)


def _moment(seconds: float | None) -> str:
    return "" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _since_text(moment: float | None) -> str:
    return "" if moment is None else f", since {_moment(moment)} UTC"


def _age(moment: float | None) -> Html | None:
    """Return the time since a moment, which the page's script keeps up to date."""
    if (since := time_of(moment)) is None:
        return None
    return element("time", format_duration(max(0.0, time.time() - since)), data_since=f"{since:.3f}")


def _number(value: float) -> str:
    return f"{value:,.0f}" if value else ""
