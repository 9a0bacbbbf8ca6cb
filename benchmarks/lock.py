"""Measure the speed of the lock, compared with kazoo's ``Lock`` and Curator's ``InterProcessMutex``, in one run.

Uncontended: one client acquires and releases, in short rounds that take turns, so that noise of the machine affects all
contestants. The server counts requests. Contended: many processes queue behind a holder, which then releases. A
hand-off is the time from just before a release until the next process holds the lock. The server counts the watches
that fire. ZooKeeper runs on this machine, from PySpark's jars; ``--servers 3`` starts an ensemble.

    python benchmarks/lock.py [--rounds 20] [--per-round 100] [--waiters 50] [--servers 1]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from figures import percentile, print_table, save
from kazoo.client import KazooClient

from lock_manager import TableResource, ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper, find_java, find_spark_jars
from lock_manager.zookeeper.znodes import table_node
from tests.support.server_counters import REQUESTS, read_counters, requests_of

TABLE = "s3://bench/table"
KAZOO_PATH = "/bench/kazoo"
SERVER_COUNTERS = (REQUESTS, "zk_sum_node_deleted_watch_count", "zk_sum_node_children_watch_count")


# -- uncontended -----------------------------------------------------------------------------------------------------


def timed_cycles(cycle: Callable[[], object]) -> Callable[[int], list[float]]:
    def run(count: int) -> list[float]:
        seconds = []
        for _ in range(count):
            started = time.perf_counter()
            cycle()
            seconds.append(time.perf_counter() - started)
        return seconds

    return run


def start_curator(hosts: str) -> tuple[subprocess.Popen[str], Callable[[int], list[float]]]:
    process = subprocess.Popen(
        [find_java(), "-cp", f"{find_spark_jars()}/*", str(Path(__file__).with_name("CuratorBench.java")), hosts],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if process.stdout is None or process.stdin is None or process.stdout.readline().strip() != "ready":
        sys.exit("Curator did not start")
    orders, answers = process.stdin, process.stdout

    def run(count: int) -> list[float]:
        orders.write(f"{count}\n")
        orders.flush()
        return [int(nanoseconds) / 1e9 for nanoseconds in answers.readline().split()]

    return process, run


def uncontended(zookeeper: EmbeddedZooKeeper, rounds: int, per_round: int) -> list[dict[str, Any]]:
    client = KazooClient(zookeeper.hosts)
    client.start()
    kazoo_lock = client.Lock(KAZOO_PATH)
    curator, run_curator = start_curator(zookeeper.hosts)

    def kazoo_cycle() -> None:
        kazoo_lock.acquire()
        kazoo_lock.release()

    with ZookeeperLockManager(zookeeper.hosts) as manager:
        contestants = {
            "sluice": timed_cycles(lambda: manager.acquire(TABLE).release()),
            "kazoo Lock": timed_cycles(kazoo_cycle),
            "Curator InterProcessMutex": run_curator,
        }
        seconds: dict[str, list[float]] = {name: [] for name in contestants}
        requests = dict.fromkeys(contestants, 0.0)
        for run in contestants.values():
            run(max(300, 3 * per_round))  # warm-up, mainly of the JVM
        for _ in range(rounds):
            for name, run in contestants.items():
                start_count = requests_of(zookeeper)
                seconds[name] += run(per_round)
                # Reading the counters is one request to each server.
                requests[name] += requests_of(zookeeper) - start_count - len(zookeeper.servers)
    curator.communicate()
    client.stop()
    client.close()
    return [
        {
            "lock": name,
            "cycles": len(values),
            "p50_ms": 1e3 * statistics.median(values),
            "p99_ms": 1e3 * percentile(values, 0.99),
            "requests_per_cycle": requests[name] / len(values),
        }
        for name, values in seconds.items()
    ]


# -- contended -------------------------------------------------------------------------------------------------------


def waiter(kind: str, hosts: str) -> None:
    """Queue once for each line of input; print the token or sequence number and the times of acquire and release."""
    report: Callable[..., None] = lambda *values: print(*values, flush=True)  # noqa: E731
    if kind == "sluice":
        manager = ZookeeperLockManager(hosts, timeout_seconds=300)
        manager.connect()
    else:
        client = KazooClient(hosts)
        client.start()
    report("ready")
    for _ in sys.stdin:
        if kind == "sluice":
            hold = manager.acquire(TABLE)
            held_at = time.monotonic()
            number = hold.token
            released_at = time.monotonic()
            hold.release()
        else:
            lock = client.Lock(KAZOO_PATH)
            lock.acquire()
            held_at = time.monotonic()
            number = int(lock.node[-10:])
            released_at = time.monotonic()
            lock.release()
        report(number, held_at, released_at)


def contended(zookeeper: EmbeddedZooKeeper, kind: str, waiters: int, rounds: int) -> dict[str, Any]:
    """Run rounds: acquire, wait until all processes queue, release, and collect their times. Return the figures."""
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--waiter", kind, zookeeper.hosts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(waiters)
    ]
    inputs = [process.stdin for process in processes if process.stdin]
    outputs = [process.stdout for process in processes if process.stdout]
    handoffs: list[float] = []
    fired_watches = 0.0
    in_order = True
    with ZookeeperLockManager(zookeeper.hosts) as manager:
        observer = KazooClient(zookeeper.hosts)
        observer.start()
        node = KAZOO_PATH if kind != "sluice" else table_node(manager.settings.lock_root, TableResource.of(TABLE))
        for output in outputs:
            output.readline()
        for _ in range(rounds):
            holder: Any = manager.acquire(TABLE) if kind == "sluice" else observer.Lock(KAZOO_PATH)
            if kind != "sluice":
                holder.acquire()
            for standard_input in inputs:
                standard_input.write("go\n")
                standard_input.flush()
            while len(observer.get_children(node)) <= waiters:
                time.sleep(0.05)
            time.sleep(0.5)  # until the last processes have set their watches
            start_counts = read_counters(zookeeper, SERVER_COUNTERS)
            released_at = time.monotonic()
            holder.release()
            rows = sorted(tuple(map(float, output.readline().split())) for output in outputs)
            end_counts = read_counters(zookeeper, SERVER_COUNTERS)
            fired_watches += sum(end_counts[name] - start_counts[name] for name in SERVER_COUNTERS[1:])
            in_order &= [row[1] for row in rows] == sorted(row[1] for row in rows)
            for _, held_at, next_released_at in rows:
                handoffs.append(held_at - released_at)
                released_at = next_released_at
        observer.stop()
        observer.close()
    for process in processes:
        process.communicate()
    return {
        "lock": kind,
        "waiting_processes": waiters,
        "handoffs": len(handoffs),
        "handoff_p50_ms": 1e3 * statistics.median(handoffs),
        "handoff_p99_ms": 1e3 * percentile(handoffs, 0.99),
        "watches_fired_per_release": fired_watches / len(handoffs),
        "first_come_first_served": in_order,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="uncontended rounds (default 20)")
    parser.add_argument("--per-round", type=int, default=100, help="acquire + release per round (default 100)")
    parser.add_argument("--waiters", type=int, default=50, help="queued processes (default 50)")
    parser.add_argument("--contended-rounds", type=int, default=5, help="contended rounds (default 5)")
    parser.add_argument("--servers", type=int, default=1, choices=(1, 3), help="ZooKeeper servers (default 1)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/lock.json"))
    parser.add_argument("--waiter", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.waiter:
        waiter(*options.waiter)
        return
    with EmbeddedZooKeeper(options.servers) as zookeeper:
        uncontended_rows = uncontended(zookeeper, options.rounds, options.per_round)
        print_table(uncontended_rows)
        contended_rows = [
            contended(zookeeper, kind, options.waiters, options.contended_rounds) for kind in ("sluice", "kazoo Lock")
        ]
        print_table(contended_rows)
    about = {"python": platform.python_version(), "cpus": os.cpu_count(), "zookeeper_servers": options.servers}
    save(options.output, {"about": about, "uncontended": uncontended_rows, "contended": contended_rows})


if __name__ == "__main__":
    main()
