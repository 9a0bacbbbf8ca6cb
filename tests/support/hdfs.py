"""HDFS with two name nodes for tests, from Maven's jars, and a proxy of its clients' requests."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from lock_manager.testing.embedded import find_java, find_spark_jars
from soak.tcp_proxy import Link
from tests.support.locked_jars import locked_jars
from tests.support.releases import SPARK

NEEDS_HADOOP = pytest.mark.skipif(SPARK < (4, 2), reason="HDFS needs the Hadoop 3.5.0 of Spark 4.2")
SUPPORT = Path(__file__).parent
SERVICE = "lake"
#: Root of the file system, under the name service.
ROOT = f"hdfs://{SERVICE}"
_PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


class HdfsCluster:
    """A running cluster.

    Attributes:
        addresses: ``host:port`` of both name nodes.
        active: Index of the active one.

    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.active = 0
        self.addresses = [f"127.0.0.1:{port}" for port in self._read_line().split()]

    def fail_over(self) -> None:
        """Make the other name node active."""
        self._command("failover")

    def crash(self) -> None:
        """Stop the active name node, make the other one active, and start the first one again."""
        self._command("crash")

    def _command(self, command: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        assert self._read_line() == "done"
        self.active = 1 - self.active

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the HDFS cluster has ended"
        return line


@contextmanager
def hdfs_cluster(folder: Path) -> Iterator[HdfsCluster]:
    """Run a cluster on free ports of the loopback interface, with its data and its log in a folder."""
    class_path = os.pathsep.join([*map(str, locked_jars("hadoop")), f"{find_spark_jars()}/*"])
    command = [find_java(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", class_path]
    with (folder / "hdfs.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, str(SUPPORT / "HdfsCluster.java"), str(folder / "data")], cwd=folder,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
    try:
        yield HdfsCluster(process)
    finally:
        process.kill()
        process.communicate()


def client_settings(addresses: Sequence[str]) -> dict[str, str]:
    """Return the Hadoop settings of a client, with the addresses of the name nodes."""
    names = [f"nn{number}" for number in range(len(addresses))]
    keys = [f"dfs.namenode.rpc-address.{SERVICE}.{name}" for name in names]
    return {
        "dfs.nameservices": SERVICE,
        f"dfs.ha.namenodes.{SERVICE}": ",".join(names),
        **dict(zip(keys, addresses, strict=True)),
        f"dfs.client.failover.proxy.provider.{SERVICE}": _PROVIDER,
    }


class NameNodeLink(Link):
    """A client's connections to both name nodes, with a fault at the next rename of a version file.

    Attributes:
        arrived: Set when the request has arrived.
        release: Set it to pass the request on.

    """

    def __init__(self, cluster: HdfsCluster) -> None:
        self._fault: str | None = None
        self.arrived, self.release = Event(), Event()
        super().__init__(",".join(cluster.addresses))

    @property
    def settings(self) -> dict[str, str]:
        """Hadoop settings of the client."""
        return client_settings(self.hosts.split(","))

    def hold_rename(self) -> None:
        """Hold the next request back until :attr:`release` is set."""
        self._arm("hold")

    def lose_reply(self) -> None:
        """From the next request on, hold all replies back until :attr:`release` is set; then close its connection."""
        self._arm("lose reply")

    def _arm(self, fault: str) -> None:
        self.arrived.clear()
        self.release.clear()
        self._fault = fault

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                # The client sends a request of this size at once. It contains the names of the method and of the files.
                fault = self._fault if b"rename2" in data and b".json." in data else None
                if fault is None:
                    server.sendall(data)
                    continue
                self._fault = None
                self._strike(fault, client, server, data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _strike(self, fault: str, client: socket.socket, server: socket.socket, data: bytes) -> None:
        if fault == "hold":
            self.arrived.set()
            self.release.wait()
            server.sendall(data)
            return
        self.replies.clear()
        server.sendall(data)
        self.arrived.set()
        self.release.wait()
        with suppress(OSError):
            # A name node that has crashed has closed it already.
            client.shutdown(socket.SHUT_RDWR)
        self.replies.set()


def hdfs_conf(settings: dict[str, str]) -> dict[str, Any]:
    """Return Hadoop settings as settings of Spark."""
    return {f"spark.hadoop.{name}": value for name, value in settings.items()}
