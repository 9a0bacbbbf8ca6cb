"""Measure the benefit and the cost of a lock for the commit only, for operations that read the table.

Each writer is a driver, as in ``contention.py``. The writers work on one partitioned table: each on its own part, or
all on the same (hot) part. MERGE and overwrite read a source that takes 2 s; UPDATE has no source.

    gate          first without the lock, and after a conflict again with it (``lock_during="commit"``)
    whole write   with the lock from the start (``lock_during="write"``)
    optimistic    no lock; a job that fails with a conflict is restarted

In further cells one driver compacts the table repeatedly while the others append, which shows how long appends wait.

    python benchmarks/operations.py [--writers 4] [--seconds 30] [--only merge update overwrite optimize]

``--hot-merge SECONDS --writers 8`` runs only hot MERGEs, for this time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
from contention import Bench, span_seconds, start
from contention_writer import KEYS
from deltalake import DeltaTable, write_deltalake
from figures import percentile, print_table, save

MODES = ("gate", "whole write", "optimistic")
WORK_S = {"merge": 2.0, "update": 0.0, "overwrite": 2.0}
WARM_UP_SECONDS = 15


class Operations:
    """Runs cells, each an operation in a mode, on the writers."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.tables = 0

    def table(self, files: int = 1) -> str:
        """Create a table of ``KEYS`` rows for each writer's part; append a row ``files - 1`` times; return its URI."""
        self.tables += 1
        uri = f"s3://bench/operations{self.tables}"
        parts = range(1, len(self.bench.drivers) + 1)
        rows = [(key, 0, part) for part in parts for key in range(KEYS)]
        columns = dict(zip(("id", "n", "part"), zip(*rows, strict=True), strict=True))
        data = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
        write_deltalake(uri, data, partition_by=["part"])
        for _ in range(files - 1):
            write_deltalake(uri, data.slice(0, 1), mode="append")
        return uri

    def run(
        self, table: str, mode: str, work_s: float, seconds: float, cells: list[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Let every driver run its cell on a table for a number of seconds; return the answers."""
        uri = table.replace("s3:", "s3a:")
        return self.bench.run(self.bench.drivers, uri, mode, work_s, seconds=seconds, extra_keys=cells)

    def cell(self, operation: str, mode: str, seconds: float, *, hot: bool) -> dict[str, Any]:
        """Let all writers run an operation for a number of seconds; return the row."""
        table = self.table()
        cells = [
            {"operation": operation, "part": 1 if hot else number + 1} for number in range(len(self.bench.drivers))
        ]
        answers = self.run(table, mode, WORK_S[operation], seconds, cells)
        commits = [commit for answer in answers for commit in answer["commits"]]
        durations = [commit["took_s"] for commit in commits]
        increments_in_table = sum(DeltaTable(table).to_pyarrow_table()["n"].to_pylist())
        return {
            "operation": operation,
            "rows": "hot" if hot else "own",
            "mode": mode,
            "commits": len(commits),
            "commits_per_s": len(commits) / span_seconds(answers),
            "p50_s": statistics.median(durations),
            "p95_s": percentile(durations, 0.95),
            "most_s": max(durations),
            "done_again": sum(answer["conflicts"] for answer in answers),
            # Each operation increases ``n`` by one, except an overwrite, which replaces earlier rows.
            "lost": None if operation == "overwrite" else len(commits) - increments_in_table,
            "cpu_s_per_commit": sum(answer["cpu_s"] for answer in answers) / len(commits),
        }

    def compaction(self, mode: str, seconds: float, files: int) -> dict[str, Any]:
        """Let one writer compact a table of many files while the others append for some seconds; return the row."""
        table = self.table(files)
        cells = [
            {"operation": "append" if number else "optimize", "part": 1} for number in range(len(self.bench.drivers))
        ]
        answers = self.run(table, mode, 0, seconds, cells)
        appends = [commit["took_s"] for answer in answers[1:] for commit in answer["commits"]]
        return {
            "mode": mode,
            "compactions": len(answers[0]["commits"]),
            "compaction_p50_s": statistics.median(commit["took_s"] for commit in answers[0]["commits"]),
            "done_again": answers[0]["conflicts"],
            "appends_per_s": len(appends) / span_seconds(answers),
            "append_p50_s": statistics.median(appends),
            "append_p95_s": percentile(appends, 0.95),
            "append_most_s": max(appends),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30, help="duration of each cell (30)")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES, metavar="MODE", help=", ".join(MODES))
    parser.add_argument("--files", type=int, default=100, help="files of the table that is compacted (100)")
    parser.add_argument("--only", nargs="+", default=[*WORK_S, "optimize"], choices=[*WORK_S, "optimize"])
    parser.add_argument(
        "--hot-merge", type=float, metavar="SECONDS", help="run only hot MERGEs through the gate, for this time"
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/operations.json"))
    options = parser.parse_args()
    results: dict[str, list[dict[str, Any]]] = {"operations": [], "compaction": []}
    with ExitStack() as stack:
        operations = Operations(start(stack, options.writers, flights_limit=1))

        def record(group: str, row: dict[str, Any]) -> None:
            results[group].append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)

        # Warm-up: otherwise the JIT compilation would count for the first mode.
        operations.cell("merge", "gate", min(WARM_UP_SECONDS, options.seconds), hot=False)
        if options.hot_merge:
            record("operations", operations.cell("merge", "gate", options.hot_merge, hot=True))
            options.only = []
        for operation in [name for name in WORK_S if name in options.only]:
            for hot in (False, True):
                for mode in options.modes[:: 1 if hot else -1]:
                    record("operations", operations.cell(operation, mode, options.seconds, hot=hot))
        if "optimize" in options.only:
            for mode in options.modes:
                record("compaction", operations.compaction(mode, options.seconds, options.files))
    for rows in filter(None, results.values()):
        print_table([{name: "-" if value is None else value for name, value in row.items()} for row in rows])
    save(options.output, results)


if __name__ == "__main__":
    main()
