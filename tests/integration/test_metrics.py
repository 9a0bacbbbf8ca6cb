"""Metrics count the events of each table's lock. They are served over HTTP or written to a file.

The package ``prometheus_client`` is optional.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from lock_manager import (
    EnsembleUnavailableError,
    LockLostError,
    LockTimeoutError,
    SettingsError,
    TableResource,
    ZookeeperLockManager,
)
from lock_manager.coordinator import Offer
from lock_manager.errors import ContenderGoneError, MetricsError
from lock_manager.events import Event, emit, observe
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.metrics import Destination, MetricsExporter, _ContinuedFile
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import table_node
from tests.support.metrics_text import values_of
from tests.support.rivals import RivalManager

TABLE, OTHER_TABLE = "s3a://lake/metrics", "s3a://lake/other-metrics"
LABEL = "s3://lake/metrics"


def read_samples(text: str) -> dict[tuple[str, ...], float]:
    """Return the samples without buckets and creation times, keyed by name, table and labels other than ``file``."""
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sample.labels.items() if name not in ("table", "le", "file")]
            if not sample.name.endswith(("_bucket", "_created")):
                samples[(sample.name, sample.labels["table"], *labels)] = sample.value
    return samples


def scrape(exporter: MetricsExporter) -> dict[tuple[str, ...], float]:
    assert exporter.address is not None
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(exporter.address, timeout=10) as response:
        return read_samples(response.read().decode())


def test_events_of_locks_are_counted_by_table(
    zookeeper: Any, manager: ZookeeperLockManager, ensemble_client: KazooClient
) -> None:
    with MetricsExporter("0") as exporter, RivalManager(zookeeper.hosts) as rival:
        with manager.acquire(OTHER_TABLE) as hold:
            hold.record_commit(1)
        with manager.acquire(TABLE) as hold:
            with pytest.raises(LockTimeoutError):
                rival.acquire(TABLE, timeout_seconds=0)
            hold.record_commit(1)
            hold.record_commit(1)
            hold.record_commit(2)
            samples_during_hold = scrape(exporter)
        lost_hold = manager.acquire(TABLE)
        guard = CommitGuard()
        block = GuardedBlock(lost_hold, {})
        guard.add(block)
        commit = {"kind": "commit", "table": TABLE, "version": 7, "attempt": "a", "txn": "t", "operation": "WRITE"}
        assert "refused" in guard.check(json.dumps(commit | {"blocks": ""}))
        assert "refused" not in guard.check(json.dumps(commit | {"blocks": block.name}))
        node = table_node(manager.settings.lock_root, TableResource.of(TABLE))
        (contender,) = [name for name in ensemble_client.get_children(node) if "__lock__" in name]
        ensemble_client.delete(f"{node}/{contender}")
        assert "refused" in guard.check(json.dumps(commit | {"blocks": block.name}))
        with pytest.raises(LockLostError):
            lost_hold.release()
        rival.acquire(TABLE)
        rival.close()
        samples_after_release = scrape(exporter)
    assert samples_during_hold["sluice_lock_contenders", LABEL, "holding"] == 1
    assert samples_during_hold["sluice_lock_contenders", LABEL, "waiting"] == 0
    assert {key: value for key, value in samples_after_release.items() if not key[0].endswith("_sum")} == {
        ("sluice_lock_wait_seconds_count", "s3://lake/other-metrics", "acquired"): 1,
        ("sluice_lock_hold_seconds_count", "s3://lake/other-metrics", "released"): 1,
        ("sluice_lock_contenders", "s3://lake/other-metrics", "waiting"): 0,
        ("sluice_lock_contenders", "s3://lake/other-metrics", "holding"): 0,
        ("sluice_lock_oldest_request_timestamp_seconds", "s3://lake/other-metrics"): 0,
        ("sluice_commits_total", "s3://lake/other-metrics"): 1,
        ("sluice_lock_wait_seconds_count", LABEL, "acquired"): 3,
        ("sluice_lock_wait_seconds_count", LABEL, "gave_up"): 1,
        # Closing the rival released its hold.
        ("sluice_lock_hold_seconds_count", LABEL, "released"): 2,
        ("sluice_lock_hold_seconds_count", LABEL, "lost"): 1,
        ("sluice_lock_contenders", LABEL, "waiting"): 0,
        ("sluice_lock_contenders", LABEL, "holding"): 0,
        ("sluice_lock_oldest_request_timestamp_seconds", LABEL): 0,
        ("sluice_lock_losses_total", LABEL): 1,
        ("sluice_commits_total", LABEL): 2,
        ("sluice_commit_refusals_total", LABEL, "LockNotHeldError"): 1,
        ("sluice_commit_refusals_total", LABEL, "LockLostError"): 1,
    }


def test_the_start_of_the_oldest_waiting_request_is_exported(
    manager: ZookeeperLockManager, zookeeper: Any, eventually: Callable[..., None]
) -> None:
    table = "s3://lake/waiting"

    def oldest_request() -> float | None:
        return scrape(exporter).get(("sluice_lock_oldest_request_timestamp_seconds", table))

    with (
        MetricsExporter("0") as exporter,
        RivalManager(zookeeper.hosts) as first,
        RivalManager(zookeeper.hosts) as second,
        ThreadPoolExecutor(2) as pool,
    ):
        hold = manager.acquire(table)
        assert oldest_request() == 0
        requests, start_times = [], []
        for rival in (first, second):
            start_times.append(time.time())
            requests.append(pool.submit(rival.acquire, table, timeout_seconds=60))
            # The request is counted before it joins the queue.
            eventually(lambda: len(manager.queue(table)) == len(requests) + 1)
        assert start_times[0] <= (oldest_request() or 0) <= start_times[1]
        hold.release()
        requests[0].result()
        # The second request has waited for a shorter time.
        assert start_times[1] <= (oldest_request() or 0)
        first.close()
        requests[1].result()
        assert oldest_request() == 0


def test_unfinished_intents_are_counted_by_their_outcome(manager: ZookeeperLockManager) -> None:
    table = "s3://lake/intents"

    def settle(newest_version: int, fill: Callable[..., int]) -> bool:
        with manager.acquire(table) as hold:
            return GuardedBlock(hold, {}).settle_unfinished([], lambda: newest_version, fill)

    def fail(*_: object) -> int:
        raise OSError("the store is full")

    with MetricsExporter("0") as exporter:
        with manager.acquire(table) as hold:
            hold.intend(3, txn="t", attempt="a")
        with pytest.raises(OSError, match="full"):
            settle(2, fail)
        assert settle(2, lambda version, _: version)
        # Control: a hold that finds no intent.
        assert not settle(3, fail)
        samples = scrape(exporter)
    name = "sluice_unfinished_intents_total"
    assert {key: value for key, value in samples.items() if key[0] == name} == {
        (name, table, "left"): 1,
        (name, table, "settled"): 1,
    }


def test_an_ensemble_that_does_not_answer_is_counted() -> None:
    with EmbeddedZooKeeper() as ensemble, MetricsExporter("0") as exporter:
        settings = {"session_timeout_seconds": 4}
        with ZookeeperLockManager(ensemble.hosts, 60, **settings) as manager:
            hold = manager.acquire(TABLE)
            guard, block = CommitGuard(), GuardedBlock(hold, {})
            guard.add(block)
            ensemble.servers[0].kill()
            commit = {"kind": "commit", "table": TABLE, "version": 7, "attempt": "a", "txn": "t", "operation": "WRITE"}
            answer = json.loads(guard.check(json.dumps(commit | {"blocks": block.name})))
            assert (answer["refused"], "not confirmed" in answer["message"]) == ("LockLostError", True)
            with ZookeeperLockManager(ensemble.hosts, 60) as rival, pytest.raises(EnsembleUnavailableError):
                rival.acquire(OTHER_TABLE, timeout_seconds=0.5)
        samples = scrape(exporter)
    name, error = "sluice_coordinator_failures_total", "EnsembleUnavailableError"
    assert samples[name, LABEL, error] == 1
    assert samples[name, "s3://lake/other-metrics", error] == 1
    assert samples["sluice_commit_refusals_total", LABEL, "LockLostError"] == 1


def test_members_of_groups_are_counted(
    manager: ZookeeperLockManager, zookeeper: Any, eventually: Callable[..., None]
) -> None:
    with MetricsExporter("0") as exporter, RivalManager(zookeeper.hosts) as rival, ThreadPoolExecutor(1) as pool:
        with manager.acquire(TABLE) as hold:
            offer = Offer("write", {"number": 1})
            request = pool.submit(rival.acquire_all, [TABLE], timeout_seconds=60, offer=offer)
            eventually(lambda: len(hold.offers()) == 1)
            hold.dismiss(list(hold.offers()))
            assert isinstance(request.exception(60), ContenderGoneError)
        # The writer then finds its commit in the log.
        emit(Event.COMMITTED, LABEL)
        emit(Event.GROUPED, LABEL)
        samples = scrape(exporter)
    assert samples["sluice_lock_wait_seconds_count", LABEL, "dismissed"] == 1
    assert samples["sluice_lock_contenders", LABEL, "waiting"] == 0
    assert samples["sluice_commits_total", LABEL] == samples["sluice_grouped_commits_total", LABEL] == 1


def test_a_file_is_written_at_start_and_end(tmp_path: Path, manager: ZookeeperLockManager) -> None:
    file = tmp_path / "nightly.prom"
    with MetricsExporter(str(file)) as exporter:
        assert exporter.address is None
        assert file.is_file()
        with manager.acquire(TABLE):
            pass
    assert read_samples(file.read_text())["sluice_lock_hold_seconds_count", LABEL, "released"] == 1
    # Control: a closed exporter does not count.
    with manager.acquire(TABLE):
        pass
    assert read_samples(file.read_text())["sluice_lock_hold_seconds_count", LABEL, "released"] == 1
    assert [path.name for path in tmp_path.iterdir()] == ["nightly.prom"]


def test_a_file_is_updated_regularly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Callable[..., None]
) -> None:
    monkeypatch.setattr("lock_manager.metrics.WRITE_SECONDS", 0.05)
    with MetricsExporter(str(tmp_path / "a.prom")):
        emit(Event.COMMITTED, LABEL)
        eventually(lambda: read_samples((tmp_path / "a.prom").read_text()).get(("sluice_commits_total", LABEL)) == 1)


def test_the_next_run_continues_counters_but_not_gauges(tmp_path: Path) -> None:
    file = tmp_path / "nightly.prom"
    with MetricsExporter(str(file)):
        emit(Event.QUEUED, LABEL)
        emit(Event.ACQUIRED, LABEL, seconds=0.5)
        emit(Event.COMMITTED, LABEL)
        emit(Event.COMMITTED, LABEL)
    first_run = file.read_text()
    with MetricsExporter(str(file)):
        samples_at_start = read_samples(file.read_text())
        emit(Event.QUEUED, LABEL)
        emit(Event.ACQUIRED, LABEL, seconds=20.0)
        emit(Event.COMMITTED, LABEL)
        emit(Event.COMMITTED, "s3://lake/another")
    second_run = file.read_text()
    assert read_samples(first_run)["sluice_lock_contenders", LABEL, "holding"] == 1
    assert not [key for key in samples_at_start if key[0] == "sluice_lock_contenders"]
    assert samples_at_start["sluice_commits_total", LABEL] == 2
    samples = read_samples(second_run)
    assert samples["sluice_lock_contenders", LABEL, "holding"] == 1
    assert samples["sluice_commits_total", LABEL] == 3
    assert samples["sluice_commits_total", "s3://lake/another"] == 1
    assert samples["sluice_lock_wait_seconds_count", LABEL, "acquired"] == 2
    assert samples["sluice_lock_wait_seconds_sum", LABEL, "acquired"] == 20.5
    assert values_of(second_run, "sluice_lock_wait_seconds_bucket", le="1.0") == [1]
    assert values_of(second_run, "sluice_lock_wait_seconds_bucket", le="60.0") == [2]
    creation_times = values_of(first_run, "sluice_commits_created")
    assert values_of(second_run, "sluice_commits_created", table=LABEL) == creation_times != []


def test_a_run_keeps_counters_that_it_does_not_register(tmp_path: Path) -> None:
    file = tmp_path / "maintain.prom"
    for _ in range(2):
        with MetricsExporter(str(file)) as exporter:
            Counter("done", "A counter of the job.", registry=exporter.registry).inc(3)
            Gauge("remaining", "A gauge of the job.", registry=exporter.registry).set(4)
    assert (values_of(file.read_text(), "done_total"), values_of(file.read_text(), "remaining")) == ([6], [4])
    with MetricsExporter(str(file)):
        pass
    assert (values_of(file.read_text(), "done_total"), values_of(file.read_text(), "remaining")) == ([6], [])


def test_counters_of_overlapping_runs_add_up_and_never_fall(tmp_path: Path) -> None:
    file = tmp_path / "hourly.prom"
    with MetricsExporter(str(file)) as exporter:
        Counter("done", "Tasks.", registry=exporter.registry).inc(1000)
    totals: list[float] = []
    registries = [CollectorRegistry() for _ in range(2)]
    counters = [Counter("done", "Tasks.", registry=registry) for registry in registries]
    writers = [_ContinuedFile(file, registry) for registry in registries]
    for _ in range(3):
        for counter, writer in zip(counters, writers, strict=True):
            counter.inc(2)
            writer.write()
            totals += values_of(file.read_text(), "done_total")
    assert totals == [1002 + 2 * number for number in range(6)]


def test_a_metric_with_another_type_or_buckets_restarts(tmp_path: Path) -> None:
    file = tmp_path / "a.prom"
    with MetricsExporter(str(file)) as exporter:
        Histogram("took", "Seconds.", registry=exporter.registry, buckets=(1, 2)).observe(1.5)
        Counter("files", "Files.", registry=exporter.registry).inc()
    with MetricsExporter(str(file)) as exporter:
        Histogram("took", "Seconds.", registry=exporter.registry, buckets=(1, 4)).observe(3)
        Gauge("files", "Files.", registry=exporter.registry).set(7)
    text = file.read_text()
    buckets = [values_of(text, "took_bucket", le=bound) for bound in ("1.0", "2.0", "4.0", "+Inf")]
    assert buckets == [[0], [], [1], [1]]
    assert (values_of(text, "files"), values_of(text, "files_total")) == ([7], [])


def test_a_file_that_cannot_be_parsed_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "a.prom"
    file.write_bytes(b'sluice_commits_total{table="x" \xff')
    with MetricsExporter(str(file)):
        emit(Event.COMMITTED, LABEL)
    assert read_samples(file.read_text())["sluice_commits_total", LABEL] == 1
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        f"the counters of {file} begin at 0, because the file cannot be parsed"
    ]


def test_two_files_have_no_common_series(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with MetricsExporter("a.prom"), MetricsExporter("b.prom"), MetricsExporter("0") as http_exporter:
        emit(Event.COMMITTED, LABEL)
        assert http_exporter.address is not None
    # node_exporter would drop one of two equal series.
    for name in ("a.prom", "b.prom"):
        labels = {"table": LABEL, "file": str(tmp_path / name)}
        families = list(text_string_to_metric_families(Path(name).read_text()))
        assert [sample.labels for family in families for sample in family.samples if sample.value == 1] == [labels]
    assert http_exporter.registry.get_sample_value("sluice_commits_total", {"table": LABEL}) == 1


def test_the_endpoint_is_local_by_default() -> None:
    assert Destination.parse("9464") == Destination("127.0.0.1", 9464)
    assert Destination.parse("0.0.0.0:9464") == Destination("0.0.0.0", 9464)  # noqa: S104 (only parsed)
    assert Destination.parse("[::1]:9464") == Destination("::1", 9464)
    assert Destination.parse("/var/lib/node_exporter/a.prom").file == Path("/var/lib/node_exporter/a.prom")
    for text in ("", "a.txt", ".prom", "host", "host:99999", "host:port"):
        with pytest.raises(SettingsError, match=r"PORT, HOST:PORT or the name of a file"):
            Destination.parse(text)
    with MetricsExporter("0") as exporter:
        assert exporter.address is not None
        assert exporter.address.startswith("http://127.0.0.1:")


def test_used_ports_and_missing_folders_are_reported(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        problem = r"metrics cannot be exported to 127\.0\.0\.1:\d+: Address already in use"
        with pytest.raises(MetricsError, match=problem):
            MetricsExporter(str(server.getsockname()[1]))
    with pytest.raises(MetricsError, match="No such file"):
        MetricsExporter(str(tmp_path / "missing" / "a.prom"))


def test_an_observer_that_raises_does_not_disturb_the_lock(manager: ZookeeperLockManager) -> None:
    events = []

    def raise_error(event: Event, table: str, *, seconds: float = 0.0, error: str = "") -> None:
        events.append(event)
        raise RuntimeError("a bug")

    stop_observing = observe(raise_error)
    try:
        with manager.acquire(TABLE) as hold:
            hold.check()
    finally:
        stop_observing()
    assert events == [Event.QUEUED, Event.ACQUIRED, Event.RELEASED]


def test_prometheus_is_imported_by_the_exporter_only() -> None:
    program = (
        "import sys\n"
        "if sys.argv[1] == 'absent': sys.modules['prometheus_client'] = None\n"
        "import lock_manager, lock_manager.zookeeper.manager, lock_manager.guard.commit_guard\n"
        "import lock_manager.metrics as metrics\n"
        "assert not sys.modules.get('prometheus_client'), 'prometheus_client was imported too early'\n"
        "try: metrics.MetricsExporter('0').close()\n"
        "except metrics.MetricsError as error: print(error)\n"
    )
    for mode, output in (
        ("present", ""),
        ("absent", "prometheus-client is not installed: pip install '.[metrics]' in a clone of Sluice\n"),
    ):
        process = subprocess.run([sys.executable, "-c", program, mode], capture_output=True, text=True, check=False)
        assert (process.returncode, process.stdout) == (0, output), process.stderr
