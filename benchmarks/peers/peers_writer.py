"""One writer of ``benchmarks/peers``: appends of 100 rows to one table, as fast as it can, as it is told.

A program of its own, for Iceberg runs in another virtual environment, which has nothing but PySpark. Each line on
standard input is ``{"table": name, "appends": n}``, ``{"count": name}`` or ``{"end": 1}``; each line on standard output
the answer.
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
    """``df.write`` to a Delta table, by whatever the session has."""

    def __init__(self, spark: Any, told: dict[str, Any]) -> None:
        self.spark = spark
        self.told = told

    def path(self, table: str) -> str:
        return f"{self.told['folder']}/{table}"

    def append(self, table: str, rows: Any) -> None:
        rows.write.format("delta").mode("append").save(self.path(table))

    def count(self, table: str) -> int:
        from deltalake import DeltaTable  # noqa: PLC0415 (another reader than the writer; Iceberg's environment has none)

        return int(DeltaTable(self.path(table)).to_pyarrow_table().num_rows)


class Sluice(Delta):
    """The writer of this project."""

    def __init__(self, spark: Any, told: dict[str, Any]) -> None:
        from lock_manager import ZookeeperLockManager  # noqa: PLC0415 (likewise)
        from writer_jobs import LockedDeltaWriter  # noqa: PLC0415

        super().__init__(spark, told)
        self.manager = ZookeeperLockManager(told["zookeeper"], timeout_seconds=600)
        self.writer = LockedDeltaWriter
        self.writers: dict[str, Any] = {}

    def append(self, table: str, rows: Any) -> None:
        if table not in self.writers:
            self.writers[table] = self.writer(self.spark, self.manager, self.path(table))
        self.writers[table].append(rows, lock_during=self.told["hold"])


class Iceberg(Delta):
    """Iceberg's own ``writeTo``, in the catalog of the session."""

    def append(self, table: str, rows: Any) -> None:
        name = f"cat.db.{table}"
        if self.spark.catalog.tableExists(name):
            rows.writeTo(name).append()
        else:
            self.spark.sql("CREATE NAMESPACE IF NOT EXISTS cat.db")
            rows.writeTo(name).create()

    def count(self, table: str) -> int:
        # The session keeps what it has read of a table for a while.
        self.spark.sql(f"REFRESH TABLE cat.db.{table}")
        return int(self.spark.table(f"cat.db.{table}").count())


KINDS = {"delta": Delta, "sluice": Sluice, "iceberg": Iceberg}


def session(told: dict[str, Any]) -> Any:
    if told["kind"] == "sluice":
        from sluice.local.jars import jar_paths  # noqa: PLC0415 (not in Iceberg's environment)
        from writer_jobs import build_session  # noqa: PLC0415

        return build_session("peers", jars=jar_paths(), launch_conf=told["conf"], log_level="OFF")
    from pyspark.sql import SparkSession  # noqa: PLC0415 (whichever this environment has)

    builder = SparkSession.builder
    for name, value in told["conf"].items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    made.sparkContext.setLogLevel("OFF")
    return made


def main() -> None:
    told = json.loads(sys.argv[1])
    # What Spark prints is no answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    spark = session(told)
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())
    system = KINDS[told["kind"]](spark, told)
    answers.write(json.dumps({"started": os.getpid()}) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        if "end" in order:
            break
        if "count" in order:
            answers.write(json.dumps({"rows": system.count(order["count"])}) + "\n")
            continue
        done, began = [], cpu_seconds(jvm)
        for number in range(order["appends"]):
            rows = spark.range(0, ROWS, 1, 1).selectExpr(
                f"{told['number']} AS writer", f"{number} AS batch", "id", "repeat('x', 50) AS payload"
            )
            started, error = time.time(), None
            try:
                system.append(order["table"], rows)
            except Exception as problem:  # noqa: BLE001 (whatever it is, it is counted)
                error = f"{type(problem).__name__}: {problem}"[:300]
            done.append({"began": started, "ended": time.time(), "error": error})
        answers.write(json.dumps({"appends": done, "cpu_s": cpu_seconds(jvm) - began}) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
