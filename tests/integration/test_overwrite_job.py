"""``overwrite.py`` in this process: it replaces all rows, those of a predicate, or those of partitions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lock_manager import ZookeeperLockManager
from tests.support.another_thread import in_another_thread
from writer_jobs import locked
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.overwrite import main

pytestmark = pytest.mark.spark

INITIAL_ROWS = [(1, "a"), (2, "a"), (3, "b"), (4, "c")]


@dataclass
class OverwrittenTable:
    """A table of four rows in three partitions, and the job that overwrites it."""

    spark: SparkSession
    run_job: Callable[..., Any]
    rows_of: Callable[..., list[tuple[Any, ...]]]
    make_manager: Callable[..., ZookeeperLockManager]
    path: Path

    def overwrite(
        self,
        rows: Sequence[tuple[Any, ...]],
        *arguments: str,
        columns: tuple[str, ...] = ("id", "part"),
        modified_at: int = 1_700_000_000,
    ) -> Any:
        """Run the job with rows: ``overwrite([(1, "a")], "--dynamic")``."""
        source = self.path.with_name("rows.json")
        source.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
        # A run id is bound to the modification times of its files, too.
        os.utime(source, (modified_at,) * 2)
        return self.run_job("overwrite", "--table", self.path, "--source", source, *arguments)

    def hold_partition(self, part: str) -> AbstractContextManager[None]:
        """Hold the lock of a partition in another thread."""
        return in_another_thread(
            lambda: locked(self.spark, str(self.path), partitions=[{"part": part}], manager=self.make_manager())
        )

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        return self.rows_of(self.path, *(columns or ("id", "part")))

    def version_count(self) -> int:
        return DeltaTable(self.path).version() + 1

    def partition_columns(self) -> list[str]:
        return DeltaTable(self.path).metadata().partition_columns


@pytest.fixture
def table(
    spark: SparkSession,
    run_job: Callable[..., Any],
    rows_of: Callable[..., list[tuple[Any, ...]]],
    make_manager: Callable[..., ZookeeperLockManager],
    copy_of: Callable[..., Path],
) -> OverwrittenTable:
    rows = ", ".join(f"({number}L, '{part}')" for number, part in INITIAL_ROWS)
    path = copy_of(
        f"CREATE TABLE {{t}} USING delta PARTITIONED BY (part) AS SELECT * FROM VALUES {rows} AS r(id, part)"
    )
    return OverwrittenTable(spark, run_job, rows_of, make_manager, path)


def test_all_rows_are_replaced_in_one_commit(table: OverwrittenTable) -> None:
    job = table.overwrite([(9, "z")])
    assert (job.code, job.error) == (0, "")
    assert [line["event"] for line in job.lines] == ["begun", "holding", "commit"]
    assert (table.rows(), table.version_count()) == ([(9, "z")], 2)
    refused_job = table.overwrite([("x", 1.5)], columns=("name", "weight"))
    assert (refused_job.code, table.version_count()) == (5, 2)
    assert "name" in refused_job.error


@pytest.mark.full
def test_a_new_schema_keeps_the_partition_columns(table: OverwrittenTable) -> None:
    assert table.overwrite([("x", "a"), ("y", "b")], "--overwrite-schema").code == 0
    assert table.partition_columns() == ["part"]
    assert table.rows() == [("x", "a"), ("y", "b")]
    # The table takes the spelling of the files.
    assert table.overwrite([("c", 1.5)], "--overwrite-schema", columns=("Part", "weight")).code == 0
    assert table.partition_columns() == ["Part"]
    refused_job = table.overwrite([("x", 2.5)], "--overwrite-schema", columns=("name", "weight"))
    assert (refused_job.code, refused_job.lines, table.version_count()) == (2, [], 3)
    (sentence,) = refused_job.error.splitlines()
    assert "the files have no column Part" in sentence
    assert "--partition-by" in sentence
    assert table.rows("Part", "weight") == [("c", 1.5)]


@pytest.mark.full
def test_a_new_schema_may_have_new_partition_columns(table: OverwrittenTable) -> None:
    rows, columns = [("x", 1.5)], ("name", "weight")
    refused_job = table.overwrite(rows, "--overwrite-schema", "--partition-by", "part", columns=columns)
    assert (refused_job.code, refused_job.lines, table.version_count()) == (2, [], 1)
    assert "the source has no column part to partition by" in refused_job.error
    job = table.overwrite(rows, "--overwrite-schema", "--partition-by", "Name", columns=columns)
    assert (job.code, job.error) == (0, "")
    assert table.partition_columns() == ["name"]
    assert table.rows("name", "weight") == [("x", 1.5)]


def test_a_concurrent_change_of_the_partitioning_is_not_undone(
    table: OverwrittenTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SourceReader.read

    def read_while_another_writes(reader: SourceReader, schema: StructType) -> DataFrame:
        rows = pa.table({"id": pa.array([7], pa.int64()), "part": pa.array(["a"])})
        write_deltalake(str(table.path), rows, mode="overwrite", schema_mode="overwrite", partition_by=["id"])
        return read(reader, schema)

    monkeypatch.setattr(SourceReader, "read", read_while_another_writes)
    job = table.overwrite([("x", "a")], "--overwrite-schema")
    assert (job.code, job.commits) == (5, []), job.error
    assert len(job.error.splitlines()) == 1
    assert "start the job again" in job.error
    assert (table.partition_columns(), table.rows()) == (["id"], [(7, "a")])


@pytest.mark.full
def test_rows_that_match_a_predicate_are_replaced(table: OverwrittenTable) -> None:
    # A lock on another partition does not stop the job.
    with table.hold_partition("b"):
        job = table.overwrite([(7, "a")], "--replace-where", "part = 'a'", "--lock-timeout", "5")
        assert (job.code, job.error) == (0, "")
        refused_job = table.overwrite([(8, "a")], "--replace-where", "part IN ('a', 'b')", "--lock-timeout", "0")
        assert refused_job.code == 3
    assert table.rows() == [(3, "b"), (4, "c"), (7, "a")]
    refused_job = table.overwrite([(8, "a"), (9, "c")], "--replace-where", "part = 'a'")
    assert refused_job.code == 5
    assert len(refused_job.error.splitlines()) == 1
    assert table.rows() == [(3, "b"), (4, "c"), (7, "a")]


@pytest.mark.full
@pytest.mark.parametrize("hold", ["write", "commit"])
def test_partitions_with_new_rows_are_replaced(table: OverwrittenTable, hold: str) -> None:
    with table.hold_partition("c"):
        job = table.overwrite([(5, "b"), (6, "d")], "--dynamic", "--hold", hold, "--lock-timeout", "5")
        assert job.code == 0
    assert table.rows() == [(1, "a"), (2, "a"), (4, "c"), (5, "b"), (6, "d")]


@pytest.mark.full
def test_files_without_rows_delete_the_replaced_rows(table: OverwrittenTable) -> None:
    assert table.overwrite([], "--dynamic").code == 0
    assert table.rows() == INITIAL_ROWS
    assert table.overwrite([], "--replace-where", "part = 'a'").code == 0
    assert table.rows() == INITIAL_ROWS[2:]
    assert table.overwrite([]).code == 0
    assert table.rows() == []


@pytest.mark.full
def test_a_load_with_a_run_id_is_applied_once(table: OverwrittenTable) -> None:
    options = ("--dynamic", "--run-id", "monday")
    job = table.overwrite([(5, "b")], *options)
    assert job.code == 0
    later_rows = pa.table({"id": pa.array([6], pa.int64()), "part": pa.array(["b"])})
    write_deltalake(str(table.path), later_rows, mode="append")
    repeated_job = table.overwrite([(5, "b")], *options)
    assert [line["event"] for line in repeated_job.lines] == ["commit"]
    assert (repeated_job.code, repeated_job.lines[0]["already_committed"]) == (0, True)
    assert repeated_job.lines[0]["version"] == job.lines[-1]["version"]
    assert table.rows() == [(1, "a"), (2, "a"), (4, "c"), (5, "b"), (6, "b")]
    # The file has another row, but the same size.
    refused_job = table.overwrite([(7, "b")], *options, modified_at=1_700_000_001)
    assert refused_job.code == 2
    assert "with other sources" in refused_job.error
    assert table.rows()[-2:] == [(5, "b"), (6, "b")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dynamic", "--replace-where", "id = 1"), "not both"),
        (("--dynamic", "--overwrite-schema"), "replaces the whole table"),
        (("--partition-by", "id"), "is partitioned by part, but --partition-by is id"),
        (("--hold", "commit", "--replace-where", "part = 'a'"), "again under the lock"),
        (("--replace-where", "part = "), "--replace-where 'part = ' is not valid: Syntax error"),
    ],
)
def test_invalid_arguments_are_refused_in_one_sentence(
    table: OverwrittenTable, arguments: tuple[str, ...], message: str
) -> None:
    job = table.overwrite([(9, "a")], *arguments)
    assert (job.code, job.lines, len(job.error.splitlines())) == (2, [], 1)
    assert message in job.error
    assert table.rows() == INITIAL_ROWS


def test_a_predicate_with_an_unknown_column_takes_no_lock(table: OverwrittenTable) -> None:
    job = table.overwrite([(9, "a")], "--replace-where", "nowhere = 1")
    assert (job.code, job.lines) == (2, [])
    # PySpark may print a line of its own first; under spark-submit it does not.
    *_, sentence = job.error.splitlines()
    assert "--replace-where 'nowhere = 1' is not valid: " in sentence
    assert table.rows() == INITIAL_ROWS


def test_the_help_describes_partitioning_and_lock(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "With --overwrite-schema the table keeps its partition columns, or gets those of --partition-by" in output
    assert "--hold commit is refused with --replace-where" in output
