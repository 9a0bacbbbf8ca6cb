"""``apply_changes``: the table equals a model of the source in plain Python, in any order of changes and batches."""

from __future__ import annotations

import random
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import (
    DETAIL,
    HISTORIES,
    Killed,
    detail_of,
    kill_process,
    odd_text,
    session_time_zone,
    shuffled_batches,
)
from tests.support.memory_coordinator import MemoryCoordinator
from tests.support.spark_settings import GENERATED_CODE, spark_settings
from tests.support.waiting import lock_timeout
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.commit.merge import LockedMerge
from writer_jobs.errors import ChangesError, SchemaMismatchError, WriteFailedError
from writer_jobs.maintenance.policy import Action
from writer_jobs.maintenance.result import MaintenanceReport
from writer_jobs.merge.apply import apply_changes
from writer_jobs.merge.batch import ChangeBatch
from writer_jobs.merge.batch_applier import BatchApplier
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.scd1 import NewestRows
from writer_jobs.merge.scd2 import RowHistory

pytestmark = pytest.mark.spark

Change = tuple[str, int, str | None]
"""Key, sequence and value. A null value is a delete."""
HistoryRow = tuple[str, str, int, int | None]
"""Key, value, and the sequences at which the row starts and ends."""

SCHEMA = "key string, at long, value string"
SCD2_OPTIONS = {"stored_as_scd_type": 2, "except_column_list": ["at"]}
SEED, DELETES = 20, 0.35


class Feed:
    """Applies changes to one table, and reads the table with delta-rs."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))
        self.batch_records = table / "_sluice" / "changes"

    def apply(self, changes: Iterable[Change], *, nested: bool = False, **options: Any) -> ChangesResult:
        rows = self.spark.createDataFrame(list(changes), SCHEMA)
        rows = rows.withColumn("detail", F.expr(DETAIL)) if nested else rows
        return apply_changes(
            self.writer, rows, **{"keys": ["key"], "sequence_by": "at", "apply_as_deletes": "value IS NULL", **options}
        )

    def apply_killed(self, changes: list[Change], **options: Any) -> None:
        """Apply a batch, and end the process between the commits to the tombstones and to the table."""
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(BatchApplier, "_merge", kill_process)
            self.apply(changes, **options)

    def columns(self, *names: str, suffix: str = "") -> list[tuple[Any, ...]]:
        """Return columns of the table, or of the side table with this suffix, as sorted tuples."""
        rows = DeltaTable(f"{self.table}{suffix}").to_pyarrow_table(columns=list(names)).to_pylist()
        return sorted((tuple(row.values()) for row in rows), key=repr)

    def rows(self) -> dict[str, tuple[int, str]]:
        """Return the sequence and the value of each key."""
        rows = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        assert len({row["key"] for row in rows}) == len(rows), "a key has two rows"
        for row in rows:
            assert "detail" not in row or row["detail"] == detail_of(row["key"], row["at"], row["value"])
        return {row["key"]: (row["at"], row["value"]) for row in rows}

    def history(self) -> list[HistoryRow]:
        rows = DeltaTable(self.table).to_pyarrow_table().to_pylist()
        for row in rows:
            assert "detail" not in row or row["detail"] == detail_of(row["key"], row["__START_AT"], row["value"])
        return sorted(((row["key"], row["value"], row["__START_AT"], row["__END_AT"]) for row in rows), key=repr)

    def files(self) -> list[dict[str, Any]]:
        """Return the data files of the table, with the bounds of their columns."""
        return list(pa.table(DeltaTable(self.table).get_add_actions(flatten=True)).to_pylist())

    def paths(self) -> set[str]:
        return {file["path"] for file in self.files()}


@pytest.fixture
def feed(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Feed:
    return Feed(spark, manager, table)


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[None]:
    """Give the session a time zone whose clocks change."""
    with session_time_zone(spark):
        yield


def expected_rows(changes: Iterable[Change]) -> dict[str, tuple[int, str]]:
    """Return the newest change of each key, without keys whose newest change is a delete."""
    newest: dict[str, Change] = {}
    for change in changes:
        if change[0] not in newest or change[1] > newest[change[0]][1]:
            newest[change[0]] = change
    return {key: (at, value) for key, at, value in newest.values() if value is not None}


def expected_history(changes: Iterable[Change]) -> list[HistoryRow]:
    """Return every row of every key. A row ends where the next change of its key starts."""
    by_key: dict[str, dict[int, str | None]] = defaultdict(dict)
    for key, at, value in changes:
        by_key[key][at] = value
    rows: list[HistoryRow] = []
    for key, values in by_key.items():
        starts = sorted(values)
        for at, end in zip(starts, [*starts[1:], None], strict=True):
            if (value := values[at]) is not None:
                rows.append((key, value, at, end))
    return sorted(rows, key=repr)


def histories(seed: int, number: int) -> list[Change]:
    """Return the changes of many short histories with keys of their own. No changes of a key share a sequence."""
    chance = random.Random(seed)
    changes: list[Change] = []
    for history in range(number):
        for key in range(chance.randint(1, 2)):
            sequences = chance.sample(range(100), chance.randint(1, 6))
            name = odd_text(2 * history + key, f"{history}/{key}")
            changes += [
                (name, at, None if chance.random() < DELETES else odd_text(at, f"{history}/{key}@{at}"))
                for at in sequences
            ]
    return changes


@pytest.mark.full
def test_the_newest_change_of_a_key_wins_and_a_delete_stays(feed: Feed) -> None:
    result = feed.apply([("a", 1, "one"), ("a", 3, "three"), ("a", 2, None), ("b", 5, "five"), ("c", 1, "one")])
    assert feed.rows() == {"a": (3, "three"), "b": (5, "five"), "c": (1, "one")}
    assert (result.changes, result.folded, result.inserted, result.newest_sequence) == (5, 3, 3, 5)
    result = feed.apply([("a", 4, None), ("b", 4, "four"), ("c", 2, "two")])
    assert feed.rows() == {"b": (5, "five"), "c": (2, "two")}
    assert (result.inserted, result.updated, result.deleted, result.unchanged) == (0, 1, 1, 1)
    result = feed.apply([("a", 3, "three"), ("b", 5, "five")])
    assert feed.rows() == {"b": (5, "five"), "c": (2, "two")}
    assert result.unchanged == 2
    feed.apply([("a", 5, "back")], keys=["KEY"], sequence_by="AT")
    assert feed.rows()["a"] == (5, "back")
    assert not list(feed.batch_records.glob("*"))


NOT_ORDERED: list[tuple[list[Any], str]] = [
    ([("a", 7, "x"), ("a", 7, "y")], "key=a"),
    ([("a", 7, "x"), ("a", 7, None)], "key=a"),
    ([(None, 7, "x")], "key=None"),
    ([("b", None, "x")], "key=b"),
    ([("c", 5, "another")], "key=c"),
    ([("c", 5, None)], "key=c"),
    ([("d", 5, "after its delete")], "key=d"),
]


@pytest.mark.full
def test_changes_without_a_known_order_are_refused(feed: Feed) -> None:
    feed.apply([("c", 5, "five"), ("d", 5, None), ("keep", 1, "one")])
    for changes, key in NOT_ORDERED:
        with pytest.raises(ChangesError, match=key):
            feed.apply([*changes, ("keep", 9, None)])
        assert not list(feed.batch_records.glob("*"))
    # The next batch does not apply any refused change.
    feed.apply([("e", 1, "one")])
    assert feed.rows() == {"c": (5, "five"), "keep": (1, "one"), "e": (1, "one")}


@HISTORIES
@pytest.mark.usefixtures("berlin")
def test_histories_in_any_order_equal_the_model(feed: Feed, number: int) -> None:
    """A batch is killed between the commits to the tombstones and to the table."""
    changes = histories(SEED, number)
    first_batch, killed_batch, third_batch = shuffled_batches(SEED, changes, 3)
    feed.apply(first_batch, nested=True)
    # A process was killed while it wrote the record of its batch.
    feed.batch_records.mkdir(parents=True, exist_ok=True)
    (feed.batch_records / "half.json").write_text("")
    feed.apply_killed(killed_batch, nested=True)
    assert len(list(feed.batch_records.glob("*.json"))) == 2
    assert feed.rows() == expected_rows(first_batch)
    # The next batch undoes the whole killed batch.
    feed.apply(third_batch, nested=True)
    assert feed.rows() == expected_rows([*first_batch, *third_batch])
    assert [record.name for record in feed.batch_records.glob("*.json")] == ["half.json"]
    # The killed batch undoes itself when it is applied again.
    feed.apply_killed(killed_batch, nested=True)
    feed.apply(killed_batch, nested=True)
    assert feed.rows() == expected_rows(changes)


def test_negative_control_without_tombstones_late_changes_restore_rows(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NewestRows, "_without_stale", lambda _, rows, __: rows)
    changes = histories(SEED, 500)
    for batch in shuffled_batches(SEED, changes, 2):
        feed.apply(batch)
    restored = feed.rows().items() - expected_rows(changes).items()
    assert len(restored) > 20


def test_negative_control_without_the_order_in_a_batch_older_rows_win(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.sql.classic.column.Column.desc", lambda self: self.asc())
    changes = histories(SEED, 500)
    feed.apply(changes)
    assert len(feed.rows().items() - expected_rows(changes).items()) > 100


@pytest.mark.full
@pytest.mark.parametrize("scd_type", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_repetitions_and_older_changes_rewrite_no_file(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, scd_type: int
) -> None:
    options = {"stored_as_scd_type": scd_type}
    feed.apply([("a", 2, "two"), ("b", 2, "two")], **options)
    feed.apply([("c", 2, "two"), ("c", 1, None), ("d", 1, None)], **options)
    paths = feed.paths()
    result = feed.apply([("a", 2, "two"), ("c", 2, "two"), ("e", 1, "one"), ("d", 1, None)], **options)
    assert (result.inserted, result.updated, result.deleted) == (1, 0, 0)
    assert paths <= feed.paths()
    if scd_type == 1:
        feed.apply([("a", 1, "one"), ("b", 1, None)], **options)
        with pytest.raises(ChangesError, match="key=a"):
            feed.apply([("a", 2, None), ("b", 2, "two")], **options)
        assert paths <= feed.paths()
        # The control: without the comparison before the merge, Delta rewrites each file that has a match.
        monkeypatch.setattr(NewestRows, "needs_comparison", lambda *_: False)
        feed.apply([("a", 2, "two")], **options)
        assert not paths <= feed.paths()


def test_changes_in_order_read_no_tombstone(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    feed.apply([("a", 2, "two"), ("b", 2, None), ("c", 2, None)])
    feed.apply([("c", 1, "one")])
    assert feed.rows() == {"a": (2, "two")}
    side_table = Path(f"{feed.table}_tombstones")
    for file in side_table.glob("*.parquet"):
        file.rename(file.with_suffix(".away"))
    feed.apply([("a", 3, "three"), ("b", 3, "three")])
    assert feed.rows() == {"a": (3, "three"), "b": (3, "three")}
    # The control: a file of tombstones is read if it may have a later sequence.
    with pytest.raises(WriteFailedError):
        feed.apply([("c", 1, "one")])
    monkeypatch.setattr("writer_jobs.merge.key_bounds.KeyBounds.is_at_least", lambda *_: F.expr("true"))
    with pytest.raises(WriteFailedError):
        feed.apply([("c", 4, "four")])


@pytest.mark.full
def test_batches_of_similar_keys_run_the_same_generated_code(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = feed.spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()
    numbers = random.Random(SEED)

    def apply(batch: int) -> int:
        """Apply a batch; return how many classes Spark compiled for it."""
        keys = numbers.sample(range(100_000), 3000)
        rows = [(key, batch, None if key % 20 == 0 else f"{batch}") for key in keys]
        changes = feed.spark.createDataFrame(rows, "key long, at long, value string")
        count_before = compiled.getCount()
        sequence = "lpad(string(at), 20, '0')"  # as the positions of a change feed
        apply_changes(feed.writer, changes, keys=["key"], sequence_by=sequence, apply_as_deletes="value IS NULL")
        return int(compiled.getCount() - count_before)

    with spark_settings(feed.spark.conf, GENERATED_CODE):
        first_batches = [apply(batch) for batch in range(4)]
        assert max(apply(batch) for batch in range(4, 8)) <= 4 < first_batches[0]
        # The control: with the exact bounds of each batch, each has its own code.
        monkeypatch.setattr("writer_jobs.merge.key_bounds.rounded", lambda least, most, _: (least, most))
        assert min(apply(batch) for batch in range(8, 11)) > 4


@HISTORIES
@pytest.mark.usefixtures("berlin")
def test_histories_in_any_order_equal_the_history_model(feed: Feed, number: int) -> None:
    changes = histories(SEED, number)
    first_batch, killed_batch, third_batch = shuffled_batches(SEED, changes, 3)
    feed.apply(first_batch, **SCD2_OPTIONS, nested=True)
    assert feed.history() == expected_history(first_batch)
    feed.apply_killed(killed_batch, **SCD2_OPTIONS, nested=True)
    assert feed.history() == expected_history(first_batch)
    feed.apply(third_batch, **SCD2_OPTIONS, nested=True)
    assert feed.history() == expected_history([*first_batch, *third_batch])
    feed.apply(killed_batch, **SCD2_OPTIONS, nested=True)
    assert feed.history() == expected_history(changes)


@pytest.mark.full
def test_negative_control_without_tombstones_late_rows_do_not_end(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    source = RowHistory.source
    monkeypatch.setattr(RowHistory, "source", lambda self, rows, read, _, *rest: source(self, rows, read, None, *rest))
    changes = histories(SEED, 500)
    for batch in shuffled_batches(SEED, changes, 2):
        feed.apply(batch, **SCD2_OPTIONS)
    assert len(set(feed.history()) - set(expected_history(changes))) > 20


@pytest.mark.full
def test_missing_columns_come_from_the_previous_history_row(feed: Feed) -> None:
    colors = feed.spark.createDataFrame([("a", 1, "one", "red"), ("b", 1, "one", "blue")], f"{SCHEMA}, color string")
    options: dict[str, Any] = {"keys": ["key"], "sequence_by": "at", "apply_as_deletes": "value IS NULL"}
    apply_changes(feed.writer, colors, **options, **SCD2_OPTIONS)
    # These changes lack the column color. A row after a delete gets null. A late row gets the color before it.
    feed.apply([("a", 5, "five"), ("b", 2, None), ("b", 3, "three"), ("c", 1, "one")], **SCD2_OPTIONS)
    feed.apply([("a", 3, "three"), ("a", 5, "five")], **SCD2_OPTIONS)
    assert feed.columns("key", "__START_AT", "__END_AT", "value", "color") == [
        ("a", 1, 3, "one", "red"),
        ("a", 3, 5, "three", "red"),
        ("a", 5, None, "five", "red"),
        ("b", 1, 2, "one", "blue"),
        ("b", 3, None, "three", None),
        ("c", 1, None, "one", None),
    ]


@pytest.mark.full
@pytest.mark.parametrize("scd_type", [1, 2])
def test_files_without_keys_of_the_batch_are_not_read(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, scd_type: int
) -> None:
    """In apache/spark pull request 56016, AutoCDC reads its whole auxiliary table for each batch."""
    options = {"stored_as_scd_type": scd_type}
    feed.apply([("a", 1, "one"), ("b", 1, "one")], **options)
    feed.apply([("m", 1, "one")], **options)
    feed.apply([("y", 1, "one"), ("z", 1, "one")], **options)
    for file in feed.files():
        if file["min.key"] != "m":
            (feed.table / file["path"]).unlink()
    assert feed.apply([("m", 2, "two")], **options).changes == 1
    # The control: without the bounds, Delta reads all files, and two are missing.
    monkeypatch.setattr(ChangeBatch, "bounds", lambda *_: F.expr("true"))
    with pytest.raises(WriteFailedError):
        feed.apply([("m", 3, "three")], **options)


@pytest.mark.full
@pytest.mark.parametrize("key", ["number * 5000000000", "timestamp_seconds(number * 86400 * 365)"])
def test_files_are_skipped_by_ranges_of_numbers_and_timestamps(feed: Feed, key: str) -> None:
    rows = feed.spark.range(1, 6).withColumnRenamed("id", "number")
    rows = rows.selectExpr(f"{key} AS key", "number AS at", "'old' AS value")
    feed.writer.append(rows.repartitionByRange(5, "key"))
    files = sorted(feed.files(), key=lambda file: file["min.key"])
    assert len(files) == 5
    for number in (0, 2, 4):
        (feed.table / files[number]["path"]).unlink()
    init = ChangeBatch.__init__
    updates = rows.where("at IN (2, 4)").withColumn("at", F.lit(9))
    with pytest.MonkeyPatch.context() as patch:
        # The batch has one range of keys for each change, so Delta does not read the removed file between them.
        patch.setattr(
            ChangeBatch, "__init__", lambda *args, **options: init(*args, **{**options, "range_column": "key"})
        )
        assert apply_changes(feed.writer, updates, keys=["key"], sequence_by="at").updated == 2
    # The control: with one range from the smallest to the largest key, Delta reads the file between them.
    with pytest.raises(WriteFailedError):
        apply_changes(feed.writer, updates.withColumn("at", F.lit(10)), keys=["key"], sequence_by="at")


@pytest.mark.full
def test_a_table_keeps_its_scd_type(feed: Feed) -> None:
    feed.apply([("a", 1, "one")], **SCD2_OPTIONS)
    with pytest.raises(ChangesError, match="SCD type: 2 in the table, 1 in this run"):
        feed.apply([("a", 2, "two")], except_column_list=["at"])


def apply_at_once(feed: Feed, managers: list[Any], batches: list[list[Change]]) -> list[BaseException]:
    """Apply each batch by a feed of its own, all at the same time, and return the errors."""
    with ThreadPoolExecutor(len(batches)) as pool:
        futures = [
            pool.submit(Feed(feed.spark, manager, feed.table).apply, batch, **SCD2_OPTIONS)
            for manager, batch in zip(managers, batches, strict=True)
        ]
        return [error for future in futures if (error := future.exception()) is not None]


def hot_batches(number: int) -> list[list[Change]]:
    """Return batches that change the same 20 keys."""
    chance = random.Random(SEED)
    batches: list[list[Change]] = [[] for _ in range(number)]
    for at in range(50 * number):
        key = f"k{chance.randrange(20)}"
        batches[at % number].append((key, at, None if chance.random() < DELETES else f"{key}@{at}"))
    return batches


@pytest.mark.parametrize("feed_count", [4, pytest.param(8, marks=pytest.mark.soak)])
def test_feeds_at_once_leave_one_current_row_per_key(
    make_manager: Callable[..., ZookeeperLockManager], feed: Feed, feed_count: int
) -> None:
    """dbt-core 4661, dbt-adapters 1759 and mack 85 report several current rows of snapshots that run together."""
    feed.apply([("first", 0, "first"), ("gone", 0, None)], **SCD2_OPTIONS)
    batches = hot_batches(feed_count)
    assert apply_at_once(feed, [make_manager(timeout_seconds=300) for _ in batches], batches) == []
    assert feed.history() == expected_history(
        [("first", 0, "first"), *(change for batch in batches for change in batch)]
    )


def test_negative_control_with_separate_locks_keys_have_several_current_rows(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each feed stages its rows before it merges. Delta retries the merge, but the staged rows are out of date."""
    feed.apply([("first", 0, "first")], **SCD2_OPTIONS)
    # The batches have no deletes: a feed would delete the tombstones of other feeds as those of a killed batch.
    batches = [[change for change in batch if change[2] is not None] for batch in hot_batches(8)[:3]]
    merge, all_staged = RowHistory.merge, threading.Barrier(len(batches))

    def stage_then_merge(self: RowHistory, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        staged = source.localCheckpoint()
        all_staged.wait(60)
        return merge(self, writer, staged, within)

    monkeypatch.setattr(RowHistory, "merge", stage_then_merge)
    # Each feed has a coordinator of its own.
    errors = apply_at_once(feed, [MemoryCoordinator().manager() for _ in batches], batches)
    current_keys = [key for key, _, _, end in feed.history() if end is None]
    assert len(current_keys) > len(set(current_keys)), errors


@pytest.mark.full
def test_feeds_of_different_partitions_run_side_by_side(
    make_manager: Callable[..., ZookeeperLockManager], feed: Feed
) -> None:
    options: dict[str, Any] = {"keys": ["key", "value"], "apply_as_deletes": None}
    feed.apply([("a", 1, "x"), ("b", 1, "y")], partition_by=["key"], **options)
    results: list[object] = []

    def apply_by_a_second_feed(_: object) -> None:
        second_feed = Feed(feed.spark, make_manager(timeout_seconds=60), feed.table)
        with ThreadPoolExecutor(1) as pool:
            results.append(pool.submit(second_feed.apply, [("b", 2, "y")], **options).result().updated)
            late = partial(second_feed.apply, [("a", 3, "x")], lock_timeout_seconds=0.5, **options)
            results.append(pool.submit(lock_timeout, late).result())

    # While the first feed holds the lock of partition a, the second one writes partition b and waits for partition a.
    assert feed.apply([("a", 2, "x")], before_write=apply_by_a_second_feed, **options).updated == 1
    assert len(results) == 2
    assert results[0] == 1
    assert feed.columns("key", "at") == [("a", 2), ("b", 2)]


@pytest.mark.parametrize("is_new", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_side_table_that_is_removed_meanwhile_is_an_error(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, *, is_new: bool
) -> None:
    tombstones = Path(f"{feed.table}_tombstones")
    feed.apply([("a", 1, "x")] if is_new else [("a", 1, "x"), ("b", 1, None)])
    assert tombstones.exists() is not is_new
    rows, ensure = feed.rows(), BatchApplier._ensure_side_table

    def ensure_and_remove(applier: BatchApplier, *states: Any) -> Any:
        state = ensure(applier, *states)
        shutil.rmtree(tombstones)
        return state

    monkeypatch.setattr(BatchApplier, "_ensure_side_table", ensure_and_remove)
    with pytest.raises(ChangesError, match="_tombstones was removed while the batch was applied"):
        feed.apply([("a", 3, None), ("c", 3, "z")])
    assert feed.rows() == rows
    assert not tombstones.exists()


@pytest.mark.soak
def test_maintenance_keeps_tombstones_of_a_killed_batch(feed: Feed, maintain: Callable[..., MaintenanceReport]) -> None:
    options: dict[str, Any] = {"keys": ["key", "value"], "apply_as_deletes": "at % 2 = 1"}
    tombstones = f"{feed.table}_tombstones"
    feed.apply([("a", 2, "x"), ("b", 2, "x"), ("b", 1, "gone")], partition_by=["key"], **options)
    # The killed batch has tombstones in two partitions. A later batch deletes those of the partition that it locks.
    feed.apply_killed([("a", 5, "x"), ("b", 7, "x")], **options)
    feed.apply([("a", 5, "y"), ("a", 4, "z")], **options)
    assert feed.columns("key", "__SEQUENCE", suffix="_tombstones") == [("a", 5), ("b", 1), ("b", 7)]
    # All tombstones expire at once.
    with locked(feed.spark, tombstones, manager=feed.writer.manager):
        days = "'sluice.maintenance.forgetAfterDays' = '0'"
        feed.spark.sql(f"ALTER TABLE delta.`{tombstones}` SET TBLPROPERTIES ({days})")
    version = DeltaTable(tombstones).version()
    (expiry,) = maintain(Action.FORGET, suffix="_tombstones").done
    assert "was killed before it was applied" in str(expiry.problem)
    assert DeltaTable(tombstones).version() == version
    feed.apply([("a", 4, "x")], **options)
    feed.apply([("b", 4, "x")], **options)
    assert feed.columns("key", "at", "value") == [("a", 4, "x"), ("a", 4, "z"), ("b", 4, "x")]
    # The killed batch is undone in both partitions.
    (expiry,) = maintain(Action.FORGET, suffix="_tombstones").done
    assert expiry.problem is None
    assert DeltaTable(tombstones).to_pyarrow_table().num_rows == 0


def test_a_type_that_the_table_would_truncate_is_refused(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path]
) -> None:
    table = copy_of(
        "CREATE TABLE {t} (key STRING, at LONG, value STRING) USING delta", "INSERT INTO {t} VALUES ('a', 1, 'one')"
    )
    feed = Feed(spark, manager, table)
    rows = spark.createDataFrame([("a", 2.5, "two")], "key string, at double, value string")
    with pytest.raises(SchemaMismatchError, match="at: table bigint, rows double"):
        apply_changes(feed.writer, rows, keys=["key"], sequence_by="at")
    assert feed.rows() == {"a": (1, "one")}


@pytest.mark.full
@pytest.mark.parametrize("scd_type", [1, pytest.param(2, marks=pytest.mark.soak)])
def test_delta_computes_generated_columns(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path], scd_type: int
) -> None:
    sequences = ", at LONG" if scd_type == 1 else ", __START_AT LONG, __END_AT LONG"
    generated = "twice STRING GENERATED ALWAYS AS (value || value)"
    table = copy_of(
        f"CREATE TABLE {{t}} (key STRING, value STRING, {generated}{sequences}) USING delta PARTITIONED BY (twice)"
    )
    feed, options = Feed(spark, manager, table), {} if scd_type == 1 else SCD2_OPTIONS
    feed.apply([("a", 1, "x"), ("b", 1, "x")], **options)
    feed.apply([("a", 3, "z"), ("b", 2, None)], **options)
    feed.apply([("a", 2, "y")], **options)
    history = [("a", "x", "xx"), ("a", "y", "yy"), ("a", "z", "zz"), ("b", "x", "xx")]
    assert feed.columns("key", "value", "twice") == ([("a", "z", "zz")] if scd_type == 1 else history)
