"""What all tests share: a real ZooKeeper."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import warnings
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
from tests.support.lake import s3_in_words

ROOT = Path(__file__).parents[1]
# Files that share a Spark driver: it costs 10 s and 1 GB to start. The last one meets faults. What takes longest begins
# first, here and below: the run is over when the last process is.
SHARED_DRIVERS = {
    "spark of care": (
        "test_health_command.py",
        "test_maintain_job.py",
        "test_maintenance.py",
        "test_maintenance_keeps.py",
        "test_removal_times.py",
    ),
    "spark of pins": ("test_how_to.py", "test_pins.py", "test_snapshot_job.py"),
    "spark of rows": ("test_apply_changes.py", "test_table_feed.py", "test_upsert_job.py", "test_upsert_stream.py"),
    "spark of streams": (
        "test_apply_rows.py",
        "test_late_rows.py",
        "test_rows_among_writers.py",
        "test_stream_job.py",
        "test_stream_stop.py",
    ),
    "spark of feeds": ("test_apply_cells.py", "test_cdc_job.py", "test_debezium.py"),
    "spark 2": (
        "test_append_job.py",
        "test_append_runs.py",
        "test_append_sources.py",
        "test_commit_times.py",
        "test_default_manager.py",
        "test_dropped_table.py",
        "test_gate.py",
        "test_gate_operations.py",
        "test_gate_same.py",
        "test_overwrite_job.py",
        "test_readme.py",
        "test_rival_append.py",
        "test_table_names.py",
        "test_writer_operations.py",
    ),
    "spark 1": (
        "test_adopt.py",
        "test_checkpoints.py",
        "test_conditional_put.py",
        "test_ensemble_lost.py",
        "test_every_way.py",
        "test_guard.py",
        "test_guard_partitions.py",
        "test_guard_transport.py",
        "test_writer.py",
    ),
    "spark under faults": ("test_spark_drivers.py", "test_unknown.py"),
}
DRIVER_OF = {file: driver for driver, files in SHARED_DRIVERS.items() for file in files}
SLOWEST = (
    *SHARED_DRIVERS,
    "test_benchmarks.py",
    "test_promises.py",
    "test_maintain_process.py",
    "test_upsert_process.py",
    "test_append_process.py",
    "test_controls.py",
    "test_session_faults.py",
    "test_stack.py",
    "test_real_ensemble.py",
    "test_ensemble_command.py",
    "test_ensemble_recovery.py",
    "test_ensemble_growth.py",
    "test_demo.py",
    "test_security.py",
    "test_lock_machine.py",
    "test_spark_engine.py",
    "test_command_line.py",
    "test_ensemble.py",
    "test_standalone.py",
    "test_log_store.py",
)
DOCKER_SOCKET = "/var/run/docker.sock"
NO_ENGINE, NO_IMAGE = "no Docker engine answers", "no image: make zookeeper-image"
MOST_PULL_SECONDS = 60
"""For the engine to answer, and to pull the public image if it lacks it."""


@dataclass(frozen=True)
class ZooKeeperService:
    """The ZooKeeper that tests talk to when they do not need one of their own."""

    hosts: str
    image: str | None = None


@functools.cache
def docker_says() -> tuple[str, str]:
    """Ask the engine that testcontainers would find for the image to run; return it, or "" and why there is none.

    In a process of its own: the docker package leaves its connection open where there is no engine.
    """
    if not (os.environ.get("DOCKER_HOST") or shutil.which("docker") or Path(DOCKER_SOCKET).exists()):
        return "", NO_ENGINE
    command = [sys.executable, "-c", "from soak.containers import best_image; print(best_image() or '')"]
    with suppress(subprocess.TimeoutExpired):
        asked = subprocess.run(
            command, cwd=ROOT, check=False, capture_output=True, text=True, timeout=MOST_PULL_SECONDS
        )
        if asked.returncode:
            return "", NO_ENGINE
        return asked.stdout.strip(), NO_IMAGE
    return "", NO_IMAGE


def pytest_report_header() -> list[str]:
    image, why_not = docker_says()
    zookeeper = f"container {image}" if image else f"embedded server ({why_not})"
    return [f"zookeeper: {zookeeper}", f"s3: {s3_in_words()}"]


def pytest_configure_node(node: Any) -> None:
    # Decided once: an image that comes or goes meanwhile would give each process another ZooKeeper.
    node.workerinput["zookeeper_image"] = docker_says()[0]


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Give each process whole files, and all that share a Spark driver to one."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def scope_of(nodeid: str) -> str:
    """Return what a test is given out with: its file, or the driver that it shares with other files."""
    file = nodeid.partition("::")[0]
    return DRIVER_OF.get(file.rpartition("/")[2], file)


def pytest_configure() -> None:
    known = {path.name for path in Path(__file__).parent.glob("*/test_*.py")}
    gone = sorted({*SLOWEST, *DRIVER_OF} - known - {*SHARED_DRIVERS})
    if gone:
        raise pytest.UsageError(f"tests/conftest.py names files that are not there: {', '.join(gone)}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {scope: number for number, scope in enumerate(SLOWEST)}
    items.sort(key=lambda item: order.get(scope_of(item.nodeid).rpartition("/")[2], len(SLOWEST)))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(scope="session")
def zookeeper(pytestconfig: pytest.Config) -> Iterator[ZooKeeperService]:
    """A ZooKeeper server: a container where a Docker engine answers and can run it, else the embedded one."""
    worker = getattr(pytestconfig, "workerinput", None)
    image = worker["zookeeper_image"] if worker else docker_says()[0]
    with ExitStack() as stack:
        yield _container(stack, image) or ZooKeeperService(stack.enter_context(EmbeddedZooKeeper()).hosts)


def _container(stack: ExitStack, image: str) -> ZooKeeperService | None:
    if not image:
        return None
    try:
        return ZooKeeperService(stack.enter_context(ContainerZooKeeper(image)).hosts, image)
    except ContainerError as error:
        warnings.warn(f"the embedded server stands in for the container: {error}", stacklevel=1)
        return None


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait for a condition, never for seconds: ``eventually(lambda: …)``."""
    return waiting.eventually


@pytest.fixture
def ensemble_client(zookeeper: ZooKeeperService) -> Iterator[KazooClient]:
    """A plain kazoo client, to look at what is really on the server."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()
