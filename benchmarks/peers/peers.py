"""Measure small appends of several writers to one table: Sluice compared with its alternatives.

    sluice          the lock for the commit only
    sluice-groups   as sluice, with spark.sluice.groupCommits=true
    delta           stock Delta with the settings of Sluice's sessions, no lock; on S3 it loses commits
    deltalake       delta-rs, without Spark; conditional PUTs
    iceberg-sqlite  Iceberg on Spark 4.1, with a SQLite database as catalog
    iceberg-rest    Iceberg on Spark 4.1, with Iceberg's REST catalog for tests, and SQLite behind it; on S3 only

The tables are on S3 (moto) or on a local disk. S3A does not check whether there is a file before it creates one
(``fs.s3a.performance.flags=create``), as Iceberg's client does not. The commits of Sluice are not affected.

Each writer is a process: a Spark driver with one core, without generated code, or Python with deltalake. Each append
has 100 rows. Systems take turns, so that noise of the machine affects all. Each system has a new table for each
measurement, and each writer a private table for its warm-up. The printed figures are medians of the rounds; attempts,
successes and lost are sums:

    lost                  acknowledged appends whose rows are missing
    commits_per_s         versions or snapshots of the table
    p50_s, p95_s          seconds of a successful append
    cpu_s_per_append      processor time of the writers, their JVMs included, for each successful append; without that
                          of S3, ZooKeeper and the REST catalog
    requests_per_append   S3 requests of all processes for each successful append

Iceberg needs PySpark 4.1: it has a separate virtual environment below build/peers, and its jars are downloaded there.

    python benchmarks/peers/peers.py [--storage s3 disk] [--writers 1 2 4 8 16] [--appends 15] [--s3-delay-ms 0 100]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from contention import Driver
from counted_s3 import CountedS3
from figures import percentile, print_table, save
from iceberg_environment import iceberg_jars, iceberg_python, iceberg_variables
from iceberg_rest import rest_catalog

from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.jars import jar_paths
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from writer_jobs.delta.session import DEFAULTS

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
ROWS = 100
BUCKET = "lake"
SYSTEMS = ("sluice", "sluice-groups", "delta", "deltalake", "iceberg-sqlite", "iceberg-rest")
COMMON = {
    **LOCAL_DRIVER,
    **FEW_ROWS,
    "spark.master": "local[1]",
    # 16 drivers need about 10 GB.
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": QUICK_JVM,
}
DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    **{name: value for name, value in DEFAULTS.items() if "delta" in name and "logStore" not in name},
}
CATALOG = "spark.sql.catalog.cat"
#: Requests of S3A are as few as those of Iceberg's client.
FEW_REQUESTS = {"spark.hadoop.fs.s3a.performance.flags": "create"}
#: Columns of the table.
KEY = ("system", "storage", "writers", "s3_delay_ms")
SUMS = ("attempts", "successes", "lost")
MEDIANS = ("commits_per_s", "appends_per_s", "p50_s", "p95_s", "cpu_s_per_append", "requests_per_append")


@dataclass(frozen=True)
class Storage:
    """Place of the tables: S3, or a folder on a local disk (``s3`` is None)."""

    folder: Path
    s3: CountedS3 | None

    def uri(self, scheme: str, name: str) -> str:
        """Return the URI of a folder; ``scheme`` is that for S3."""
        return f"{scheme}://{BUCKET}/{name}" if self.s3 is not None else (self.folder / name).as_uri()

    @property
    def name(self) -> str:
        return "disk" if self.s3 is None else "s3"

    @property
    def spark_conf(self) -> dict[str, str]:
        return {} if self.s3 is None else {**self.s3.spark_conf, **FEW_REQUESTS}

    @property
    def environment(self) -> dict[str, str]:
        return {} if self.s3 is None else self.s3.environment


def iceberg_properties(storage: Storage, name: str) -> dict[str, str]:
    """Return the properties of an Iceberg catalog whose tables are below ``name``."""
    properties = {"warehouse": storage.uri("s3", name)}
    if storage.s3 is not None:
        properties |= {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": storage.s3.endpoint,
            "s3.path-style-access": "true",
            "client.region": storage.s3.environment["AWS_REGION"],
        }
    return properties


def sqlite_properties(storage: Storage, name: str, folder: Path) -> dict[str, str]:
    """Return :func:`iceberg_properties` of a catalog in a SQLite database ``name.db`` in a folder."""
    database = {"type": "jdbc", "jdbc.schema-version": "V1", "uri": f"jdbc:sqlite:file:{folder}/{name}.db"}
    return {**iceberg_properties(storage, name), **database}


def iceberg_conf(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the Spark settings of a driver with an Iceberg catalog ``cat``."""
    return {
        **COMMON,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        CATALOG: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{CATALOG}.{name}": value for name, value in properties.items()},
    }


def system_options(storage: Storage, folder: Path, zookeeper: str, rest: str) -> dict[str, dict[str, Any]]:
    """Return the options of each system's writers.

    Args:
        storage: Place of the tables.
        folder: Folder for databases.
        zookeeper: Hosts of ZooKeeper.
        rest: URI of the REST catalog; empty without one.

    """
    delta = {**COMMON, **storage.spark_conf}
    options: dict[str, dict[str, Any]] = {
        "sluice": {"kind": "sluice", "conf": delta, "zookeeper": zookeeper},
        "sluice-groups": {
            "kind": "sluice",
            "conf": {**delta, "spark.sluice.groupCommits": "true"},
            "zookeeper": zookeeper,
        },
        "delta": {"kind": "delta", "conf": {**delta, **DELTA, "spark.jars": joined(jar_paths())}},
        "deltalake": {"kind": "deltalake"},
        "iceberg-sqlite": {"kind": "iceberg", "conf": iceberg_conf(sqlite_properties(storage, "sqlite", folder))},
    }
    if rest:
        rest_properties = {"type": "rest", **iceberg_properties(storage, "rest"), "uri": rest}
        options["iceberg-rest"] = {"kind": "iceberg", "conf": iceberg_conf(rest_properties)}
    return {name: {**system, "root": storage.uri("s3a", name)} for name, system in options.items()}


def joined(jars: Sequence[Path]) -> str:
    return ",".join(map(str, jars))


def start(system: dict[str, Any], number: int, storage: Storage, folder: Path) -> Driver:
    python, variables = sys.executable, {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    variables.pop("SPARK_HOME", None)
    options = {**system, "number": number}
    if system["kind"] == "iceberg":
        # The first use creates the environment.
        python, variables = str(iceberg_python()), iceberg_variables()
        options["conf"] = {**system["conf"], "spark.jars": joined(iceberg_jars("spark"))}
    command = [python, str(HERE / "peers_writer.py"), json.dumps(options)]
    return Driver(command, {**variables, **storage.environment}, folder / f"{number}.log")


def count(driver: Driver, table: str) -> Counter[str]:
    driver.send_order(count=table)
    return Counter(driver.read_answer())


def append(drivers: list[Driver], tables: list[str], appends: int) -> list[dict[str, Any]]:
    """Append to a table of each driver, all drivers at once; return their answers."""
    for driver, table in zip(drivers, tables, strict=True):
        driver.send_order(table=table, appends=appends)
    return [driver.read_answer() for driver in drivers]


def measure(
    drivers: list[Driver], system: str, appends: int, delay_ms: int, table: str, storage: Storage, s3: CountedS3
) -> dict[str, Any]:
    """Measure appends of all these drivers to a new table.

    Raises:
        SystemExit: The table could not be created.

    """
    # The first append creates the table and is not measured.
    (creation,) = append(drivers[:1], [table], 1)
    if error := creation["appends"][0]["error"]:
        raise SystemExit(f"{system}: table {table} could not be created: {error}")
    initial = count(drivers[0], table)
    s3.counting.requests.clear()
    s3.counting.delay_seconds = delay_ms / 1000
    answers = append(drivers, [table] * len(drivers), appends)
    s3.counting.delay_seconds = 0
    requests = len(s3.counting.requests)
    added = count(drivers[0], table)
    added.subtract(initial)
    attempts = [attempt for answer in answers for attempt in answer["appends"]]
    successes = [attempt for attempt in attempts if attempt["error"] is None]
    durations = [attempt["ended"] - attempt["began"] for attempt in successes]
    span = max(attempt["ended"] for attempt in attempts) - min(attempt["began"] for attempt in attempts)
    return {
        "system": system,
        "storage": storage.name,
        "writers": len(drivers),
        "s3_delay_ms": delay_ms,
        "attempts": len(attempts),
        "successes": len(successes),
        "lost": max(0, ROWS * len(successes) - added["rows"]) // ROWS,
        "commits_per_s": added["versions"] / span,
        "appends_per_s": len(successes) / span,
        "p50_s": statistics.median(durations) if durations else 0.0,
        "p95_s": percentile(durations, 0.95) if durations else 0.0,
        "cpu_s_per_append": sum(answer["cpu_s"] for answer in answers) / max(1, len(successes)),
        "requests_per_append": requests / max(1, len(successes)),
        "errors": sorted({attempt["error"] for attempt in attempts if attempt["error"]})[:3],
    }


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return one row for the rounds of a system: sums of `SUMS`, medians of the other figures."""
    row = {name: rounds[0][name] for name in KEY}
    row |= {name: sum(figures[name] for figures in rounds) for name in SUMS}
    return row | {name: statistics.median(figures[name] for figures in rounds) for name in MEDIANS}


def summaries(rows: list[dict[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each system, number of writers and delay, with the systems of one number side by side."""
    cells: dict[tuple[str, int, int, int], list[dict[str, Any]]] = {}
    for row in rows:
        cells.setdefault((row["storage"], row["s3_delay_ms"], row["writers"], names.index(row["system"])), []).append(
            row
        )
    return [summary(cells[key]) for key in sorted(cells)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--appends", type=int, default=15, help="appends of each writer in each round (15)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--storage", nargs="+", choices=("s3", "disk"), default=["s3"], help="(s3)")
    # The default includes one of Delta's checkpoints.
    parser.add_argument(
        "--warm-up", type=int, default=12, metavar="APPENDS", help="appends of each writer to a private table (12)"
    )
    parser.add_argument(
        "--s3-delay-ms",
        type=int,
        nargs="+",
        default=[0],
        metavar="MS",
        help="milliseconds added to each S3 request (0)",
    )
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS, metavar="NAME", help="(all)")
    parser.add_argument("--output", type=Path, default=ROOT / "build/bench/peers.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-peers-")))
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        s3 = stack.enter_context(CountedS3())
        s3.create_bucket(BUCKET)
        places = [Storage(folder, s3 if name == "s3" else None) for name in options.storage]
        rest = ""
        if "iceberg-rest" in options.systems and "s3" in options.storage:
            properties = sqlite_properties(Storage(folder, s3), "rest", folder)
            rest = stack.enter_context(rest_catalog(properties, s3.environment, folder / "rest.log"))
        number = 0
        for turn, storage in itertools.product(range(options.rounds), places):
            systems = system_options(storage, folder, zookeeper.hosts, rest if storage.s3 else "")
            names = [name for name in options.systems if name in systems]
            # One system at a time: the drivers of all systems would not fit into memory.
            for name in names if turn % 2 == 0 else names[::-1]:
                drivers = [start(systems[name], number + i, storage, folder) for i in range(max(options.writers))]
                number += len(drivers)
                try:
                    for driver in drivers:
                        driver.read_answer()
                    append(drivers, [f"private{number}x{index}" for index in range(len(drivers))], options.warm_up)
                    delays = options.s3_delay_ms if storage.s3 else [0]
                    for delay_ms, writers in itertools.product(delays, options.writers):
                        table = f"shared{number}x{writers}x{delay_ms}"
                        rows.append(measure(drivers[:writers], name, options.appends, delay_ms, table, storage, s3))
                        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
                finally:
                    for driver in drivers:
                        driver.close()
    print_table(summaries(rows, options.systems))
    about = {"cpus": os.cpu_count(), "load_average": os.getloadavg()[1]}
    save(options.output, {"about": about, "peers": rows})


if __name__ == "__main__":
    main()
