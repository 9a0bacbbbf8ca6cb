"""The coordinator of a run's locks: its servers, its queues, and the writers' connections to it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from lock_manager.settings import S3_LEASE
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.testing.queues import LockQueues
from soak.containers import ContainerZooKeeper
from soak.faults import CLASSES
from soak.lease_queues import LeaseQueues
from soak.options import SoakOptions
from soak.s3_faults import FaultyS3
from soak.tcp_proxy import Link

_TICK_SECONDS = 0.5
# 20 ticks, as ZooKeeper's default.
_MAX_SESSION_MS = 10_000
_DEFAULT_TICK_SECONDS = 2.0
# A waiter reads a queue on S3 at least 15 times in a lease. It sees the last renewal and the end of the lease late by
# one read each.
_READS_IN_A_LEASE = 15
_POLL_SECONDS = 0.05


class Access(NamedTuple):
    """The connection of one writer to the coordinator.

    Attributes:
        url: URL of the coordinator for this writer.
        link: The connection, which faults disturb; None if they cannot.
        environment: Environment variables of the writer.

    """

    url: str
    link: Link | None
    environment: Mapping[str, str]


class LockService(ABC):
    """The coordinator of a run.

    Attributes:
        url: URL of the coordinator.
        queues: Queues of the tables' locks.
        zookeeper: The ensemble, if the run has started it, else None.
        tick_seconds: Seconds that a waiter may need in addition to the session timeout to follow a dead holder.

    """

    url: str
    queues: LockQueues | LeaseQueues
    zookeeper: EmbeddedZooKeeper | ContainerZooKeeper | None = None
    tick_seconds: float

    @abstractmethod
    def access(self, writer: str) -> Access:
        """Return a new connection for a writer."""

    def contenders_left(self, table: str, living: Collection[int], until: float) -> list[str]:
        """Return the contenders in a queue when no writer works.

        Args:
            table: The table.
            living: Process ids of the writers.
            until: Monotonic time until which contenders of killed writers may remain.

        """
        while (contenders := self.queues.contenders(table)) and time.monotonic() < until:
            self._remove_dead(table, living, until - time.monotonic())
            time.sleep(_POLL_SECONDS)
        return contenders

    def _remove_dead(self, table: str, living: Collection[int], timeout_seconds: float) -> None:  # noqa: B027
        """Remove the contenders of killed writers, if the coordinator does not do that by itself."""


class ZookeeperService(LockService):
    """An ensemble, which the run starts unless the options name one."""

    def __init__(self, options: SoakOptions, stack: ExitStack) -> None:
        if options.zookeeper is None:
            self.zookeeper = _start_zookeeper(options, stack)
        self._hosts = self.zookeeper.hosts if self.zookeeper else str(options.zookeeper)
        self.url = _zookeeper_url(self._hosts)
        self.queues = stack.enter_context(LockQueues(self._hosts))
        self.tick_seconds = _TICK_SECONDS if self.zookeeper else _DEFAULT_TICK_SECONDS

    def access(self, writer: str) -> Access:  # noqa: ARG002
        """Return a proxy for each server."""
        link = Link(self._hosts)
        return Access(_zookeeper_url(link.hosts), link, {})


class LeaseService(LockService):
    """Objects on S3 beside the tables.

    Args:
        options: Options of the run.
        s3: The embedded S3 of the run; None for the S3 of the AWS variables.
        tables: Beginning of the tables' URIs.

    """

    def __init__(self, options: SoakOptions, s3: FaultyS3 | None, tables: str) -> None:
        self.url = f"{S3_LEASE}://{tables.removeprefix('s3a://')}-locks"
        self.tick_seconds = 2 * options.session_seconds / _READS_IN_A_LEASE
        self._s3 = s3
        self._queues = self.queues = LeaseQueues(self.url, options.session_seconds, s3.environment if s3 else {})

    def access(self, writer: str) -> Access:
        """Return a proxy for the embedded S3. The tables have another one.

        The user agent has the name of the writer, so that faults find its requests.
        """
        if self._s3 is None:
            return Access(self.url, None, {})
        link = self._s3.connect()
        environment = {"AWS_ENDPOINT_URL": f"http://{link.hosts}", "AWS_SDK_UA_APP_ID": writer}
        return Access(self.url, link, environment)

    def _remove_dead(self, table: str, living: Collection[int], timeout_seconds: float) -> None:
        self._queues.remove_dead(table, living, timeout_seconds)


def _zookeeper_url(hosts: str) -> str:
    return f"zookeeper://{hosts}"


def _start_zookeeper(options: SoakOptions, stack: ExitStack) -> EmbeddedZooKeeper | ContainerZooKeeper:
    servers = 3 if any(CLASSES[name].needs in ("ensemble", "container") for name in options.faults) else 1
    tick_ms = int(_TICK_SECONDS * 1000)
    zookeeper: EmbeddedZooKeeper | ContainerZooKeeper
    if image := options.zookeeper_image:
        zookeeper = ContainerZooKeeper(image, servers, tick_ms=tick_ms, max_session_timeout_ms=_MAX_SESSION_MS)
    else:
        zookeeper = EmbeddedZooKeeper(servers, tick_ms=tick_ms, max_session_timeout_ms=_MAX_SESSION_MS)
    stack.enter_context(zookeeper)
    return zookeeper
