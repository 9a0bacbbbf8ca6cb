"""The values of the panels of the Grafana board, computed by Prometheus' own engine (``promtool test rules``).

Prometheus scrapes two kinds of jobs every minute: a long one that serves its metrics and is restarted, and short
nightly ones that write a file for node_exporter's textfile collector.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from lock_manager.events import Event, emit
from lock_manager.metrics import MetricsExporter
from tests.unit.test_grafana_board import BOARD, NO_PROMTOOL, PROMTOOL, for_all_tables, panels, promtool
from tests.unit.test_health_page import maintenance_report
from writer_jobs.maintenance.gauges import record_health, record_maintenance
from writer_jobs.streaming.feed_metrics import FeedProgress

TABLE = "s3://lake/flights"
MIB = 1 << 20
HOUR, DAY = 60, 1440  # minutes
FIRST_NIGHT, SECOND_NIGHT, THIRD_NIGHT = HOUR, HOUR + DAY, HOUR + 2 * DAY
EXPRESSIONS = {
    f"{panel['title']} {target['refId']}": for_all_tables(target["expr"])
    for panel in panels(BOARD)
    for target in panel["targets"]
}
#: Values of series by their labels.
Figures = Mapping[str, float]
NO_SERIES: Figures = {}
#: Expected figures by expression and minute.
Expected = dict[tuple[str, int], Figures]


def table_value(value: float) -> Figures:
    """Return the figures of an expression with one series for each table."""
    return {f'{{table="{TABLE}"}}': value}


def feed_value(value: float) -> Figures:
    return {f'{{source="orders", table="{TABLE}"}}': value}


def by_state(**values: float) -> Figures:
    return {f'{{state="{state}", table="{TABLE}"}}': value for state, value in values.items()}


@dataclass
class Prometheus:
    """The scrapes of each minute, and the engine that evaluates expressions over them.

    Attributes:
        folder: Folder for files of promtool.
        minute: Current time in minutes. It is also the start time of new counters.

    """

    folder: Path
    minute: int = 0
    _scrapes: dict[str, dict[int, dict[str, float]]] = field(default_factory=dict)

    def scrape(self, target: str, text: str) -> None:
        """Store the metrics of a target from this minute until its next scrape; an empty text means it is gone."""
        self._scrapes.setdefault(target, {})[self.minute] = {
            f"{sample.name}{{{labels}}}": sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            for labels in [
                ",".join(f"{name}={json.dumps(value)}" for name, value in {**sample.labels, "instance": target}.items())
            ]
        }

    def differences(self, expected: Expected, *, rules: Path | None = None, evaluate_every: int = 1) -> str:
        """Return promtool's report on rounded values that differ, or an empty string; shares are in percent.

        ``rules`` is a file with rules, which are evaluated every ``evaluate_every`` minutes; by default there are none.
        """
        checks = [
            {
                "expr": f"round({expression} * {100 if ' / ' in expression else 1})",
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in figures.items()],
            }
            for (expression, minute), figures in expected.items()
        ]
        end = 1 + max(*(minute for _, minute in expected), *(max(scrapes) for scrapes in self._scrapes.values()))
        series = [
            {"series": name, "values": _values(scrapes, name, end)}
            for scrapes in self._scrapes.values()
            for name in sorted({name for scrape in scrapes.values() for name in scrape})
        ]
        test = {"interval": "1m", "input_series": series, "promql_expr_test": checks}
        content: dict[str, Any] = {"tests": [test]}
        if rules is not None:
            groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
            content["rule_files"] = [str(rules)]
            # By default promtool's order is random, but rules use the results of those before them.
            content["group_eval_order"] = [group["name"] for group in groups]
            content["evaluation_interval"] = f"{evaluate_every}m"
        return promtool(self.folder, "test", content)

    @contextmanager
    def nightly_job(self, name: str, minute: int) -> Iterator[MetricsExporter]:
        """Run a job of 2 minutes that writes a file. Prometheus scrapes the file at the job's start and end."""
        file = self.folder / name

        def scrape() -> None:
            modification_time = f'node_textfile_mtime_seconds{{file="{file}"}} {self.minute * 60}\n'
            self.scrape(name, file.read_text(encoding="utf-8") + modification_time)

        self.minute = minute
        with MetricsExporter(str(file)) as exporter:
            scrape()
            self.minute += 1
            yield exporter
        self.minute += 1
        scrape()

    def serve(self, minute: int, exporter: MetricsExporter, *, has_creation_times: bool = True) -> None:
        """Scrape a job that serves its metrics, at this minute."""
        self.minute = minute
        lines = generate_latest(exporter.registry).decode().splitlines(keepends=True)
        self.scrape("stream:9464", "".join(line for line in lines if has_creation_times or "_created" not in line))

    def maintain(self, *, pin_expires_in: timedelta | None = timedelta(hours=3)) -> None:
        """Record the metrics of a maintained table, which has 21 files and a pin afterwards; None: no pin."""
        report = maintenance_report()
        assert report.after is not None
        measured_at = datetime.fromtimestamp(self.minute * 60, UTC)
        expiry = None if pin_expires_in is None else measured_at + pin_expires_in
        record_health(replace(report.after, measured_at=measured_at, next_pin_expiry=expiry), report.findings_after)
        record_maintenance(report)

    def apply_batch(self, *, lag_minutes: int, trigger: str = "10 seconds") -> None:
        """Record that a stream has applied changes up to a time in the past."""
        FeedProgress(TABLE, "orders", trigger).record((self.minute - lag_minutes) * 60.0)


def _values(scrapes: Mapping[int, Mapping[str, float]], name: str, end: int) -> str:
    """Return the values of a series in promtool's notation, from minute 0."""
    minutes = sorted(scrapes)
    values = [f"_x{minutes[0]}"] if minutes[0] else []
    is_present = False
    for minute, next_minute in zip(minutes, [*minutes[1:], end], strict=True):
        value = scrapes[minute].get(name)
        repetitions = next_minute - minute - 1
        if value is not None:
            values.append(f"{value!r}+0x{repetitions}")
        else:
            values.append("stale" if is_present else "_")
            values += [f"_x{repetitions}"] if repetitions else []
        is_present = value is not None
    return " ".join(values)


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Prometheus:
    if PROMTOOL is None:
        pytest.skip(NO_PROMTOOL)
    prometheus = Prometheus(tmp_path)
    clock = SimpleNamespace(time=lambda: prometheus.minute * 60.0)
    for module in ("prometheus_client.metrics", "lock_manager.lock_metrics"):
        monkeypatch.setattr(f"{module}.time", clock)
    return prometheus


def write(*, commits: int, grouped: int = 0, end: Event = Event.RELEASED, gives_up: bool = False) -> None:
    """Emit the events of a writer that waits 2 s and holds the lock for 3 s.

    ``grouped`` further writes wait 2 s, and are committed in the version of another writer.
    """
    for _ in range(grouped):
        emit(Event.QUEUED, TABLE)
        emit(Event.DISMISSED, TABLE, seconds=2.0)
        emit(Event.COMMITTED, TABLE)
        emit(Event.GROUPED, TABLE)
    emit(Event.QUEUED, TABLE)
    emit(Event.ACQUIRED, TABLE, seconds=2.0)
    for _ in range(commits):
        emit(Event.COMMITTED, TABLE)
    emit(end, TABLE, seconds=3.0)
    if end is Event.LOST:
        emit(Event.REFUSED, TABLE, error="LockLostError")
        emit(Event.FELL_BACK, TABLE)
        emit(Event.INTENT_SETTLED, TABLE)
    if gives_up:
        emit(Event.QUEUED, TABLE)
        emit(Event.UNAVAILABLE, TABLE, error="EnsembleUnavailableError")
        emit(Event.GAVE_UP, TABLE, seconds=2.0)


# Prometheus interpolates linearly in the bucket from 1 s to 5 s.
LOCK_TIMES: dict[str, Figures] = {
    "Wait for the lock A": table_value(3),
    "Wait for the lock B": table_value(5),
    "Hold of the lock A": table_value(3),
    "Hold of the lock B": table_value(5),
}
HEALTH: dict[str, Figures] = {
    "Data files A": table_value(21),
    "Small files A": table_value(52),
    "Deleted rows A": table_value(5),
    "Orphans A": table_value(7),
    "Findings A": {
        f'{{code="{finding.code}", table="{TABLE}"}}': max(1.0, finding.worth)
        for finding in maintenance_report().findings_after
    },
}
HISTORY: dict[str, Figures] = {
    "Bytes by state A": by_state(
        live=240.0 * MIB, removed=120.0 * MIB, orphan=60.0 * MIB, expired=0.0,
        kept_for_pins=0.0, kept_for_streams=0.0, uncommitted=0.0,
    ),
    "Rows and partitions A": table_value(19_000),
    "Rows and partitions B": table_value(2),
    "Log A": table_value(1235),
    "Log size A": table_value(9 * MIB),
    "Versions since the checkpoint A": table_value(34),
    "Growth by day A": table_value(-5 * MIB),
    # The report has 120.5, which is rounded up.
    "Commits by day A": table_value(121),
}  # fmt: skip
COORDINATOR_FAILURE = f'{{error="EnsembleUnavailableError", table="{TABLE}"}}'
SETTLED_INTENT = f'{{outcome="settled", table="{TABLE}"}}'
REFUSED_COMMIT = f'{{error="LockLostError", table="{TABLE}"}}'


def maintenance_figures(times: int) -> dict[str, Figures]:
    """Return the maintenance panels' figures for a table that was maintained this number of times in the last day."""
    return {
        "Maintenance actions A": {
            '{action="compact", outcome="done"}': times,
            '{action="vacuum", outcome="given_up"}': times,
        },
        "Maintenance time A": {'{action="compact"}': 12 * times, '{action="vacuum"}': 0},
        "Files saved by maintenance A": {'{action="compact"}': 39 * times, '{action="vacuum"}': 0},
    }


def figures_at(minute: int, panel_figures: Mapping[str, Figures]) -> Expected:
    return {(EXPRESSIONS[panel], minute): figures for panel, figures in panel_figures.items()}


def run_three_nights(prometheus: Prometheus) -> Expected:
    """Run three nights of jobs that write files, and return the expected figures of the panels.

    In the first night a second job writes the same table. In the third, the maintainer fails before it reads a table.
    """
    for minute in (FIRST_NIGHT, SECOND_NIGHT, THIRD_NIGHT):
        with prometheus.nightly_job("nightly.prom", minute):
            write(
                commits=2, end=Event.LOST if minute == SECOND_NIGHT else Event.RELEASED, gives_up=minute == THIRD_NIGHT
            )
        if minute == FIRST_NIGHT:
            with prometheus.nightly_job("other.prom", minute):
                write(commits=1, grouped=2)
        with prometheus.nightly_job("maintain.prom", minute):
            if minute != THIRD_NIGHT:
                prometheus.maintain()
    first_night = {
        **LOCK_TIMES, **HEALTH, **HISTORY, **maintenance_figures(1),
        "Waiting and holding requests A": NO_SERIES,
        "Commits A": table_value(5),
        "Commits B": table_value(3),
        # These counters do not exist before their first event.
        "Failed requests A": NO_SERIES,
        "Lost holds and fallbacks A": NO_SERIES,
        "Lost holds and fallbacks B": NO_SERIES,
        "Refused commits A": NO_SERIES,
        "Oldest waiting request A": NO_SERIES,
        "Failures of the coordinator A": NO_SERIES,
        "Unfinished intents A": NO_SERIES,
        "Lag of feeds A": NO_SERIES,
        # Expires three hours after the measurement.
        "Time until the next pin expires A": table_value(151 * 60),
        # Measured at minute 61, evaluated at minute 90.
        "Time since the last measurement A": table_value(29 * 60),
    }  # fmt: skip
    second_night = first_night | {
        "Commits A": table_value(2),
        "Commits B": table_value(2),
        "Lost holds and fallbacks A": table_value(1),
        "Lost holds and fallbacks B": table_value(1),
        "Refused commits A": {REFUSED_COMMIT: 1},
        "Unfinished intents A": {SETTLED_INTENT: 1},
    }
    third_night = {
        **first_night, **dict.fromkeys(HISTORY, NO_SERIES), **maintenance_figures(0),
        "Commits A": table_value(2),
        "Commits B": table_value(2),
        "Failed requests A": table_value(1),
        "Lost holds and fallbacks A": table_value(0),
        "Lost holds and fallbacks B": table_value(0),
        "Refused commits A": {REFUSED_COMMIT: 0},
        "Failures of the coordinator A": {COORDINATOR_FAILURE: 1},
        "Unfinished intents A": {SETTLED_INTENT: 0},
        "Time until the next pin expires A": NO_SERIES,
        "Time since the last measurement A": table_value((29 + DAY) * 60),
    }  # fmt: skip
    lost_holds = ("Lost holds and fallbacks A", "Lost holds and fallbacks B")
    counters = ("Commits A", "Commits B", "Failed requests A", *lost_holds)
    return (
        figures_at(FIRST_NIGHT + 2, {"Waiting and holding requests A": by_state(waiting=0, holding=0)})
        | figures_at(FIRST_NIGHT + 30, first_night)
        | figures_at(SECOND_NIGHT + 30, second_night)
        | figures_at(THIRD_NIGHT + 30, third_night)
        | figures_at(THIRD_NIGHT + 2 * HOUR, dict.fromkeys(counters, table_value(0)))
    )


def test_panels_show_jobs_that_write_a_file_at_their_end(prometheus: Prometheus) -> None:
    expected = run_three_nights(prometheus)
    assert {expression for expression, _ in expected} == set(EXPRESSIONS.values())
    assert prometheus.differences(expected) == ""


@pytest.mark.parametrize(
    ("naive_expression", "minute", "events"),
    [
        ("increase(sluice_commits_total{file=~'.*nightly.prom'}[1h])", FIRST_NIGHT + 30, 2),
        ("sum by (table) (increase(sluice_lock_losses_total[1h]))", SECOND_NIGHT + 30, 1),
        ("sum by (table) (rate(sluice_lock_wait_seconds_count[5m])) * 300", FIRST_NIGHT + 3, 2),
    ],
)
def test_negative_control_increase_misses_the_first_events_of_a_counter(
    prometheus: Prometheus, naive_expression: str, minute: int, events: int
) -> None:
    run_three_nights(prometheus)
    query = f"sum by (table) ({naive_expression})"
    assert prometheus.differences({(query, minute): table_value(0)}) == ""
    assert "FAILED" in prometheus.differences({(query, minute): table_value(events)})


def test_negative_control_increase_misses_a_night_equal_to_the_last_one(prometheus: Prometheus) -> None:
    """A job that deletes its file starts its counters again."""
    for minute in (FIRST_NIGHT, SECOND_NIGHT):
        (prometheus.folder / "nightly.prom").unlink(missing_ok=True)
        with prometheus.nightly_job("nightly.prom", minute):
            write(commits=2)
    naive_expression = "sum by (table) (increase(sluice_commits_total[1h]))"
    assert prometheus.differences({(naive_expression, SECOND_NIGHT + 30): table_value(0)}) == ""
    # The board's expression uses the start time of the counter.
    assert prometheus.differences(figures_at(SECOND_NIGHT + 30, {"Commits A": table_value(2)})) == ""


def test_panels_show_a_job_that_serves_and_is_restarted(prometheus: Prometheus) -> None:
    with MetricsExporter("0") as exporter:
        prometheus.serve(0, exporter)
        write(commits=1)
        prometheus.apply_batch(lag_minutes=2)
        prometheus.serve(10, exporter)
        write(commits=2)
        prometheus.serve(100, exporter)
        emit(Event.QUEUED, TABLE)
        prometheus.serve(105, exporter)
        emit(Event.ACQUIRED, TABLE, seconds=2.0)
        prometheus.serve(106, exporter)
        emit(Event.RELEASED, TABLE, seconds=3.0)
        prometheus.minute = 110
        write(commits=0, end=Event.LOST, gives_up=True)
        prometheus.serve(110, exporter)
        prometheus.maintain()
        prometheus.serve(111, exporter)
    prometheus.minute = 112
    prometheus.scrape("stream:9464", "")
    with MetricsExporter("0") as exporter:
        prometheus.serve(115, exporter)
        prometheus.minute = 116
        write(commits=1)
        prometheus.serve(116, exporter)

    requests_panel, oldest_panel = "Waiting and holding requests A", "Oldest waiting request A"
    lag_panel = "Lag of feeds A"
    # The figures include events of the first process, which has ended.
    final_figures = {
        **LOCK_TIMES, **HEALTH, **maintenance_figures(1),
        requests_panel: by_state(waiting=0, holding=0),
        "Commits A": table_value(3),
        "Commits B": table_value(3),
        "Failed requests A": table_value(1),
        "Lost holds and fallbacks A": table_value(1),
        "Lost holds and fallbacks B": table_value(1),
        "Refused commits A": {REFUSED_COMMIT: 1},
        "Failures of the coordinator A": {COORDINATOR_FAILURE: 1},
        "Unfinished intents A": {SETTLED_INTENT: 1},
        "Time until the next pin expires A": table_value(170 * 60),
        "Time since the last measurement A": table_value(10 * 60),
    }  # fmt: skip
    expected = (
        figures_at(10, LOCK_TIMES | {"Commits A": table_value(1), "Lost holds and fallbacks A": NO_SERIES})
        | figures_at(50, LOCK_TIMES | {"Commits A": table_value(1)})
        | figures_at(90, {"Commits A": table_value(0), requests_panel: by_state(waiting=0, holding=0)})
        | figures_at(105, {"Commits A": table_value(2), requests_panel: by_state(waiting=1, holding=0)})
        # Requested at minute 100.
        | figures_at(105, {oldest_panel: table_value(5 * 60)})
        | figures_at(106, {requests_panel: by_state(waiting=0, holding=1), oldest_panel: NO_SERIES})
        # At minute 0 a batch has applied changes up to 2 minutes before.
        | figures_at(50, {lag_panel: feed_value(52 * 60)})
        # The lag also grows after the end of the process.
        | figures_at(113, {lag_panel: feed_value(115 * 60)})
        | figures_at(111, HISTORY)
        | figures_at(120, final_figures)
    )
    assert {expression for expression, _ in expected} == set(EXPRESSIONS.values())
    assert prometheus.differences(expected) == ""


def test_a_killed_job_holds_no_lock_once_its_file_is_old(
    prometheus: Prometheus, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    monkeypatch.setattr("lock_manager.metrics.WRITE_SECONDS", 0.05)
    file = prometheus.folder / "nightly.prom"
    holding_gauge = f'state="holding",table="{TABLE}"}} 1.0'
    with MetricsExporter(str(file)):
        emit(Event.QUEUED, TABLE)
        emit(Event.ACQUIRED, TABLE, seconds=2.0)
        eventually(lambda: holding_gauge in file.read_text(encoding="utf-8"))
        stale_metrics = file.read_text(encoding="utf-8")
    prometheus.minute = 1
    prometheus.scrape("host", f'{stale_metrics}node_textfile_mtime_seconds{{file="{file}"}} 60\n')
    panel = "Waiting and holding requests A"
    expected = figures_at(2, {panel: by_state(holding=1, waiting=0)}) | figures_at(3, {panel: NO_SERIES})
    assert prometheus.differences(expected) == ""
