"""Each alert of ``prometheus/alerts.yml`` fires in its case and in no similar case, by Prometheus' own engine.

The series come from the code's own exporters, as in :mod:`tests.unit.test_grafana_figures`. Those of ZooKeeper are
those that ZooKeeper 3.9.5 exported on port 7000.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from lock_manager.events import Event, emit
from lock_manager.metrics import MetricsExporter
from tests.unit.test_develop import anchors_of
from tests.unit.test_grafana_board import (
    METRICS,
    PROMTOOL,
    ROOT,
    documentation,
    labels_of_groups,
    mistakes_of,
    needs_promtool,
    promtool,
)
from tests.unit.test_grafana_figures import DAY, HOUR, TABLE, Expected, Prometheus, prometheus
from tests.unit.test_health_page import health
from writer_jobs.maintenance.findings import Finding
from writer_jobs.maintenance.gauges import record_health
from writer_jobs.streaming.query import AVAILABLE_NOW

__all__ = ["prometheus"]  # a fixture

RULES_FILE = ROOT / "prometheus" / "alerts.yml"
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES_FILE.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
#: ZooKeeper's metrics in the rules. Its ``mntr`` writes them with the prefix ``zk_``.
ENSEMBLE_METRICS = {"looking_count", "quorum_size", "synced_followers"}
#: Metrics of other programs in the rules.
FOREIGN_METRICS = {"node_textfile_mtime_seconds", *ENSEMBLE_METRICS}
INTERNAL = f"{TABLE}/_delta_log/_sluice_maintenance"
STREAM = "stream:9464"
PROCESS = ("table", "instance", "file")
#: Events with the value of their label, the alert that one of them causes (None: no alert), and the alert's labels.
EVENTS: list[tuple[Event, str, str | None, tuple[str, ...]]] = [
    (Event.LOST, "", "SluiceLockLost", PROCESS),
    (Event.RELEASED, "", None, ()),
    (Event.REFUSED, "LockLostError", "SluiceLockLost", PROCESS),
    (Event.REFUSED, "LockNotHeldError", "SluiceCommitRefused", (*PROCESS, "error")),
    (Event.REFUSED, "EnsembleMismatchError", "SluiceCommitRefused", (*PROCESS, "error")),
    # A writer without a lock has lost a race, and repeats its write.
    (Event.REFUSED, "VersionTakenError", None, ()),
    # The files of a write under the lock are too old, so it fails.
    (Event.REFUSED, "NotStagedError", "SluiceCommitRefused", (*PROCESS, "error")),
    (Event.INTENT_SETTLED, "settled", "SluiceUnfinishedIntents", ("table", "outcome")),
    (Event.INTENT_LEFT, "left", "SluiceUnfinishedIntents", ("table", "outcome")),
    (Event.UNAVAILABLE, "EnsembleRefusedError", "SluiceCoordinatorRefused", ("instance", "file")),
    (Event.GAVE_UP, "", None, ()),
    (Event.COMMITTED, "", None, ()),
]


def alert(name: str, **labels: str) -> str:
    """Return the labels of the series ``ALERTS`` of a firing alert."""
    labels |= {"alertname": name, "alertstate": "firing", **ALERTS[name]["labels"]}
    return "{" + ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items())) + "}"


def firing(minute: int, *alerts: str) -> Expected:
    """Return the expectation that exactly these alerts fire at a minute."""
    return {('ALERTS{alertstate="firing"}', minute): dict.fromkeys(alerts, 1)}


def differences(prometheus: Prometheus, *expectations: Expected, rules: Path = RULES_FILE, every: int = 1) -> str:
    expected = {key: figures for expectation in expectations for key, figures in expectation.items()}
    return prometheus.differences(expected, rules=rules, evaluate_every=every)


def table_of(event: Event, value: str) -> str:
    return f"s3://lake/{event.name.lower()}{value}"


def emit_events() -> None:
    """Emit each event on a table of its own, and also for a name below its log."""
    for event, value, *_ in EVENTS:
        emit(event, table_of(event, value), seconds=1.0, error=value)
        emit(event, f"{table_of(event, value)}/_delta_log/_last_checkpoint", seconds=1.0, error=value)


def alerts_of_events(**process: str) -> list[str]:
    """Return the alerts of :func:`emit_events` in a process with these labels."""
    alerts = []
    for event, value, name, label_names in EVENTS:
        values = {"table": table_of(event, value), "error": value, "outcome": value, **process}
        if name is not None:
            alerts.append(alert(name, **{label: values[label] for label in label_names if label in values}))
    return alerts


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    command = [str(PROMTOOL), "check", "rules", str(RULES_FILE)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.parametrize("has_creation_times", [True, False], ids=["prometheus", "opentelemetry"])
def test_events_of_a_process_that_serves_its_metrics_cause_alerts(
    prometheus: Prometheus, *, has_creation_times: bool
) -> None:
    with MetricsExporter("0") as exporter:
        prometheus.serve(0, exporter, has_creation_times=has_creation_times)
        prometheus.minute = 70
        emit_events()
        prometheus.serve(70, exporter, has_creation_times=has_creation_times)
        # The second event of each counter.
        prometheus.minute = 300
        emit_events()
        prometheus.serve(300, exporter, has_creation_times=has_creation_times)
    alerts = alerts_of_events(instance=STREAM)
    # Each alert lasts for an hour.
    expectations = (firing(65), firing(75, *alerts), firing(135), firing(305, *alerts), firing(365))
    assert differences(prometheus, *expectations, every=5) == ""


def test_events_of_a_job_that_writes_a_file_cause_alerts(prometheus: Prometheus) -> None:
    nights = (HOUR, HOUR + DAY)
    for minute in nights:
        with prometheus.nightly_job("nightly.prom", minute):
            emit_events()
    alerts = alerts_of_events(instance="nightly.prom", file=str(prometheus.folder / "nightly.prom"))
    expectations = [
        expected
        for minute in nights
        for expected in (firing(minute - 30), firing(minute + 30, *alerts), firing(minute + 90))
    ]
    assert differences(prometheus, *expectations, every=30) == ""


@pytest.mark.parametrize(("event", "error"), [(Event.UNAVAILABLE, "EnsembleUnavailableError"), (Event.FELL_BACK, "")])
def test_a_coordinator_that_does_not_answer_is_one_alert_for_all_tables(
    prometheus: Prometheus, event: Event, error: str
) -> None:
    with MetricsExporter("0") as exporter:
        prometheus.serve(0, exporter)
        emit(event, INTERNAL, error=error)
        prometheus.serve(5, exporter)
        for table in (TABLE, f"{TABLE}_2"):
            emit(event, table, error=error)
        prometheus.serve(10, exporter)
    expectations = (firing(8), firing(15, alert("SluiceCoordinatorUnavailable")), firing(75))
    assert differences(prometheus, *expectations) == ""


def test_a_writer_that_waits_for_more_than_half_an_hour_is_an_alert(prometheus: Prometheus) -> None:
    with MetricsExporter("0") as exporter:
        prometheus.minute = 1
        for table in (TABLE, INTERNAL, f"{TABLE}_2"):
            emit(Event.QUEUED, table)
        prometheus.serve(1, exporter)
        # The other table's writer gets the lock after 29 minutes.
        prometheus.minute = 30
        emit(Event.ACQUIRED, f"{TABLE}_2", seconds=1740)
        prometheus.serve(30, exporter)
        prometheus.minute = 50
        emit(Event.ACQUIRED, TABLE, seconds=2940)
        emit(Event.ACQUIRED, INTERNAL, seconds=2940)
        prometheus.serve(50, exporter)
    waiting = alert("SluiceWaitingTooLong", table=TABLE)
    assert differences(prometheus, firing(36), firing(38, waiting), firing(49, waiting), firing(50)) == ""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_killed_writer_does_not_wait(prometheus: Prometheus, *, is_killed: bool) -> None:
    """A killed process leaves its file, with the request that has ended with it."""
    file = prometheus.folder / "nightly.prom"
    prometheus.minute = 1
    with MetricsExporter(str(file)):
        emit(Event.QUEUED, TABLE)
    metrics = file.read_text(encoding="utf-8")
    for minute in range(1, 45):
        prometheus.minute = minute
        written_minute = min(minute, 25) if is_killed else minute
        mtime = f'node_textfile_mtime_seconds{{file="{file}"}} {written_minute * 60}\n'
        prometheus.scrape("host:9100", metrics + mtime)
    expected = firing(40) if is_killed else firing(40, alert("SluiceWaitingTooLong", table=TABLE))
    assert differences(prometheus, expected) == ""


def members(prometheus: Prometheus, minute: int, *texts: str) -> None:
    """Scrape members of an ensemble; each text has their metrics with values."""
    prometheus.minute = minute
    for number, text in enumerate(texts, 1):
        lines = (re.sub(r"^(\w+)", r'\1{job="zookeeper"}', line) + "\n" for line in text.split(", ") if line)
        prometheus.scrape(f"zk{number}:7000", "".join(lines))


LEADER, FOLLOWER = "looking_count 1, quorum_size 3, synced_followers 2", "looking_count 1, quorum_size 3"
LEADER_OF_ONE, ALONE, GONE = "looking_count 1, quorum_size 3, synced_followers 1", "looking_count 2", ""


def test_an_ensemble_without_quorum_or_with_a_missing_member_is_an_alert(prometheus: Prometheus) -> None:
    members(prometheus, 0, LEADER, FOLLOWER, FOLLOWER)
    # A member is restarted.
    members(prometheus, 10, LEADER_OF_ONE, FOLLOWER, GONE)
    members(prometheus, 13, LEADER, FOLLOWER, FOLLOWER)
    # A member is cut off from both others, and looks for a leader.
    members(prometheus, 20, LEADER_OF_ONE, FOLLOWER, ALONE)
    members(prometheus, 40, ALONE, GONE, ALONE)
    members(prometheus, 45, LEADER, FOLLOWER, FOLLOWER)
    # All of them have ended.
    members(prometheus, 60, GONE, GONE, GONE)
    missing = alert("SluiceMemberMissing", job="zookeeper")
    no_quorum = alert("SluiceNoQuorum", job="zookeeper")
    assert (
        differences(
            prometheus,
            firing(9),
            firing(12),
            firing(19),
            firing(26, missing),
            firing(39, missing),
            firing(42, no_quorum),
            firing(50),
            firing(68, no_quorum),
        )
        == ""
    )


def test_a_single_server_needs_no_quorum(prometheus: Prometheus) -> None:
    members(prometheus, 0, "looking_count 0")
    assert differences(prometheus, firing(10)) == ""


def feed_alert(trigger: str) -> str:
    return alert("SluiceFeedLag", table=TABLE, source="orders", trigger=trigger)


def test_a_stream_that_is_behind_or_stands_still_is_an_alert(prometheus: Prometheus) -> None:
    with MetricsExporter("0") as exporter:
        prometheus.apply_batch(lag_minutes=1)
        prometheus.serve(0, exporter)
        prometheus.minute = 19
        prometheus.apply_batch(lag_minutes=1)
        prometheus.serve(19, exporter)
    # The process ends. Its last batch had changes up to minute 18.
    prometheus.minute = 30
    prometheus.scrape(STREAM, "")
    assert differences(prometheus, firing(20), firing(36), firing(39, feed_alert("interval"))) == ""


def test_a_feed_that_runs_every_night_may_be_two_days_behind(prometheus: Prometheus) -> None:
    for minute in (HOUR, HOUR + DAY):
        with prometheus.nightly_job("feed.prom", minute):
            prometheus.apply_batch(lag_minutes=10, trigger=AVAILABLE_NOW)
    # The last run has applied changes up to 10 minutes before.
    expectations = (firing(3 * DAY), firing(3 * DAY + 2 * HOUR, feed_alert(AVAILABLE_NOW)))
    assert differences(prometheus, *expectations, every=HOUR) == ""


@dataclass
class Table:
    """A table that is measured every night; ``findings`` are those at the end of the measurement."""

    prometheus: Prometheus
    nights: int = 0

    def measure(self, *findings: str, repaired: str = "", pin_expires_in: timedelta | None = None) -> None:
        """Measure the table in the next night. The finding ``repaired`` exists before the maintenance only."""
        with self.prometheus.nightly_job("maintain.prom", HOUR + self.nights * DAY):
            measured_at = datetime.fromtimestamp(self.prometheus.minute * 60, UTC)
            expiry = None if pin_expires_in is None else measured_at + pin_expires_in
            measured = health(measured_at=measured_at, next_pin_expiry=expiry)
            for codes in ((*findings, repaired), findings):
                record_health(measured, [Finding(code=code, message="", action=None, advice="") for code in codes])
        self.nights += 1

    def alert(self, name: str, **labels: str) -> str:
        return alert(name, table=TABLE, **labels)


def after_night(number: int) -> int:
    """Return the minute two hours after a night's measurement."""
    return HOUR + number * DAY + 2 * HOUR


def test_a_finding_that_maintenance_does_not_repair_is_an_alert(prometheus: Prometheus) -> None:
    table = Table(prometheus)
    for _ in range(3):
        table.measure("small-files", repaired="expired-files")
    table.measure()
    remains = table.alert("SluiceFindingRemains", code="small-files")
    expectations = (firing(after_night(1)), firing(after_night(2), remains), firing(after_night(3)))
    assert differences(prometheus, *expectations, every=HOUR) == ""


def test_a_broken_retention_is_an_alert_at_once(prometheus: Prometheus) -> None:
    table = Table(prometheus)
    table.measure("broken-retention")
    table.measure()
    expectations = (firing(after_night(0), table.alert("SluiceRetentionBroken")), firing(after_night(1)))
    assert differences(prometheus, *expectations, every=HOUR) == ""


def test_a_pin_that_expires_in_less_than_two_days_is_an_alert(prometheus: Prometheus) -> None:
    table = Table(prometheus)
    table.measure(pin_expires_in=timedelta(days=3))
    table.measure(pin_expires_in=timedelta(days=2, hours=-1))
    table.measure()
    expires = table.alert("SluicePinExpires")
    expectations = (firing(after_night(0)), firing(after_night(1), expires), firing(after_night(2)))
    assert differences(prometheus, *expectations, every=HOUR) == ""


def test_an_expired_pin_is_no_alert_any_more(prometheus: Prometheus) -> None:
    table = Table(prometheus)
    table.measure(pin_expires_in=timedelta(hours=12))
    expectations = (firing(after_night(0), table.alert("SluicePinExpires")), firing(after_night(0) + 12 * HOUR))
    assert differences(prometheus, *expectations, every=HOUR) == ""


def test_a_table_that_is_not_measured_for_two_days_is_an_alert(prometheus: Prometheus) -> None:
    table = Table(prometheus)
    table.measure()
    not_measured = table.alert("SluiceTableNotMeasured")
    expectations = (firing(after_night(1)), firing(after_night(2), not_measured))
    assert differences(prometheus, *expectations, every=HOUR) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('{table!~".*/_delta_log/.*"}', ""),
        ("time() - 3600", "time() + 3600"),
        ("|VersionTakenError", ""),
        ('error="LockLostError"', 'error="LockNotHeldError"'),
    ],
)
def test_negative_control_a_wrong_rule_is_found(prometheus: Prometheus, right: str, wrong: str) -> None:
    with MetricsExporter("0") as exporter:
        prometheus.minute = 10
        emit_events()
        prometheus.serve(10, exporter)
    text, rules = RULES_FILE.read_text(encoding="utf-8"), prometheus.folder / "wrong.yml"
    assert right in text
    rules.write_text(text.replace(right, wrong), encoding="utf-8")
    expected = firing(30, *alerts_of_events(instance=STREAM))
    assert differences(prometheus, expected, every=10) == ""
    assert "FAILED" in differences(prometheus, expected, rules=rules, every=10)


def rule_mistakes(rules: Iterable[dict[str, Any]]) -> list[str]:
    """Return a message for each wrong metric or label in the rules' expressions and annotations."""
    series_labels = METRICS | {name: labels_of_groups(expression) for name, expression in RECORDED.items()}
    messages = []
    for rule in rules:
        expression = rule["expr"]
        if "sluice" in expression:
            messages += mistakes_of(expression, series_labels, more_labels=("instance", "file"))
        labels = labels_of_groups(expression)
        if not labels:
            labels = set().union(*(series_labels[name] for name in RECORDED if name in expression))
        shown_labels = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule.get("annotations", {}))))
        messages += [f"{rule['alert']} has no label {label}" for label in shown_labels - labels]
    return messages


def test_the_rules_query_existing_metrics_and_labels() -> None:
    assert rule_mistakes(RULES) == []
    text = json.dumps(RULES)
    for right, wrong in (("sluice_lock_losses_total", "sluice_losses"), ("$labels.code", "$labels.mode")):
        assert rule_mistakes(json.loads(text.replace(right, wrong)))
    used = {name for rule in RULES for name in re.findall(r"\b[a-z]\w+(?=[{\[ )])", rule["expr"])}
    assert used >= FOREIGN_METRICS


@needs_promtool
def test_the_table_in_a_command_is_quoted_for_a_shell(tmp_path: Path) -> None:
    table = "s3://lake/$(id)'s"
    (rule,) = (rule for rule in RULES if rule.get("alert") == "SluiceRetentionBroken")
    labels = {"table": table, "severity": "critical"}
    # shlex.quote writes a quote in another way.
    quoted_table = shlex.quote(table).replace("""'"'"'""", r"'\''")
    assert shlex.split(quoted_table) == [table]
    texts = {
        **rule["annotations"],
        "summary": rule["annotations"]["summary"].replace("{{ $labels.table }}", table),
        "description": re.sub(r"'\{\{.*\}\}'", lambda _: quoted_table, rule["annotations"]["description"]),
    }
    series = {"series": f'sluice_table_finding_worth{{code="broken-retention", table="{table}"}}', "values": "1"}
    alerts = [{"exp_labels": labels, "exp_annotations": texts}]
    check = {"eval_time": "0m", "alertname": "SluiceRetentionBroken", "exp_alerts": alerts}
    test = {"interval": "1m", "input_series": [series], "alert_rule_test": [check]}
    assert promtool(tmp_path, "test", {"rule_files": [str(RULES_FILE)], "tests": [test]}) == ""
    # The commands of all rules have the same form.
    descriptions = " ".join(rule["annotations"]["description"] for rule in ALERTS.values())
    assert len(set(re.findall(r"sluice \w+ ([^`]*\$labels[^`]*)`", descriptions))) == 1


def test_the_counts_of_events_differ_only_in_their_metric() -> None:
    shapes = {
        re.sub(r"sum by \([^)]*\)", "sum", expression).replace(name.split(":")[1], "METRIC")
        for name, expression in RECORDED.items()
    }
    assert len(shapes) == 1


def test_each_alert_is_documented_and_names_a_section_of_the_runbooks() -> None:
    documented = re.findall(r"^\| `(Sluice\w+)` \|", documentation(), re.MULTILINE)
    assert documented == list(ALERTS)
    anchors = anchors_of(ROOT / "docs" / "runbooks.md")
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        page, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert page == "docs/runbooks.md"
        assert anchor in anchors, name


def expected_alerts(source: str) -> set[str]:
    """Return the alerts that tests expect to fire: the names that their source passes to ``alert``."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    arguments = [call.args[0] for call in calls if ast.unparse(call.func).rpartition(".")[2] == "alert"]
    return {str(argument.value) for argument in arguments if isinstance(argument, ast.Constant)}


def test_each_alert_fires_in_a_test() -> None:
    alerts_of_all_events = {name for *_, name, _ in EVENTS if name is not None}
    assert expected_alerts(Path(__file__).read_text(encoding="utf-8")) | alerts_of_all_events == set(ALERTS)
    # The control: names that are in no expectation.
    source = 'differences(firing(1, table.alert("SluiceA")), ALERTS["SluiceB"])  # "SluiceC"'
    assert expected_alerts(source) == {"SluiceA"}
