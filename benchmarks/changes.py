"""Apply a batch of changes and a batch of cells, compared with a plain Delta MERGE of the resulting rows.

One driver with two cores and 4 GB works on a table on the local disk, with tombstones and cells of earlier batches.
Changes are updates, inserts and deletes of random keys in random order, with several changes of some keys. Cells are
Puts and deletes of all types. The plain MERGE has an easier task: its source has one precomputed row for each key, and
it checks no order, writes no tombstones and takes no lock. The contestants take turns, each on a copy of the same
table.

    python benchmarks/changes.py [--rows 1000000] [--changes 1000000] [--cells 100000] [--rounds 3]
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from functools import reduce
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from figures import print_table, save
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the common name)
from turns import SETTINGS, copy_table, figures_of, metrics_of, run_in_turns, unguarded

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.jars import jar_paths
from writer_jobs import HBaseMapping, LockedDeltaWriter, apply_cells, apply_changes, build_session

DELETES, INSERTS = 0.1, 0.1


def make_changes(spark: SparkSession, rows: int, changes: int, folder: Path) -> tuple[str, str]:
    """Write all changes, and the newest change of each key; return both paths."""
    chance = F.rand(7)
    key = F.when(chance < INSERTS, F.lit(rows) + (F.rand(8) * rows).cast("long")).otherwise(
        (F.rand(9) * rows).cast("long")
    )
    change_rows = spark.range(changes).select(
        key.alias("id"),
        F.concat(F.lit("name "), F.col("id")).alias("name"),
        (F.rand(10) * 1000).alias("amount"),
        (F.col("id") + 1).alias("position"),
        F.when(F.rand(11) < DELETES, "d").otherwise("u").alias("op"),
    )
    all_path, newest_path = str(folder / "changes"), str(folder / "newest")
    change_rows.orderBy(F.rand(12)).write.parquet(all_path)
    newest = spark.read.parquet(all_path).groupBy("id").agg(F.max_by(F.struct("*"), "position").alias("row"))
    newest.select("row.*").write.parquet(newest_path)
    return all_path, newest_path


def plain_merge(spark: SparkSession, table: str, newest: DataFrame) -> dict[str, str]:
    values = {name: f"s.{name}" for name in ("id", "name", "amount", "position")}
    with unguarded(spark):
        merge = DeltaTable.forPath(spark, table).alias("t").merge(newest.alias("s"), "t.id = s.id")
        merge = merge.whenMatchedDelete("s.op = 'd'").whenMatchedUpdate(None, values)
        merge.whenNotMatchedInsert("s.op <> 'd'", values).execute()
    return metrics_of(spark, table)


def measure_changes(spark: SparkSession, manager: ZookeeperLockManager, folder: Path, options: Any) -> Any:
    base = str(folder / "base")
    table_rows = spark.range(options.rows).select(
        "id",
        F.concat(F.lit("name "), F.col("id")).alias("name"),
        F.rand(6).alias("amount"),
        F.lit(0).cast("long").alias("position"),
    )
    LockedDeltaWriter(spark, manager, base).append(table_rows)

    def run_apply_changes(table: str, changes: DataFrame) -> dict[str, str]:
        result = apply_changes(
            LockedDeltaWriter(spark, manager, table),
            changes,
            keys=["id"],
            sequence_by="position",
            apply_as_deletes="op = 'd'",
            except_column_list=["op"],
        )
        return dict(result.commit.metrics) if result.commit else {}

    # One delete for each hundred rows, of ids that the table does not have: their tombstones stay.
    absent_rows = table_rows.where("id % 100 = 7").withColumn("id", F.col("id") + 2 * options.rows)
    run_apply_changes(base, absent_rows.withColumn("op", F.lit("d")))
    all_path, newest_path = make_changes(spark, options.rows, options.changes, folder)
    return run_in_turns(
        spark,
        folder,
        base,
        options,
        {
            "plain MERGE": lambda table: plain_merge(spark, table, spark.read.parquet(newest_path)),
            "apply_changes": lambda table: run_apply_changes(table, spark.read.parquet(all_path)),
        },
    )


MAPPING = HBaseMapping.parsed(
    """{"row_key": [{"column": "id", "type": "text:long"}],
        "columns": {
          "d:name": {"column": "name", "type": "string"},
          "d:amount": {"column": "amount", "type": "double"},
          "d:position": {"column": "position", "type": "text:long"}}}"""
)
DOUBLE = bytes.fromhex("3ff8000000000000")


def measure_cells(spark: SparkSession, manager: ZookeeperLockManager, folder: Path, options: Any) -> Any:
    base, cells, final = str(folder / "cells-base"), str(folder / "cells"), str(folder / "final")
    writer = LockedDeltaWriter(spark, manager, base)
    row = F.col("id").cast("string")
    values = {"name": F.concat(F.lit("name "), row), "amount": F.lit(DOUBLE), "position": row}

    def cell(qualifier: str, timestamp: Column, kind: Column, value: Column) -> list[Column]:
        return [
            row.alias("row"),
            F.lit("d").alias("family"),
            F.when(kind.startswith("DeleteFamily"), "").otherwise(qualifier).alias("qualifier"),
            timestamp.alias("timestamp"),
            kind.alias("type"),
            value.cast("binary").alias("value"),
        ]

    rows = spark.range(options.rows // 5)
    puts = [rows.select(*cell(name, F.lit(1_000).cast("long"), F.lit("Put"), value)) for name, value in values.items()]
    apply_cells(writer, reduce(DataFrame.union, puts), MAPPING)
    kinds = F.array(*map(F.lit, ("Delete", "DeleteColumn", "DeleteFamily", "DeleteFamilyVersion")))
    kind = F.when(F.rand(3) < DELETES, kinds[(F.rand(4) * 4).cast("int")]).otherwise("Put")
    random_cells = spark.range(options.cells).select(
        (F.rand(1) * options.rows / 4).cast("long").alias("id"),
        (F.rand(2) * 3).cast("int").alias("column"),
        kind.alias("kind"),
        (F.rand(5) * 900 + 1_001).cast("long").alias("t"),
    )
    # Different values, so that rows change.
    values = {
        "name": F.concat(F.lit("new name "), row),
        "amount": F.lit(DOUBLE[::-1]),
        "position": F.concat(row, F.lit("0")),
    }
    column_cells = [
        random_cells.where(F.col("column") == index).select(*cell(name, F.col("t"), F.col("kind"), value))
        for index, (name, value) in enumerate(values.items())
    ]
    reduce(DataFrame.union, column_cells).distinct().write.parquet(cells)

    def run_apply_cells(table: str) -> dict[str, str]:
        result = apply_cells(LockedDeltaWriter(spark, manager, table), spark.read.parquet(cells), MAPPING)
        return dict(result.commit.metrics) if result.commit else {}

    # The resulting rows are the source of the plain MERGE.
    expected = str(folder / "expected")
    copy_table(base, expected)
    run_apply_cells(expected)
    touched = spark.read.parquet(cells).select(F.col("row").cast("long").alias("id")).distinct()
    final_rows = touched.join(spark.read.format("delta").load(expected).withColumn("op", F.lit("u")), "id", "left")
    final_rows.withColumn("op", F.coalesce("op", F.lit("d"))).write.parquet(final)
    return run_in_turns(
        spark,
        folder,
        base,
        options,
        {
            "plain MERGE": lambda table: plain_merge(spark, table, spark.read.parquet(final)),
            "apply_cells": run_apply_cells,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the table; a fifth for cells (1000000)")
    parser.add_argument("--changes", type=int, default=1_000_000, help="changes in the batch (1000000)")
    parser.add_argument("--cells", type=int, default=100_000, help="cells in the batch of cells (100000)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, in turns (3)")
    parser.add_argument("--warm-up", type=int, default=1, metavar="ROUNDS", help="first rounds, not measured (1)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/changes.json"))
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        spark = build_session("changes", jars=jar_paths(), launch_conf=SETTINGS, log_level="OFF")
        stack.callback(spark.stop)
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts))
        results = {}
        for batch, measure in (("changes", measure_changes), ("cells", measure_cells)):
            size = getattr(options, batch)
            if size:
                results[batch] = [
                    figures_of(name, runs, size) for name, runs in measure(spark, manager, folder, options).items()
                ]
    for batch, rows in results.items():
        print_table(rows)
        ratio = rows[1]["seconds"] / rows[0]["seconds"]
        print(f"{rows[1]['']} takes {ratio:.2f} times as long as a plain MERGE of its {batch}")
    save(options.output, results)


if __name__ == "__main__":
    main()
