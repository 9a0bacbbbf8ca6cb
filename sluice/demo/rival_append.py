"""The job to compare with: it appends without a lock, as most jobs do, and retries after a conflict.

It reads, splits and writes as ``writer_jobs/append.py`` does, and prints the same JSON lines less those of the lock:
``{"event":"writing",…}``, ``{"event":"retry",…}`` and ``{"event":"commit",…}``. Run by ``spark-submit``.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Sequence
from functools import reduce
from typing import Any

from delta.exceptions import (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.session import build_session
from writer_jobs.job.append.split import SplitRows
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader

# They do not inherit from one another.
_CONFLICTS = (
    ConcurrentAppendException,
    ConcurrentDeleteDeleteException,
    ConcurrentDeleteReadException,
    ConcurrentTransactionException,
    ConcurrentWriteException,
    DeltaConcurrentModificationException,
    MetadataChangedException,
    ProtocolChangedException,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Append the source in a number of commits; begin a commit anew for as long as rivals are faster."""
    parser = argparse.ArgumentParser(description="Append to a Delta table without a lock.")
    parser.add_argument("--table", required=True)
    parser.add_argument("--source", nargs="+", required=True)
    parser.add_argument("--format", default="csv")
    parser.add_argument("--partition-by", default="")
    parser.add_argument("--commits", type=int, default=1)
    arguments = parser.parse_args(argv)
    partition_by = [name for name in arguments.partition_by.split(",") if name]
    spark = build_session("append without a lock")
    sources = find_sources(HadoopFiles.of(spark), arguments.source)
    reader = SourceReader(spark, sources, arguments.format, {}, arguments.table)
    split = SplitRows(reader.read(reader.schema(None)), arguments.commits, partition_by)
    rows = _count_parts(split, arguments.commits)
    for number in range(arguments.commits):
        part = split.part(number)
        told: dict[str, Any] = {"commit": number + 1, "commits": arguments.commits, "requested_at": time.time()}
        _say("writing", told)
        commit_id = uuid.uuid4().hex
        writer = part.write.format("delta").mode("append").partitionBy(*partition_by)
        writer = writer.option("userMetadata", json.dumps({"rival": {"commit_id": commit_id}}))
        retries = 0
        while True:
            try:
                writer.save(arguments.table)
            except _CONFLICTS as error:
                retries += 1
                _say("retry", {"commit": number + 1, "at": time.time(), "error": type(error).__name__})
            else:
                released_at = time.time()
                break
        done = {"rows": rows.get(number, 0), "retries": retries, "commit_id": commit_id, "released_at": released_at}
        _say("commit", told | {"version": None} | done)


def _count_parts(split: SplitRows, parts: int) -> dict[int, int]:
    """Read the source into the cache and count the rows of each part, in one Spark job; empty parts are left out."""
    numbers = [split.part(number).select(F.lit(number).alias("part")) for number in range(parts)]
    counts = reduce(DataFrame.union, numbers).groupBy("part").count()
    return {row["part"]: row["count"] for row in counts.collect()}


def _say(event: str, fields: dict[str, Any]) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


if __name__ == "__main__":
    main()
