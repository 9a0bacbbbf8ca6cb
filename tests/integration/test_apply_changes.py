"""``apply_changes``: the table equals a plain model of the other store, whatever is late, repeated or mixed up."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager import LockTimeoutError, ZookeeperLockManager
from tests.support.deliveries import (
    DETAIL,
    HISTORIES,
    Killed,
    delivered,
    detail_of,
    end_of_the_process,
    odd_text,
    zone_of,
)
from tests.support.memory_coordinator import Memory
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
"""Key, sequence, and value; None: a delete."""

SCHEMA = "key string, at long, value string"


def rows_of(table: Path) -> dict[str, tuple[int, str]]:
    rows = DeltaTable(table).to_pyarrow_table().to_pylist()
    assert len({row["key"] for row in rows}) == len(rows), "a key has two rows"
    for row in rows:
        assert "detail" not in row or row["detail"] == detail_of(row["key"], row["at"], row["value"])
    return {row["key"]: (row["at"], row["value"]) for row in rows}


def model(changes: Iterable[Change]) -> dict[str, tuple[int, str]]:
    """Return what the table has to have: of each key the newest change, unless it is a delete."""
    newest: dict[str, Change] = {}
    for change in changes:
        if change[0] not in newest or change[1] > newest[change[0]][1]:
            newest[change[0]] = change
    return {key: (at, value) for key, at, value in newest.values() if value is not None}


class Feed:
    """Applies changes to one table."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))

    def apply(self, changes: Iterable[Change], *, nested: bool = False, **options: Any) -> ChangesResult:
        rows = self.spark.createDataFrame(list(changes), SCHEMA)
        rows = rows.withColumn("detail", F.expr(DETAIL)) if nested else rows
        return apply_changes(
            self.writer, rows, **{"keys": ["key"], "sequence_by": "at", "apply_as_deletes": "value IS NULL", **options}
        )


@pytest.fixture
def feed(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Feed:
    return Feed(spark, manager, table)


@pytest.mark.full
def test_the_newest_change_of_a_key_wins_and_a_delete_stays(feed: Feed, table: Path) -> None:
    done = feed.apply([("a", 1, "one"), ("a", 3, "three"), ("a", 2, None), ("b", 5, "five"), ("c", 1, "one")])
    assert rows_of(table) == {"a": (3, "three"), "b": (5, "five"), "c": (1, "one")}
    assert (done.changes, done.folded, done.inserted, done.newest_sequence) == (5, 3, 3, 5)
    done = feed.apply([("a", 4, None), ("b", 4, "four"), ("c", 2, "two")])
    assert rows_of(table) == {"b": (5, "five"), "c": (2, "two")}
    assert (done.inserted, done.updated, done.deleted, done.unchanged) == (0, 1, 1, 1)
    done = feed.apply([("a", 3, "three"), ("b", 5, "five")])
    assert rows_of(table) == {"b": (5, "five"), "c": (2, "two")}
    assert done.unchanged == 2
    feed.apply([("a", 5, "back")], keys=["KEY"], sequence_by="AT")
    assert rows_of(table)["a"] == (5, "back")
    assert not list((table / "_sluice" / "changes").glob("*"))


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
def test_what_cannot_be_ordered_is_refused_with_its_key_and_nothing_of_it_is_done(feed: Feed, table: Path) -> None:
    feed.apply([("c", 5, "five"), ("d", 5, None), ("keep", 1, "one")])
    for changes, says in NOT_ORDERED:
        with pytest.raises(ChangesError, match=says):
            feed.apply([*changes, ("keep", 9, None)])
        assert not list((table / "_sluice" / "changes").glob("*"))
    # Nor is it done by the next one.
    feed.apply([("e", 1, "one")])
    assert rows_of(table) == {"c": (5, "five"), "keep": (1, "one"), "e": (1, "one")}


def histories(seed: int, number: int) -> list[Change]:
    """Return the changes of many short histories, each of keys of its own, each change with a sequence of its own."""
    chance = random.Random(seed)
    changes: list[Change] = []
    for history in range(number):
        for key in range(chance.randint(1, 2)):
            moments = chance.sample(range(100), chance.randint(1, 6))
            name = odd_text(2 * history + key, f"{history}/{key}")
            changes += [
                (name, at, None if chance.random() < DELETES else odd_text(at, f"{history}/{key}@{at}"))
                for at in moments
            ]
    return changes


DELETES = 0.35
#: In a time zone whose clocks change, with nested values.
NESTED = {"nested": True}
HISTORY = {"stored_as_scd_type": 2, "except_column_list": ["at"]}
SEED = 20


def killed_between_the_commits(feed: Feed, changes: list[Change], monkeypatch: pytest.MonkeyPatch, **how: Any) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(BatchApplier, "_merge", end_of_the_process)
        with pytest.raises(Killed):
            feed.apply(changes, **how)


@pytest.fixture
def berlin(spark: SparkSession) -> Iterator[None]:
    """Give the session a time zone whose clocks change."""
    with zone_of(spark):
        yield


@HISTORIES
@pytest.mark.usefixtures("berlin")
def test_histories_in_any_order_equal_the_model(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """With a batch that is killed between the tombstones' commit and the table's: Spark 56683 has no test of that."""
    changes = histories(SEED, number)
    first, second, third, fourth = delivered(SEED, changes, 4)
    feed.apply(first, **NESTED)
    # A process was killed while it wrote its note.
    notes = table / "_sluice" / "changes"
    notes.mkdir(parents=True, exist_ok=True)
    (notes / "half.json").write_text("")
    # Its tombstones are there, and none of it is in the table; another feed's batch comes next.
    killed_between_the_commits(feed, second, monkeypatch, **NESTED)
    assert list((table / "_sluice" / "changes").glob("*"))
    assert rows_of(table) == model(first)
    feed.apply(third, **NESTED)
    # The batch that was killed is undone as a whole.
    assert rows_of(table) == model([*first, *third])
    assert [note.name for note in notes.glob("*.json")] == ["half.json"]
    killed_between_the_commits(feed, fourth, monkeypatch, **NESTED)
    feed.apply(fourth, **NESTED)
    feed.apply(second, **NESTED)
    assert rows_of(table) == model(changes)


def test_negative_control_without_tombstones_late_changes_bring_rows_back(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NewestRows, "_without_stale", lambda _, rows, __: rows)
    changes = histories(SEED, 500)
    for batch in delivered(SEED, changes, 2):
        feed.apply(batch)
    back = rows_of(table).items() - model(changes).items()
    assert len(back) > 20


def test_negative_control_without_the_order_in_a_batch_older_rows_win(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark.sql.classic.column.Column.desc", lambda self: self.asc())
    changes = histories(SEED, 500)
    feed.apply(changes)
    assert len(rows_of(table).items() - model(changes).items()) > 100


@pytest.mark.full
@pytest.mark.parametrize("scd_type", [1, 2])
def test_repetitions_and_older_changes_rewrite_no_file(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch, scd_type: int
) -> None:
    options = {**HISTORY, "stored_as_scd_type": scd_type, "except_column_list": None}
    feed.apply([("a", 2, "two"), ("b", 2, "two")], **options)
    feed.apply([("c", 2, "two"), ("c", 1, None), ("d", 1, None)], **options)
    files = set(DeltaTable(table).file_uris())
    result = feed.apply([("a", 2, "two"), ("c", 2, "two"), ("e", 1, "one"), ("d", 1, None)], **options)
    assert (result.inserted, result.updated, result.deleted) == (1, 0, 0)
    if scd_type == 1:
        feed.apply([("a", 1, "one"), ("b", 1, None)], **options)
        with pytest.raises(ChangesError, match="key=a"):
            feed.apply([("a", 2, None), ("b", 2, "two")], **options)
    assert files <= set(DeltaTable(table).file_uris())
    # Without the comparison before the merge Delta rewrites each file that has a match.
    if scd_type == 1:
        monkeypatch.setattr(NewestRows, "needs_comparison", lambda *_: False)
        feed.apply([("a", 2, "two")], **options)
        assert not files <= set(DeltaTable(table).file_uris())


Row = tuple[str, str, int, int | None]
"""Key, value, and from when to when it was valid."""


def history_of(table: Path) -> list[Row]:
    found = DeltaTable(table).to_pyarrow_table().to_pylist()
    for row in found:
        assert "detail" not in row or row["detail"] == detail_of(row["key"], row["__START_AT"], row["value"])
    return sorted(((row["key"], row["value"], row["__START_AT"], row["__END_AT"]) for row in found), key=repr)


def history_model(changes: Iterable[Change]) -> list[Row]:
    """Return every row that each key had: it ends where the next change begins."""
    by_key: dict[str, dict[int, str | None]] = defaultdict(dict)
    for key, at, value in changes:
        by_key[key][at] = value
    rows: list[Row] = []
    for key, values in by_key.items():
        moments = sorted(values)
        for at, end in zip(moments, [*moments[1:], None], strict=True):
            if (value := values[at]) is not None:
                rows.append((key, value, at, end))
    return sorted(rows, key=repr)


@HISTORIES
@pytest.mark.usefixtures("berlin")
def test_histories_in_any_order_make_the_history_of_the_model(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    changes = histories(SEED, number)
    first, second, third = delivered(SEED, changes, 3)
    feed.apply(first, **HISTORY, **NESTED)
    assert history_of(table) == history_model(first)
    killed_between_the_commits(feed, second, monkeypatch, **HISTORY, **NESTED)
    assert history_of(table) == history_model(first)
    feed.apply(third, **HISTORY, **NESTED)
    assert history_of(table) == history_model([*first, *third])
    feed.apply(second, **HISTORY, **NESTED)
    assert history_of(table) == history_model(changes)


@pytest.mark.full
def test_negative_control_without_tombstones_a_late_row_does_not_end_where_it_was_deleted(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = RowHistory.source
    monkeypatch.setattr(RowHistory, "source", lambda self, rows, table, _: source(self, rows, table, None))
    changes = histories(SEED, 500)
    for batch in delivered(SEED, changes, 2):
        feed.apply(batch, **HISTORY)
    assert len(set(history_of(table)) - set(history_model(changes))) > 20


@pytest.mark.full
def test_a_row_of_a_history_has_from_the_one_before_what_its_change_does_not_say(
    feed: Feed, table: Path, spark: SparkSession
) -> None:
    full = spark.createDataFrame([("a", 1, "one", "red"), ("b", 1, "one", "blue")], f"{SCHEMA}, color string")
    how = {**HISTORY, "keys": ["key"], "sequence_by": "at", "apply_as_deletes": "value IS NULL"}
    apply_changes(feed.writer, full, **how)
    # The changes from here on have no color: those of a deleted row are gone, and what is late is between two.
    feed.apply([("a", 5, "five"), ("b", 2, None), ("b", 3, "three"), ("c", 1, "one")], **HISTORY)
    feed.apply([("a", 3, "three"), ("a", 5, "five")], **HISTORY)
    found = DeltaTable(table).to_pyarrow_table(columns=["key", "__START_AT", "__END_AT", "value", "color"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [
        ("a", 1, 3, "one", "red"),
        ("a", 3, 5, "three", "red"),
        ("a", 5, None, "five", "red"),
        ("b", 1, 2, "one", "blue"),
        ("b", 3, None, "three", None),
        ("c", 1, None, "one", None),
    ]


@pytest.mark.full
@pytest.mark.parametrize("scd_type", [1, 2])
def test_files_whose_keys_are_others_are_not_read(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch, scd_type: int
) -> None:
    """Spark 56016: its AutoCDC reads the table whole for each batch."""
    how = {"stored_as_scd_type": scd_type}
    feed.apply([("a", 1, "one"), ("b", 1, "one")], **how)
    feed.apply([("m", 1, "one")], **how)
    feed.apply([("y", 1, "one"), ("z", 1, "one")], **how)
    for file in pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist():
        if file["min.key"] != "m":
            (table / file["path"]).unlink()
    done = feed.apply([("m", 2, "two")], **how)
    assert done.changes == 1
    # Without the literals all files are looked into, and those are gone.
    monkeypatch.setattr(ChangeBatch, "bounds", lambda *_: F.expr("true"))
    with pytest.raises(WriteFailedError):
        feed.apply([("m", 3, "three")], **how)


@pytest.mark.full
@pytest.mark.parametrize("key", ["number * 5000000000", "timestamp_seconds(number * 86400 * 365)"])
def test_files_are_passed_over_by_numbers_and_by_moments_too(
    feed: Feed, table: Path, spark: SparkSession, key: str
) -> None:
    rows = spark.range(1, 6).withColumnRenamed("id", "number")
    rows = rows.selectExpr(f"{key} AS key", "number AS at", "'old' AS value")
    feed.writer.append(rows.repartitionByRange(5, "key"))
    files = sorted(
        pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist(), key=lambda each: each["min.key"]
    )
    assert len(files) == 5
    for number in (0, 2, 4):
        (table / files[number]["path"]).unlink()
    batch = ChangeBatch.__init__
    news = rows.where("at IN (2, 4)").withColumn("at", F.lit(9))
    with pytest.MonkeyPatch.context() as patch:
        # Of the middle one, which is between the two, its ranges tell.
        patch.setattr(ChangeBatch, "__init__", lambda *of, **how: batch(*of, **{**how, "range_column": "key"}))
        done = apply_changes(feed.writer, news, keys=["key"], sequence_by="at")
    assert done.updated == 2
    with pytest.raises(WriteFailedError):
        apply_changes(feed.writer, news.withColumn("at", F.lit(10)), keys=["key"], sequence_by="at")


def test_a_table_is_of_one_type(feed: Feed) -> None:
    feed.apply([("a", 1, "one")], **HISTORY)
    with pytest.raises(ChangesError, match="SCD type: 2 in the table, 1 in this run"):
        feed.apply([("a", 2, "two")], except_column_list=["at"])


def feeds_of_one_table(
    spark: SparkSession, managers: list[Any], table: Path, batches: list[list[Change]]
) -> list[BaseException]:
    """Apply a batch from each of several feeds at once, each with a lock manager of its own; return what failed."""
    with ThreadPoolExecutor(len(batches)) as pool:
        begun = [
            pool.submit(Feed(spark, manager, table).apply, batch, **HISTORY)
            for manager, batch in zip(managers, batches, strict=True)
        ]
        return [error for each in begun if (error := each.exception()) is not None]


def hot_batches() -> list[list[Change]]:
    chance = random.Random(SEED)
    batches: list[list[Change]] = [[] for _ in range(8)]
    for at in range(400):
        key = f"k{chance.randrange(20)}"
        batches[at % 8].append((key, at, None if chance.random() < DELETES else f"{key}@{at}"))
    return batches


def test_eight_feeds_at_once_leave_one_current_row_a_key(
    spark: SparkSession, make_manager: Callable[[], ZookeeperLockManager], feed: Feed, table: Path
) -> None:
    """What dbt-core 4661, dbt-adapters 1759 and mack 85 report of snapshots that run at the same time."""
    feed.apply([("first", 0, "first"), ("gone", 0, None)], **HISTORY)
    batches = hot_batches()
    failed = feeds_of_one_table(spark, [make_manager(timeout_seconds=300) for _ in batches], table, batches)
    assert failed == []
    assert history_of(table) == history_model(
        [("first", 0, "first"), *(change for batch in batches for change in batch)]
    )


def test_negative_control_with_locks_that_exclude_nobody_keys_have_several_current_rows(
    spark: SparkSession, feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As tools do that stage first and merge then: Delta takes a second try for new work, but its rows are old."""
    feed.apply([("first", 0, "first")], **HISTORY)
    # Without deletes: of those each feed would take the others' for what a killed one has left.
    batches = [[change for change in batch if change[2] is not None] for batch in hot_batches()[:3]]
    merge, all_staged = RowHistory.merge, threading.Barrier(len(batches))

    def stage_then_merge(self: RowHistory, writer: LockedDeltaWriter, source: DataFrame, within: Column) -> LockedMerge:
        staged = source.localCheckpoint()
        all_staged.wait(60)
        return merge(self, writer, staged, within)

    monkeypatch.setattr(RowHistory, "merge", stage_then_merge)
    # Each feed asks a coordinator of its own.
    failed = feeds_of_one_table(spark, [Memory().manager() for _ in batches], table, batches)
    current = [key for key, _, _, end in history_of(table) if end is None]
    assert len(current) > len(set(current)), failed


@pytest.mark.full
def test_feeds_of_different_partitions_run_side_by_side(
    spark: SparkSession, make_manager: Callable[..., ZookeeperLockManager], feed: Feed, table: Path
) -> None:
    how = {"keys": ["key", "value"], "apply_as_deletes": None}
    feed.apply([("a", 1, "x"), ("b", 1, "y")], partition_by=["key"], **how)
    meanwhile: list[object] = []

    def other_feed(_: object) -> None:
        other = Feed(spark, make_manager(timeout_seconds=60), table)
        with ThreadPoolExecutor(1) as pool:
            meanwhile.append(pool.submit(other.apply, [("b", 2, "y")], **how).result().updated)
            waits = pool.submit(other.apply, [("a", 3, "x")], lock_timeout_seconds=0.5, **how)
            meanwhile.append(waits.exception())

    # While the one feed has its lock, the other one's batch of another partition is applied; of the same one it waits.
    assert feed.apply([("a", 2, "x")], before_write=other_feed, **how).updated == 1
    assert meanwhile[0] == 1
    assert isinstance(meanwhile[1], LockTimeoutError)
    found = DeltaTable(table).to_pyarrow_table(columns=["key", "at"]).to_pylist()
    assert sorted((row["key"], row["at"]) for row in found) == [("a", 2), ("b", 2)]


def forget_at_once(feed: Feed, suffix: str) -> None:
    """Let the rows of a side table expire at once."""
    with locked(feed.spark, f"{feed.table}{suffix}", manager=feed.writer.manager):
        days = "'sluice.maintenance.forgetAfterDays' = '0'"
        feed.spark.sql(f"ALTER TABLE delta.`{feed.table}{suffix}` SET TBLPROPERTIES ({days})")


@pytest.mark.full
def test_what_is_remembered_is_not_rewritten_while_a_batch_is_to_be_undone(
    feed: Feed, table: Path, monkeypatch: pytest.MonkeyPatch, care: Callable[..., MaintenanceReport]
) -> None:
    how = {"keys": ["key", "value"], "apply_as_deletes": "at % 2 = 1"}
    feed.apply([("a", 2, "x"), ("b", 2, "x"), ("b", 1, "gone")], partition_by=["key"], **how)
    # Its tombstones are in two partitions. Each of the batches after it locks one of them, and undoes that one.
    killed_between_the_commits(feed, [("a", 5, "x"), ("b", 7, "x")], monkeypatch, **how)
    feed.apply([("a", 5, "y"), ("a", 4, "z")], **how)
    remaining = DeltaTable(f"{table}_tombstones").to_pyarrow_table().to_pylist()
    assert sorted((row["key"], row["__SEQUENCE"]) for row in remaining) == [("a", 5), ("b", 1), ("b", 7)]
    forget_at_once(feed, "_tombstones")
    version = DeltaTable(f"{table}_tombstones").version()
    (forgotten,) = care(Action.FORGET, suffix="_tombstones").done
    assert "was killed before it was applied" in str(forgotten.problem)
    assert DeltaTable(f"{table}_tombstones").version() == version
    feed.apply([("a", 4, "x")], **how)
    feed.apply([("b", 4, "x")], **how)
    found = DeltaTable(table).to_pyarrow_table(columns=["key", "at", "value"]).to_pylist()
    assert sorted(tuple(row.values()) for row in found) == [("a", 4, "x"), ("a", 4, "z"), ("b", 4, "x")]
    # It is undone, so that nothing is needed any more.
    (forgotten,) = care(Action.FORGET, suffix="_tombstones").done
    assert forgotten.problem is None
    assert DeltaTable(f"{table}_tombstones").to_pyarrow_table().num_rows == 0


def test_values_that_the_table_would_cut_are_refused(feed: Feed, table: Path) -> None:
    feed.apply([("a", 1, "one")])
    rows = feed.spark.createDataFrame([("a", 2.5, "two")], "key string, at double, value string")
    with pytest.raises(SchemaMismatchError, match="at: table bigint, rows double"):
        apply_changes(feed.writer, rows, keys=["key"], sequence_by="at")
    assert rows_of(table) == {"a": (1, "one")}


@pytest.mark.full
@pytest.mark.parametrize("scd_type", [1, 2])
def test_generated_columns_are_left_to_delta(
    spark: SparkSession, manager: ZookeeperLockManager, copy_of: Callable[..., Path], scd_type: int
) -> None:
    more = ", at LONG" if scd_type == 1 else ", __START_AT LONG, __END_AT LONG"
    generated = "twice STRING GENERATED ALWAYS AS (value || value)"
    table = copy_of(
        f"CREATE TABLE {{t}} (key STRING, value STRING, {generated}{more}) USING delta PARTITIONED BY (twice)"
    )
    feed, options = Feed(spark, manager, table), {} if scd_type == 1 else HISTORY
    feed.apply([("a", 1, "x"), ("b", 1, "x")], **options)
    feed.apply([("a", 3, "z"), ("b", 2, None)], **options)
    feed.apply([("a", 2, "y")], **options)
    rows = DeltaTable(table).to_pyarrow_table(columns=["key", "value", "twice"]).to_pylist()
    values = sorted(tuple(row.values()) for row in rows)
    history = [("a", "x", "xx"), ("a", "y", "yy"), ("a", "z", "zz"), ("b", "x", "xx")]
    assert values == ([("a", "z", "zz")] if scd_type == 1 else history)
