"""Tables under maintenance: their findings, keys, file ages, and streams that read them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from writer_jobs.maintenance.findings import Finding, find
from writer_jobs.maintenance.measure import Measurement

_HOUR = 3600
_EIGHT_DAYS_HOURS = 24 * 8


def codes(measurement: Measurement) -> dict[str, Finding]:
    """Return the findings of a measurement by code."""
    return {finding.code: finding for finding in find(measurement.health, measurement.policy)}


def keys_of(spark: SparkSession, table: Path) -> list[int]:
    return sorted(row[0] for row in spark.read.format("delta").load(str(table)).select("key").collect())


def set_file_age(path: Path, hours: float) -> None:
    modified = time.time() - hours * _HOUR
    os.utime(path, (modified, modified))


def age_all_files(table: Path) -> None:
    """Set the age of all files of a table to eight days."""
    for path in table.rglob("*"):
        if path.is_file():
            set_file_age(path, _EIGHT_DAYS_HOURS)


def stream_reader(spark: SparkSession, table: Path, folder: Path, out: Path | None = None) -> Callable[[], int]:
    """Return a function that lets a stream read new rows, and returns how many rows the stream has read in total.

    The folder contains the streaming checkpoint and, unless ``out`` is another folder, the output.
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
