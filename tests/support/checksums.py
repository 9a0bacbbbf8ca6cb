"""Checksum files of a table's versions: those that are there, and those that the log store derives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def checksum_file(table: Path, version: int) -> Path:
    """Return where the checksum of a version is."""
    return table / "_delta_log" / f"{version:020d}.crc"


def files_of(checksum: dict[str, Any]) -> list[dict[str, Any]]:
    """Take the files out of a checksum, and return them in order, without what is empty."""
    files = [{name: value for name, value in each.items() if value != {}} for each in checksum.pop("allFiles")]
    return sorted(files, key=lambda each: str(each["path"]))


def read_as(spark: SparkSession, ticket: str | None, path: Path) -> Any:
    """Read a checksum file through the log store, as a thread that is bound to a ticket, or to nothing."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    conf = context._jsc.hadoopConfiguration()
    context.setLocalProperty("spark.sluice.ticket", ticket)
    try:
        lines = jvm.io.deltasluice.storage.GuardedLogStore(conf).read(
            jvm.org.apache.hadoop.fs.Path(path.as_uri()), conf
        )
        return json.loads(lines.next())
    finally:
        context.setLocalProperty("spark.sluice.ticket", None)
