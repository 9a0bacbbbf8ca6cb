"""Tables with ``delta.setTransactionRetentionDuration``: old transactions are dropped, and late repetitions refused."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.support.deliveries import Killed, kill_process
from tests.support.error_line import error_line
from writer_jobs import ChangesResult, CheckpointError, LockedDeltaWriter
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.streaming.query import BatchQuery

pytestmark = [pytest.mark.spark, pytest.mark.full]

CREATE = "CREATE TABLE {t} (id BIGINT) USING delta"
DROP_OLD = "ALTER TABLE {table} SET TBLPROPERTIES ('delta.setTransactionRetentionDuration' = 'interval 30 days')"
DAY = 86_400


def make_old(file: Path, days: float) -> None:
    """Set the modification time of a file, also for Spark's checksum of it."""
    os.utime(file, (time.time() - days * DAY,) * 2)


def transaction(app_id: str, days: float) -> str:
    """Return a line of a version file: the transaction of an application, made some days ago."""
    updated_ms = int((time.time() - days * DAY) * 1000)
    return json.dumps({"txn": {"appId": app_id, "version": 1, "lastUpdated": updated_ms}}) + "\n"


def make_transactions_old(table: Path, days: float) -> None:
    """Rewrite the version files of a table, as if its transactions had been made some days ago."""
    for path in table.glob("_delta_log/*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "txn" in action:
                action["txn"]["lastUpdated"] -= int(days * DAY * 1000)
        path.write_text("".join(json.dumps(action, separators=(",", ":")) + "\n" for action in actions))
    for checksum in list(table.glob("_delta_log/*.crc")):
        checksum.unlink()


def transactions_in_checkpoint(table: Path) -> set[str]:
    """Return the applications in the newest checkpoint of a table."""
    rows = pq.read_table(max(table.glob("_delta_log/*.checkpoint*.parquet")), columns=["txn"])["txn"].to_pylist()
    return {row["appId"] for row in rows if row is not None}


@pytest.fixture
def remove_protection(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let no transaction count as dropped."""
    return lambda: monkeypatch.setattr(Snapshot, "may_have_dropped", lambda *_: False)


def test_old_transactions_leave_state_and_checkpoint(
    copy_of: Callable[..., Path], writer: LockedDeltaWriter, sql: Callable[[str], None], spark: SparkSession
) -> None:
    table = copy_of(CREATE)
    (table / "_delta_log" / f"{1:020d}.json").write_text(
        '{"commitInfo":{"timestamp":0,"operation":"WRITE","operationParameters":{}}}\n'
        + "".join(transaction(f"run {number}", days=31) for number in range(20))
        + "".join(transaction(f"young run {number}", days=days) for number, days in enumerate((29.5, 8, 1)))
    )
    old_runs, young_runs = {f"run {number}" for number in range(20)}, {f"young run {number}" for number in range(3)}

    def figures() -> tuple[list[int], list[float]]:
        """Return the transactions that our jobs read, and the ages in days at which "run 0" may have been dropped."""
        snapshot, now = writer.log.snapshot(), time.time()
        assert not snapshot.may_have_dropped("young run 0", 0)
        ages = [days for days in (40, 29.5, 28.5, 0) if snapshot.may_have_dropped("run 0", now - days * DAY)]
        return [writer.log.head(run).last_transaction for run in ("run 0", "young run 0")], ages

    # Negative control: without the property all of them remain.
    writer.append(spark.range(1), txn=("new run", 1))
    writer.log.make_newest_checkpoint()
    assert transactions_in_checkpoint(table) == {*old_runs, *young_runs, "new run"}
    assert figures() == ([1, 1], [])

    sql(DROP_OLD)
    writer.append(spark.range(1), txn=("new run", 2))
    writer.log.make_newest_checkpoint()
    assert transactions_in_checkpoint(table) == {*young_runs, "new run"}
    assert figures() == ([-1, 1], [40, 29.5])
    assert writer.log.snapshot().transaction_retention_seconds == 30 * DAY


def test_a_load_with_a_dropped_transaction_is_refused(
    copy_of: Callable[..., Path],
    csv_file: Callable[..., Path],
    run_job: Callable[..., Any],
    rows_of: Callable[..., Any],
    sql: Callable[[str], None],
    remove_protection: Callable[[], None],
) -> None:
    table = copy_of(CREATE)
    old_source, new_source = csv_file("old.csv", "id", [(1,)]), csv_file("new.csv", "id", [(2,)])
    make_old(old_source, days=32)
    old_load = ("overwrite", "--table", table, "--source", old_source, "--run-id", "old")
    new_load = ("overwrite", "--table", table, "--source", new_source, "--run-id", "new")
    assert run_job(*old_load).code == 0
    make_transactions_old(table, days=31)
    sql(DROP_OLD)
    assert [run_job(*new_load).commits[0]["already_committed"] for _ in range(2)] == [False, True]

    outcome = run_job(*old_load)
    assert (outcome.code, rows_of(table, "id")) == (2, [(2,)])
    assert "may have been applied before" in error_line(outcome)
    # Negative control: without the protection the load replaces newer rows.
    remove_protection()
    assert (run_job(*old_load).code, rows_of(table, "id")) == (0, [(1,)])


@dataclass
class Copies:
    """A stream that appends its source to the table."""

    spark: SparkSession
    writer: LockedDeltaWriter
    folder: Path

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def run(self, then: Callable[[], None] = lambda: None) -> None:
        """Run the stream until it ends. Each batch calls ``then`` after its commit."""

        def apply(rows: DataFrame, txn: tuple[str, int], _: object) -> ChangesResult:
            commit = self.writer.append(rows.localCheckpoint(), txn=txn)
            then()
            return ChangesResult(table=self.writer.table, commit=commit)

        rows = self.spark.readStream.schema("id long").json(str(self.folder / "landing"))
        BatchQuery(self.writer, self, apply).run(rows, trigger="available-now", checkpoint=str(self.checkpoint))

    def begun(self, *_: Any, **__: Any) -> None: ...
    def holding(self, *_: Any, **__: Any) -> None: ...
    def commit(self, *_: Any, **__: Any) -> None: ...


def test_a_batch_with_a_dropped_transaction_is_refused(
    copy_of: Callable[..., Path],
    writer: LockedDeltaWriter,
    rows_of: Callable[..., Any],
    sql: Callable[[str], None],
    spark: SparkSession,
    tmp_path: Path,
    remove_protection: Callable[[], None],
) -> None:
    table, copies = copy_of(CREATE), Copies(spark, writer, tmp_path)
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "1.json").write_text('{"id": 1}\n')
    with pytest.raises(Killed):
        copies.run(then=kill_process)
    sql(DROP_OLD)
    with pytest.raises(Killed):
        # A young batch is repeated, and its transaction is in the table.
        copies.run(then=kill_process)
    assert rows_of(table, "id") == [(1,)]

    make_transactions_old(table, days=31)
    make_old(copies.checkpoint / "offsets" / "0", days=31)
    # Delta notices an expired transaction with the next version.
    writer.append(spark.range(7, 8))
    with pytest.raises(CheckpointError, match=r"batch 0 of .* may have been applied before"):
        copies.run()
    assert rows_of(table, "id") == [(1,), (7,)]
    # Negative control: without the protection the batch is applied twice.
    remove_protection()
    copies.run()
    assert rows_of(table, "id") == [(1,), (1,), (7,)]
