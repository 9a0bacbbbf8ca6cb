"""`sluice ui` with many tables: time to the first page, and requests to ZooKeeper while it is open.

Each table of one lock root was locked once. The contenders are of one session, and are spread over ten tables; one of
each table holds the lock. Then ``sluice ui`` is started with a page open, and beside it ``sluice status --watch`` as
the alternative, one after the other. Requests are counted by the server for some seconds: with no viewer, while nothing
changes, and while one lock after the other is acquired and released. ZooKeeper is one embedded server.

The first paint of tables is measured in Chromium, if there is one: from the request to the paint that shows them.

    python benchmarks/ui.py [--tables 1000] [--contenders 100] [--seconds 20]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from figures import print_table, save
from kazoo.client import KazooClient

from lock_manager import LockManager, TableResource, ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import Mode, new_contender_path, table_node
from tests.support.browser import CHROMIUM
from tests.support.server_counters import requests_of

#: Tables that have contenders.
BUSY_TABLES = 10
TABLES_OF_HOLD = 200
LOCK_ROOT = "/locks/delta_tables"
PATIENCE = 120
INTERVALS = ("2", "1")


def table_name(number: int) -> str:
    return f"s3://lake/table-{number:05}"


def make_tables(manager: LockManager, count: int) -> None:
    names = [table_name(number) for number in range(count)]
    for start in range(0, count, TABLES_OF_HOLD):
        manager.acquire_all(names[start : start + TABLES_OF_HOLD]).release()


def make_contenders(client: KazooClient, count: int, tables: int) -> None:
    """Create contenders with the data of writers."""
    for number in range(count):
        node = table_node(LOCK_ROOT, TableResource.of(table_name(number % min(BUSY_TABLES, tables))))
        data = {"host": f"etl-{number}", "pid": 1000 + number, "job": f"job-{number}", "requested_at": time.time()}
        path = new_contender_path(node, f"{number:032x}", Mode.EXCLUSIVE)
        client.create(path, json.dumps(data).encode(), ephemeral=True, sequence=True)


def requests_per_second(zookeeper: EmbeddedZooKeeper, seconds: float) -> float:
    first_count, started = requests_of(zookeeper), time.monotonic()
    time.sleep(seconds)
    return (requests_of(zookeeper) - first_count) / (time.monotonic() - started)


@contextmanager
def locks_that_change(manager: LockManager, table: str) -> Iterator[Callable[[], int]]:
    """Acquire and release a lock all the time; yield a function that returns how often that was done."""
    ended, counts = threading.Event(), [0]

    def work() -> None:
        while not ended.is_set():
            with manager.acquire(table):
                ended.wait(0.05)
            counts[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield lambda: counts[0]
    finally:
        ended.set()
        thread.join()


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


def get(address: str) -> tuple[int, str]:
    """Return the number of bytes of a page, and its text."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)
    connection.request("GET", "/")
    content = connection.getresponse().read()
    connection.close()
    return len(content), content.decode()


def wait_for_tables(address: str, count: int) -> int:
    """Wait until the page has all tables; return its size in bytes."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        size, text = get(address)
        if text.count('<tr id="t-') >= count:
            return size
        time.sleep(0.05)
    raise SystemExit(f"the page has not shown {count} tables within {PATIENCE} s")


@contextmanager
def open_page(address: str) -> Iterator[float | None]:
    """Keep the page open; yield the seconds from the request to the first paint, None without Chromium."""
    if CHROMIUM is None:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=PATIENCE)
        connection.request("GET", "/live?")
        response = connection.getresponse()
        reader = threading.Thread(target=lambda: list(iter(lambda: response.read1(65536), b"")), daemon=True)
        reader.start()
        yield None
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 (only with Chromium)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(address)
        paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
        page.wait_for_function(paint)
        yield page.evaluate(paint) / 1000
        browser.close()


def measure(zookeeper: EmbeddedZooKeeper, manager: LockManager, options: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []

    def add(viewer: str, **figures: Any) -> None:
        idle = requests_per_second(zookeeper, options.seconds)
        with locks_that_change(manager, table_name(options.tables - 1)) as changes:
            first_count, started = changes(), time.monotonic()
            busy = requests_per_second(zookeeper, options.seconds)
            rate = (changes() - first_count) / (time.monotonic() - started)
        rows.append(
            {
                "viewer": viewer,
                **figures,
                "requests/s, no change": idle,
                "requests/s, locks change": busy,
                "locks/s": rate,
            }
        )

    nothing: dict[str, Any] = {"all tables after, s": "", "page, KiB": "", "first paint, s": ""}
    add("none", **nothing)
    environment = ["--zookeeper", zookeeper.hosts]
    started = time.monotonic()
    with running([sys.executable, "-m", "sluice", "ui", *environment, "--listen", "127.0.0.1:0"]) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[0]
        size = wait_for_tables(address, options.tables)
        seconds = time.monotonic() - started
        with open_page(address) as paint:
            figures = {"all tables after, s": seconds, "page, KiB": size / 1024}
            add("sluice ui", **figures, **{"first paint, s": "no Chromium" if paint is None else paint})
    for interval in INTERVALS:
        command = [sys.executable, "-m", "sluice", "status", *environment, "--watch", "--interval", interval, "--json"]
        started = time.monotonic()
        with running(command) as process:
            assert process.stdout is not None
            process.stdout.readline()
            seconds = time.monotonic() - started
            reader = threading.Thread(target=list, args=(process.stdout,), daemon=True)
            reader.start()
            add(f"status --watch --interval {interval}", **nothing | {"all tables after, s": seconds})
            process.terminate()
            reader.join()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=1000, help="tables (1000)")
    parser.add_argument("--contenders", type=int, default=100, help="holders and waiters (100)")
    parser.add_argument("--seconds", type=float, default=20.0, help="seconds of each count of requests (20)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/ui.json"))
    options = parser.parse_args()
    os.environ.pop("SLUICE_ZK_HOSTS", None)
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts, timeout_seconds=PATIENCE))
        make_tables(manager, options.tables)
        client = KazooClient(zookeeper.hosts)
        client.start()
        stack.callback(client.stop)
        make_contenders(client, options.contenders, options.tables)
        rows = measure(zookeeper, manager, options)
    print_table(rows)
    save(options.output, {"figures": rows})


if __name__ == "__main__":
    main()
