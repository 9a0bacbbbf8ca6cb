"""Tables that are looked after: what is in them, and how old they are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from writer_jobs.maintenance.findings import Finding, find
from writer_jobs.maintenance.measure import Measurement

_HOUR = 3600
LONG_AGO_HOURS = 24 * 8


def codes(measured: Measurement) -> dict[str, Finding]:
    return {finding.code: finding for finding in find(measured.health, measured.policy)}


def keys_of(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(str(table)).select("key").collect())


def made_old(path: Path, hours: float) -> None:
    then = time.time() - hours * _HOUR
    os.utime(path, (then, then))


def made_all_old(table: Path) -> None:
    for path in table.rglob("*"):
        if path.is_file():
            made_old(path, LONG_AGO_HOURS)


def stream_of(spark: SparkSession, table: Path, folder: Path, out: Path | None = None) -> Callable[[], int]:
    """Return what has a stream read what is new, and says how many rows it has read altogether.

    Args:
        spark: the session.
        table: that it reads.
        folder: of its checkpoint.
        out: folder to write to; None: beside the checkpoint.

    """
    rows = folder / "out" if out is None else out

    def read() -> int:
        query = (
            spark.readStream.format("delta")
            .option("skipChangeCommits", "true")
            .load(str(table))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(rows))
        )
        query.awaitTermination(60)
        if (error := query.exception()) is not None:
            raise error
        return spark.read.parquet(str(rows)).count()

    return read
