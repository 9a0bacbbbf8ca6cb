"""A job under spark-submit sends its spans to a collector, as the standard variables of OpenTelemetry name it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lock_manager import ZookeeperLockManager
from tests.integration.test_unchanged_programs import SCRIPT, Machine
from tests.support.at_the_gate import commit_info
from tests.support.submitted_job import SubmittedJob
from tests.support.trace_collector import TraceCollector, trace_collector
from writer_jobs import append as append_module

pytestmark = pytest.mark.spark

APPEND = Path(append_module.__file__)
TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
OK, ERROR = 1, 2
UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[TraceCollector]:
    """The collector of the programs that this test starts, which are part of another program's trace."""
    with trace_collector() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("TRACEPARENT", f"00-{TRACE_ID}-{PARENT_ID}-01")
        yield server


@pytest.mark.full
def test_a_job_is_part_of_the_trace_that_started_it(
    collector: TraceCollector, submit: Callable[..., SubmittedJob], source: Path, table: Path
) -> None:
    job = submit(APPEND, "--table", table, "--source", source)
    assert job.wait() == 0, job.error
    (root,) = collector.named("job")
    assert collector.services == {"nightly"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    assert root.parent_span_id.hex() == PARENT_ID
    (append,) = collector.named("append")
    assert append.parent_span_id == root.span_id
    assert collector.children(append.span_id)[:4] == ["work", "queue", "hold", "after"]
    assert commit_info(table, 0)["sluice"]["trace_id"] == TRACE_ID


@pytest.mark.full
def test_a_stopped_job_sends_its_spans(
    collector: TraceCollector,
    submit: Callable[..., SubmittedJob],
    source: Path,
    table: Path,
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> None:
    with manager.acquire(table):
        job = submit(APPEND, "--table", table, "--source", source)
        eventually(lambda: len(manager.queue(f"file:{table}")) == 2, within=240, label="the job in the queue")
        os.kill(manager.queue(f"file:{table}")[1].data["pid"], signal.SIGTERM)
        job.wait()
    (root,) = collector.named("job")
    (append,) = collector.named("append")
    assert collector.children(append.span_id) == ["work", "queue"]
    errors = [attributes_of(span).get("error.type") for span in (root, append, *collector.named("queue"))]
    assert errors == ["JobStopped", "LockCancelledError", "LockCancelledError"]
    assert root.status.code == append.status.code == ERROR


@pytest.mark.full
def test_a_commit_of_an_unchanged_program_is_in_the_trace_and_in_the_metrics(
    collector: TraceCollector,
    zookeeper: Any,
    tmp_path: Path,
    eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    machine = Machine(zookeeper.hosts, tmp_path)
    (tmp_path / "job.py").write_text(SCRIPT)
    code, output = machine.run("sluice run --zookeeper 127.0.0.1:2181 job.py lake/numbers")
    assert code == 3, output
    # The agent may end after the program.
    eventually(lambda: collector.named("commit"), within=120, label="the span of the commit")
    eventually(lambda: "sluice_lock_hold_seconds" in collector.metrics, within=120, label="the metrics of the agent")
    (root,) = collector.named("commit")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE_ID, PARENT_ID)
    assert collector.children(root.span_id) == ["queue", "hold"]
    assert commit_info(tmp_path / "lake" / "numbers", 0)["sluice"]["trace_id"] == TRACE_ID


@pytest.mark.full
def test_without_its_collector_a_job_succeeds(
    submit: Callable[..., SubmittedJob],
    source: Path,
    table: Path,
    collector: TraceCollector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", UNREACHABLE)
    job = submit(APPEND, "--table", table, "--source", source)
    assert job.wait() == 0
    assert (job.error_lines, collector.spans) == ([], [])
    assert [commit["version"] for commit in job.commits] == [0]


def attributes_of(span: Any) -> dict[str, str]:
    return {field.key: field.value.string_value for field in span.attributes}
