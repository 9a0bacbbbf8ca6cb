"""Every write refuses partition values that Delta would change. The error names the column."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import FIRST_TIME, SECOND_TIME, ZONE, session_time_zone
from tests.support.error_line import error_line
from writer_jobs import LockedDeltaWriter, apply_changes, apply_rows
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import ChangesError, SchemaMismatchError, WriteConflictError, WriteFailedError
from writer_jobs.merge.table_shape import TableShape

pytestmark = pytest.mark.spark

#: Texts that Delta stores as null.
NULL_TEXTS = ["", "__HIVE_DEFAULT_PARTITION__"]
COUNTRY = ("--partition-by", "country")
CHANGES = (*COUNTRY, "--sequence-by", "pos")
JOBS = [
    ("append", COUNTRY),
    ("overwrite", COUNTRY),
    ("upsert", (*CHANGES, "--keys", "country,id")),
    ("upsert", (*CHANGES, "--keys", "id")),
    ("upsert", (*CHANGES, "--keys", "country,id", "--scd-type", "2")),
    ("stream", (*COUNTRY, "--keys", "id", "--event-time", "at", "--trigger", "available-now")),
]


def test_text_that_delta_stores_as_null_is_refused(run_job: Callable[..., Any], tmp_path: Path) -> None:
    landing = tmp_path / "landing"
    landing.mkdir()
    source = landing / "rows.json"
    for number, (job, arguments) in enumerate(JOBS):
        # Each job gets one of the texts, because all jobs share the rule.
        row = {"country": NULL_TEXTS[number % 2], "id": 1, "name": "", "pos": 10, "at": "2026-11-01T00:00:00Z"}
        source.write_text(json.dumps({**row, "country": "no"}) + "\n" + json.dumps(row) + "\n")
        paths: list[Any] = ["--table", tmp_path / f"table{number}", "--source", landing]
        if job == "stream":
            paths += ["--checkpoint", tmp_path / "checkpoint", "--format", "json"]
        outcome = run_job(job, *paths, *arguments)
        assert outcome.code == 5, (job, arguments, outcome.error)
        assert f"the partition column country has the value '{row['country']}', which" in error_line(outcome)
        assert not outcome.commits


CHANGE_SCHEMA = "country string, id long, name string, at long, gone boolean"
CHANGE_OPTIONS: dict[str, Any] = {"keys": ["id"], "sequence_by": "at", "apply_as_deletes": "gone"}


def changes(spark: SparkSession, *rows: tuple[Any, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), CHANGE_SCHEMA)


@pytest.mark.full
def test_an_existing_table_refuses_texts_but_keeps_nulls(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path, rows_of: Callable[..., Any]
) -> None:
    writer.append(changes(spark, (None, 1, "", 1, False), ("no", 2, "", 1, False)), partition_by=["country"])
    empty_text = changes(spark, ("", 3, "", 2, False))
    with pytest.raises(WriteFailedError, match="partition column country has the value ''"):
        writer.append(empty_text)
    with pytest.raises(WriteFailedError, match="partition column country has the value ''"):
        writer.overwrite(empty_text, dynamic=True)
    with pytest.raises(ChangesError, match="table: the partition column country has the value ''"):
        apply_changes(writer, empty_text, **CHANGE_OPTIONS)
    # A delete stores only its key, so it may have any text in the partition column.
    result = apply_changes(writer, changes(spark, ("", 2, "", 2, True)), **CHANGE_OPTIONS)
    assert (result.deleted, result.changes) == (1, 1)
    # Texts of other columns may be empty.
    assert rows_of(table, "country", "id", "name") == [(None, 1, "")]
    null_row = changes(spark, (None, 1, "x", 1, False))
    for predicate in ("id = 1 AND (country = '' OR false)", "'' <=> country", "country IN ('no', '')"):
        with pytest.raises(SchemaMismatchError, match="use `country` IS NULL"):
            writer.overwrite(null_row, replace_where=predicate)
    for predicate in (
        "coalesce(country, '') = ''",
        "country IS NULL OR country <> '' AND country NOT IN ('')",
        "country IS NULL",
    ):
        writer.overwrite(null_row, replace_where=predicate)
    assert rows_of(table, "country", "id", "name") == [(None, 1, "x")]


def test_bytes_that_delta_would_change_are_refused(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path, rows_of: Callable[..., Any]
) -> None:
    ascii_bytes, empty_bytes, non_ascii_bytes = (
        spark.createDataFrame([(bytearray(part), 1)], "part binary, id long") for part in (b"a", b"", b"a\xff")
    )
    for rows, error in ((empty_bytes, "part has the value ''"), (non_ascii_bytes, "part has the bytes 61FF")):
        with pytest.raises(WriteFailedError, match=error):
            writer.append(rows, partition_by=["part"])
    writer.append(ascii_bytes, partition_by=["part"])
    with pytest.raises(ChangesError, match="part has the bytes 61FF"):
        apply_changes(writer, non_ascii_bytes, keys=["part"], sequence_by="id")
    assert rows_of(table, "part", "id") == [(b"a", 1)]


@pytest.mark.parametrize("lock_during", ["commit", "write"])
def test_new_partition_columns_are_checked_at_the_commit(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    copy_of: Callable[..., Path],
    rows_of: Callable[..., Any],
    lock_during: Any,
) -> None:
    table = copy_of(f"CREATE TABLE {{t}} ({CHANGE_SCHEMA}) USING delta")
    writer = LockedDeltaWriter(spark, manager, str(table))
    # The control: country is not a partition column.
    writer.append(changes(spark, ("", 2, "", 1, False)), lock_during=lock_during)
    # Another program replaces the partition columns. This driver learns of the change when it reads the log again.
    rows = DeltaTable(table).to_pyarrow_table()
    write_deltalake(table, rows.slice(0, 0), mode="overwrite", schema_mode="overwrite", partition_by=["country"])
    with pytest.raises(WriteFailedError, match="partition column country has the value ''"):
        writer.append(changes(spark, ("", 3, "", 1, False)), lock_during=lock_during)
    writer.append(changes(spark, ("no", 4, "", 1, False)), lock_during=lock_during)
    assert rows_of(table, "id") == [(4,)]
    assert DeltaTable(table).metadata().partition_columns == ["country"]


def test_a_table_that_appears_after_the_check_ends_the_batch(
    spark: SparkSession,
    manager: ZookeeperLockManager,
    writer: LockedDeltaWriter,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = TableShape.fit

    def check_and_create(shape: TableShape, prepared: DataFrame, state: TableState | None) -> DataFrame:
        fitted_rows = check(shape, prepared, state)
        if state is None:
            rival.append(changes(spark, ("no", 9, "", 1, False)), partition_by=["country"])
        return fitted_rows

    rival = LockedDeltaWriter(spark, manager, str(table))
    monkeypatch.setattr(TableShape, "fit", check_and_create)
    batch = changes(spark, ("", 1, "", 2, False))
    with pytest.raises(WriteConflictError, match="after the changes were checked: run the job again"):
        apply_changes(writer, batch, **CHANGE_OPTIONS)
    # The next run checks the rows for the partitions of the table.
    with pytest.raises(ChangesError, match="partition column country has the value ''"):
        apply_changes(writer, batch, **CHANGE_OPTIONS)


def timestamp_rows(spark: SparkSession, *rows: tuple[str, int]) -> DataFrame:
    """Return rows of ``at``, ``id`` and ``pos``. ``at`` is parsed from a text."""
    texts = spark.createDataFrame([(at, id_, 1) for at, id_ in rows], "text string, id long, pos long")
    return texts.selectExpr("timestamp(text) at", "id", "pos")


def seconds_and_ids(spark: SparkSession, table: Path) -> list[tuple[int, int]]:
    """Return the seconds since ``FIRST_TIME`` and the id of each row."""
    rows = spark.read.format("delta").load(str(table)).selectExpr("unix_seconds(at) at", "id").orderBy("id").collect()
    first_seconds = int(datetime.fromisoformat(FIRST_TIME).timestamp())
    return [(row.at - first_seconds, row.id) for row in rows]


@pytest.mark.full
def test_timestamp_partitions_need_a_zone_without_clock_changes(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = timestamp_rows(spark, (FIRST_TIME, 1), (SECOND_TIME, 2))
    options: dict[str, Any] = {"keys": ["at", "id"], "sequence_by": "pos", "partition_by": ["at"]}
    writes: list[Callable[[], Any]] = [
        lambda: writer.append(rows, partition_by=["at"]),
        lambda: writer.overwrite(rows, partition_by=["at"]),
        lambda: apply_changes(writer, rows, **options),
        lambda: apply_rows(writer, rows, keys=["id"], event_time="at", partition_by=["at"]),
        # The last two writes copy rows of the table.
        lambda: writer.update({"pos": "pos + 1"}, "id = 2"),
        writer.optimize,
    ]
    for number, write in enumerate(writes):
        if number == 4:
            with session_time_zone(spark, "UTC"):
                assert apply_changes(writer, rows, **options).inserted == 2
        error = r"at is a partition column with timestamps.* Europe/Berlin .*=UTC"
        with session_time_zone(spark), pytest.raises(SchemaMismatchError, match=error):
            write()
    with session_time_zone(spark, "+05:30"):
        assert apply_changes(writer, rows, **options).unchanged == 2
        writer.update({"pos": "pos + 1"})
    with session_time_zone(spark), pytest.raises(SchemaMismatchError):
        writer.overwrite(rows, partition_by=["at"], options={"overwriteSchema": "true"})
    # Sessions in any time zone read the same instants.
    for zone in ("UTC", ZONE):
        with session_time_zone(spark, zone):
            assert seconds_and_ids(spark, table) == [(0, 1), (3600, 2)]
    # The control: without the rule, an update of another column moves a row by an hour.
    monkeypatch.setattr("writer_jobs.writer.refuse_clock_changes", lambda *_: None)
    with session_time_zone(spark):
        writer.update({"pos": "pos + 1"})
    assert seconds_and_ids(spark, table) == [(0, 1), (0, 2)]
    monkeypatch.undo()
    # A write that replaces the partition columns does not read the old partitions.
    with session_time_zone(spark):
        writer.overwrite(rows, partition_by=["id"], options={"overwriteSchema": "true"})
    assert seconds_and_ids(spark, table) == [(0, 1), (3600, 2)]


GENERATED_COLUMN_TABLE = """
    CREATE TABLE {t} (event TIMESTAMP, at TIMESTAMP GENERATED ALWAYS AS (date_trunc('HOUR', event)), id LONG)
    USING delta PARTITIONED BY (at)
"""


def test_generated_timestamp_partitions_need_a_fixed_zone(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path]
) -> None:
    writer = LockedDeltaWriter(spark, manager, str(copy_of(GENERATED_COLUMN_TABLE)))
    rows = timestamp_rows(spark, (FIRST_TIME, 1)).selectExpr("at event", "id")
    with session_time_zone(spark), pytest.raises(SchemaMismatchError, match="at is a partition column with timestamps"):
        writer.append(rows)


@pytest.mark.full
def test_a_partition_column_may_have_a_dot(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path, rows_of: Callable[..., Any]
) -> None:
    options: dict[str, Any] = {"keys": ["a.b", "id"], "sequence_by": "at", "partition_by": ["a.b"]}
    for at, counts in ((1, (2, 0, 0)), (2, (0, 1, 1))):
        rows = spark.createDataFrame([("x", 1, 1), ("y z", 2, at)], "`a.b` string, id long, at long")
        result = apply_changes(writer, rows, **options)
        assert (result.inserted, result.updated, result.unchanged) == counts
    assert rows_of(table, "a.b", "id", "at") == [("x", 1, 1), ("y z", 2, 2)]


def test_a_partition_value_that_is_too_long_is_refused(spark: SparkSession, writer: LockedDeltaWriter) -> None:
    rows = spark.createDataFrame([("å" * 200, 1)], "name string, id long")
    with pytest.raises(WriteFailedError, match=r"partition column name makes a folder name of .* allows 255"):
        writer.append(rows, partition_by=["name"])


@pytest.mark.full
def test_a_text_column_is_a_sequence_only_in_an_expression(
    spark: SparkSession, writer: LockedDeltaWriter, table: Path, rows_of: Callable[..., Any]
) -> None:
    rows = [(1, "new", "2026-01-01T00:00:00.500Z"), (1, "old", "2026-01-01T00:00:00Z")]
    batch = spark.createDataFrame(rows, "id long, name string, at string")
    for sequence in ("at", "`at`", batch["at"]):
        with pytest.raises(ChangesError, match=r"sequence .*at.* is text.*timestamp\("):
            apply_changes(writer, batch, keys=["id"], sequence_by=sequence)
    apply_changes(writer, batch, keys=["id"], sequence_by="timestamp(at)")
    assert rows_of(table, "id", "name") == [(1, "new")]
