"""Measure small appends of several drivers to one table on a local disk: Sluice compared with its alternatives.

    sluice          the lock for the commit only
    sluice-25       as sluice, with a checkpoint at every 25th version (delta.checkpointInterval)
    sluice-write    the lock over the whole write
    delta           stock Delta, no lock: safe on a local disk (on S3 it loses commits), with its own retries
    delta-tuned     as delta, with the settings of Sluice's sessions
    iceberg         Iceberg on Spark 4.1, with a folder as catalog
    iceberg-sqlite  as iceberg, with a database as catalog (SQLite, by JDBC)

Each writer is a driver with one core; each append has 100 rows. Systems take turns, so that noise of the machine
affects all. Each has a new table in each round, and each driver a private table for its warm-up. "lost" counts
acknowledged appends whose rows are missing. Iceberg needs PySpark 4.1: it has a separate virtual environment below
build/peers, and Spark resolves its jars (spark.jars.packages).

    python benchmarks/peers/peers.py [--writers 4 8] [--appends 15] [--rounds 2] [--systems NAME …]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from contention import Driver
from figures import percentile, print_table, save
from iceberg_environment import iceberg_jars, iceberg_python, iceberg_variables

from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.jars import jar_paths
from sluice.local.spark import LOCAL_DRIVER, QUICK_JVM
from writer_jobs.delta.session import DEFAULTS

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ROWS = 100
COMMON = {
    "spark.master": "local[1]",
    "spark.driver.memory": "1g",
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
}
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
RARE_CHECKPOINTS = {"spark.databricks.delta.properties.defaults.checkpointInterval": "25"}
CATALOG = {
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.cat": "org.apache.iceberg.spark.SparkCatalog",
}


def systems(folder: Path, zookeeper: str) -> dict[str, dict[str, Any]]:
    """Return the options of each system's writers."""
    tuned = {name: value for name, value in DEFAULTS.items() if "delta" in name and "logStore" not in name}
    warehouse = {"spark.sql.catalog.cat.type": "hadoop", "spark.sql.catalog.cat.warehouse": f"file://{folder}/iceberg"}
    database = {
        "spark.sql.catalog.cat.type": "jdbc",
        "spark.sql.catalog.cat.uri": f"jdbc:sqlite:file:{folder}/catalog.db",
        "spark.sql.catalog.cat.jdbc.schema-version": "V1",
        "spark.sql.catalog.cat.warehouse": f"file://{folder}/iceberg-sqlite",
    }
    common = {**LOCAL_DRIVER, **COMMON}
    options = {
        "sluice": {"kind": "sluice", "hold": "commit", "conf": common, "zookeeper": zookeeper},
        "sluice-25": {"kind": "sluice", "hold": "commit", "conf": common | RARE_CHECKPOINTS, "zookeeper": zookeeper},
        "sluice-write": {"kind": "sluice", "hold": "write", "conf": common, "zookeeper": zookeeper},
        "delta": {"kind": "delta", "conf": {**common, **DELTA}},
        "delta-tuned": {"kind": "delta", "conf": {**common, **DELTA, **tuned}},
        "iceberg": {"kind": "iceberg", "conf": {**COMMON, **CATALOG, **warehouse}},
        "iceberg-sqlite": {"kind": "iceberg", "conf": {**COMMON, **CATALOG, **database}},
    }  # fmt: skip
    return {name: {**system, "folder": str(folder)} for name, system in options.items()}


def python_of(kind: str) -> str:
    """Return the Python that runs a system's writers. The first use of Iceberg's creates it."""
    return str(iceberg_python()) if kind == "iceberg" else sys.executable


def jars_of(kind: str) -> dict[str, str]:
    """Return the Spark setting with a system's jars."""
    if kind == "sluice":
        # build_session adds them.
        return {}
    return {"spark.jars": ",".join(map(str, jar_paths() if kind == "delta" else iceberg_jars()))}


def environment_of(kind: str) -> dict[str, str]:
    """Return the environment of a system's writers."""
    if kind == "iceberg":
        return iceberg_variables()
    variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return {**variables, "SPARK_LOCAL_IP": "127.0.0.1"}


def start(system: dict[str, Any], number: int, folder: Path) -> Driver:
    kind = system["kind"]
    options = {**system, "number": number, "conf": {**system["conf"], **jars_of(kind)}}
    command = [python_of(kind), str(HERE / "peers_writer.py"), json.dumps(options)]
    return Driver(command, environment_of(kind), folder / f"{number}-{kind}.log")


def run(drivers: list[Driver], name: str, writers: int, appends: int, table: str) -> dict[str, Any]:
    active = drivers[:writers]
    # The first append creates the table and is not measured.
    active[0].send_order(table=table, appends=1)
    active[0].read_answer()
    for driver in active:
        driver.send_order(table=table, appends=appends)
    answers = [driver.read_answer() for driver in active]
    active[0].send_order(count=table)
    rows = active[0].read_answer()["rows"] - ROWS
    attempts = [append for answer in answers for append in answer["appends"]]
    commits = [append for append in attempts if append["error"] is None]
    durations = [append["ended"] - append["began"] for append in commits]
    span = max(append["ended"] for append in attempts) - min(append["began"] for append in attempts)
    return {
        "system": name,
        "writers": writers,
        "appends": len(attempts),
        "acknowledged": len(commits),
        "failed": len(attempts) - len(commits),
        "lost": max(0, ROWS * len(commits) - rows) // ROWS,
        "commits_per_s": len(commits) / span,
        "p50_s": statistics.median(durations) if durations else 0.0,
        "p95_s": percentile(durations, 0.95) if durations else 0.0,
        "cpu_s_per_commit": sum(answer["cpu_s"] for answer in answers) / max(1, len(commits)),
        "errors": sorted({append["error"] for append in attempts if append["error"]})[:3],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--appends", type=int, default=15, help="appends of each writer in each round (15)")
    parser.add_argument("--rounds", type=int, default=2)
    # The default includes one of Delta's checkpoints.
    parser.add_argument(
        "--warm-up", type=int, default=12, metavar="APPENDS", help="appends of each writer to a private table (12)"
    )
    parser.add_argument("--systems", nargs="+", metavar="NAME", help="systems to measure (all)")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench/peers.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-peers-")))
        all_systems = systems(folder, zookeeper.hosts)
        names = options.systems or list(all_systems)
        if unknown := sorted(set(names) - set(all_systems)):
            parser.error(f"--systems {unknown[0]}: choose from {', '.join(all_systems)}")
        number = 0
        for turn in range(options.rounds):
            # One system at a time: eight drivers of each system would not fit into memory.
            for name in names if turn % 2 == 0 else names[::-1]:
                drivers = [start(all_systems[name], number + i, folder) for i in range(max(options.writers))]
                number += len(drivers)
                try:
                    for driver in drivers:
                        driver.read_answer()
                    for index, driver in enumerate(drivers):
                        driver.send_order(table=f"private{number}x{index}", appends=options.warm_up)
                    for driver in drivers:
                        driver.read_answer()
                    for writers in options.writers:
                        rows.append(run(drivers, name, writers, options.appends, f"shared{number}x{writers}"))
                        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                finally:
                    for driver in drivers:
                        driver.close()
    print_table([{name: value for name, value in row.items() if name != "errors"} for row in rows])
    about = {"cpus": os.cpu_count(), "load_average": os.getloadavg()[1]}
    save(options.output, {"about": about, "peers": rows})


if __name__ == "__main__":
    main()
