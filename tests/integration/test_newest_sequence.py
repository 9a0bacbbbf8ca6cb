"""Batches that are newer than all of the table are not compared with it, if the writer knows that they are."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.deliveries import Killed, kill_process
from writer_jobs import LockedDeltaWriter, apply_changes
from writer_jobs.merge.batch_applier import BatchApplier
from writer_jobs.merge.newest_sequence import TableVersions
from writer_jobs.merge.result import ChangesResult
from writer_jobs.merge.scd1 import NewestRows
from writer_jobs.merge.side_table import SideTable

pytestmark = pytest.mark.spark

Change = tuple[str, int, str | None]
"""Key, sequence and value. A null value is a delete."""


class Feed:
    """Applies changes with one writer."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> None:
        self.spark, self.table = spark, table
        self.writer = LockedDeltaWriter(spark, manager, str(table))

    def apply(self, *changes: Change, **options: Any) -> ChangesResult:
        rows = self.spark.createDataFrame(list(changes), "key string, at long, value string")
        return apply_changes(
            self.writer, rows, **{"keys": ["key"], "sequence_by": "at", "apply_as_deletes": "value IS NULL", **options}
        )

    def values(self) -> dict[str, str]:
        return {row["key"]: row["value"] for row in DeltaTable(self.table).to_pyarrow_table().to_pylist()}


@pytest.fixture
def new_feed(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Callable[[], Feed]:
    """Return a function that returns one more writer of the same table."""
    return lambda: Feed(spark, manager, table)


@pytest.fixture
def feed(new_feed: Callable[[], Feed]) -> Feed:
    return new_feed()


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return the results of the comparisons of batches with the table, one for each that ran."""
    results: list[bool] = []
    compare = NewestRows.needs_comparison

    def recorded(self: NewestRows, *arguments: Any) -> bool:
        results.append(compare(self, *arguments))
        return results[-1]

    monkeypatch.setattr(NewestRows, "needs_comparison", recorded)
    return results


def test_a_writer_alone_compares_only_what_is_late(feed: Feed, compared: list[bool]) -> None:
    feed.apply(("a", 1, "one"), ("b", 1, "one"))
    feed.apply(("b", 2, None))
    compared.clear()
    feed.apply(("a", 3, "3"))
    # The newest sequence of the table is that of a tombstone.
    feed.apply(("a", 4, "4"), ("d", 5, None))
    assert (feed.values(), compared) == ({"a": "4"}, [])
    feed.apply(("d", 4, "late"), ("a", 5, "5"))
    feed.apply(("a", 6, "6"))
    assert (feed.values(), compared) == ({"a": "6"}, [True])


@pytest.mark.full
def test_the_newest_sequence_is_queried_if_the_first_batch_was_not_the_newest(
    feed: Feed, new_feed: Callable[[], Feed], compared: list[bool]
) -> None:
    feed.apply(("a", 50, "50"), ("b", 60, None))
    restarted = new_feed()
    restarted.apply(("c", 10, "10"))
    compared.clear()
    restarted.apply(("b", 20, "late"))
    restarted.apply(("c", 55, "55"))
    restarted.apply(("c", 61, "61"))
    assert (restarted.values(), compared) == ({"a": "50", "c": "61"}, [True, False])


@pytest.mark.parametrize("knows_versions", [True, pytest.param(False, id="control")])
def test_a_commit_of_another_writer_makes_the_newest_sequence_unknown(
    feed: Feed,
    new_feed: Callable[[], Feed],
    monkeypatch: pytest.MonkeyPatch,
    compared: list[bool],
    *,
    knows_versions: bool,
) -> None:
    for at in (1, 2):
        feed.apply(("a", at, f"{at}"), ("d", at, None))
    new_feed().apply(("b", 9, None))
    compared.clear()
    if not knows_versions:
        monkeypatch.setattr(TableVersions, "__eq__", lambda *_: True)
    feed.apply(("b", 5, "late"), ("a", 5, "5"))
    assert feed.values() == ({"a": "5"} if knows_versions else {"a": "5", "b": "late"})
    assert compared == ([True] if knows_versions else [])


@pytest.mark.full
@pytest.mark.parametrize("checks_versions", [True, pytest.param(False, id="control")])
def test_a_commit_to_another_partition_during_a_batch_makes_the_newest_sequence_unknown(
    feed: Feed, new_feed: Callable[[], Feed], monkeypatch: pytest.MonkeyPatch, *, checks_versions: bool
) -> None:
    second_feed, add = new_feed(), SideTable.add
    for at in range(1, 4):
        feed.apply(("a", at, f"{at}"), ("d", at, None), ("z", at, "z"), partition_by=["key"])

    def add_after_another(self: SideTable, *arguments: Any) -> Any:
        monkeypatch.setattr(SideTable, "add", add)
        with ThreadPoolExecutor() as threads:
            threads.submit(second_feed.apply, ("z", 9, None)).result()
        return add(self, *arguments)

    if not checks_versions:
        monkeypatch.setattr(TableVersions, "follow", lambda *_: True)
    monkeypatch.setattr(SideTable, "add", add_after_another)
    feed.apply(("a", 4, "4"), ("d", 4, None))
    feed.apply(("z", 7, "late"))
    assert feed.values() == ({"a": "4"} if checks_versions else {"a": "4", "z": "late"})


@pytest.mark.full
def test_failures_and_other_writes_make_the_newest_sequence_unknown(feed: Feed, compared: list[bool]) -> None:
    for at in range(1, 4):
        feed.apply(("a", at, f"{at}"), (f"d{at}", at, None))
    feed.writer.delete("key = 'a'")
    compared.clear()
    feed.apply(("a", 4, "4"))
    feed.apply(("a", 5, "5"))
    assert compared == [False]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(BatchApplier, "_merge", kill_process)
        feed.apply(("a", 6, "6"))
    # The killed batch has left the versions that it found.
    feed.apply(("a", 7, "7"))
    feed.apply(("a", 8, "8"))
    assert (feed.values(), compared) == ({"a": "8"}, [False, False])


@pytest.mark.full
@pytest.mark.parametrize(
    "sequence",
    # The texts are beyond the code points that UTF-16 has in one unit, and just below these.
    ["timestamp_seconds(at)", "date_from_unix_date(at)", "IF(at < 5, '\uffee', '\U0001f600') || lpad(at, 20, '0')"],
)
def test_sequences_of_all_types_are_ordered_as_spark_orders_them(
    feed: Feed, compared: list[bool], sequence: str
) -> None:
    feed.apply(("a", 1, "1"), ("d", 1, None), sequence_by=sequence)
    feed.apply(("a", 2, "2"), sequence_by=sequence)
    compared.clear()
    feed.apply(("a", 4, "4"), ("d", 6, None), sequence_by=sequence)
    feed.apply(("a", 7, "7"), sequence_by=sequence)
    assert (feed.values(), compared) == ({"a": "7"}, [])
    feed.apply(("d", 4, "late"), ("b", 7, "7"), sequence_by=sequence)
    assert (feed.values(), compared) == ({"a": "7", "b": "7"}, [True])


@pytest.mark.full
@pytest.mark.parametrize("sequence", ["double(at)", "struct(at)"])
def test_sequences_that_python_may_order_differently_are_always_compared(
    feed: Feed, compared: list[bool], sequence: str
) -> None:
    for at in range(1, 5):
        feed.apply(("a", at, f"{at}"), sequence_by=sequence)
    assert (feed.values(), compared) == ({"a": "4"}, [False] * 4)
