"""``apply_rows``: what is too late comes into a table of its own once, after its batch, and with that table's types."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import LockCancelledError, LockTimeoutError, ZookeeperLockManager
from tests.support.deliveries import Killed, end_of_the_process
from writer_jobs import LockedDeltaWriter, RowsResult, apply_rows
from writer_jobs.errors import ChangesError
from writer_jobs.late_rows.row_application import RowApplication

pytestmark = pytest.mark.spark

BEGIN = datetime(2013, 1, 1, tzinfo=UTC)
NEWEST = BEGIN + timedelta(days=100)
HOW: dict[str, Any] = {
    "keys": ["key"],
    "event_time": "at",
    "sequence_by": "version",
    "newest_before": NEWEST,
    "allowed_lateness": timedelta(days=10),
}
KNOWN, SECOND = (1, 1, 1, "known"), (2, 1, 1, "second")


@pytest.fixture
def apply(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Callable[..., RowsResult]:
    """Apply rows, each a key, a day, a version and a value: ``apply((1, 1, 1, "x"), txn=…)``."""
    writer = LockedDeltaWriter(spark, manager, str(table))

    def run(*rows: tuple[Any, ...], **how: Any) -> RowsResult:
        timed = [(key, None if day is None else BEGIN + timedelta(days=day), *more) for key, day, *more in rows]
        schema = how.pop("schema", "key long, at timestamp, version int, value string")
        return apply_rows(how.pop("writer", writer), spark.createDataFrame(timed, schema), **{**HOW, **how})

    return run


def counted(done: RowsResult) -> tuple[int, int, int, int]:
    return done.inserted, done.updated, done.repeated, done.too_late


@pytest.mark.full
def test_what_is_too_late_is_written_once_after_its_batch_and_repetitions_are_not(
    apply: Callable[..., RowsResult],
    table: Path,
    rows_of: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Refused, killed between the two commits, tried again; the control has no transaction."""
    late, columns = Path(f"{table}_late"), ("key", "version", "value")
    apply(KNOWN, SECOND, newest_before=None, txn=("s", 0))
    # A batch that is refused leaves nothing, whatever it has then.
    with pytest.raises(ChangesError, match="key=7"):
        apply((3, 1, 1, "of before it was mended"), (7, None, 1, "x"), txn=("s", 1))
    assert not late.exists()
    # The table has the first three of what is too late, as new or newer.
    batch = [KNOWN, SECOND, (2, 1, 0, "older"), (2, 1, 2, "newer"), (1, 1, 1, "other"), (3, 1, 1, "new")]
    in_time = (4, 95, 1, "in time")
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(RowApplication, "_append_too_late", end_of_the_process)
        apply(*batch, in_time, txn=("s", 1))
    assert not late.exists()
    expected = [(1, 1, "other"), (2, 2, "newer"), (3, 1, "new")]
    for _ in range(2):
        done = apply(*batch, in_time, txn=("s", 1))
        assert (done.already_applied, counted(done)) == (True, (0, 0, 3, 3))
        assert rows_of(late, *columns) == expected
    # One with nothing in time has no commit in the table; one application is all that either log keeps.
    for _ in range(2):
        assert counted(apply((5, 1, 1, "alone"), txn=("s", 2))) == (0, 0, 0, 1)
    expected.append((5, 1, "alone"))
    assert rows_of(late, *columns) == expected
    assert [DeltaTable(late).transaction_version(name) for name in ("s/late", "s")] == [2, None]
    assert DeltaTable(table).transaction_version("s") == 1
    assert rows_of(table, "key", "value") == [(1, "known"), (2, "second"), (4, "in time")]
    assert counted(apply((5, 1, 1, "alone"))) == (0, 0, 0, 1)
    assert rows_of(late, *columns) == sorted([*expected, (5, 1, "alone")])


@pytest.mark.full
def test_the_late_rows_table_gets_columns_and_wider_types_and_waits_no_longer_than_it_may(
    apply: Callable[..., RowsResult],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    make_rival: Callable[..., Any],
    table: Path,
    rows_of: Callable[..., Any],
    eventually: Callable[..., None],
) -> None:
    late, whole = Path(f"{table}_late"), "key long, at timestamp, version int, seats {}"
    big = 1 << 40
    how: dict[str, Any] = {"schema_evolution": True}
    apply((1, 99, 1, 7), **how, newest_before=None, schema=whole.format("int"))
    apply((2, 1, 1, 8), **how, schema=whole.format("int"))
    apply((3, 1, 1, big), **how, schema=whole.format("long"))
    apply((4, 1, 1, 9, "later"), **how, schema=whole.format("int") + ", gate string")
    # Another hold of the table's lock: the first waits its time, the second gives up when it is told to.
    rival, writer = make_rival(), LockedDeltaWriter(spark, manager, str(table))
    with rival.acquire(str(late)), ThreadPoolExecutor(1) as pool:
        with pytest.raises(LockTimeoutError) as refused:
            apply((5, 1, 1, 10), **how, schema=whole.format("int"), lock_timeout_seconds=1, txn=("s", 1))
        assert refused.value.timeout_seconds <= 1
        waits = pool.submit(apply, (5, 1, 1, 10), **how, schema=whole.format("int"), txn=("s", 1), writer=writer)
        eventually(lambda: len(manager.queue(str(late))) == 2, within=60, what="a write that waits")
        writer.give_up()
        with pytest.raises(LockCancelledError):
            waits.result(60)
    apply((5, 1, 1, 10), **how, schema=whole.format("int"), txn=("s", 1))
    # Not every reader knows of wider types.
    found = spark.read.format("delta").load(str(late)).select("key", "seats", "gate").orderBy("key").collect()
    assert [tuple(each) for each in found] == [(2, 8, None), (3, big, None), (4, 9, "later"), (5, 10, None)]
    assert rows_of(table, "key", "seats") == [(1, 7)]
