"""Compute the state of a stream at one moment from a pin and later changes, compared with a filter over all data.

The flights of 2013, several times, arrive as a stream in the order of their departures; one in a hundred is late. 95 %
of the rows are before the moment. A pin is taken when the watermark has passed the moment. The rest of the stream
arrives after the pin. The state at that moment equals the pinned rows plus the rows added since minus the rows removed
since. Two reads are measured in turns: the changes since the pin, and a filter over the whole table. The output states
whether the filter returns the same rows as the state.

    python benchmarks/snapshots.py [--copies 3] [--batches 40] [--rounds 3]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

from figures import print_table, save
from late_rows import read_flights
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (the common name)
from turns import SETTINGS

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.local.jars import jar_paths
from writer_jobs import (
    LockedDeltaWriter,
    Pin,
    apply_rows,
    build_session,
    changed_since,
    pinned_rows,
    rows_since,
    take_pin,
)
from writer_jobs.pins.read import CHANGE

LATE = 0.01
KEYS = ("carrier", "flight")


def batches_of(rows: DataFrame, folder: Path, number: int) -> list[str]:
    """Write the batches of the stream, ordered by departure. Late rows go to their own or a later batch, at random."""
    order = F.percent_rank().over(Window.orderBy("time_hour"))
    due = F.least(F.floor(order * number), F.lit(number - 1))
    late = F.floor(due + F.rand(2) * (number - due))
    batch = F.when(F.rand(1) < LATE, late).otherwise(due)
    rows.withColumn("batch", batch.cast("int")).write.partitionBy("batch").parquet(str(folder))
    return [f"{folder}/batch={index}" for index in range(number)]


def have_same_rows(first: DataFrame, second: DataFrame) -> bool:
    return bool(first.exceptAll(second).isEmpty() and second.exceptAll(first).isEmpty())


def moment_of(rows: DataFrame, share: float) -> datetime:
    """Return the time before which this share of the rows lies."""
    (at,) = rows.select(F.unix_seconds("time_hour").alias("at")).approxQuantile("at", [share], 0.0)
    return datetime.fromtimestamp(at, UTC)


def rows_by_filter(spark: SparkSession, table: str, at: datetime) -> DataFrame:
    return spark.read.format("delta").load(table).where(F.col("time_hour") <= F.lit(at))


def seconds_to_compute(rows: DataFrame) -> float:
    begin = time.perf_counter()
    rows.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=3, help="copies of the flights (3)")
    parser.add_argument("--batches", type=int, default=40, help="batches of the stream (40)")
    parser.add_argument("--moment", type=float, default=0.95, metavar="SHARE", help="rows before the moment (0.95)")
    parser.add_argument("--flights", type=int, help="read only this many flights (all)")
    parser.add_argument("--rounds", type=int, default=3, help="measured rounds, in turns (3)")
    parser.add_argument("--warm-up", type=int, default=1, metavar="ROUNDS", help="first rounds, not measured (1)")
    parser.add_argument("--output", type=Path, default=Path("build/bench/snapshots.json"))
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        zookeeper = stack.enter_context(EmbeddedZooKeeper())
        spark = build_session("snapshots", jars=jar_paths(), launch_conf=SETTINGS, log_level="OFF")
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        stack.callback(spark.stop)
        manager = stack.enter_context(ZookeeperLockManager(zookeeper.hosts))
        table = str(folder / "table")
        writer = LockedDeltaWriter(spark, manager, table)
        rows = read_flights(spark, folder, options.copies, options.flights)
        at, pin = moment_of(rows, options.moment), None
        for number, batch in enumerate(batches_of(rows, folder / "batches", options.batches)):
            result = apply_rows(
                writer,
                spark.read.parquet(batch),
                keys=list(KEYS),
                event_time="time_hour",
                partition_by=["month"],
                txn=("flights", number),
            )
            if pin is None and result.watermark is not None and result.watermark > at:
                expires = datetime.now(UTC) + timedelta(days=1)
                pin = take_pin(spark, {table: "time_hour"}, name="x", at=at, expires_at=expires, manager=manager)
        if pin is None:
            parser.error("no watermark passed the moment: increase --batches or decrease --moment")
        measure_and_save(spark, table, pin, at, options)


def measure_and_save(spark: SparkSession, table: str, pin: Pin, at: datetime, options: argparse.Namespace) -> None:
    changes_since_pin = changed_since(spark, pin, table)
    all_files = len(rows_by_filter(spark, table, at).inputFiles())
    changes = rows_since(spark, pin, table)
    added_rows, removed_rows = (changes.where(F.col(CHANGE) == change).drop(CHANGE) for change in ("new", "gone"))
    state = pinned_rows(spark, pin, table).exceptAll(removed_rows).unionAll(added_rows)
    equal = have_same_rows(state, rows_by_filter(spark, table, at))
    seconds: dict[str, list[float]] = {"rows_since": [], "filter over all data": []}
    for turn in range(-options.warm_up, options.rounds):
        for name, rows in (
            ("rows_since", rows_since(spark, pin, table)),
            ("filter over all data", rows_by_filter(spark, table, at)),
        ):
            duration = seconds_to_compute(rows)
            if turn >= 0:
                seconds[name].append(duration)
    files = {"rows_since": changes_since_pin.files_read, "filter over all data": all_files}
    results = [{"method": name, "files": files[name], "seconds": min(durations)} for name, durations in seconds.items()]
    print_table(results)
    print(
        f"moment {at.isoformat()}, pinned version {pin.tables[0].version}; up to version {changes_since_pin.version} "
        f"{changes_since_pin.rows_new:,} rows were added and {changes_since_pin.rows_gone:,} removed; "
        f"same rows: {equal}"
    )
    print(f"{all_files / changes_since_pin.files_read:.1f} times fewer files")
    save(options.output, {"equal": equal, "runs": results})


if __name__ == "__main__":
    main()
