"""A writer of ``benchmarks/peers``, which appends 100 rows at a time to a table, as fast as it can.

It is a separate program, because Iceberg runs in another virtual environment, which contains only PySpark. Its
argument is a JSON object: ``kind`` (a key of ``KINDS``), ``number`` (of the writer), ``folder`` (of the tables),
``conf`` (Spark's settings), and for Sluice ``zookeeper`` (hosts) and ``hold`` (``lock_during`` of each append).

Each line on standard input is ``{"table": name, "appends": n}``, ``{"count": name}`` or ``{"end": 1}``. The first line
on standard output is ``{"started": pid}``; then comes the answer to each line except ``end``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from figures import cpu_seconds

ROWS = 100


class Delta:
    """``df.write`` to a Delta table with the session's settings."""

    def __init__(self, spark: Any, options: dict[str, Any]) -> None:
        self.spark = spark
        self.options = options

    def path(self, table: str) -> str:
        return f"{self.options['folder']}/{table}"

    def append(self, table: str, rows: Any) -> None:
        rows.write.format("delta").mode("append").save(self.path(table))

    def count(self, table: str) -> int:
        from deltalake import DeltaTable  # noqa: PLC0415 (a reader other than Spark; not in Iceberg's environment)

        return int(DeltaTable(self.path(table)).to_pyarrow_table().num_rows)


class Sluice(Delta):
    """The writer of this project."""

    def __init__(self, spark: Any, options: dict[str, Any]) -> None:
        from lock_manager import ZookeeperLockManager  # noqa: PLC0415 (not in Iceberg's environment)
        from writer_jobs import LockedDeltaWriter  # noqa: PLC0415

        super().__init__(spark, options)
        self.manager = ZookeeperLockManager(options["zookeeper"], timeout_seconds=600)
        self.writer_class = LockedDeltaWriter
        self.writers: dict[str, Any] = {}

    def append(self, table: str, rows: Any) -> None:
        if table not in self.writers:
            self.writers[table] = self.writer_class(self.spark, self.manager, self.path(table))
        self.writers[table].append(rows, lock_during=self.options["hold"])


class Iceberg(Delta):
    """``df.writeTo`` to an Iceberg table in the session's catalog ``cat``."""

    def append(self, table: str, rows: Any) -> None:
        name = f"cat.db.{table}"
        if self.spark.catalog.tableExists(name):
            rows.writeTo(name).append()
        else:
            self.spark.sql("CREATE NAMESPACE IF NOT EXISTS cat.db")
            rows.writeTo(name).create()

    def count(self, table: str) -> int:
        # The session caches the metadata of a table.
        self.spark.sql(f"REFRESH TABLE cat.db.{table}")
        return int(self.spark.table(f"cat.db.{table}").count())


KINDS = {"delta": Delta, "sluice": Sluice, "iceberg": Iceberg}


def session(options: dict[str, Any]) -> Any:
    if options["kind"] == "sluice":
        from sluice.local.jars import jar_paths  # noqa: PLC0415 (not in Iceberg's environment)
        from writer_jobs import build_session  # noqa: PLC0415

        return build_session("peers", jars=jar_paths(), launch_conf=options["conf"], log_level="OFF")
    from pyspark.sql import SparkSession  # noqa: PLC0415 (the version of this environment)

    builder = SparkSession.builder
    for name, value in options["conf"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def main() -> None:
    options = json.loads(sys.argv[1])
    # Redirect the output of Spark to standard error, so that standard output has only answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    spark = session(options)
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    system = KINDS[options["kind"]](spark, options)
    answers.write(json.dumps({"started": os.getpid()}) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        if "end" in order:
            break
        if "count" in order:
            answers.write(json.dumps({"rows": system.count(order["count"])}) + "\n")
            continue
        appends, cpu_start = [], cpu_seconds(jvm)
        for number in range(order["appends"]):
            rows = spark.range(0, ROWS, 1, 1).selectExpr(
                f"{options['number']} AS writer", f"{number} AS batch", "id", "repeat('x', 50) AS payload"
            )
            started, error = time.time(), None
            try:
                system.append(order["table"], rows)
            except Exception as problem:  # noqa: BLE001 (every error counts)
                error = f"{type(problem).__name__}: {problem}"[:300]
            appends.append({"began": started, "ended": time.time(), "error": error})
        answers.write(json.dumps({"appends": appends, "cpu_s": cpu_seconds(jvm) - cpu_start}) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
