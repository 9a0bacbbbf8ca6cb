"""Measure seconds and peak memory of operations at a small and a large size, side by side.

- ``contenders``: the queue of one table, the contenders of one session. ``sluice status`` lists them; an append queues
  behind them until they all leave in the order of the queue.
- ``tables``: tables below one lock root, first idle, then all of them locked. An append goes to one more table.
- ``versions``: versions in a table's log. Each replaces the only data file, and has a checksum and the watermark of a
  stream.
- ``files``: data files of a table in 20 partitions, added by 20 versions.

The tables are written without Spark (``forged_table.py``). Each operation runs in a process of its own
(``scale_operation.py``). The time of a command contains the start of Python and of Spark. An append and ``take_pin``
are measured in a running driver with a heap of 1 GB. An append also reports how long it held the lock. Memory is the
peak resident size of the Python process and of the driver's JVM, in MiB. ZooKeeper is one embedded server.

The exit code is 1 if an operation failed; the figures of the others are printed.

    python benchmarks/scale.py [--part contenders tables versions files] [--contenders 10 1000] [--files 10000 1000000]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from figures import print_table, save
from forged_table import forge_files, forge_versions
from kazoo.client import KazooClient

from lock_manager import LockInspector, TableResource, ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import Mode, new_contender_path, table_node

OPERATION = Path(__file__).with_name("scale_operation.py")
Row = dict[str, Any]
#: Tables of one hold: its contenders are created in one request, which ZooKeeper limits to 1 MB.
TABLES_OF_HOLD = 200
#: Sessions that create the znodes of tables in parallel.
SESSIONS = 8
LOCK_SECONDS = 600
COMMANDS = ("verify", "log", "health")


@dataclass(frozen=True)
class Place:
    """Where a part is measured.

    Attributes:
        hosts: Address of ZooKeeper, which serves this part and size alone.
        folder: Empty folder for tables.
        commands: Commands of ``sluice`` to measure on a table.

    """

    hosts: str
    folder: Path
    commands: Sequence[str]


@contextmanager
def operation(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start an operation in a process of its own, and kill it at the end."""
    command = [sys.executable, str(OPERATION), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def measurements_of(process: subprocess.Popen[str]) -> list[Row]:
    """Wait for an operation, and return its measurements."""
    output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{process.args!r} ended with code {process.returncode}")
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def run(*arguments: str) -> list[Row]:
    with operation(*arguments) as process:
        return measurements_of(process)


def command(*arguments: str, label: str = "") -> list[Row]:
    """Measure a command of ``sluice``."""
    return [row | {"operation": label or f"sluice {arguments[0]}"} for row in run("sluice", *arguments)]


def contenders(place: Place, size: int) -> list[Row]:
    hosts, folder = place.hosts, place.folder
    table = TableResource.of(folder / "contended")
    forge_versions(folder / "contended", 2)
    with ExitStack() as stack:
        manager = stack.enter_context(ZookeeperLockManager(hosts))
        inspector = stack.enter_context(LockInspector(manager.settings))
        manager.acquire(table).release()  # creates the queue
        client = KazooClient(hosts)
        stack.callback(client.close)
        stack.callback(client.stop)
        client.start()
        queue = table_node(manager.settings.lock_root, table)
        data = json.dumps({"host": platform.node(), "pid": os.getpid(), "job": "contender"}).encode()
        create = partial(client.create_async, value=data, ephemeral=True, sequence=True)
        created = [create(new_contender_path(queue, uuid.uuid4().hex, Mode.EXCLUSIVE)) for _ in range(size)]
        paths = [result.get() for result in created]
        rows = command("status", "--zookeeper", hosts)
        with operation("append", str(folder / "contended"), hosts) as append:
            while append.poll() is None and len(inspector.table(table).entries) <= size:
                time.sleep(0.2)
            released_at = time.time()
            for deletion in [client.delete_async(path) for path in paths]:
                deletion.get()
            first_append, _ = measurements_of(append)
    seconds = first_append["acquired_at"] - released_at
    row = first_append | {"operation": "append, from the release of the locks ahead to its turn", "seconds": seconds}
    return [*rows, row]


def tables(place: Place, size: int) -> list[Row]:
    hosts, folder = place.hosts, place.folder
    root = f"/locks/{size}"
    table = str(folder / "another")
    forge_versions(Path(table), 2)
    uris = sorted(f"file:{folder}/table-{number:08}" for number in range(size))
    groups = [uris[start : start + TABLES_OF_HOLD] for start in range(0, size, TABLES_OF_HOLD)]
    status = partial(command, "status", "--zookeeper", hosts, "--lock-root", root)
    managers = [ZookeeperLockManager(hosts, LOCK_SECONDS, lock_root=root) for _ in range(SESSIONS)]
    with ExitStack() as stack, ThreadPoolExecutor(SESSIONS) as pool:
        for manager in managers:
            stack.enter_context(manager)
        list(pool.map(lambda number: managers[number % SESSIONS].acquire(uris[number]).release(), range(size)))
        rows = status(label="sluice status, no table locked")
        rows += run("append", table, hosts, root)
        holds = list(
            pool.map(lambda number: managers[number % SESSIONS].acquire_all(groups[number]), range(len(groups)))
        )
        rows += status(label="sluice status, each table locked")
        for hold in holds:
            hold.release()
    return rows


def versions(place: Place, size: int) -> list[Row]:
    table = place.folder / "versions"
    forge_versions(table, size)
    return table_rows(place, table) + run("pin", str(table), place.hosts)


def files(place: Place, size: int) -> list[Row]:
    table = place.folder / "files"
    forge_files(table, size)
    return table_rows(place, table)


def table_rows(place: Place, table: Path) -> list[Row]:
    """Measure the commands on a table before appends change it, then the appends."""
    commands = [command(name, str(table)) for name in place.commands]
    return [row for rows in commands for row in rows] + run("append", str(table), place.hosts)


PARTS: dict[str, tuple[Callable[[Place, int], list[Row]], list[int]]] = {
    "contenders": (contenders, [10, 1_000]),
    "tables": (tables, [100, 10_000]),
    # The appends of the benchmark are not due for a checkpoint, which Delta writes at every tenth version.
    "versions": (versions, [1_001, 100_001]),
    "files": (files, [10_000, 1_000_000]),
}


def side_by_side(part: str, results: dict[int, list[Row]]) -> list[Row]:
    """Return a row for each operation, with the figures of each size."""
    rows = []
    for measurements in zip(*results.values(), strict=True):
        row: Row = {part: measurements[0]["operation"]}
        for size, measurement in zip(results, measurements, strict=True):
            seconds = f"{measurement['seconds']:.2f}"
            memory = [f"{measurement[name]:.0f}" if measurement[name] else "-" for name in ("python_mib", "jvm_mib")]
            row[f"{size:,}: s"] = f"{seconds} (failed)" if measurement.get("error") else seconds
            row |= dict(zip((f"{size:,}: Python, MiB", f"{size:,}: JVM, MiB"), memory, strict=True))
            held_seconds = measurement.get("held_seconds")
            row[f"{size:,}: lock held, s"] = "-" if held_seconds is None else f"{held_seconds:.2f}"
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS), help="parts to run (all)")
    for name, (_, sizes) in PARTS.items():
        text = f"sizes of the part ({' '.join(map(str, sizes))})"
        parser.add_argument(f"--{name}", nargs="+", type=int, default=sizes, metavar="SIZE", help=text)
    parser.add_argument(
        "--commands", nargs="+", choices=COMMANDS, default=COMMANDS, help="commands to measure on a table (all)"
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/scale.json"))
    options = parser.parse_args()
    failures = []
    figures: dict[str, Any] = {"about": {"python": platform.python_version(), "cpus": os.cpu_count()}}
    for part in options.part:
        measure, _ = PARTS[part]
        results = {}
        for size in getattr(options, part):
            with EmbeddedZooKeeper() as zookeeper, tempfile.TemporaryDirectory(prefix="sluice-scale-") as folder:
                results[size] = measure(Place(zookeeper.hosts, Path(folder), options.commands), size)
        print_table(side_by_side(part, results))
        print(flush=True)
        failures += [
            f"{part}, {size:,}: {row['operation']} failed: {row['error']}"
            for size, rows in results.items()
            for row in rows
            if row.get("error")
        ]
        figures[part] = results
        save(options.output, figures)
    if failures:
        raise SystemExit("\n".join(failures))


if __name__ == "__main__":
    main()
