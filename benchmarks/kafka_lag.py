"""The lag of ``cdc.py`` behind a Kafka topic at a steady rate, compared with a plain Delta MERGE in ``foreachBatch``.

A broker of one node, a topic of one partition, and one driver with two cores and 2 GB. The topic begins with a snapshot
of the table; then changes of random rows arrive at the rate. A twentieth of them are deletes. The lag of a batch is
the time from its oldest change to the creation of its version. Batches with changes of the warm-up alone, and the last
batch, are not counted. The contestants take turns, each with a topic and a table of its own; their tables must be equal
at the end. The plain MERGE has an easier task; see ``kafka_stock.py``.

    python benchmarks/kafka_lag.py [--rate 1000] [--seconds 120] [--warm-up 180] [--rows 100000] [--rounds 1]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from figures import print_table, save

from lock_manager.testing.embedded import EmbeddedZooKeeper, find_java, start_supervised, stop_supervised
from sluice.demo.processes import spark_submit
from sluice.local.jars import jar_paths
from sluice.local.spark import LOCAL_DRIVER
from sluice.submit.distribution import conf_arguments
from tests.support.kafka import Kafka, kafka_server
from tests.support.locked_jars import locked_jars
from writer_jobs import cdc
from writer_jobs.delta.session import JOB_DEFAULTS, cluster_defaults

FOLDER = Path(__file__).parent
STOCK = FOLDER / "kafka_stock.py"
PRODUCER = FOLDER / "KafkaChanges.java"
TRIGGER = "1 second"
#: Largest delay of the producer, in seconds.
MAX_DELAY = 1.0
#: Seconds without a commit after which a run has failed.
PATIENCE = 600


@dataclass(frozen=True)
class Batch:
    """A commit of a contestant.

    Attributes:
        first: Number of the batch's first change in the topic.
        count: Number of its changes.
        version: The version that it created.
        seconds: Duration of the batch, with the checkpoint that follows some commits.
        locked: Seconds with the lock; None for the plain MERGE.

    """

    first: int
    count: int
    version: int
    seconds: float
    locked: float | None


def submit_command(program: Path, arguments: list[str], conf: dict[str, str], *, stock: bool) -> list[str]:
    jars = [*jar_paths(), *locked_jars("spark-4.2-kafka")]
    settings = {**LOCAL_DRIVER, "spark.sql.shuffle.partitions": "2"}
    if stock:
        defaults = {**JOB_DEFAULTS, **cluster_defaults()}
        names = (
            "spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.databricks.delta.snapshotPartitions",
            "spark.sql.codegen.cache.maxEntries", "spark.python.sql.dataFrameDebugging.enabled",
        )  # fmt: skip
        settings |= {name: defaults[name] for name in names}
    command = [str(spark_submit()), "--master", "local[2]", "--driver-memory", "2g"]
    command += ["--jars", ",".join(map(str, jars)), *conf_arguments({**settings, **conf})]
    return [*command, str(program), *arguments]


@contextmanager
def started(command: list[str], folder: Path, name: str) -> Iterator[Iterator[dict[str, Any] | None]]:
    """Run a contestant; yield its events. None is yielded while it has no new event."""
    output, errors = folder / f"{name}.out", folder / f"{name}.err"
    environment = ["env", f"PYSPARK_PYTHON={sys.executable}", "SPARK_LOCAL_IP=127.0.0.1"]
    process = start_supervised([*environment, "sh", "-c", 'exec "$@" 2> "$0"', str(errors), *command], output)

    def events() -> Iterator[dict[str, Any] | None]:
        with output.open() as lines:
            while True:
                line = lines.readline()
                if line.endswith("\n"):
                    if line.startswith("{"):
                        yield json.loads(line)
                    continue
                if line:
                    lines.seek(lines.tell() - len(line))
                if process.poll() is not None:
                    raise SystemExit(f"{name} ended with code {process.returncode}: {errors.read_text()[-2000:]}")
                yield None
                time.sleep(0.05)

    try:
        yield events()
    finally:
        stop_supervised(process)


def batches_of(events: Iterator[dict[str, Any] | None], total: int) -> Iterator[Batch]:
    """Yield the batches until they have all changes of the topic."""
    applied, begun_at, last_commit = 0, time.time(), time.monotonic()
    while applied < total:
        event = next(events)
        if event is None:
            if time.monotonic() - last_commit > PATIENCE:
                raise SystemExit(f"no commit for {PATIENCE} seconds; {applied} of {total} changes are applied")
            continue
        if event["event"] == "begun":
            begun_at = event["begun_at"]
        if event["event"] == "commit" and event["changes"]:
            last_commit = time.monotonic()
            seconds = event.get("seconds", time.time() - begun_at)
            yield Batch(applied, event["changes"], event["version"], seconds, event.get("held_s"))
            applied += event["changes"]


def run(
    contestant: str, kafka: Kafka, zookeeper: str, folder: Path, topic: str, options: Any
) -> tuple[list[dict[str, float]], pa.Table]:
    """Run a contestant on a topic of its own; return the figures of each batch after the warm-up, and the rows."""
    table, checkpoint = str(folder / "table"), str(folder / "checkpoint")
    stock = contestant == "plain MERGE"
    arguments = (
        [kafka.servers, topic, table, checkpoint, TRIGGER]
        if stock
        else [
            *("--table", table, "--kafka", kafka.servers, "--topic", topic, "--decoder", "debezium"),
            *("--checkpoint", checkpoint, "--trigger", TRIGGER, "--zookeeper", zookeeper),
        ]
    )
    command = submit_command(STOCK if stock else Path(cdc.__file__), arguments, dict(options.conf), stock=stock)
    seconds = options.seconds + options.warm_up
    total = options.rows + options.rate * seconds
    with produced(kafka, topic, options, folder) as start, started(command, folder, name_of(contestant)) as events:
        batches = list(batches_of(events, total))

    def lag(batch: Batch) -> float:
        created_at: float = Path(table, "_delta_log", f"{batch.version:020}.json").stat().st_mtime
        due: float = start + max(0, batch.first - options.rows) / options.rate
        return created_at - due

    measured_batches = [
        batch for batch in batches if batch.first + batch.count > options.rows + options.rate * options.warm_up
    ]
    figures = [
        {
            "lag": lag(batch),
            "changes": batch.count,
            "seconds": batch.seconds,
            **({} if batch.locked is None else {"locked": batch.locked}),
        }
        # The last batch has the rest of the changes.
        for batch in measured_batches[:-1] or measured_batches
    ]
    rows = DeltaTable(table).to_pyarrow_table(columns=["id", "name", "amount"]).sort_by("id")
    return figures, rows


@contextmanager
def produced(kafka: Kafka, topic: str, options: Any, folder: Path) -> Iterator[float]:
    """Run the producer, and make sure that it kept to its schedule. Yield the time of the first change."""
    log = folder / "producer.log"
    command = [find_java(), "-Xmx128m", "-cp", kafka.class_path, str(PRODUCER), kafka.servers, topic]
    command += list(map(str, (options.rows, options.rate, options.seconds + options.warm_up)))
    producer = start_supervised(command, log)

    def wait_for(name: str) -> int:
        deadline = time.monotonic() + PATIENCE
        while (match := re.search(rf"^{name} (\d+)$", log.read_text(), re.MULTILINE)) is None:
            if producer.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the producer ended or hangs: {log.read_text()[-2000:]}")
            time.sleep(0.05)
        return int(match[1])

    try:
        yield wait_for("start") / 1000
        delay = wait_for("delay") / 1000
    finally:
        stop_supervised(producer)
    if delay > MAX_DELAY:
        raise SystemExit(f"the producer was {delay} s behind its schedule: give a smaller --rate")


def name_of(contestant: str) -> str:
    return contestant.replace(" ", "-")


def figures_of(contestant: str, batches: list[dict[str, float]]) -> dict[str, Any]:
    def median(name: str) -> float:
        return statistics.median(batch[name] for batch in batches)

    return {
        "": contestant,
        "batches": len(batches),
        "lag p50, s": median("lag"),
        "lag max, s": max(batch["lag"] for batch in batches),
        "changes per batch": int(median("changes")),
        "batch, s": median("seconds"),
        "locked, s": median("locked") if "locked" in batches[0] else "no lock",
    }


def setting(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=1000, help="changes per second (1000)")
    parser.add_argument("--seconds", type=int, default=120, help="measured seconds (120)")
    parser.add_argument("--warm-up", type=int, default=180, metavar="SECONDS", help="seconds before them (180)")
    parser.add_argument("--rows", type=int, default=100_000, help="rows of the table (100000)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds, in turns (1)")
    parser.add_argument("--only", nargs="+", choices=("cdc.py", "plain MERGE"), default=("cdc.py", "plain MERGE"))
    parser.add_argument(
        "--conf", type=setting, action="append", default=[], metavar="NAME=VALUE", help="setting of both drivers"
    )
    parser.add_argument("--output", type=Path, default=Path("build/bench/kafka_lag.json"))
    options = parser.parse_args()
    os.environ.pop("SLUICE_ZK_HOSTS", None)
    batches: dict[str, list[dict[str, float]]] = {name: [] for name in options.only}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        kafka = stack.enter_context(kafka_server(folder))
        first_rows: pa.Table | None = None
        for number in range(options.rounds):
            for name in options.only[:: -1 if number % 2 else 1]:
                run_folder = folder / f"{number}-{name_of(name)}"
                run_folder.mkdir()
                figures, rows = run(name, kafka, zookeeper.hosts, run_folder, run_folder.name, options)
                batches[name] += figures
                first_rows = rows if first_rows is None else first_rows
                if not rows.equals(first_rows):
                    raise SystemExit(f"the table of {name} differs from that of {options.only[0]}")
    table = [figures_of(name, figures) for name, figures in batches.items()]
    print_table(table)
    save(options.output, {"figures": table, "batches": batches})


if __name__ == "__main__":
    main()
