"""A program that appends one row after the other to a table: ``python -m tests.support.looping_writer OPTIONS``.

``OPTIONS`` is a JSON object with the fields of :class:`Options`. After an append, the program prints
``{"appended": id}``. If the table is adopted by another coordinator, it prints ``{"refused": message}`` and tries the
same row again. It ends after the append during which its standard input ends.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from lock_manager import Adoption, AdoptionMismatchError, LockManager, commit_metadata, connect

_PAUSE_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the program.

    Attributes:
        kind: ``python`` for delta-rs under the lock, as docs/python-writers.md shows; ``spark`` for a Spark driver.
        lock_url: URL of its coordinator.
        table: Folder of the table.
        first_id: Id of its first row.
        checks_adoption: Whether it checks the adoption of the table; false in a negative control.

    """

    kind: str
    lock_url: str
    table: str
    first_id: int
    checks_adoption: bool = True


class Writer(Protocol):
    def append(self, row_id: int) -> None:
        """Append a row under the lock."""


class PythonWriter:
    """A writer with delta-rs."""

    def __init__(self, manager: LockManager, table: str) -> None:
        self._manager, self._table = manager, table

    def append(self, row_id: int) -> None:
        """Append a row under the lock, after a check of the adoption."""
        import pyarrow as pa
        from deltalake import CommitProperties, DeltaTable, write_deltalake

        with self._manager.acquire(self._table) as hold:
            table = DeltaTable(self._table)
            adoption = Adoption.of(table.metadata().configuration)
            if adoption is not None:
                adoption.check(ensemble=hold.ensemble_id, table=hold.resource)
            rows = pa.table({"id": pa.array([row_id], pa.int64())})
            hold.check()
            properties = CommitProperties(custom_metadata=commit_metadata(hold))
            write_deltalake(table, rows, mode="append", commit_properties=properties)


class SparkWriter:
    """A Spark driver with the lock for the commit alone. A commit may contain the appends of several drivers."""

    def __init__(self, stack: ExitStack, manager: LockManager, table: str) -> None:
        from sluice.local.jars import jar_paths
        from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
        from writer_jobs import LockedDeltaWriter, build_session

        conf = {
            "spark.master": "local[1]",
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            **LOCAL_DRIVER,
            **FEW_ROWS,
            "spark.sql.shuffle.partitions": "1",
            "spark.databricks.delta.snapshotPartitions": "1",
            "spark.sluice.groupCommits": "true",
        }
        self._spark = build_session("looping writer", jars=jar_paths(), launch_conf=conf, log_level="OFF")
        stack.callback(self._spark.stop)
        self._writer = LockedDeltaWriter(self._spark, manager, table)

    def append(self, row_id: int) -> None:
        self._writer.append(self._spark.range(row_id, row_id + 1, numPartitions=1))


def main() -> None:
    options = Options(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.WARNING)
    output = os.fdopen(os.dup(1), "w", buffering=1)
    if not options.checks_adoption:
        Adoption.check = lambda *_, **__: None  # type: ignore[method-assign]
    has_ended = threading.Event()

    def read_to_end() -> None:
        sys.stdin.read()
        has_ended.set()

    def respond(answer: dict[str, Any]) -> None:
        output.write(json.dumps(answer) + "\n")

    threading.Thread(target=read_to_end, daemon=True).start()
    with ExitStack() as stack:
        manager = stack.enter_context(connect(options.lock_url, timeout_seconds=120))
        writer: Writer
        if options.kind == "spark":
            writer = SparkWriter(stack, manager, options.table)
        else:
            writer = PythonWriter(manager, options.table)
        row_id = options.first_id
        while not has_ended.is_set():
            try:
                writer.append(row_id)
            except AdoptionMismatchError as error:
                respond({"refused": str(error)})
                has_ended.wait(_PAUSE_SECONDS)
            else:
                respond({"appended": row_id})
                row_id += 1


if __name__ == "__main__":
    main()
