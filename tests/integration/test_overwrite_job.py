"""``overwrite.py`` in this process: rows in the place of others, of all of the table or of what is named."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lock_manager import ZookeeperLockManager
from tests.support.another_thread import in_another_thread
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.overwrite import main

pytestmark = pytest.mark.spark

OLD = [(1, "a"), (2, "a"), (3, "b"), (4, "c")]


@pytest.fixture
def parted(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Path:
    """A table of four rows in three partitions."""
    rows = spark.createDataFrame(OLD, "id long, part string").coalesce(1)
    LockedDeltaWriter(spark, manager, str(table)).append(rows, partition_by=["part"])
    return table


@pytest.fixture
def held(
    spark: SparkSession, make_manager: Callable[..., ZookeeperLockManager], parted: Path
) -> Callable[[str], AbstractContextManager[None]]:
    """Have somebody else hold a partition: ``with held("a")``."""

    def hold(part: str) -> AbstractContextManager[None]:
        return in_another_thread(
            lambda: locked(spark, str(parted), partitions=[{"part": part}], manager=make_manager())
        )

    return hold


@pytest.fixture
def overwrite(run_job: Callable[..., Any], parted: Path, tmp_path: Path) -> Callable[..., Any]:
    """Run the job with these rows: ``overwrite([(1, "a")], "--dynamic")``."""

    def run(
        rows: list[tuple[Any, ...]], *arguments: str, names: tuple[str, ...] = ("id", "part"), at: int = 1_700_000_000
    ) -> Any:
        source = tmp_path / "rows.json"
        # By their time, too, a load tells its files from others.
        source.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
        os.utime(source, (at,) * 2)
        return run_job("overwrite", "--table", parted, "--source", source, *arguments)

    return run


def partitioning_of(table: Path) -> list[str]:
    return DeltaTable(str(table)).metadata().partition_columns


def test_all_rows_are_replaced_in_one_commit(
    overwrite: Callable[..., Any], parted: Path, rows_of: Callable[..., Any], versions: Callable[[Path], list[str]]
) -> None:
    done = overwrite([(9, "z")])
    assert (done.code, done.error) == (0, "")
    assert [line["event"] for line in done.lines] == ["begun", "holding", "commit"]
    assert (rows_of(parted, "id", "part"), len(versions(parted))) == ([(9, "z")], 2)
    other = overwrite([("x", 1.5)], names=("name", "weight"))
    assert (other.code, len(versions(parted))) == (5, 2)
    assert "name" in other.error


@pytest.mark.full
def test_new_columns_and_types_leave_the_partitioning_as_it_is(
    overwrite: Callable[..., Any], parted: Path, rows_of: Callable[..., Any], versions: Callable[[Path], list[str]]
) -> None:
    assert overwrite([("x", "a"), ("y", "b")], "--overwrite-schema").code == 0
    assert partitioning_of(parted) == ["part"]
    assert rows_of(parted, "id", "part") == [("x", "a"), ("y", "b")]
    # The files' own spelling is what the table gets.
    assert overwrite([("c", 1.5)], "--overwrite-schema", names=("Part", "weight")).code == 0
    assert partitioning_of(parted) == ["Part"]
    lacking = overwrite([("x", 2.5)], "--overwrite-schema", names=("name", "weight"))
    assert (lacking.code, lacking.lines, len(versions(parted))) == (2, [], 3)
    (sentence,) = lacking.error.splitlines()
    assert "the files have no column Part" in sentence
    assert "--partition-by" in sentence
    assert rows_of(parted, "Part", "weight") == [("c", 1.5)]


def test_new_columns_and_other_partition_columns_if_these_are_asked_for(
    overwrite: Callable[..., Any], parted: Path, rows_of: Callable[..., Any], versions: Callable[[Path], list[str]]
) -> None:
    absent = overwrite([("x", 1.5)], "--overwrite-schema", "--partition-by", "part", names=("name", "weight"))
    assert (absent.code, absent.lines, len(versions(parted))) == (2, [], 1)
    assert "the source has no column part to partition by" in absent.error
    done = overwrite([("x", 1.5)], "--overwrite-schema", "--partition-by", "Name", names=("name", "weight"))
    assert (done.code, done.error) == (0, "")
    assert partitioning_of(parted) == ["name"]
    assert rows_of(parted, "name", "weight") == [("x", 1.5)]


def test_a_partitioning_that_another_writer_gave_the_table_meanwhile_is_not_undone(
    overwrite: Callable[..., Any], parted: Path, rows_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = SourceReader.read

    def read_while_another_writes(self: SourceReader, schema: StructType) -> DataFrame:
        new = pa.table({"id": pa.array([7], pa.int64()), "part": pa.array(["a"])})
        write_deltalake(str(parted), new, mode="overwrite", schema_mode="overwrite", partition_by=["id"])
        return read(self, schema)

    monkeypatch.setattr(SourceReader, "read", read_while_another_writes)
    done = overwrite([("x", "a")], "--overwrite-schema")
    assert (done.code, done.commits) == (5, []), done.error
    assert len(done.error.splitlines()) == 1
    assert "start the job again" in done.error
    assert (partitioning_of(parted), rows_of(parted, "id", "part")) == (["id"], [(7, "a")])


@pytest.mark.full
def test_what_a_predicate_names_is_replaced_and_a_row_beside_it_is_refused(
    overwrite: Callable[..., Any],
    held: Callable[[str], AbstractContextManager[None]],
    parted: Path,
    rows_of: Callable[..., Any],
) -> None:
    # Somebody has another partition meanwhile.
    with held("b"):
        done = overwrite([(7, "a")], "--replace-where", "part = 'a'", "--lock-timeout", "5")
        assert (done.code, done.error) == (0, "")
        refused = overwrite([(8, "a")], "--replace-where", "part IN ('a', 'b')", "--lock-timeout", "0")
        assert refused.code == 3
    assert rows_of(parted, "id", "part") == [(3, "b"), (4, "c"), (7, "a")]
    beside = overwrite([(8, "a"), (9, "c")], "--replace-where", "part = 'a'")
    assert beside.code == 5
    assert len(beside.error.splitlines()) == 1
    assert rows_of(parted, "id", "part") == [(3, "b"), (4, "c"), (7, "a")]


@pytest.mark.full
@pytest.mark.parametrize("hold", ["write", "commit"])
def test_partitions_that_have_new_rows_are_replaced(
    overwrite: Callable[..., Any],
    held: Callable[[str], AbstractContextManager[None]],
    parted: Path,
    rows_of: Callable[..., Any],
    hold: str,
) -> None:
    with held("c"):
        assert overwrite([(5, "b"), (6, "d")], "--dynamic", "--hold", hold, "--lock-timeout", "5").code == 0
    assert rows_of(parted, "id", "part") == [(1, "a"), (2, "a"), (4, "c"), (5, "b"), (6, "d")]


@pytest.mark.full
def test_files_without_rows_delete_what_they_would_replace(
    overwrite: Callable[..., Any], parted: Path, rows_of: Callable[..., Any]
) -> None:
    assert overwrite([], "--dynamic").code == 0
    assert rows_of(parted, "id", "part") == OLD
    assert overwrite([], "--replace-where", "part = 'a'").code == 0
    assert rows_of(parted, "id", "part") == OLD[2:]
    assert overwrite([]).code == 0
    assert rows_of(parted, "id", "part") == []


@pytest.mark.full
def test_a_named_load_is_made_once_and_its_name_is_of_that_load(
    overwrite: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    parted: Path,
    rows_of: Callable[..., Any],
) -> None:
    name = ("--dynamic", "--run-id", "monday")
    first = overwrite([(5, "b")], *name)
    assert first.code == 0
    after = spark.createDataFrame([(6, "b")], "id long, part string")
    LockedDeltaWriter(spark, manager, str(parted)).append(after)
    again = overwrite([(5, "b")], *name)
    assert [line["event"] for line in again.lines] == ["commit"]
    assert (again.code, again.lines[0]["already_committed"]) == (0, True)
    assert again.lines[0]["version"] == first.lines[-1]["version"]
    assert rows_of(parted, "id", "part") == [(1, "a"), (2, "a"), (4, "c"), (5, "b"), (6, "b")]
    # Another row, in as many bytes.
    refused = overwrite([(7, "b")], *name, at=1_700_000_001)
    assert refused.code == 2
    assert "with other sources" in refused.error
    assert rows_of(parted, "id", "part")[-2:] == [(5, "b"), (6, "b")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--dynamic", "--replace-where", "id = 1"), "not both"),
        (("--dynamic", "--overwrite-schema"), "replaces the whole table"),
        (("--partition-by", "id"), "is partitioned by part, and not by id"),
        (("--hold", "commit", "--replace-where", "part = 'a'"), "holds the lock for the whole write"),
        (("--replace-where", "part = "), "--replace-where 'part = ': Syntax error"),
    ],
)
def test_arguments_that_contradict_are_one_sentence(
    overwrite: Callable[..., Any], parted: Path, rows_of: Callable[..., Any], arguments: tuple[str, ...], words: str
) -> None:
    done = overwrite([(9, "a")], *arguments)
    assert (done.code, done.lines, len(done.error.splitlines())) == (2, [], 1)
    assert words in done.error
    assert rows_of(parted, "id", "part") == OLD


def test_a_predicate_on_what_is_no_column_is_refused_before_any_lock(
    overwrite: Callable[..., Any], parted: Path, rows_of: Callable[..., Any]
) -> None:
    done = overwrite([(9, "a")], "--replace-where", "nowhere = 1")
    assert (done.code, done.lines) == (2, [])
    # Under spark-submit PySpark's own line before it is not there.
    *_, sentence = done.error.splitlines()
    assert "--replace-where 'nowhere = 1': " in sentence
    assert rows_of(parted, "id", "part") == OLD


def test_the_help_says_what_becomes_of_the_partitioning_and_what_holds_the_lock_over_the_whole_write(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "The table keeps its partition columns, or gets those of --partition-by" in said
    assert "--hold commit is refused with --replace-where" in said
