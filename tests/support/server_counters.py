"""Counters of embedded ZooKeeper servers."""

from __future__ import annotations

from collections.abc import Iterable

from lock_manager.testing.embedded import EmbeddedZooKeeper

#: Counter of the packets from clients, pings and these questions included.
REQUESTS = "zk_packets_received"


def read_counters(zookeeper: EmbeddedZooKeeper, names: Iterable[str]) -> dict[str, float]:
    """Return the sum of each counter over all servers, by its name in ``mntr``."""
    total = dict.fromkeys(names, 0.0)
    for server in zookeeper.servers:
        for line in server.command(b"mntr").decode().splitlines():
            name, _, value = line.partition("\t")
            if name in total:
                total[name] += float(value)
    return total


def requests_of(zookeeper: EmbeddedZooKeeper) -> int:
    """Return the value of :data:`REQUESTS`."""
    return int(read_counters(zookeeper, [REQUESTS])[REQUESTS])
