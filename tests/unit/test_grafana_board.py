"""The Grafana board asks for metrics and labels that the code has, and for all of them; and imports as it is.

``promtool`` parses its expressions; :mod:`tests.unit.test_grafana_figures` has what they come to.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lock_manager.events import Event
from lock_manager.metrics import Metrics
from tests.unit.test_health_page import cared_for
from writer_jobs.maintenance.findings import RENAMED_CODES
from writer_jobs.maintenance.gauges import HealthGauges

ROOT = Path(__file__).parents[2]
BOARD = json.loads((ROOT / "grafana" / "sluice.json").read_text(encoding="utf-8"))
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
METRIC = re.compile(r"sluice_\w+")
SELECTOR = re.compile(r"(sluice_\w+)(?:\{([^}]*)\})?")
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None,
    reason="promtool is not on the PATH: it comes with Prometheus (Debian: apt-get install prometheus)",
)
#: Whether a counter began within the window is asked of these, which the client adds.
CREATED = "_created"


def metrics() -> dict[str, set[str]]:
    """Return the labels of each series that the code makes, by its name."""
    registry = CollectorRegistry()
    locks, health = Metrics(registry), HealthGauges(registry)
    locks(Event.QUEUED, "t")
    locks(Event.ACQUIRED, "t", seconds=1.0)
    locks(Event.LOST, "t", seconds=1.0)
    locks(Event.COMMITTED, "t")
    locks(Event.REFUSED, "t", error="LockLostError")
    report = cared_for()
    health.show(report.before, report.findings)
    health.count(report)
    return {sample.name: set(sample.labels) for family in registry.collect() for sample in family.samples}


METRICS = metrics()
#: Names that are documented and shown: of a histogram that of the family.
FAMILIES = {re.sub(r"_(bucket|sum|count)$", "", name) for name in METRICS if not name.endswith(CREATED)}


def panels(board: dict[str, Any]) -> list[dict[str, Any]]:
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in panels(board) for target in panel["targets"]]


def as_grafana_asks(expression: str) -> str:
    """Return an expression as Prometheus gets it if all tables are chosen."""
    return expression.replace("$table", ".*")


def documented() -> list[str]:
    """Return the expressions of docs/operate.md."""
    said = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    return re.findall(r"^```promql\n(.*?)^```$", said, flags=re.DOTALL | re.MULTILINE)


def promtool(folder: Path, command: str, asked: Mapping[str, Any]) -> str:
    """Return what ``promtool COMMAND rules`` finds wrong; empty: nothing."""
    assert PROMTOOL is not None
    file = folder / "rules.yml"
    file.write_text(json.dumps(asked), encoding="utf-8")  # JSON is YAML
    done = subprocess.run([PROMTOOL, command, "rules", str(file)], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr


def unparsable(folder: Path, asked: Iterable[str]) -> str:
    """Return what Prometheus' own parser says against expressions; empty: nothing."""
    rules = [{"record": f"board:expression:{number}", "expr": expression} for number, expression in enumerate(asked)]
    return promtool(folder, "check", {"groups": [{"name": "board", "rules": rules}]})


def mistakes(board: dict[str, Any]) -> Iterator[str]:
    """Yield what a board asks for, and the code has not."""
    for panel in panels(board):
        for target in panel["targets"]:
            expression = target["expr"]
            names = METRIC.findall(expression)
            if not names:
                yield f"{expression} asks for no metric"
            known = set[str]()
            for name, selector in SELECTOR.findall(expression):
                if name not in METRICS:
                    yield f"there is no metric {name}"
                    continue
                known |= METRICS[name]
                used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector))
                yield from (f"{name} has no label {label}" for label in used - METRICS[name])
            for grouped in re.findall(r"\bby \(([^)]*)\)", expression):
                labels = {label.strip() for label in grouped.split(",")}
                yield from (f"{expression} groups by {label}" for label in labels - known)
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            kept = {label.strip() for each in re.findall(r"\bby \(([^)]*)\)", expression) for label in each.split(",")}
            yield from (f"{panel['title']} shows {label}, which is not kept" for label in shown - kept)


def test_it_asks_for_what_the_code_has() -> None:
    assert list(mistakes(BOARD)) == []


def test_it_shows_everything_that_the_code_has() -> None:
    asked = set(METRIC.findall(" ".join(expressions(BOARD))))
    # Of a histogram the buckets, or the count, are enough.
    assert FAMILIES - {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} == set()


@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("sluice_commits_total", "sluice_comits_total", "there is no metric sluice_comits_total"),
        ('outcome=\\"gave_up\\"', 'result=\\"gave_up\\"', "has no label result"),
        ("by (table, error)", "by (table, mistake)", "groups by mistake"),
        ("{{table}} {{error}}", "{{table}} {{mistake}}", "shows mistake"),
    ],
)
def test_negative_control_a_misspelt_name_is_found(right: str, wrong: str, says: str) -> None:
    text = json.dumps(BOARD)
    assert right in text
    assert any(says in each for each in mistakes(json.loads(text.replace(right, wrong))))


@needs_promtool
def test_prometheus_parses_every_expression(tmp_path: Path) -> None:
    _, table = BOARD["templating"]["list"]
    (choice,) = re.findall(r"label_values\((.*), table\)", table["definition"])
    asked = [*map(as_grafana_asks, expressions(BOARD)), choice, *documented()]
    assert not [each for each in asked if "$" in each]
    assert unparsable(tmp_path, asked) == ""


@needs_promtool
@pytest.mark.parametrize(
    ("right", "wrong", "says"),
    [
        ("sum by (table)", "sum by (table", "unexpected"),
        ("increase(", "increse(", "unknown function"),
        ("[1h]", "", "expected type range vector"),
        ("[1h]", "[$window]", "missing unit character"),
    ],
)
def test_negative_control_a_broken_expression_is_found(tmp_path: Path, right: str, wrong: str, says: str) -> None:
    for expression in map(as_grafana_asks, expressions(BOARD)):
        broken = expression.replace(right, wrong)
        if broken != expression:
            assert re.search(says, unparsable(tmp_path, [broken])), broken
            return
    raise AssertionError(f"no expression has {right}")


def test_the_documented_expressions_ask_for_what_the_code_has() -> None:
    assert documented()
    for expression in documented():
        assert set(METRIC.findall(expression)) <= set(METRICS)


def test_it_imports_without_being_edited() -> None:
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


def test_old_spellings_of_findings_are_shown_as_the_new_ones() -> None:
    (panel,) = (panel for panel in panels(BOARD) if panel["title"] == "Findings")
    (override,) = panel["fieldConfig"]["overrides"]
    assert override["matcher"] == {"id": "byName", "options": "code"}
    ((mapping,),) = (setting["value"] for setting in override["properties"] if setting["id"] == "mappings")
    assert {code: text["text"] for code, text in mapping["options"].items()} == dict(RENAMED_CODES)


def test_no_panel_covers_another() -> None:
    places = [panel["gridPos"] for panel in BOARD["panels"]]
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= WIDTH for place in places)
    for one, other in itertools.combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


def test_every_metric_is_documented() -> None:
    said = (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    assert [name for name in sorted(FAMILIES) if f"`{name}`" not in said] == []


def test_gauges_show_a_table_as_it_is_now() -> None:
    registry = CollectorRegistry()
    health, report = HealthGauges(registry), cared_for()
    health.show(report.before, report.findings)
    table = {"table": report.before.table}

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {**table, **labels})

    assert value("sluice_table_files", state="live") == 60
    assert value("sluice_table_bytes", state="orphan") == 60 << 20
    assert value("sluice_table_finding_worth", code="small-files") == 48
    assert value("sluice_table_finding_worth", code="writers-clean-log") == 1
    assert value("sluice_table_measured_timestamp_seconds") == datetime(2026, 1, 1, tzinfo=UTC).timestamp()
    assert report.after is not None
    health.show(report.after, ())
    assert value("sluice_table_files", state="live") == 21
    assert value("sluice_table_finding_worth", code="small-files") == 0
    health.count(report)
    assert value("sluice_maintenance_actions_total", action="compact", outcome="done") == 1
    assert value("sluice_maintenance_actions_total", action="vacuum", outcome="given_up") == 1
    assert value("sluice_maintenance_saved_files_total", action="compact") == 39
