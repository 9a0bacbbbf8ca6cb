"""What holding the lock for the commit alone is worth to operations that read the table, and what it costs them.

Writers are drivers of their own, as in ``contention.py``. Each works on a part of one partitioned table: one of its
own, or all on the same (hot) one. MERGE and overwrite read a source that takes 2 s; UPDATE has none.

    gate          without the lock first, and again with it after a conflict (``lock_during="commit"``)
    whole write   with the lock from the beginning (``lock_during="write"``)
    optimistic    no lock; a job that fails by a conflict is started again

Then one driver compacts the table over and over, and the others append to it: how long are they kept back?

    python benchmarks/operations.py [--writers 4] [--seconds 30] [--only merge update overwrite optimize]

``--hot-merge SECONDS --writers 8`` does nothing but hot MERGEs for so long.
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
from contention import Bench, span, start
from contention_writer import KEYS
from deltalake import DeltaTable, write_deltalake
from figures import percentile, print_table

MODES = ("gate", "whole write", "optimistic")
WORK_S = {"merge": 2.0, "update": 0.0, "overwrite": 2.0}
WARM_UP_SECONDS = 15


class Operations:
    """The writers, and the cells that they run."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.tables = 0

    def table(self, files: int = 1) -> str:
        """Make a table of some parts, each with ten rows, in so many commits."""
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
        """Have every driver do what its cell says, to a table, for so long."""
        uri = table.replace("s3:", "s3a:")
        return self.bench.run(self.bench.drivers, uri, mode, work_s, seconds=seconds, more=cells)

    def cell(self, operation: str, mode: str, seconds: float, *, hot: bool) -> dict[str, Any]:
        """Have all writers do an operation for so long."""
        table = self.table()
        cells = [
            {"operation": operation, "part": 1 if hot else number + 1} for number in range(len(self.bench.drivers))
        ]
        answers = self.run(table, mode, WORK_S[operation], seconds, cells)
        commits = [commit for answer in answers for commit in answer["commits"]]
        took = [commit["took_s"] for commit in commits]
        counted = sum(DeltaTable(table).to_pyarrow_table()["n"].to_pylist())
        return {
            "operation": operation,
            "rows": "hot" if hot else "own",
            "mode": mode,
            "commits": len(commits),
            "commits_per_s": len(commits) / span(answers),
            "p50_s": statistics.median(took),
            "p95_s": percentile(took, 0.95),
            "most_s": max(took),
            "done_again": sum(answer["conflicts"] for answer in answers),
            # What an overwrite replaces is gone; of all others each counts one up.
            "lost": None if operation == "overwrite" else len(commits) - counted,
            "cpu_s_per_commit": sum(answer["cpu_s"] for answer in answers) / len(commits),
        }

    def compaction(self, mode: str, seconds: float, files: int) -> dict[str, Any]:
        """Have one writer compact a table of so many files in a part, and the others append for so long."""
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
            "appends_per_s": len(appends) / span(answers),
            "append_p50_s": statistics.median(appends),
            "append_p95_s": percentile(appends, 0.95),
            "append_most_s": max(appends),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=30, help="for each cell (30)")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES, metavar="MODE", help=", ".join(MODES))
    parser.add_argument("--files", type=int, default=100, help="of the table that is compacted (100)")
    parser.add_argument("--only", nargs="+", default=[*WORK_S, "optimize"], choices=[*WORK_S, "optimize"])
    parser.add_argument("--hot-merge", type=float, metavar="SECONDS", help="hot MERGEs through the gate, for so long")
    parser.add_argument("--output", type=Path, default=Path("build/bench/operations.json"))
    options = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {"operations": [], "compaction": []}
    with ExitStack() as stack:
        operations = Operations(start(stack, options.writers, flights_limit=1))

        def note(which: str, row: dict[str, Any]) -> None:
            found[which].append(row)
            print(json.dumps(row), file=sys.stderr, flush=True)

        # What is compiled by the JVMs while it is measured would count as the first mode's.
        operations.cell("merge", "gate", min(WARM_UP_SECONDS, options.seconds), hot=False)
        if options.hot_merge:
            note("operations", operations.cell("merge", "gate", options.hot_merge, hot=True))
            options.only = []
        for operation in [each for each in WORK_S if each in options.only]:
            for hot in (False, True):
                for mode in options.modes[:: 1 if hot else -1]:
                    note("operations", operations.cell(operation, mode, options.seconds, hot=hot))
        if "optimize" in options.only:
            for mode in options.modes:
                note("compaction", operations.compaction(mode, options.seconds, options.files))
    for rows in filter(None, found.values()):
        print_table([{name: "-" if value is None else value for name, value in row.items()} for row in rows])
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
