"""A real Prometheus loads the alert rules, scrapes a real writer, and fires an alert when the writer's lock is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.commands.app import app
from tests.support.prometheus import PrometheusServer, needs_prometheus

ROOT = Path(__file__).parents[2]
TABLE = "s3a://lake/alerts"

pytestmark = [pytest.mark.full, needs_prometheus]


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_a_lost_lock_of_a_writer_is_an_alert(
    zookeeper: Any, tmp_path: Path, stack: ExitStack, eventually: Callable[..., None]
) -> None:
    command = [sys.executable, "-m", "tests.support.metrics_writer", zookeeper.hosts, TABLE]
    writer = stack.enter_context(
        subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    stack.callback(writer.stdin.close)
    target = f"127.0.0.1:{writer.stdout.readline().strip()}"
    prometheus = PrometheusServer(tmp_path, [target], stack)
    eventually(lambda: prometheus.value("sum(sluice_lock_contenders)") == 1, within=60)

    groups = prometheus.get("rules")["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"] == []
    # Control: while the lock is held, no alert fires.
    first_evaluation = groups[0]["lastEvaluation"]
    eventually(lambda: prometheus.get("rules")["groups"][0]["lastEvaluation"] != first_evaluation, within=60)
    assert prometheus.alerts == []
    outcome = CliRunner().invoke(app, ["break", TABLE, "--zookeeper", zookeeper.hosts, "--yes"])
    assert outcome.exit_code == 0, outcome.output
    eventually(lambda: prometheus.alerts, within=60)
    (alert,) = prometheus.alerts
    assert alert["labels"] == {
        "alertname": "SluiceLockLost", "severity": "warning", "table": "s3://lake/alerts", "instance": target,
    }  # fmt: skip
    assert alert["annotations"]["summary"] == "A writer of s3://lake/alerts has lost its lock"
    assert f"The process at {target} " in alert["annotations"]["description"]
    assert alert["annotations"]["runbook"] == "docs/runbooks.md#a-lock-was-lost"
