"""A batch of changes applied by ``apply_changes``, beside a plain Delta MERGE of the rows that it comes to.

One driver with two cores and 4 GB, a table on the disk. Changes are updates, inserts and deletes of keys at random, in
any order, of some keys several. The plain MERGE has an easier task: its source is one row a key, the newest, made
before; it looks for no order, remembers no delete, and asks nobody for a lock. Each works on a copy of the same table,
in turns.

    python benchmarks/changes.py [--rows 1000000] [--changes 1000000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from figures import print_table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.jars import jar_paths
from sluice.local.spark import LOCAL_DRIVER
from writer_jobs import LockedDeltaWriter, apply_changes, build_session

SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "4g",
    "spark.sql.shuffle.partitions": "4",
    **LOCAL_DRIVER,
}
DELETES, INSERTS = 0.1, 0.1


def make_changes(spark: SparkSession, rows: int, changes: int, folder: Path) -> tuple[str, str]:
    """Write the changes, and the newest of each key; return where."""
    number = F.rand(7)
    key = F.when(number < INSERTS, F.lit(rows) + (F.rand(8) * rows).cast("long")).otherwise(
        (F.rand(9) * rows).cast("long")
    )
    made = spark.range(changes).select(
        key.alias("id"),
        F.concat(F.lit("name "), F.col("id")).alias("name"),
        (F.rand(10) * 1000).alias("amount"),
        (F.col("id") + 1).alias("position"),
        F.when(F.rand(11) < DELETES, "d").otherwise("u").alias("op"),
    )
    everything, newest = str(folder / "changes"), str(folder / "newest")
    made.orderBy(F.rand(12)).write.parquet(everything)
    of_key = spark.read.parquet(everything).groupBy("id").agg(F.max_by(F.struct("*"), "position").alias("row"))
    of_key.select("row.*").write.parquet(newest)
    return everything, newest


def peak_mb(pid: int, work: Callable[[], Any]) -> tuple[Any, float, float]:
    """Do some work; return its result, its seconds, and the largest resident size of a process meanwhile, MB."""
    # Has the kernel forget the largest size so far (proc(5), clear_refs).
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    began = time.monotonic()
    result = work()
    seconds = time.monotonic() - began
    (size,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return result, seconds, int(size.split()[1]) / 1024


def plain_merge(spark: SparkSession, table: str, newest: DataFrame) -> dict[str, str]:
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.sluice.guard", "off")
    try:
        values = {name: f"s.{name}" for name in ("id", "name", "amount", "position")}
        merge = DeltaTable.forPath(spark, table).alias("t").merge(newest.alias("s"), "t.id = s.id")
        merge = merge.whenMatchedDelete("s.op = 'd'").whenMatchedUpdate(None, values)
        merge.whenNotMatchedInsert("s.op <> 'd'", values).execute()
    finally:
        conf.set("spark.sluice.guard", "required")
    (row,) = DeltaTable.forPath(spark, table).history(1).select("operationMetrics").collect()
    return dict(row[0])


def measure(spark: SparkSession, manager: ZookeeperLockManager, folder: Path, options: Any) -> list[dict[str, Any]]:
    base = str(folder / "base")
    with_rows = spark.range(options.rows).select(
        "id", F.concat(F.lit("name "), F.col("id")).alias("name"), F.rand(6).alias("amount"), F.lit(0).cast("long")
        .alias("position"),
    )  # fmt: skip
    LockedDeltaWriter(spark, manager, base).append(with_rows)
    everything, newest = make_changes(spark, options.rows, options.changes, folder)
    pid = int(spark._jvm.java.lang.ProcessHandle.current().pid())

    def ours(table: str) -> dict[str, str]:
        done = apply_changes(
            LockedDeltaWriter(spark, manager, table),
            spark.read.parquet(everything),
            keys=["id"],
            sequence_by="position",
            apply_as_deletes="op = 'd'",
            except_column_list=["op"],
        )
        return dict(done.commit.metrics) if done.commit else {}

    def plain(table: str) -> dict[str, str]:
        return plain_merge(spark, table, spark.read.parquet(newest))

    found: dict[str, list[tuple[float, float, dict[str, str]]]] = {"apply_changes": [], "plain MERGE": []}
    for number in range(options.rounds + 1):
        for name, work in (("plain MERGE", plain), ("apply_changes", ours)):
            table = str(folder / f"{name.replace(' ', '-')}-{number}")
            shutil.copytree(base, table)
            metrics, seconds, memory = peak_mb(pid, lambda work=work, table=table: work(table))
            if number:
                found[name].append((seconds, memory, metrics))
            shutil.rmtree(table)
            shutil.rmtree(table + "_tombstones", ignore_errors=True)
    return [row(name, runs, options.changes) for name, runs in found.items()]


def row(name: str, runs: list[tuple[float, float, dict[str, str]]], changes: int) -> dict[str, Any]:
    seconds = statistics.median(each[0] for each in runs)
    metrics = runs[-1][2]
    return {
        "": name,
        "seconds": seconds,
        "from": min(each[0] for each in runs),
        "to": max(each[0] for each in runs),
        "changes/s": int(changes / seconds),
        "peak MB": int(max(each[1] for each in runs)),
        "files removed": metrics.get("numTargetFilesRemoved"),
        "files added": metrics.get("numTargetFilesAdded"),
        "updated": metrics.get("numTargetRowsUpdated"),
        "inserted": metrics.get("numTargetRowsInserted"),
        "deleted": metrics.get("numTargetRowsDeleted"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the table (1000000)")
    parser.add_argument("--changes", type=int, default=1_000_000, help="in the batch (1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="of each, in turns, after one to warm up (3)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/changes.json"))
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        spark = build_session("changes", jars=jar_paths(), launch_conf=SETTINGS, log_level="OFF")
        stack.callback(spark.stop)
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts))
        rows = measure(spark, manager, folder, options)
    print_table(rows)
    print(f"apply_changes takes {rows[0]['seconds'] / rows[1]['seconds']:.2f} times a plain MERGE")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps({"changes": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
