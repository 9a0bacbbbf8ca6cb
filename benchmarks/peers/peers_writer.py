"""A writer of ``benchmarks/peers``, which appends 100 rows at a time to a table, as fast as it can.

It is a separate program, because Iceberg runs in another virtual environment, which contains only PySpark. Its
argument is a JSON object: ``kind`` (a key of ``KINDS``), ``number`` (of the writer), ``root`` (URI of the tables'
folder), ``conf`` (Spark's settings), and for Sluice ``zookeeper`` (hosts).

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
PAYLOAD = "x" * 50


class DeltaRs:
    """``write_deltalake`` of the package ``deltalake``, without Spark."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def uri(self, table: str) -> str:
        return f"{self.options['root']}/{table}"

    def rows(self, batch: int) -> Any:
        import pyarrow as pa  # noqa: PLC0415 (not in Iceberg's environment)

        return pa.table(
            {
                "writer": [self.options["number"]] * ROWS,
                "batch": [batch] * ROWS,
                "id": list(range(ROWS)),
                "payload": [PAYLOAD] * ROWS,
            }
        )

    def append(self, table: str, rows: Any) -> None:
        from deltalake import write_deltalake  # noqa: PLC0415 (not in Iceberg's environment)

        write_deltalake(self.uri(table), rows, mode="append")

    def count(self, table: str) -> dict[str, int]:
        """Return the number of rows and of versions."""
        from deltalake import DeltaTable  # noqa: PLC0415 (not in Iceberg's environment)

        current = DeltaTable(self.uri(table))
        return {"rows": current.count(), "versions": current.version() + 1}

    def cpu_seconds(self) -> float:
        """Return the processor time of the writer so far, in seconds."""
        return time.process_time()


class Delta(DeltaRs):
    """``df.write`` to a Delta table with the session's settings."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.spark = self.session()
        self.jvm = int(self.spark._jvm.java.lang.ProcessHandle.current().pid())

    def session(self) -> Any:
        from pyspark.sql import SparkSession  # noqa: PLC0415 (the version of this environment)

        builder = SparkSession.builder
        for name, value in self.options["conf"].items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        return spark

    def rows(self, batch: int) -> Any:
        return self.spark.range(0, ROWS, 1, 1).selectExpr(
            f"{self.options['number']} AS writer", f"{batch} AS batch", "id", f"'{PAYLOAD}' AS payload"
        )

    def append(self, table: str, rows: Any) -> None:
        rows.write.format("delta").mode("append").save(self.uri(table))

    def cpu_seconds(self) -> float:
        return cpu_seconds(self.jvm)


class Sluice(Delta):
    """The writer of this project."""

    def __init__(self, options: dict[str, Any]) -> None:
        from lock_manager import ZookeeperLockManager  # noqa: PLC0415 (not in Iceberg's environment)
        from writer_jobs import LockedDeltaWriter  # noqa: PLC0415

        super().__init__(options)
        self.manager = ZookeeperLockManager(options["zookeeper"], timeout_seconds=600)
        self.writer_class = LockedDeltaWriter
        self.writers: dict[str, Any] = {}

    def session(self) -> Any:
        from sluice.local.jars import jar_paths  # noqa: PLC0415 (not in Iceberg's environment)
        from writer_jobs import build_session  # noqa: PLC0415

        return build_session("peers", jars=jar_paths(), launch_conf=self.options["conf"], log_level="OFF")

    def append(self, table: str, rows: Any) -> None:
        if table not in self.writers:
            self.writers[table] = self.writer_class(self.spark, self.manager, self.uri(table))
        self.writers[table].append(rows)


class Iceberg(Delta):
    """``df.writeTo`` to an Iceberg table in the session's catalog ``cat``."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.tables: set[str] = set()

    def append(self, table: str, rows: Any) -> None:
        name = f"cat.db.{table}"
        if table in self.tables or self.spark.catalog.tableExists(name):
            rows.writeTo(name).append()
        else:
            self.spark.sql("CREATE NAMESPACE IF NOT EXISTS cat.db")
            rows.writeTo(name).create()
        self.tables.add(table)

    def count(self, table: str) -> dict[str, int]:
        name = f"cat.db.{table}"
        # The session caches the metadata of a table.
        self.spark.sql(f"REFRESH TABLE {name}")
        return {"rows": self.spark.table(name).count(), "versions": self.spark.table(f"{name}.snapshots").count()}


KINDS = {"deltalake": DeltaRs, "delta": Delta, "sluice": Sluice, "iceberg": Iceberg}


def main() -> None:
    options = json.loads(sys.argv[1])
    # Redirect the output of Spark to standard error, so that standard output has only answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    system = KINDS[options["kind"]](options)
    answers.write(json.dumps({"started": os.getpid()}) + "\n")
    for line in sys.stdin:
        order = json.loads(line)
        if "end" in order:
            break
        if "count" in order:
            answers.write(json.dumps(system.count(order["count"])) + "\n")
            continue
        appends, cpu_start = [], system.cpu_seconds()
        for batch in range(order["appends"]):
            rows = system.rows(batch)
            started, error = time.time(), None
            try:
                system.append(order["table"], rows)
            except Exception as problem:  # noqa: BLE001 (every error counts)
                error = f"{type(problem).__name__}: {problem}"[:300]
            appends.append({"began": started, "ended": time.time(), "error": error})
        answers.write(json.dumps({"appends": appends, "cpu_s": system.cpu_seconds() - cpu_start}) + "\n")
    os._exit(0)


if __name__ == "__main__":
    main()
