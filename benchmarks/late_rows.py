"""Apply late rows, a hundredth of the table, with ``apply_rows``, compared with a plain Delta MERGE.

The table has the flights of 2013, ten times (--copies), in twelve monthly partitions of ten files each (--files). The
late rows belong to one day of each month, as after an outage. Some (--updates) are later versions of flights in the
table, the others are new flights. The plain MERGE is the usual statement: a condition on the key, the order in a
clause, and no lock. The contestants take turns.

    python benchmarks/late_rows.py [--copies 10] [--files 10] [--updates 0.5] [--rounds 3]
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import DeltaTable as PlainTable
from figures import print_table, save
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (the common name)
from turns import SETTINGS, figures_of, metrics_of, run_in_turns, unguarded

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.demo.flights import deal_flights
from sluice.local.jars import jar_paths
from writer_jobs import LockedDeltaWriter, apply_rows, build_session

DAY = 15
KEYS = ("time_hour", "carrier", "flight")


def read_flights(spark: SparkSession, folder: Path, copies: int, limit: int | None) -> DataFrame:
    """Return copies of the flights with a version column.

    Args:
        spark: Session.
        folder: Folder for the file of flights.
        copies: Number of copies. Each has different carriers.
        limit: Number of flights; None for all.

    """
    (file,), _ = deal_flights(folder, 1, limit=limit)
    flights = spark.read.csv(str(file), header=True, inferSchema=True)
    copy = F.explode(F.sequence(F.lit(1), F.lit(copies))).alias("copy")
    copied = flights.select("*", copy).withColumn("carrier", F.concat("carrier", "copy"))
    return copied.drop("copy").withColumn("version", F.lit(1))


def plain_merge(spark: SparkSession, table: str, late: DataFrame) -> dict[str, str]:
    condition = " AND ".join(f"t.{name} = s.{name}" for name in KEYS)
    with unguarded(spark):
        merge = DeltaTable.forPath(spark, table).alias("t").merge(late.alias("s"), condition)
        merge.whenMatchedUpdateAll("s.version > t.version").whenNotMatchedInsertAll().execute()
    return metrics_of(spark, table)


def count_overlapping_files(table: str) -> tuple[int, int]:
    """Return the number of files, and the number of those whose statistics cover a day of the late rows."""
    files = pa.table(PlainTable(table).get_add_actions(flatten=True)).to_pylist()
    days = [datetime(2013, month, DAY, tzinfo=UTC) for month in range(1, 13)]
    overlapping_files = [
        file
        for file in files
        if any(file["min.time_hour"] < day + timedelta(days=1) and file["max.time_hour"] >= day for day in days)
    ]
    return len(files), len(overlapping_files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=10, help="copies of the flights (10)")
    parser.add_argument("--files", type=int, default=10, help="files of each month (10)")
    parser.add_argument("--updates", type=float, default=0.5, help="share of later versions among late rows (0.5)")
    parser.add_argument("--flights", type=int, help="read only this many flights (all)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, in turns (3)")
    parser.add_argument("--warm-up", type=int, default=1, metavar="ROUNDS", help="first rounds, not measured (1)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/late_rows.json"))
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        spark = build_session("late rows", jars=jar_paths(), launch_conf=SETTINGS, log_level="OFF")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        stack.callback(spark.stop)
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts))
        base, late = str(folder / "base"), str(folder / "late")
        rows = read_flights(spark, folder, options.copies, options.flights)
        partitioned_rows = rows.repartitionByRange(12 * options.files, "month", "time_hour")
        LockedDeltaWriter(spark, manager, base).append(partitioned_rows, partition_by=["month"])
        table_rows = rows.count()
        candidates = rows.where(F.dayofmonth("time_hour") == DAY).withColumn("chance", F.rand(1))
        share = 0.01 * table_rows / candidates.count()
        late_rows = candidates.where(F.col("chance") < share)
        is_new = F.col("chance") < share * (1 - options.updates)
        late_rows.select(
            *(name for name in rows.columns if name not in ("flight", "version", "arr_delay")),
            F.when(is_new, F.col("flight") + 100_000).otherwise(F.col("flight")).alias("flight"),
            F.lit(999).alias("arr_delay"),
            F.when(is_new, 1).otherwise(2).alias("version"),
        ).write.parquet(late)
        late_count = spark.read.parquet(late).count()
        files, overlapping_files = count_overlapping_files(base)

        def run_apply_rows(table: str) -> dict[str, str]:
            writer = LockedDeltaWriter(spark, manager, table)
            result = apply_rows(
                writer,
                spark.read.parquet(late),
                keys=["carrier", "flight"],
                event_time="time_hour",
                sequence_by="version",
            )
            return dict(result.commit.metrics) if result.commit else {}

        runs_by_name = run_in_turns(
            spark,
            folder,
            base,
            options,
            {
                "plain MERGE": lambda table: plain_merge(spark, table, spark.read.parquet(late)),
                "apply_rows": run_apply_rows,
            },
        )
    results = [figures_of(name, runs, late_count) for name, runs in runs_by_name.items()]
    print_table(results)
    print(
        f"{late_count:,} late rows for a table of {table_rows:,} rows in {files} files; {overlapping_files} files can "
        "contain them"
    )
    print(f"apply_rows is {results[0]['seconds'] / results[1]['seconds']:.2f} times as fast as a plain MERGE")
    save(options.output, {"files": files, "overlapping_files": overlapping_files, "runs": results})


if __name__ == "__main__":
    main()
