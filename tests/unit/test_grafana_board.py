"""The Grafana board queries every metric of the code with existing labels, and can be imported without changes.

``promtool`` parses its expressions; :mod:`tests.unit.test_grafana_figures` checks their values.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lock_manager.events import Event
from lock_manager.lock_metrics import LOCK_METRICS, LockMetrics
from lock_manager.measurements import Kind, export, record
from lock_manager.metrics import PrometheusInstruments
from sluice.ui.figures import QUERIES
from tests.unit.test_health_page import NEXT_EXPIRY, maintenance_report
from writer_jobs.maintenance.findings import RENAMED_CODES
from writer_jobs.maintenance.gauges import HEALTH_METRICS, record_health, record_maintenance
from writer_jobs.streaming.feed_metrics import FEED_METRICS, FeedProgress

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "grafana" / "sluice.json").read_text(encoding="utf-8"))
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: Columns of Grafana's grid.
GRID_COLUMNS = 24
METRIC = re.compile(r"sluice_\w+")
SELECTOR = re.compile(r"\b(sluice[_:][\w:]+)(?:\{([^}]*)\})?")
PROMTOOL = shutil.which("promtool")
NO_PROMTOOL = "promtool is not on the PATH: it comes with Prometheus (Debian: apt-get install prometheus)"
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason=NO_PROMTOOL)
#: Suffix of the series that the Prometheus client adds to each counter: its start time.
CREATED = "_created"


def documentation() -> str:
    return (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")


#: The definitions of all metrics, by name.
DEFINITIONS = {metric.name: metric for metric in (*LOCK_METRICS, *HEALTH_METRICS, *FEED_METRICS)}


@contextmanager
def exported() -> Iterator[CollectorRegistry]:
    """Return a registry that gets the values that are recorded in the block."""
    registry = CollectorRegistry()
    stop = export(PrometheusInstruments(registry))
    try:
        yield registry
    finally:
        stop()


def metrics() -> dict[str, set[str]]:
    """Return the labels of each series that the code exports, by name."""
    with exported() as registry:
        observer, report = LockMetrics(record), maintenance_report()
        for event in Event:
            observer(event, "t", seconds=1.0, error="LockLostError")
        record_health(report.before, report.findings)
        record_maintenance(report)
        FeedProgress("t", "topic", "10 seconds").record(1.0)
    return {sample.name: set(sample.labels) for family in registry.collect() for sample in family.samples}


METRICS = metrics()


def family(name: str) -> str:
    """Return the documented name of a series: the name of its histogram, or the series' own name."""
    return re.sub(r"_(bucket|sum|count)$", "", name)


FAMILIES = {family(name) for name in METRICS if not name.endswith(CREATED)}
#: The first cells of the tables in docs/operate.md: a metric is listed once.
DOCUMENTED = re.findall(r"^\| ((?:`sluice_\w+`(?:, )?)+) \| (\w+) \|(.*)\|$", documentation(), re.MULTILINE)


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in panels(board) for target in panel["targets"]]


def for_all_tables(expression: str) -> str:
    """Return the expression that Grafana sends to Prometheus if all tables are selected."""
    return expression.replace("$table", ".*")


def promtool(folder: Path, command: str, content: Mapping[str, Any]) -> str:
    """Run ``promtool COMMAND rules``; return its output if it fails, else an empty string."""
    assert PROMTOOL is not None
    file = folder / "rules.yml"
    file.write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML
    process = subprocess.run([PROMTOOL, command, "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if process.returncode == 0 else process.stdout + process.stderr


def parse_errors(folder: Path, queries: Iterable[str]) -> str:
    """Return the errors of Prometheus' own parser for these queries, or an empty string."""
    rules = [{"record": f"board:query:{number}", "expr": query} for number, query in enumerate(queries)]
    return promtool(folder, "check", {"groups": [{"name": "board", "rules": rules}]})


def labels_of_groups(expression: str) -> set[str]:
    """Return the labels in the ``by`` clauses of an expression."""
    groups = re.findall(r"\bby \(([^)]*)\)", expression)
    return {label.strip() for group in groups for label in group.split(",")}


def mistakes_of(
    expression: str, series_labels: Mapping[str, set[str]], more_labels: Iterable[str] = ()
) -> Iterator[str]:
    """Yield a message for each wrong metric or label in an expression.

    ``series_labels`` has the labels of each series by its name; all series may have ``more_labels``.
    """
    selectors = SELECTOR.findall(expression)
    if not selectors:
        yield f"{expression} queries no metric"
    labels = set(more_labels)
    for name, selector in selectors:
        if name not in series_labels:
            yield f"there is no metric {name}"
            continue
        labels |= series_labels[name]
        selector_labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
        yield from (f"{name} has no label {label}" for label in selector_labels - series_labels[name])
    yield from (f"{expression} groups by {label}" for label in labels_of_groups(expression) - labels)


def mistakes(board: dict[str, Any]) -> Iterator[str]:
    """Yield a message for each wrong metric or label in a board's expressions and legends."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield from mistakes_of(target["expr"], METRICS)
            group_labels = labels_of_groups(target["expr"])
            legend_labels = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            yield from (
                f"{panel['title']} shows {label} without grouping by it" for label in legend_labels - group_labels
            )


def test_the_board_queries_existing_metrics_and_labels() -> None:
    assert list(mistakes(BOARD)) == []


def test_sluice_ui_queries_existing_metrics_as_the_board_does() -> None:
    assert [message for query in QUERIES.values() for message in mistakes_of(query, METRICS)] == []
    shapes = [re.sub(r"\{.*?\}", "", expression) for expression in expressions(BOARD)]
    assert any(QUERIES["lost"] in shape for shape in shapes)
    assert any(QUERIES["refused"].removeprefix("sum by (table)") in shape for shape in shapes)
    assert any(QUERIES["pin_expiry"] in shape for shape in shapes)
    assert any(QUERIES["findings"] in shape for shape in shapes)


def test_the_board_shows_every_metric() -> None:
    # The buckets or the count of a histogram are enough.
    assert FAMILIES - {family(name) for name in METRIC.findall(" ".join(expressions(BOARD)))} == set()


@pytest.mark.parametrize(
    ("right", "wrong", "mistake"),
    [
        ("sluice_commits_total", "sluice_comits_total", "there is no metric sluice_comits_total"),
        ('outcome=\\"gave_up\\"', 'result=\\"gave_up\\"', "has no label result"),
        ("by (table, error)", "by (table, mistake)", "groups by mistake"),
        ("{{table}} {{error}}", "{{table}} {{mistake}}", "shows mistake"),
    ],
)
def test_negative_control_a_misspelt_name_is_found(right: str, wrong: str, mistake: str) -> None:
    text = json.dumps(BOARD)
    assert right in text
    assert any(mistake in message for message in mistakes(json.loads(text.replace(right, wrong))))


@needs_promtool
def test_prometheus_parses_every_expression(tmp_path: Path) -> None:
    _, table = BOARD["templating"]["list"]
    (table_query,) = re.findall(r"label_values\((.*), table\)", table["definition"])
    queries = [*map(for_all_tables, expressions(BOARD)), table_query, *QUERIES.values()]
    assert not [query for query in queries if "$" in query]
    assert parse_errors(tmp_path, queries) == ""


@needs_promtool
@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        ("sum by (table)", "sum by (table", "unexpected"),
        ("increase(", "increse(", "unknown function"),
        ("[1h]", "", "expected type range vector"),
        ("[1h]", "[$window]", "missing unit character"),
    ],
)
def test_negative_control_a_broken_expression_is_found(tmp_path: Path, right: str, wrong: str, error: str) -> None:
    queries = map(for_all_tables, expressions(BOARD))
    broken = next(query.replace(right, wrong) for query in queries if right in query)
    assert re.search(error, parse_errors(tmp_path, [broken])), broken


def test_the_board_can_be_imported_without_changes() -> None:
    assert BOARD["id"] is None
    assert "__inputs" not in BOARD
    source, table = BOARD["templating"]["list"]
    assert (source["type"], source["query"], source["name"]) == ("datasource", "prometheus", "datasource")
    assert table["datasource"] == SOURCE
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    for panel in panels(BOARD):
        assert panel["title"]
        assert panel["description"]
        assert panel["datasource"] == SOURCE
        assert all(target["datasource"] == SOURCE for target in panel["targets"])


def test_old_codes_of_findings_are_shown_as_the_new_ones() -> None:
    (panel,) = (panel for panel in panels(BOARD) if panel["title"] == "Findings")
    (override,) = panel["fieldConfig"]["overrides"]
    assert override["matcher"] == {"id": "byName", "options": "code"}
    ((mapping,),) = (setting["value"] for setting in override["properties"] if setting["id"] == "mappings")
    assert {code: text["text"] for code, text in mapping["options"].items()} == dict(RENAMED_CODES)


def test_no_panel_covers_another() -> None:
    boxes = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(box["x"] >= 0 and box["x"] + box["w"] <= GRID_COLUMNS for box in boxes)
    cells = Counter(
        cell
        for box in boxes
        for cell in itertools.product(range(box["x"], box["x"] + box["w"]), range(box["y"], box["y"] + box["h"]))
    )
    assert [cell for cell, count in cells.items() if count > 1] == []


def test_the_code_exports_exactly_the_defined_metrics() -> None:
    labels = {family(name): labels - {"le"} for name, labels in METRICS.items() if not name.endswith(CREATED)}
    assert labels == {name: set(metric.labels) for name, metric in DEFINITIONS.items()}
    assert len(DEFINITIONS) == len((*LOCK_METRICS, *HEALTH_METRICS, *FEED_METRICS))
    assert {name for name, metric in DEFINITIONS.items() if metric.kind is Kind.COUNTER} == {
        name for name in DEFINITIONS if name.endswith("_total")
    }


def test_every_metric_is_documented_with_its_kind_and_labels() -> None:
    documented = {name: (kind, labels) for names, kind, labels in DOCUMENTED for name in re.findall(r"`(\w+)`", names)}
    assert {name: kind for name, (kind, _) in documented.items()} == {
        name: metric.kind.value for name, metric in DEFINITIONS.items()
    }
    assert [
        (name, label)
        for name, metric in DEFINITIONS.items()
        for label in metric.more_labels
        if f"`{label}`" not in documented[name][1]
    ] == []


def test_gauges_show_the_current_state_of_a_table() -> None:
    report = maintenance_report()
    table = {"table": report.before.table}
    with exported() as registry:

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(name, {**table, **labels})

        record_health(report.before, report.findings)
        assert value("sluice_table_files", state="live") == 60
        assert value("sluice_table_bytes", state="orphan") == 60 << 20
        assert value("sluice_table_finding_worth", code="small-files") == 48
        assert value("sluice_table_finding_worth", code="writers-clean-log") == 1
        assert value("sluice_table_measured_timestamp_seconds") == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        assert value("sluice_table_next_pin_expiry_timestamp_seconds") == NEXT_EXPIRY.timestamp()
        assert report.after is not None
        record_health(replace(report.after, next_pin_expiry=None), ())
        assert value("sluice_table_files", state="live") == 21
        assert value("sluice_table_finding_worth", code="small-files") == 0
        # Without pins the gauge must not keep the expiry of an earlier pin.
        assert math.isnan(value("sluice_table_next_pin_expiry_timestamp_seconds") or 0)
        record_maintenance(report)
    assert value("sluice_maintenance_actions_total", action="compact", outcome="done") == 1
    assert value("sluice_maintenance_actions_total", action="vacuum", outcome="given_up") == 1
    assert value("sluice_maintenance_saved_files_total", action="compact") == 39
