"""OpenTelemetry gets the same metrics as Prometheus, by its API alone; the SDK and its exporters are the user's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry

from lock_manager import LockTimeoutError, ZookeeperLockManager
from lock_manager.events import Event, emit
from lock_manager.lock_metrics import LOCK_METRICS
from lock_manager.measurements import Metric
from lock_manager.metrics import MetricsExporter
from lock_manager.opentelemetry_metrics import OpenTelemetryMetrics
from tests.support.rivals import RivalManager
from tests.unit.test_health_page import maintenance_report
from writer_jobs.maintenance.gauges import HEALTH_METRICS, record_health, record_maintenance
from writer_jobs.streaming.feed_metrics import FEED_METRICS, FeedProgress

ROOT = Path(__file__).parents[2]
TABLE = "s3a://lake/metrics"
ALL_METRICS: tuple[Metric, ...] = (*LOCK_METRICS, *HEALTH_METRICS, *FEED_METRICS)
#: The value of a series by its name and labels; for a histogram the number of values, their sum, and the buckets.
Series = dict[tuple[str, frozenset[tuple[str, Any]]], Any]


def collected(reader: InMemoryMetricReader) -> list[Any]:
    """Return the metrics that the SDK collects."""
    data = reader.get_metrics_data()
    if data is None:
        return []
    return [
        metric
        for resource_metrics in data.resource_metrics
        for scope_metrics in resource_metrics.scope_metrics
        for metric in scope_metrics.metrics
    ]


def opentelemetry_series(reader: InMemoryMetricReader) -> Series:
    series: Series = {}
    for metric in collected(reader):
        for point in metric.data.data_points:
            is_histogram = hasattr(point, "bucket_counts")
            value = (point.count, point.sum, list(point.bucket_counts)) if is_histogram else point.value
            series[metric.name, frozenset(point.attributes.items())] = value
    return series


def prometheus_series(registry: CollectorRegistry) -> Series:
    series: Series = {}
    for family in registry.collect():
        for sample in family.samples:
            labels = frozenset(item for item in sample.labels.items() if item[0] != "le")
            if sample.name.endswith("_created"):
                continue
            if family.type != "histogram":
                series[sample.name, labels] = sample.value
                continue
            count, total, buckets = series.get((family.name, labels), (0, 0.0, []))
            if sample.name.endswith("_bucket"):
                buckets = [*buckets, int(sample.value) - sum(buckets)]
            elif sample.name.endswith("_sum"):
                total = sample.value
            else:
                count = int(sample.value)
            series[family.name, labels] = (count, total, buckets)
    return series


def test_all_metrics_have_the_same_names_labels_and_values_as_prometheus(
    zookeeper: Any, manager: ZookeeperLockManager
) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    with MetricsExporter("0") as exporter, RivalManager(zookeeper.hosts) as rival:
        with OpenTelemetryMetrics(provider):
            with manager.acquire(TABLE) as hold:
                with pytest.raises(LockTimeoutError):
                    rival.acquire(TABLE, timeout_seconds=0)
                hold.record_commit(1)
            for event in Event:
                emit(event, TABLE, seconds=2.0, error="LockLostError")
            report = maintenance_report()
            record_health(report.before, report.findings)
            record_maintenance(report)
            FeedProgress(TABLE, "orders", "10 seconds").record(1e9)
        expected = prometheus_series(exporter.registry)
        assert opentelemetry_series(reader) == expected
        # Control: a closed exporter gets no values.
        with manager.acquire(TABLE):
            pass
        assert prometheus_series(exporter.registry) != expected
        assert opentelemetry_series(reader) == expected
    assert {name for name, _ in expected} == {metric.name for metric in ALL_METRICS}
    units = {metric.name: metric.unit for metric in collected(reader)}
    assert units == {metric.name: metric.unit for metric in ALL_METRICS}
    provider.shutdown()


def test_a_second_exporter_with_the_same_provider_continues(caplog: pytest.LogCaptureFixture) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    for _ in range(2):
        with OpenTelemetryMetrics(provider):
            emit(Event.COMMITTED, TABLE)
    key = ("sluice_commits_total", frozenset({("table", TABLE)}))
    assert opentelemetry_series(reader)[key] == 2
    # The SDK warns about an instrument that is created twice.
    assert caplog.records == []
    provider.shutdown()


def test_the_api_is_imported_by_the_exporter_only() -> None:
    program = (
        "import sys\n"
        "if sys.argv[1] == 'absent': sys.modules['opentelemetry.metrics'] = None\n"
        "import lock_manager, lock_manager.zookeeper.manager, lock_manager.guard.commit_guard\n"
        "import lock_manager.opentelemetry_metrics as metrics\n"
        "imported = [name for name in sys.modules if name.startswith(('opentelemetry', 'prometheus'))]\n"
        "assert imported in ([], ['opentelemetry.metrics']), imported\n"
        "from lock_manager.events import Event, emit\n"
        "try:\n"
        "    with metrics.OpenTelemetryMetrics(): emit(Event.COMMITTED, 't')\n"
        "except metrics.MetricsError as error: print(error)\n"
    )
    for mode, output in (
        # Without an SDK the API drops the values.
        ("present", ""),
        ("absent", "opentelemetry-api is not installed: pip install '.[opentelemetry]' in a clone of Sluice\n"),
    ):
        process = subprocess.run([sys.executable, "-c", program, mode], capture_output=True, text=True, check=False)
        assert (process.returncode, process.stdout) == (0, output), process.stderr


def closed_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def run_job(**environment: str) -> subprocess.CompletedProcess[str]:
    """Run a job that ends before it starts Spark, because nothing listens at the address of its ensemble."""
    command = [
        sys.executable, str(ROOT / "writer_jobs" / "append.py"), "--metrics", "opentelemetry", "--table", TABLE,
        "--source", "s3a://lake/landing", "--zookeeper", f"127.0.0.1:{closed_port()}",
    ]  # fmt: skip
    variables = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    exporters = {"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": "none"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**variables, **exporters, **environment}
    )


def test_a_job_exports_by_the_variables_of_opentelemetry() -> None:
    process = run_job(OTEL_METRICS_EXPORTER="console", OTEL_SERVICE_NAME="nightly")
    assert process.returncode == 3, process.stderr
    (line,) = process.stderr.splitlines()
    assert line.startswith("append.py: ZooKeeper at 127.0.0.1:")
    (resource_metrics,) = json.loads(process.stdout)["resource_metrics"]
    assert resource_metrics["resource"]["attributes"]["service.name"] == "nightly"
    points = {
        metric["name"]: [(point["attributes"], point["value"]) for point in metric["data"]["data_points"]]
        for scope_metrics in resource_metrics["scope_metrics"]
        for metric in scope_metrics["metrics"]
        if "failures" in metric["name"]
    }
    labels = {"table": "s3://lake/metrics", "error": "EnsembleUnavailableError"}
    assert points == {"sluice_coordinator_failures_total": [(labels, 1)]}


def test_a_job_without_an_exporter_of_metrics_is_refused() -> None:
    process = run_job(OTEL_METRICS_EXPORTER="nowhere")
    (line,) = process.stderr.splitlines()
    assert (process.returncode, process.stdout) == (2, "")
    assert line.startswith("append.py: OpenTelemetry's SDK cannot be started: ")
    assert line.endswith("pip install opentelemetry-distro and an exporter, and set OTEL_METRICS_EXPORTER")
