"""What all tests share: a real ZooKeeper."""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from kazoo.client import KazooClient
from xdist.scheduler import LoadScopeScheduling

from lock_manager.local import EmbeddedZooKeeper

ZOOKEEPER_IMAGE = "zookeeper:3.9.5"
CLIENT_PORT = 2181
SHARED_DRIVER = ("test_append_job.py", "test_readme.py", "test_rival_append.py", "test_writer.py")
DOCKER_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True)
class ZooKeeperService:
    """The ZooKeeper that tests talk to when they do not need one of their own."""

    hosts: str


@functools.cache
def _docker_answers() -> bool:
    """Ask the engine's own socket: the docker package leaves its connection open where there is no engine."""
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(3)
            connection.connect(DOCKER_SOCKET)
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


def pytest_report_header() -> str:
    kind = f"container {ZOOKEEPER_IMAGE}" if _docker_answers() else "embedded server (no Docker engine answers)"
    return f"zookeeper: {kind}"


class ByFile(LoadScopeScheduling):  # type: ignore[misc]
    """Give each process whole files, and all that share a Spark driver to one: it costs 10 s and 1 GB to start."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "spark" if file.rpartition("/")[2] in SHARED_DRIVER else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeperService]:
    """A ZooKeeper server: a container where a Docker engine answers, else the embedded one."""
    if _docker_answers():
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import PortWaitStrategy

        container = DockerContainer(ZOOKEEPER_IMAGE).with_exposed_ports(CLIENT_PORT)
        with container.waiting_for(PortWaitStrategy(CLIENT_PORT)) as running:
            yield ZooKeeperService(f"{running.get_container_host_ip()}:{running.get_exposed_port(CLIENT_PORT)}")
    else:
        with EmbeddedZooKeeper() as embedded:
            yield ZooKeeperService(embedded.hosts)


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait for a condition, never for seconds: ``eventually(lambda: …)``."""

    def wait(condition: Callable[[], object], within: float = 30.0, what: str = "the condition") -> None:
        deadline = time.monotonic() + within
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come true within {within:g} s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def ensemble_client(zookeeper: ZooKeeperService) -> Iterator[KazooClient]:
    """A plain kazoo client, to look at what is really on the server."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()
