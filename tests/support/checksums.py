"""Checksum files of a table's versions: stored files, and files that the log store derives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession


def checksum_file(table: Path, version: int) -> Path:
    """Return the path of the checksum file of a version."""
    return table / "_delta_log" / f"{version:020d}.crc"


def pop_files(checksum: dict[str, Any]) -> list[dict[str, Any]]:
    """Remove the data files from a checksum; return them ordered by path and without empty fields."""
    files = [{name: value for name, value in file.items() if value != {}} for file in checksum.pop("allFiles")]
    return sorted(files, key=lambda file: str(file["path"]))


def read_as(spark: SparkSession, ticket: str | None, path: Path) -> Any:
    """Read a checksum file through the log store, in a thread with or without a ticket."""
    jvm: Any = spark._jvm
    context: Any = spark.sparkContext
    conf = context._jsc.hadoopConfiguration()
    context.setLocalProperty("spark.sluice.ticket", ticket)
    try:
        store, file = jvm.io.deltasluice.storage.GuardedLogStore(conf), jvm.org.apache.hadoop.fs.Path(path.as_uri())
        return json.loads(store.read(file, conf).next())
    finally:
        context.setLocalProperty("spark.sluice.ticket", None)
