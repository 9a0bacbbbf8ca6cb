"""Measure appends of 1 to 32 writers to one table, with each coordinator and without a lock. Spark is not part of it.

    zookeeper    a lock in ZooKeeper (one server)
    s3-lease     a lock in an object on S3
    optimistic   no lock: the version file is put only if it does not exist, and an append that loses the race begins
                 again, up to 20 times

Each writer is a process (``coordinators_writer.py``) that appends one row at a time, as fast as it can. Systems take
turns. Each has a new table for each measurement. The printed figures are medians of the rounds; attempts, appends,
given_up and lost are sums:

    given_up                   appends that failed 20 times
    lost                       acknowledged appends whose row is missing
    success                    appends for each attempt
    p50_s, p99_s               seconds of an append, with its wait for the lock and its repetitions
    requests_per_append        S3 requests of all writers for each append, those for the lock included
    lock_requests_per_append   S3 requests for the lock alone, those of waiting writers included
    handoff_p50_s, -p99_s      seconds from just before a release until the next waiting writer has the lock

Takeover: a holder is killed (SIGKILL), and another writer waits for its lock. The seconds are those from the kill until
the other writer has the lock. The kills are spread over the time between two signs of life of a holder.

Everything runs on this machine; S3 is moto. ``--s3-delay-ms 100`` delays each request to S3, about the latency on AWS.

    python benchmarks/coordinators.py [--writers 1 2 4 8 16 32] [--s3-delay-ms 0 100] [--seconds 15] [--rounds 3]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contention import Driver
from counted_s3 import CountedS3
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from figures import percentile, print_table, save

from lock_manager import LockSettings, TableResource
from lock_manager.managers import inspector_of
from lock_manager.testing.embedded import EmbeddedZooKeeper

ROOT = Path(__file__).parent
TABLES, LOCKS = "lake", "locks"
SYSTEMS = ("zookeeper", "s3-lease", "optimistic")
#: Columns of the table.
KEY = ("system", "s3_delay_ms", "writers")
SUMS = ("attempts", "appends", "given_up", "lost")
MEDIANS = (
    "appends_per_s",
    "success",
    "p50_s",
    "p99_s",
    "requests_per_append",
    "lock_requests_per_append",
    "handoff_p50_s",
    "handoff_p99_s",
)
#: Signs of life of a holder in a session timeout, for both coordinators.
BEATS = 3


class Bench:
    """Starts writers and measures them.

    Args:
        s3: The S3 of tables and locks.
        urls: URL of each system's coordinator; empty for no lock.
        folder: Folder for the logs of the writers.
        stack: Ends the writers.

    """

    def __init__(self, s3: CountedS3, urls: dict[str, str], folder: Path, stack: ExitStack) -> None:
        self.s3 = s3
        self.urls = urls
        self._folder = folder
        self._stack = stack
        self._tables = itertools.count(1)
        self._logs = itertools.count(1)

    def start(self, count: int) -> list[Driver]:
        command = [sys.executable, str(ROOT / "coordinators_writer.py")]
        drivers = []
        for _ in range(count):
            drivers.append(Driver(command, dict(os.environ), self._folder / f"{next(self._logs)}.log"))
            self._stack.callback(drivers[-1].close)
        for driver in drivers:
            driver.read_answer()
        return drivers

    def new_table(self) -> str:
        table = f"s3://{TABLES}/t{next(self._tables)}"
        DeltaTable.create(table, Schema([Field("id", PrimitiveType("long"))]))
        return table

    def measure(self, drivers: Sequence[Driver], system: str, delay_ms: int, seconds: float) -> dict[str, Any]:
        """Let writers append to a new table at the same time, and return the figures of a round."""
        table = self.new_table()
        for number, driver in enumerate(drivers, 1):
            driver.send_order(table=table, url=self.urls[system], first_id=number * 1_000_000)
        for driver in drivers:
            driver.read_answer()
        self.s3.counting.requests.clear()
        self.s3.counting.delay_seconds = delay_ms / 1000
        began = time.monotonic()
        for driver in drivers:
            driver.send_order(appends=1, until=began + seconds)
        tries = [append for driver in drivers for append in driver.read_answer()["appends"]]
        self.s3.counting.delay_seconds = 0
        requests = list(self.s3.counting.requests)
        row_ids = set(DeltaTable(table).to_pyarrow_table()["id"].to_pylist())
        appends = [append for append in tries if "ended" in append]
        durations = [append["ended"] - append["began"] for append in appends]
        attempts = sum(append["attempts"] for append in tries)
        lock_requests = sum(request.path.startswith(f"{LOCKS}/") for request in requests)
        waits = handoffs(appends)
        return {
            "system": system,
            "s3_delay_ms": delay_ms,
            "writers": len(drivers),
            "attempts": attempts,
            "appends": len(appends),
            "given_up": len(tries) - len(appends),
            "lost": sum(append["id"] not in row_ids for append in appends),
            "appends_per_s": len(appends) / (max(append["ended"] for append in appends) - began),
            "success": len(appends) / attempts,
            "p50_s": statistics.median(durations),
            "p99_s": percentile(durations, 0.99),
            "requests_per_append": len(requests) / len(appends),
            "lock_requests_per_append": lock_requests / len(appends),
            "handoff_p50_s": statistics.median(waits) if waits else None,
            "handoff_p99_s": percentile(waits, 0.99) if waits else None,
        }

    def takeover(self, system: str, rounds: int, session_seconds: float) -> dict[str, Any]:
        """Kill the holders of ``rounds`` locks while another writer waits for each; return the seconds until it has it.

        All of them wait at the same time.
        """
        url = self.urls[system]
        tables = [self.new_table() for _ in range(rounds)]
        holders, waiters = self.start(rounds), self.start(rounds)
        for drivers in (holders, waiters):
            for driver, table in zip(drivers, tables, strict=True):
                driver.send_order(hold=table, url=url)
                if drivers is holders:
                    driver.read_answer()
        with inspector_of(LockSettings.from_url(url)) as inspector:
            while not all(len(inspector.table(TableResource.of(table)).entries) == 2 for table in tables):
                time.sleep(0.1)
        killed_at = []
        for holder in holders:
            killed_at.append(time.monotonic())
            holder.process.kill()
            time.sleep(session_seconds / BEATS / rounds)
        waits = [waiter.read_answer()["acquired"] - at for waiter, at in zip(waiters, killed_at, strict=True)]
        return {
            "system": system,
            "session_timeout_s": session_seconds,
            "kills": rounds,
            "shortest_s": min(waits),
            "p50_s": statistics.median(waits),
            "longest_s": max(waits),
        }


def handoffs(appends: Sequence[dict[str, Any]]) -> list[float]:
    """Return the seconds from each release to the next acquisition, if that writer had waited for the release."""
    holds = sorted((append for append in appends if "acquired" in append), key=lambda append: float(append["acquired"]))
    return [
        following["acquired"] - hold["released"]
        for hold, following in itertools.pairwise(holds)
        if following["requested"] < hold["released"]
    ]


def summary(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one row for the rounds of a system: sums of :data:`SUMS`, medians of the other figures."""
    row = {name: rounds[0][name] for name in KEY} | {name: sum(figures[name] for figures in rounds) for name in SUMS}
    for name in MEDIANS:
        values = [figures[name] for figures in rounds if figures[name] is not None]
        row[name] = statistics.median(values) if values else "-"
    return row


def summaries(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row for each delay, number of writers and system, with the systems of one number side by side."""
    cells: dict[tuple[int, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["s3_delay_ms"], row["writers"], SYSTEMS.index(row["system"])), []).append(row)
    return [summary(cells[key]) for key in sorted(cells)]


def coordinator_urls(hosts: str, session_seconds: float) -> dict[str, str]:
    session = f"session_timeout_seconds={session_seconds:g}"
    return {
        "zookeeper": f"zookeeper://{hosts}?{session}",
        "s3-lease": f"s3-lease://{LOCKS}?{session}",
        "optimistic": "",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="NAME", help="(all)")
    parser.add_argument(
        "--s3-delay-ms", type=int, nargs="+", default=[0, 100], metavar="MS", help="added to each S3 request (0 100)"
    )
    parser.add_argument("--seconds", type=float, default=15, help="minimum duration of each measurement (15)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=10, help="holders that are killed, of each coordinator (10)")
    parser.add_argument("--session-timeout", type=float, default=30, metavar="SECONDS", help="of the locks (30)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/coordinators.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-coordinators-")))
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        s3 = stack.enter_context(CountedS3())
        for bucket in (TABLES, LOCKS):
            s3.create_bucket(bucket)
        os.environ.update(s3.environment)
        urls = coordinator_urls(zookeeper.hosts, options.session_timeout)
        bench = Bench(s3, urls, folder, stack)
        drivers = bench.start(max(options.writers))
        # Otherwise the first measurement of each system would contain its connections.
        for system in options.systems:
            bench.measure(drivers, system, 0, 0)
        for turn, delay_ms, writers in itertools.product(range(options.rounds), options.s3_delay_ms, options.writers):
            for system in options.systems[:: -1 if turn % 2 else 1]:
                rows.append(bench.measure(drivers[:writers], system, delay_ms, options.seconds))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
        for driver in drivers:
            driver.close()
        locks = [system for system in options.systems if urls[system]]
        takeovers = [bench.takeover(system, options.kills, options.session_timeout) for system in locks]
    print_table(summaries(rows))
    print_table(takeovers)
    about = {"cpus": os.cpu_count(), "load_average": os.getloadavg()[1]}
    save(options.output, {"about": about, "coordinators": rows, "takeovers": takeovers})


if __name__ == "__main__":
    main()
