"""What the panels of the Grafana board show, computed by Prometheus' own engine (``promtool test rules``).

Two kinds of jobs are scraped every minute: one that serves its metrics for hours and is started again, and some that
are over at once, night after night, and write a file for node_exporter's textfile collector.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lock_manager.events import Event, emit
from lock_manager.metrics import MetricsExporter
from tests.unit.test_grafana_board import BOARD, as_grafana_asks, needs_promtool, panels, promtool
from tests.unit.test_health_page import cared_for
from writer_jobs.maintenance.gauges import HealthGauges

pytestmark = needs_promtool

TABLE = "s3://lake/flights"
MIB = 1 << 20
HOUR, DAY = 60, 1440  # minutes
FIRST, SECOND, THIRD = HOUR, HOUR + DAY, HOUR + 2 * DAY
EXPRESSIONS = {
    f"{panel['title']} {target['refId']}": as_grafana_asks(target["expr"])
    for panel in panels(BOARD)
    for target in panel["targets"]
}
OF_TABLE = f'{{table="{TABLE}"}}'
#: To a value, by labels.
Figures = Mapping[str, float]
NOTHING: Figures = {}


def one(value: float) -> Figures:
    """Return the figures of an expression that has one series for each table."""
    return {OF_TABLE: value}


@dataclass
class Prometheus:
    """What it scraped, minute by minute, and what its engine makes of that."""

    minute: int = 0
    _scrapes: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)

    def scrape(self, target: str, text: str) -> None:
        """Take in what a target says at this minute, and until it says something else; ``""``: it is gone."""
        self._scrapes.setdefault(target, {})[self.minute] = {
            f"{sample.name}{{{labels}}}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            for labels in [
                ",".join(f"{name}={json.dumps(value)}" for name, value in {**sample.labels, "instance": target}.items())
            ]
        }

    def wrong(self, folder: Path, asked: Mapping[tuple[str, int], Figures]) -> str:
        """Return which (expressions, minutes) do not come to the figures, rounded; empty: none.

        Shares are in percent.
        """
        checks = [
            {
                "expr": f"round({expression} * {100 if ' / ' in expression else 1})",
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in figures.items()],
            }
            for (expression, minute), figures in asked.items()
        ]
        end = 1 + max(*(minute for _, minute in asked), *(max(scrapes) for scrapes in self._scrapes.values()))
        series = [
            {"series": name, "values": _values(scrapes, name, end)}
            for scrapes in self._scrapes.values()
            for name in sorted({name for scrape in scrapes.values() for name in scrape})
        ]
        return promtool(
            folder, "test", {"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}]}
        )


def _values(scrapes: Mapping[int, Mapping[str, float]], name: str, end: int) -> str:
    """Return the values of a series in promtool's notation, from minute 0."""
    begins = sorted(scrapes)
    values = [f"_x{begins[0]}"] if begins[0] else []
    was_there = False
    for begin, until in zip(begins, [*begins[1:], end], strict=True):
        value = scrapes[begin].get(name)
        if value is not None:
            values.append(f"{value!r}+0x{until - begin - 1}")
        else:
            values.append("stale" if was_there else "_")
            values += [f"_x{until - begin - 1}"] if until - begin > 1 else []
        was_there = value is not None
    return " ".join(values)


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Prometheus:
    """Prometheus, by whose clock counters begin."""
    made = Prometheus()
    monkeypatch.setattr("prometheus_client.metrics.time", SimpleNamespace(time=lambda: made.minute * 60.0))
    return made


@contextmanager
def night(prometheus: Prometheus, file: Path, minute: int) -> Iterator[MetricsExporter]:
    """Run a job that writes a file, which node_exporter shows when it begins and when it is over, 2 minutes later."""

    def scrape() -> None:
        written = f'node_textfile_mtime_seconds{{file="{file}"}} {prometheus.minute * 60}\n'
        prometheus.scrape(file.name, file.read_text(encoding="utf-8") + written)

    prometheus.minute = minute
    with MetricsExporter(str(file)) as exporter:
        scrape()
        prometheus.minute += 1
        yield exporter
    prometheus.minute += 1
    scrape()


def write(*, commits: int, ends: Event = Event.RELEASED, gives_up: bool = False) -> None:
    """Have the events of a writer that waits 2 s and holds the lock for 3 s."""
    emit(Event.QUEUED, TABLE)
    emit(Event.ACQUIRED, TABLE, seconds=2.0)
    for _ in range(commits):
        emit(Event.COMMITTED, TABLE)
    emit(ends, TABLE, seconds=3.0)
    if ends is Event.LOST:
        emit(Event.REFUSED, TABLE, error="LockLostError")
    if gives_up:
        emit(Event.QUEUED, TABLE)
        emit(Event.GAVE_UP, TABLE, seconds=2.0)


def maintain(prometheus: Prometheus, exporter: MetricsExporter) -> None:
    """Look after a table: it has 21 files then."""
    gauges, report = HealthGauges(exporter.registry), cared_for()
    assert report.after is not None
    now = datetime.fromtimestamp(prometheus.minute * 60, UTC)
    gauges.show(replace(report.after, measured_at=now), report.findings_after)
    gauges.count(report)


# The bucket from 1 s to 5 s, by linear interpolation.
P50, P99 = one(3), one(5)
HEALTH: dict[str, Figures] = {
    "Data files A": one(21),
    "Small files A": one(52),
    "Deleted rows A": one(5),
    "Orphans A": one(7),
    "Findings A": {
        f'{{code="{finding.code}", table="{TABLE}"}}': max(1.0, finding.worth) for finding in cared_for().findings_after
    },
}
HISTORY: dict[str, Figures] = {
    "Where the bytes are A": {
        f'{{state="{state}", table="{TABLE}"}}': size
        for state, size in {
            "live": 240.0 * MIB,
            "removed": 120.0 * MIB,
            "orphan": 60.0 * MIB,
            "expired": 0.0,
            "kept_for_pins": 0.0,
            "kept_for_streams": 0.0,
            "uncommitted": 0.0,
        }.items()
    },
    "Rows and partitions A": one(19_000),
    "Rows and partitions B": one(2),
    "Log A": one(1235),
    "Bytes of the log A": one(9 * MIB),
    "Versions since the checkpoint A": one(34),
    "Growth by day A": one(-5 * MIB),
    # Half of it is rounded up.
    "Commits by day A": one(121),
}


def done(times: int) -> dict[str, Figures]:
    """Return what the panels show if the table was looked after so many times in the last day."""
    return {
        "What was done A": {
            '{action="compact", outcome="done"}': times,
            '{action="vacuum", outcome="given_up"}': times,
        },
        "Time that it took A": {'{action="compact"}': 12 * times, '{action="vacuum"}': 0},
        "Files that it saved A": {'{action="compact"}': 39 * times, '{action="vacuum"}': 0},
    }


def at(minute: int, figures: Mapping[str, Figures]) -> dict[tuple[str, int], Figures]:
    return {(EXPRESSIONS[panel], minute): expected for panel, expected in figures.items()}


def nights(prometheus: Prometheus, folder: Path) -> dict[tuple[str, int], Figures]:
    """Have three nights of jobs that write files, and return what the panels are to show.

    Another job writes the same table in the first. In the third the maintainer fails before it sees a table.
    """
    for minute in (FIRST, SECOND, THIRD):
        with night(prometheus, folder / "nightly.prom", minute):
            write(commits=2, ends=Event.LOST if minute == SECOND else Event.RELEASED, gives_up=minute == THIRD)
        if minute == FIRST:
            with night(prometheus, folder / "other.prom", minute):
                write(commits=1)
        with night(prometheus, folder / "maintain.prom", minute) as exporter:
            if minute != THIRD:
                maintain(prometheus, exporter)
    waits = {
        "Wait for the lock A": P50,
        "Wait for the lock B": P99,
        "Hold of the lock A": P50,
        "Hold of the lock B": P99,
    }
    refused = f'{{error="LockLostError", table="{TABLE}"}}'
    holders = {f'{{state="{state}", table="{TABLE}"}}': 0.0 for state in ("waiting", "holding")}
    first = (
        waits
        | HEALTH
        | HISTORY
        | done(1)
        | {
            "Who waits and who holds A": NOTHING,
            "Commits A": one(3),
            # Nothing has ever been.
            "Locks that were not had A": NOTHING,
            "Locks that were lost A": NOTHING,
            "Commits that were refused A": NOTHING,
            # Measured in the 61st minute, asked in the 90th.
            "Not looked at for A": one(29 * 60),
        }
    )
    second = first | {
        "Commits A": one(2),
        "Locks that were lost A": one(1),
        "Commits that were refused A": {refused: 1},
    }
    third = (
        first
        | dict.fromkeys(HISTORY, NOTHING)
        | done(0)
        | {
            "Commits A": one(2),
            "Locks that were not had A": one(1),
            "Locks that were lost A": one(0),
            "Commits that were refused A": {refused: 0},
            "Not looked at for A": one((29 + DAY) * 60),
        }
    )
    silent = {"Commits A": one(0), "Locks that were not had A": one(0), "Locks that were lost A": one(0)}
    return (
        at(FIRST + 2, {"Who waits and who holds A": holders})
        | at(FIRST + 30, first)
        | at(SECOND + 30, second)
        | at(THIRD + 30, third)
        | at(THIRD + 2 * HOUR, silent)
    )


def test_jobs_that_write_a_file_at_their_end(prometheus: Prometheus, tmp_path: Path) -> None:
    expected = nights(prometheus, tmp_path)
    assert {expression for expression, _ in expected} == set(EXPRESSIONS.values())
    assert prometheus.wrong(tmp_path, expected) == ""


@pytest.mark.parametrize(
    ("naive", "minute", "what_happened"),
    [
        ("increase(sluice_commits_total{file=~'.*nightly.prom'}[1h])", FIRST + 30, 2),
        ("sum by (table) (increase(sluice_lock_losses_total[1h]))", SECOND + 30, 1),
        ("sum by (table) (rate(sluice_lock_wait_seconds_count[5m])) * 300", FIRST + 3, 2),
    ],
)
def test_negative_control_what_a_new_counter_counted_first_is_not_in_its_increase(
    prometheus: Prometheus, tmp_path: Path, naive: str, minute: int, what_happened: int
) -> None:
    nights(prometheus, tmp_path)
    asked = f"sum by (table) ({naive})"
    assert prometheus.wrong(tmp_path, {(asked, minute): one(0)}) == ""
    assert "FAILED" in prometheus.wrong(tmp_path, {(asked, minute): one(what_happened)})


def test_negative_control_of_files_that_begin_anew_two_equal_nights_are_none(
    prometheus: Prometheus, tmp_path: Path
) -> None:
    for minute in (FIRST, SECOND):
        (tmp_path / "nightly.prom").unlink(missing_ok=True)
        with night(prometheus, tmp_path / "nightly.prom", minute):
            write(commits=2)
    naive = "sum by (table) (increase(sluice_commits_total[1h]))"
    assert prometheus.wrong(tmp_path, {(naive, SECOND + 30): one(0)}) == ""
    # The board can tell even then, by the time at which the counter began.
    assert prometheus.wrong(tmp_path, at(SECOND + 30, {"Commits A": one(2)})) == ""


def test_a_job_that_is_scraped_for_hours_and_started_again(prometheus: Prometheus, tmp_path: Path) -> None:
    def serve(minute: int, exporter: MetricsExporter) -> None:
        prometheus.minute = minute
        prometheus.scrape("stream:9464", generate_latest(exporter.registry).decode())

    with MetricsExporter("0") as exporter:
        serve(0, exporter)
        write(commits=1)
        serve(10, exporter)
        write(commits=2)
        serve(100, exporter)
        emit(Event.QUEUED, TABLE)
        serve(105, exporter)
        emit(Event.ACQUIRED, TABLE, seconds=2.0)
        serve(106, exporter)
        emit(Event.RELEASED, TABLE, seconds=3.0)
        prometheus.minute = 110
        write(commits=0, ends=Event.LOST, gives_up=True)
        serve(110, exporter)
        maintain(prometheus, exporter)
        serve(111, exporter)
    prometheus.minute = 112
    prometheus.scrape("stream:9464", "")
    with MetricsExporter("0") as exporter:
        serve(115, exporter)
        prometheus.minute = 116
        write(commits=1)
        serve(116, exporter)

    state = {each: f'{{state="{each}", table="{TABLE}"}}' for each in ("waiting", "holding")}
    waits = {
        "Wait for the lock A": P50,
        "Wait for the lock B": P99,
        "Hold of the lock A": P50,
        "Hold of the lock B": P99,
    }
    # What was counted before the process ended, too.
    end = (
        waits
        | HEALTH
        | done(1)
        | {
            "Who waits and who holds A": {state["waiting"]: 0, state["holding"]: 0},
            "Commits A": one(3),
            "Locks that were not had A": one(1),
            "Locks that were lost A": one(1),
            "Commits that were refused A": {f'{{error="LockLostError", table="{TABLE}"}}': 1},
            "Not looked at for A": one(10 * 60),
        }
    )
    expected = (
        at(10, waits | {"Commits A": one(1), "Locks that were lost A": NOTHING})
        | at(50, waits | {"Commits A": one(1)})
        | at(90, {"Commits A": one(0), "Who waits and who holds A": {state["waiting"]: 0, state["holding"]: 0}})
        | at(105, {"Commits A": one(2), "Who waits and who holds A": {state["waiting"]: 1, state["holding"]: 0}})
        | at(106, {"Who waits and who holds A": {state["waiting"]: 0, state["holding"]: 1}})
        | at(111, HISTORY)
        | at(120, end)
    )
    assert {expression for expression, _ in expected} == set(EXPRESSIONS.values())
    assert prometheus.wrong(tmp_path, expected) == ""


def test_a_job_that_was_killed_holds_no_more_once_its_file_is_old(
    prometheus: Prometheus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    monkeypatch.setattr("lock_manager.metrics.WRITE_SECONDS", 0.05)
    file = tmp_path / "nightly.prom"
    holding = f'state="holding",table="{TABLE}"}} 1.0'
    with MetricsExporter(str(file)):
        emit(Event.QUEUED, TABLE)
        emit(Event.ACQUIRED, TABLE, seconds=2.0)
        eventually(lambda: holding in file.read_text(encoding="utf-8"))
        left_behind = file.read_text(encoding="utf-8")
    prometheus.minute = 1
    prometheus.scrape("host", f'{left_behind}node_textfile_mtime_seconds{{file="{file}"}} 60\n')
    holds = {f'{{state="holding", table="{TABLE}"}}': 1.0, f'{{state="waiting", table="{TABLE}"}}': 0.0}
    panel = "Who waits and who holds A"
    assert prometheus.wrong(tmp_path, at(2, {panel: holds}) | at(3, {panel: NOTHING})) == ""
