"""Fixtures for all tests, such as a real ZooKeeper. Tests that share a Spark driver run in one process."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from xdist.scheduler import LoadScopeScheduling

from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.containers import ContainerZooKeeper
from soak.errors import ContainerError
from tests.support import waiting
from tests.support.lake import describe_s3
from tests.support.lock_znodes import connected_client
from tests.support.releases import SPARK

ROOT = Path(__file__).parents[1]
# Files that share a Spark driver, because a driver needs 10 s to start and 1 GB of memory. Here and below, the slowest
# scopes come first, because a run ends when its last process ends.
SHARED_DRIVERS = {
    "maintenance driver": (
        "test_health_command.py", "test_long_logs.py", "test_maintain_job.py", "test_maintenance.py",
        "test_maintenance_keeps.py", "test_removal_times.py",
    ),
    "pins driver": ("test_how_to.py", "test_pins.py", "test_snapshot_job.py"),
    "merge driver": (
        "test_apply_changes.py", "test_newest_sequence.py", "test_table_feed.py", "test_upsert_job.py",
        "test_upsert_stream.py",
    ),
    "streams driver": (
        "test_apply_rows.py", "test_late_rows.py", "test_rows_among_writers.py", "test_stream_job.py",
        "test_stream_stop.py",
    ),
    "debezium driver": (
        "test_debezium_avro.py", "test_debezium_binlog.py", "test_debezium_flat.py", "test_debezium_infinity.py",
        "test_debezium_local_times.py", "test_debezium_truncate.py", "test_debezium_unavailable.py",
    ),
    "feeds driver": (
        "test_apply_cells.py", "test_cdc_job.py", "test_debezium.py", "test_nested_types.py",
        "test_partition_values.py", "test_source_values.py",
    ),
    "jobs driver": (
        "test_append_job.py", "test_append_runs.py", "test_append_sources.py", "test_commit_times.py",
        "test_default_manager.py", "test_dropped_table.py", "test_gate.py", "test_gate_operations.py",
        "test_gate_same.py", "test_hdfs_jobs.py", "test_lineage.py", "test_lock_url.py", "test_old_transactions.py",
        "test_optimistic.py", "test_overwrite_job.py", "test_readme.py", "test_rival_append.py",
        "test_table_names.py", "test_traces.py", "test_writer_operations.py",
    ),
    "writer driver": (
        "test_adopt.py", "test_automatic.py", "test_checkpoints.py", "test_commit_identity.py",
        "test_conditional_put.py", "test_coordinator_down.py", "test_ensemble_lost.py", "test_every_way.py",
        "test_gate_hooks.py", "test_gate_reads.py", "test_group_readers.py", "test_guard.py",
        "test_guard_partitions.py", "test_guard_transport.py", "test_moved_writers.py", "test_progress.py",
        "test_writer.py",
    ),
    "faults driver": ("test_spark_drivers.py", "test_unknown.py"),
}  # fmt: skip
DRIVER_BY_FILE = {file: driver for driver, files in SHARED_DRIVERS.items() for file in files}
SLOWEST = (
    *SHARED_DRIVERS,
    "test_yarn.py", "test_benchmarks.py", "test_promises.py", "test_fault_pairs.py", "test_unchanged_programs.py",
    "test_kafka.py", "test_hdfs.py", "test_agent.py", "test_maintain_process.py", "test_upsert_process.py",
    "test_append_process.py", "test_controls.py", "test_lease.py", "test_session_faults.py", "test_stack.py",
    "test_real_ensemble.py", "test_ensemble_command.py", "test_ensemble_recovery.py", "test_ensemble_growth.py",
    "test_demo.py", "test_security.py", "test_lock_machine.py", "test_spark_engine.py", "test_command_line.py",
    "test_ensemble.py", "test_standalone.py", "test_log_store.py",
)  # fmt: skip
# Files whose last test judges the results of the others.
UNDIVIDED = ("test_promises.py",)
DOCKER_SOCKET = "/var/run/docker.sock"
NO_ENGINE, NO_IMAGE = "no Docker engine answers", "no image: make zookeeper-image"
MAX_PULL_SECONDS = 60
"""Seconds for the engine to respond and, if it lacks the public image, to pull it."""


@dataclass(frozen=True)
class ZooKeeperService:
    """The ZooKeeper of tests that do not start their own. ``image`` is None for the embedded server."""

    hosts: str
    image: str | None = None


@functools.cache
def find_docker_image() -> tuple[str, str]:
    """Return the ZooKeeper image that the Docker engine can run; without one, return "" and the reason.

    A child process asks the engine, because the docker package leaves a connection open if no engine answers.
    """
    if not (os.environ.get("DOCKER_HOST") or shutil.which("docker") or Path(DOCKER_SOCKET).exists()):
        return "", NO_ENGINE
    command = [sys.executable, "-c", "from soak.containers import best_image; print(best_image() or '')"]
    with suppress(subprocess.TimeoutExpired):
        process = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=MAX_PULL_SECONDS
        )
        return ("", NO_ENGINE) if process.returncode else (process.stdout.strip(), NO_IMAGE)
    return "", NO_IMAGE


def pytest_report_header() -> list[str]:
    image, reason = find_docker_image()
    zookeeper = f"container {image}" if image else f"embedded server ({reason})"
    return [f"zookeeper: {zookeeper}", f"s3: {describe_s3()}"]


def pytest_configure_node(node: Any) -> None:
    # Decide once for all processes, because an image can be added or removed during the run.
    node.workerinput["zookeeper_image"] = find_docker_image()[0]


class ScopeScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Run each scope in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return the scope of a test: its file, or the Spark driver that its file shares."""
    file = nodeid.partition("::")[0]
    return DRIVER_BY_FILE.get(file.rpartition("/")[2], file)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", metavar="K/N", help="run the Kth of N parts of the selected tests")


def is_in_part(nodeid: str, part: int, parts: int) -> bool:
    """Return whether a test is in one of the parts, 1 to ``parts``.

    The parameters of a test stay together, and so do the tests of a file in ``UNDIVIDED``.
    """
    file = nodeid.partition("::")[0]
    unit = file if file.rpartition("/")[2] in UNDIVIDED else nodeid.partition("[")[0]
    return zlib.crc32(unit.encode()) % parts == part - 1


def pytest_configure(config: pytest.Config) -> None:
    if SPARK < (4, 2):
        close_sockets_of_pyspark()
    existing_files = {path.name for path in Path(__file__).parent.glob("*/test_*.py")}
    missing_files = sorted({*SLOWEST, *DRIVER_BY_FILE, *UNDIVIDED} - existing_files - {*SHARED_DRIVERS})
    if missing_files:
        raise pytest.UsageError(
            f"tests/conftest.py names files that do not exist: {', '.join(missing_files)}; "
            "correct SHARED_DRIVERS, SLOWEST and UNDIVIDED"
        )


def close_sockets_of_pyspark() -> None:
    """Have PySpark close each socket on which it receives rows.

    Before 4.2, ``collect()``, ``toPandas()`` and others leave that to the garbage collector, and Python reports an
    unclosed socket.
    """
    from pyspark import util

    connect = util.local_connect_and_auth

    @functools.wraps(connect)
    def connect_and_close(*arguments: Any) -> tuple[Any, Any]:
        file, connection = connect(*arguments)
        # The file keeps the connection open until the file is closed.
        connection.close()
        return file, connection

    util.local_connect_and_auth = connect_and_close


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    match = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", config.getoption("part"))
    part, parts = map(int, match.groups()) if match else (1, 0)
    if part > parts:
        raise pytest.UsageError("--part must be K/N, such as 2/6")
    config.hook.pytest_deselected(items=[item for item in items if not is_in_part(item.nodeid, part, parts)])
    items[:] = [item for item in items if is_in_part(item.nodeid, part, parts)]
    order = {scope: number for number, scope in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(scope_of(item.nodeid).rpartition("/")[2], len(SLOWEST)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ScopeScheduling:
    return ScopeScheduling(config, log)


@pytest.fixture(scope="session")
def zookeeper(pytestconfig: pytest.Config) -> Iterator[ZooKeeperService]:
    """Start a ZooKeeper server: a container if a Docker engine has an image, else the embedded server."""
    worker = getattr(pytestconfig, "workerinput", None)
    image = worker["zookeeper_image"] if worker else find_docker_image()[0]
    with ExitStack() as stack:
        yield _container(stack, image) or ZooKeeperService(stack.enter_context(EmbeddedZooKeeper()).hosts)


def _container(stack: ExitStack, image: str) -> ZooKeeperService | None:
    if not image:
        return None
    try:
        return ZooKeeperService(stack.enter_context(ContainerZooKeeper(image)).hosts, image)
    except ContainerError as error:
        warnings.warn(f"no ZooKeeper container started; the tests use the embedded server: {error}", stacklevel=1)
        return None


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Return a function that waits until a condition is true: ``eventually(lambda: …)``."""
    return waiting.eventually


@pytest.fixture
def ensemble_client(zookeeper: ZooKeeperService) -> Iterator[KazooClient]:
    """Connect a kazoo client that reads the znodes directly."""
    with connected_client(zookeeper.hosts) as client:
        yield client
