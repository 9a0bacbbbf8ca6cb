"""Measure commits per second of several writers to one table, by the concurrency control that they use.

Each writer is a Spark driver (``contention_writer.py``). All append to one table on S3 (moto) for a fixed time. Before
each commit they do no work, wait 2 s (a slow source), or compute sums over the 336,776 flights of 2013. The modes:

    gate          the lock for the commit only (the default)
    whole write   the lock over the whole write
    optimistic    no lock; put-if-absent, and Delta's own retries
    stock         no lock, and Delta's log store for S3, which loses commits
    limit         one driver that repeats commits of a ready-made action

With --modes also

    s3-lease      as gate, with the lock in an object on S3 instead of ZooKeeper

and, for programs that request no lock (docs/how-to/unchanged.md):

    automatic     an automatic ticket for each commit, from the driver's Python process (``attach(lock="commit")``)
    agent         an automatic ticket for each commit, from the agent of ``SluicePlugin``

Drivers start once and warm up on other tables; modes take turns. Everything runs on this machine.

    python benchmarks/contention.py [--quick] [--writers 1 2 4 8] [--work 0 2 cpu]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from contention_plot import draw
from contention_writer import CPU
from deltalake import DeltaTable
from figures import percentile, print_table, save

from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.demo.flights import deal_flights
from sluice.local.s3 import LocalS3
from sluice.submit.distribution import plugin_settings

MODES = ("gate", "whole write", "optimistic", "stock")
OTHER_MODES = ("s3-lease", "automatic", "agent")
ROOT = Path(__file__).parent


class Driver:
    """The process of one writer, with orders and answers as lines of JSON."""

    def __init__(self, command: list[str], environment: dict[str, str], errors: Path) -> None:
        with errors.open("w") as stream:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stream, text=True
            )
        self.errors = errors

    def send_order(self, **order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def read_answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a writer ended: {self.errors.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        if self.process.poll() is None:
            self.send_order(end=1)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()


class Bench:
    """Runs cells, each a mode with a number of writers and a kind of work, on the writers."""

    def __init__(self, drivers: list[Driver]) -> None:
        self.drivers = drivers
        self.tables = 0

    def cell(self, mode: str, writers: int, work_s: float, seconds: float) -> dict[str, Any]:
        """Run one cell and return its row."""
        self.tables += 1
        table = f"s3a://bench/t{self.tables}"
        active = self.drivers[:writers]
        # Every mode, the limit included, starts with an existing table.
        self.run(active[:1], table, "gate" if mode == "limit" else mode, 0, commits=1)
        answers = self.run(active, table, mode, 0 if mode == "limit" else work_s, seconds=seconds)
        return self.row(mode, writers, work_s, table, answers)

    def run(
        self,
        active: list[Driver],
        table: str,
        mode: str,
        work_s: float,
        *,
        seconds: float = 0,
        commits: int = 1,
        extra_keys: Sequence[Mapping[str, Any]] = (),
    ) -> list[dict[str, Any]]:
        """Let writers write at the same time and return their answers.

        Args:
            active: Writers.
            table: URI of the table.
            mode: Mode of the writes.
            work_s: Seconds of waiting before each commit, or ``CPU``.
            seconds: Duration; 0 to stop after ``commits``.
            commits: Minimum number of commits of each writer.
            extra_keys: Additional keys of each writer's order.

        """
        for number, driver in enumerate(active):
            extra = extra_keys[number] if extra_keys else {}
            driver.send_order(table=table, mode=mode, work_s=work_s, number=number + 1 if seconds else 0, **extra)
        for driver in active:
            driver.read_answer()
        until = time.time() + seconds if seconds else 0
        for driver in active:
            driver.send_order(until=until, commits=commits)
        return [driver.read_answer() for driver in active]

    def row(self, mode: str, writers: int, work_s: float, table: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
        commits = [commit for answer in answers for commit in answer["commits"]]
        durations = [commit["took_s"] for commit in commits]
        hold_durations = [commit["held_s"] for commit in commits if "held_s" in commit]
        return {
            "mode": mode,
            "writers": writers,
            "work_s": "cpu" if work_s == CPU else work_s,
            "commits": len(commits),
            "commits_per_s": len(commits) / span_seconds(answers),
            "p50_s": statistics.median(durations),
            "p95_s": percentile(durations, 0.95),
            "p99_s": percentile(durations, 0.99),
            "lock_held_p50_s": statistics.median(hold_durations) if hold_durations else None,
            "lock_held_p99_s": percentile(hold_durations, 0.99) if hold_durations else None,
            "conflicts": sum(answer["conflicts"] for answer in answers),
            "lost": None if mode == "limit" else self.count_lost(table, len(commits)),
            "cpu_s_per_commit": sum(answer["cpu_s"] for answer in answers) / len(commits),
        }

    def count_lost(self, table: str, acknowledged: int) -> int:
        """Count acknowledged appends, of one row each, whose row is missing for a reader other than Spark."""
        rows = DeltaTable(table.replace("s3a:", "s3:")).to_pyarrow_table()
        # The append that created the table added one more row.
        return acknowledged + 1 - int(rows.num_rows)


def span_seconds(answers: list[dict[str, Any]]) -> float:
    """Return the seconds from the start of the first writer to the last commit."""
    ends: list[float] = [commit["ended"] for answer in answers for commit in answer["commits"]]
    first_start: float = min(answer["began"] for answer in answers)
    return max(ends) - first_start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="five minutes: 1 and 4 writers, no work and 2 s")
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--work", nargs="+", default=["0", "2", "cpu"], choices=["0", "2", "cpu"])
    modes = MODES + OTHER_MODES
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=modes, metavar="MODE", help=", ".join(modes))
    parser.add_argument("--seconds", type=float, default=20, help="minimum duration of each cell (20)")
    parser.add_argument("--flights", type=int, help="read only this many flights (all)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/contention.json"))
    options = parser.parse_args()
    if options.quick:
        options.writers, options.work, options.seconds = [1, 4], ["0", "2"], 12.0
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        bench = start(stack, max(options.writers), options.flights, has_agents="agent" in options.modes)
        # Warm-up: otherwise the JIT compilation would count for the first mode.
        for mode in ("gate", "whole write"):
            bench.cell(mode, len(bench.drivers), 0, options.seconds)
        rows.append(bench.cell("limit", 1, 0, options.seconds))
        for work, writers, mode in planned_cells(options.work, options.writers, options.modes):
            # With the lock over the whole write, each of many writers has few turns in the normal time.
            seconds = options.seconds * (1 if work == "0" or writers < 4 else 1.5)
            rows.append(bench.cell(mode, writers, CPU if work == "cpu" else float(work), seconds))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print_table([{name: "-" if value is None else value for name, value in row.items()} for row in rows])
    about = {"python": platform.python_version(), "cpus": os.cpu_count(), "load_average": os.getloadavg()[1]}
    save(options.output, {"about": about, "contention": rows})
    draw(rows, options.output.with_suffix(".png"))


def planned_cells(
    works: Sequence[str], writer_counts: Sequence[int], modes: Sequence[str]
) -> Iterator[tuple[str, int, str]]:
    """Yield work, number of writers and mode of each cell. The order of the modes alternates."""
    for number, (work, writers) in enumerate(itertools.product(works, writer_counts)):
        for mode in modes[:: -1 if number % 2 else 1]:
            yield work, writers, mode


def start(stack: ExitStack, writers: int, flights_limit: int | None, *, has_agents: bool = False) -> Bench:
    """Start ZooKeeper, S3 and the drivers.

    Args:
        stack: Ends everything that is started.
        writers: Number of drivers.
        flights_limit: Number of flights that a driver reads; None for all.
        has_agents: Whether the drivers have ``SluicePlugin``.

    """
    zookeeper = stack.enter_context(EmbeddedZooKeeper())
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-bench-")))
    s3 = stack.enter_context(LocalS3())
    s3.create_bucket("bench")
    (flights,), _ = deal_flights(folder, 1, limit=flights_limit)
    os.environ.update(s3.environment)
    conf = dict(s3.spark_conf)
    if has_agents:
        conf |= {**plugin_settings(), "spark.sluice.zookeeper": zookeeper.hosts, "spark.sluice.timeoutSeconds": "600"}
    environment = {**os.environ, "CONTENTION_CONF": json.dumps(conf)}
    command = [
        sys.executable,
        str(ROOT / "contention_writer.py"),
        zookeeper.hosts,
        "s3-lease://bench/locks",
        str(flights),
    ]
    drivers = []
    for number in range(writers):
        drivers.append(Driver(command, environment, folder / f"writer-{number}.log"))
        stack.callback(drivers[-1].close)
    for driver in drivers:
        driver.read_answer()
    return Bench(drivers)


if __name__ == "__main__":
    main()
