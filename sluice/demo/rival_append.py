"""The job of the comparison: it appends without the lock, and retries after a conflict. Run it by ``spark-submit``.

It reads, splits and writes as ``writer_jobs/append.py`` does. It prints a JSON line for each write, retry and commit:
``{"event":"writing",…}``, ``{"event":"retry",…}`` and ``{"event":"commit",…}``.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Sequence
from functools import reduce
from typing import Any

from delta import exceptions
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.session import build_session
from writer_jobs.job.append.split import SplitRows
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader

# These classes do not inherit from one another.
_CONFLICTS = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Append the source in a number of commits. Repeat a commit until it has no conflict."""
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
        fields: dict[str, Any] = {"commit": number + 1, "commits": arguments.commits, "requested_at": time.time()}
        _print_event("writing", fields)
        commit_id = uuid.uuid4().hex
        writer = part.write.format("delta").mode("append").partitionBy(*partition_by)
        writer = writer.option("userMetadata", json.dumps({"rival": {"commit_id": commit_id}}))
        retries = 0
        while True:
            try:
                writer.save(arguments.table)
            except _CONFLICTS as error:
                retries += 1
                _print_event("retry", {"commit": number + 1, "at": time.time(), "error": type(error).__name__})
            else:
                released_at = time.time()
                break
        fields |= {"version": None, "rows": rows.get(number, 0), "retries": retries}
        _print_event("commit", fields | {"commit_id": commit_id, "released_at": released_at})


def _count_parts(split: SplitRows, parts: int) -> dict[int, int]:
    """Read the source into the cache, and return the number of rows of each non-empty part, in one Spark job."""
    numbers = [split.part(number).select(F.lit(number).alias("part")) for number in range(parts)]
    counts = reduce(DataFrame.union, numbers).groupBy("part").count()
    return {row["part"]: row["count"] for row in counts.collect()}


def _print_event(event: str, fields: dict[str, Any]) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


if __name__ == "__main__":
    main()
