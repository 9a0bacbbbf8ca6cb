"""A local table that is maintained: its rows, files, streams, health and maintenance runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable, PostCommitHookProperties, QueryBuilder, write_deltalake
from pyspark.sql import SparkSession

from lock_manager import TableResource, ZookeeperLockManager
from lock_manager.queue_entry import QueueEntry
from lock_manager.zookeeper.inspector import LockInspector
from tests.support.maintained import set_file_age
from writer_jobs import LockedDeltaWriter, locked, vacuum
from writer_jobs.maintenance.executor import HOLD_AT_MOST_SECONDS, UnitExecutor
from writer_jobs.maintenance.maintainer import TableMaintainer
from writer_jobs.maintenance.measure import Measurement, measure
from writer_jobs.maintenance.policy import Action
from writer_jobs.maintenance.result import MaintenanceReport
from writer_jobs.maintenance.vacuum import VacuumResult


def _sql_pairs(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name.replace('__', '.')}' = '{value}'" for name, value in properties.items())


@dataclass
class MaintainedTable:
    """A table of the columns ``key``, ``place`` and ``value``, partitioned by ``place``.

    Property names have ``__`` in place of each dot: ``delta__checkpointInterval="1000"``.
    """

    spark: SparkSession
    manager: ZookeeperLockManager
    inspector: LockInspector
    copy_of: Callable[..., Path]
    path: Path

    @classmethod
    def of(cls, request: pytest.FixtureRequest) -> Self:
        """Return a location without a table, with the fixtures of a test."""
        fixture = request.getfixturevalue
        path = fixture("tmp_path") / "table"
        return cls(fixture("spark"), fixture("manager"), fixture("inspector"), fixture("copy_of"), path)

    @cached_property
    def writer(self) -> LockedDeltaWriter:
        return LockedDeltaWriter(self.spark, self.manager, str(self.path))

    def create(self, files: Mapping[str | None, int], *, rows: int = 1, **properties: str) -> None:
        """Create a table with a number of files in each partition and a number of rows in each file.

        Keys begin with 0. The only version is 0.
        """
        cases, key_count = [], 0
        for place, file_count in files.items():
            key_count += file_count * rows
            cases.append(
                f"WHEN id < {key_count} THEN " + (f"'{place}'" if place is not None else "CAST(NULL AS STRING)")
            )
        tblproperties = f"TBLPROPERTIES ({_sql_pairs(properties)})" if properties else ""
        self.copy_of(
            f"CREATE TABLE {{t}} USING delta PARTITIONED BY (place) {tblproperties} AS SELECT id AS key, "
            f"CASE {' '.join(cases)} END AS place, concat('row ', id) AS value "
            f"FROM range(0, {key_count}, 1, {sum(files.values())})"
        )

    def append(self, *keys: int, place: str | None = "a", txn: tuple[str, int] | None = None) -> None:
        """Append one file."""
        rows = [(key, place, f"row {key}") for key in keys]
        data = self.spark.createDataFrame(rows, "key long, place string, value string")
        self.writer.append(data.coalesce(1), partition_by=["place"], txn=txn)

    def append_without_spark(self, *keys: int, place: str = "a") -> None:
        """Append one file in milliseconds, without the lock."""
        rows = {"key": keys, "place": [place] * len(keys), "value": [f"row {key}" for key in keys]}
        hooks = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
        write_deltalake(str(self.path), pa.table(rows), mode="append", post_commithook_properties=hooks)

    def sql(self, statement: str) -> None:
        """Run a statement under the lock; ``{t}`` stands for the table."""
        with locked(self.spark, str(self.path), manager=self.manager):
            self.spark.sql(statement.replace("{t}", f"delta.`{self.path}`"))

    def set_properties(self, **properties: str) -> None:
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({_sql_pairs(properties)})")

    def set_properties_without_spark(self, **properties: str) -> None:
        """Set properties in milliseconds, without the lock; not on tables that only Spark can write."""
        settings = {name.replace("__", "."): value for name, value in properties.items()}
        DeltaTable(str(self.path)).alter.set_table_properties(settings, raise_if_not_exists=False)

    def keys(self) -> list[int]:
        """Return the keys as delta-rs reads them, sorted."""
        rows = QueryBuilder().register("t", DeltaTable(str(self.path))).execute("select key from t").read_all()
        return sorted(rows["key"].to_pylist())

    def version(self) -> int:
        return DeltaTable(str(self.path)).version()

    def version_file(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"

    def make_versions_old(self, hours: Mapping[int, float]) -> None:
        for version, age in hours.items():
            set_file_age(self.version_file(version), age)

    def data_files(self) -> set[Path]:
        """Return all Parquet files outside the log, committed or not."""
        return {path for path in self.path.rglob("*.parquet") if path.parent != self.path / "_delta_log"}

    def write_file(self, name: str, *, hours: float = 0, size: int = 1) -> Path:
        """Write a file of this age that belongs to no version."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        set_file_age(path, hours)
        return path

    def measure(self) -> Measurement:
        return measure(self.spark, str(self.path))

    def vacuum(self, **options: Any) -> VacuumResult:
        return vacuum(self.spark, str(self.path), **{"manager": self.manager, **options})

    def maintainer(
        self,
        *,
        lock_timeout_seconds: float = 60,
        hold_at_most_seconds: float = HOLD_AT_MOST_SECONDS,
        manager: ZookeeperLockManager | None = None,
        **options: Any,
    ) -> TableMaintainer:
        executor = UnitExecutor(
            self.spark,
            manager or self.manager,
            self.inspector,
            str(self.path),
            lock_timeout_seconds=lock_timeout_seconds,
            hold_at_most_seconds=hold_at_most_seconds,
        )
        return TableMaintainer(executor, **options)

    def maintain(self, *actions: Action, budget_seconds: float | None = None, **options: Any) -> MaintenanceReport:
        """Do these actions: ``maintain(Action.COMPACT)``. Without an action, do what ``--auto`` does."""
        return self.maintainer(**options).run(actions or None, budget_seconds=budget_seconds)

    def waiters(self) -> tuple[QueueEntry, ...]:
        return tuple(self.inspector.table(TableResource.of(self.writer.table)).waiters)

    def copy_to(self, path: Path) -> Self:
        """Copy the table's folder."""
        shutil.copytree(self.path, path)
        return replace(self, path=path)


@dataclass
class TableStream:
    """A stream that copies new rows of a table to Parquet files."""

    table: MaintainedTable
    checkpoint: Path
    output: Path
    options: Mapping[str, Any]

    def read(self) -> list[dict[str, Any]]:
        """Read all new rows; return all rows that the stream has ever read.

        Raises:
            StreamingQueryException: The query failed, for example because a file is missing.

        """
        query = (
            self.table.spark.readStream.format("delta")
            .options(**self.options)
            .load(str(self.table.path))
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(availableNow=True)
            .start(str(self.output))
        )
        query.awaitTermination(60)
        if (error := query.exception()) is not None:
            raise error
        rows: list[dict[str, Any]] = ds.dataset(self.output, format="parquet").to_table().to_pylist()
        return rows
