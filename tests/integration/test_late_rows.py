"""``apply_rows`` writes late rows once, after their batch, to a second table with types of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import LockCancelledError, ZookeeperLockManager
from tests.support.deliveries import Killed, kill_process
from tests.support.waiting import lock_timeout
from writer_jobs import LockedDeltaWriter, RowsResult, apply_rows
from writer_jobs.errors import ChangesError
from writer_jobs.late_rows.apply import RowBatchApplier

pytestmark = pytest.mark.spark

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
NEWEST = BEGIN + timedelta(days=100)
OPTIONS: dict[str, Any] = {
    "keys": ["key"],
    "event_time": "at",
    "sequence_by": "version",
    "newest_before": NEWEST,
    "allowed_lateness": timedelta(days=10),
}
COLUMNS = "key long, at timestamp, version int"
STORED_ROWS = [(1, 1, 1, "first"), (2, 1, 1, "second")]


@pytest.fixture
def apply(spark: SparkSession, writer: LockedDeltaWriter) -> Callable[..., RowsResult]:
    """Apply rows of key, day, version and value: ``apply((1, 1, 1, "x"), txn=…)``."""

    def run(*rows: tuple[Any, ...], schema: str = f"{COLUMNS}, value string", **options: Any) -> RowsResult:
        timestamped_rows = [
            (key, None if day is None else BEGIN + timedelta(days=day), *columns) for key, day, *columns in rows
        ]
        return apply_rows(writer, spark.createDataFrame(timestamped_rows, schema), **{**OPTIONS, **options})

    return run


def counts(result: RowsResult) -> tuple[int, int, int, int]:
    return result.inserted, result.updated, result.repeated, result.too_late


@pytest.mark.full
def test_late_rows_are_written_once_after_their_batch(
    apply: Callable[..., RowsResult], table: Path, rows_of: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is refused, killed between its two commits, and repeated. The control has no transaction."""
    late_table, columns = Path(f"{table}_late"), ("key", "version", "value")
    apply(*STORED_ROWS, newest_before=None, txn=("s", 0))
    # A refused batch writes nothing. Its repetition may have other rows.
    with pytest.raises(ChangesError, match="key=7"):
        apply((3, 1, 1, "refused"), (7, None, 1, "x"), txn=("s", 1))
    assert not late_table.exists()
    # All of these rows are too late. The table has the versions of the first three, or newer ones.
    late_rows = [*STORED_ROWS, (2, 1, 0, "older"), (2, 1, 2, "newer"), (1, 1, 1, "other"), (3, 1, 1, "new")]
    row_in_time = (4, 95, 1, "in time")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RowBatchApplier, "_append_too_late", kill_process)
        apply(*late_rows, row_in_time, txn=("s", 1))
    assert not late_table.exists()
    expected = [(1, 1, "other"), (2, 2, "newer"), (3, 1, "new")]
    for _ in range(2):
        result = apply(*late_rows, row_in_time, txn=("s", 1))
        assert (result.already_applied, counts(result)) == (True, (0, 0, 3, 3))
        assert rows_of(late_table, *columns) == expected
    # A batch without rows in time makes no commit in the table. The late rows' table has its own application id.
    for _ in range(2):
        assert counts(apply((5, 1, 1, "alone"), txn=("s", 2))) == (0, 0, 0, 1)
    expected.append((5, 1, "alone"))
    assert rows_of(late_table, *columns) == expected
    assert [DeltaTable(late_table).transaction_version(name) for name in ("s/late", "s")] == [2, None]
    assert DeltaTable(table).transaction_version("s") == 1
    assert rows_of(table, "key", "value") == [(1, "first"), (2, "second"), (4, "in time")]
    # The control: without a transaction, the row is written a second time.
    assert counts(apply((5, 1, 1, "alone"))) == (0, 0, 0, 1)
    assert rows_of(late_table, *columns) == sorted([*expected, (5, 1, "alone")])


@pytest.mark.full
def test_late_rows_evolve_their_table_within_the_lock_timeout(
    apply: Callable[..., RowsResult],
    writer: LockedDeltaWriter,
    spark: SparkSession,
    manager: ZookeeperLockManager,
    make_rival: Callable[..., Any],
    table: Path,
    rows_of: Callable[..., Any],
    eventually: Callable[..., None],
) -> None:
    late_table, large_number = f"{table}_late", 1 << 40
    seats_int, seats_long = f"{COLUMNS}, seats int", f"{COLUMNS}, seats long"
    options: dict[str, Any] = {"schema_evolution": True, "schema": seats_int}
    apply((1, 99, 1, 7), **options, newest_before=None)
    apply((2, 1, 1, 8), **options)
    apply((3, 1, 1, large_number), **{**options, "schema": seats_long})
    apply((4, 1, 1, 9, "later"), **{**options, "schema": f"{seats_int}, gate string"})
    # A rival holds the lock of the late rows. One write waits until its timeout, the other until it is cancelled.
    rival, batch = make_rival(), (5, 1, 1, 10)
    options["txn"] = ("s", 1)
    with rival.acquire(late_table), ThreadPoolExecutor(1) as pool:
        assert lock_timeout(lambda: apply(batch, **options, lock_timeout_seconds=1)).timeout_seconds <= 1
        waiting_write = pool.submit(apply, batch, **options)
        eventually(lambda: len(manager.queue(late_table)) == 2, within=60, label="a waiting write")
        writer.give_up()
        with pytest.raises(LockCancelledError):
            waiting_write.result(60)
    apply(batch, **options)
    # delta-rs does not read a table with type widening.
    rows = spark.read.format("delta").load(late_table).select("key", "seats", "gate").orderBy("key").collect()
    assert [tuple(row) for row in rows] == [(2, 8, None), (3, large_number, None), (4, 9, "later"), (5, 10, None)]
    assert rows_of(table, "key", "seats") == [(1, 7)]
