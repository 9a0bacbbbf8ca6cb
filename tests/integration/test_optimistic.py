"""Writers without a lock (``optimistic://``): nothing is lost, what was read still holds, and the rest is refused."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from typer.testing import CliRunner

import lock_manager
from lock_manager import (
    EnsembleMismatchError,
    LockSettings,
    UnsupportedLockError,
    ZookeeperLockManager,
)
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.optimistic import OptimisticHold, OptimisticManager
from lock_manager.table_records.commit_stamp import RECORDS
from sluice.adopt import adopt_table
from sluice.audit.verify import verify_table
from sluice.commands.app import app
from tests.support.append_rows import HEADER, ROWS
from tests.support.at_the_gate import commit_info
from tests.support.waiting import eventually
from writer_jobs import LockedDeltaWriter, RetriesExhaustedError, WriteConflictError, locked, locked_all
from writer_jobs import append as append_module
from writer_jobs import upsert as upsert_module
from writer_jobs.commit import locked_operation

pytestmark = pytest.mark.spark

URL = "optimistic://"
TABLE = "CREATE TABLE {t} (id LONG) USING delta TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"
FIRST_ROW = "INSERT INTO {t} VALUES (0)"


@dataclass
class Table:
    """A table with one row, and writers of it that take no lock."""

    spark: SparkSession
    path: Path
    stack: ExitStack

    def writer(self, url: str = URL) -> LockedDeltaWriter:
        """Open a writer with a manager of its own, as another program would."""
        manager = self.stack.enter_context(lock_manager.connect(url, timeout_seconds=120))
        return LockedDeltaWriter(self.spark, manager, str(self.path))

    def rows(self, *ids: int) -> DataFrame:
        return self.spark.createDataFrame([(number,) for number in ids], "id long").coalesce(1)

    def rival_append(self, number: int) -> None:
        """Append a row with delta-rs."""
        write_deltalake(str(self.path), pa.table({"id": pa.array([number], pa.int64())}), mode="append")

    def rival_overwrite(self, number: int) -> None:
        """Replace all rows with delta-rs."""
        write_deltalake(str(self.path), pa.table({"id": pa.array([number], pa.int64())}), mode="overwrite")

    def ids(self) -> list[int]:
        return sorted(DeltaTable(str(self.path)).to_pyarrow_table()["id"].to_pylist())

    def stamps(self) -> list[dict[str, Any]]:
        """Return the stamps of all commits, in the order of versions."""
        infos = (commit_info(self.path, version) for version in range(DeltaTable(str(self.path)).version() + 1))
        return [info[RECORDS] for info in infos if RECORDS in info]

    def next_id(self) -> DataFrame:
        """Return a row with the largest id of the table, plus one; another writer appends that id while Spark reads.

        The read is one of the change feed: Delta does not register it, so its conflict check does not cover it.
        """
        began, done = self.path.parent / "began", self.path.parent / "done"

        def wait_for_rival(number: int) -> int:
            began.touch()
            while not done.exists():
                time.sleep(0.01)
            return number

        def append_as_rival() -> None:
            eventually(began.exists, 60)
            self.rival_append(1)
            done.touch()

        threading.Thread(target=append_as_rival, daemon=True).start()
        feed = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", 0)
        largest = feed.load(str(self.path)).groupBy().agg({"id": "max"}).toDF("id")
        # Workers that run it have no deltalake.
        waits_for_rival = udf(wait_for_rival, "long", useArrow=False)
        return largest.select(waits_for_rival(largest.id + 1).alias("id")).coalesce(1)


@pytest.fixture
def table(spark: SparkSession, copy_of: Callable[..., Path]) -> Iterator[Table]:
    with ExitStack() as stack:
        yield Table(spark, copy_of(TABLE, FIRST_ROW), stack)


@pytest.fixture(autouse=True)
def few_and_short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locked_operation, "_FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(locked_operation, "_OPTIMISTIC_TRIES", 4)


def test_appends_of_several_writers_are_all_in_the_table(table: Table) -> None:
    writers = [table.writer() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda writer, first: writer.append(table.rows(first)), writers * 3, range(1, 10)))
    assert table.ids() == list(range(10))
    assert sorted(result.version for result in results if result.version is not None) == list(range(2, 11))
    verification = verify_table(str(table.path))
    assert verification.problems == ()
    stamps = table.stamps()[-9:]
    assert {stamp["ensemble"] for stamp in stamps} == {"optimistic"}
    # Each token is the version, and shared: such holds overlap.
    assert [(node["token"], node["mode"]) for stamp in stamps for node in stamp["nodes"]] == [
        (version, "shared") for version in range(2, 11)
    ]


def test_a_write_is_repeated_if_what_it_read_has_changed(table: Table) -> None:
    result = table.writer().append(table.next_id())
    assert table.ids() == [0, 1, 2]
    assert result.version == 3


def test_control_without_the_check_of_the_version_read_an_id_is_assigned_twice(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedBlock, "require_unchanged_since", lambda *_: None)
    table.writer().append(table.next_id())
    assert table.ids() == [0, 1, 1]


Interrupt = Callable[[Callable[[], object]], dict[str, Any]]


@pytest.fixture(params=["commit", "write"])
def interrupted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Interrupt:
    """Call a function between the read and the commit of each try; return the options of the write."""

    def interrupt(action: Callable[[], object]) -> dict[str, Any]:
        if request.param == "write":
            return {"lock_during": "write", "before_write": lambda _: action()}
        run = OptimisticManager._run

        def act_first(*arguments: Any) -> OptimisticHold:
            action()
            return run(*arguments)

        # The commit waits at the gate by then.
        monkeypatch.setattr(OptimisticManager, "_run", act_first)
        return {"lock_during": "commit"}

    return interrupt


def test_a_write_that_loses_against_another_is_repeated(table: Table, interrupted: Interrupt) -> None:
    calls = itertools.count()
    table.writer().update({"id": "id + 1"}, **interrupted(lambda: next(calls) or table.rival_overwrite(7)))
    assert table.ids() == [8]


def test_a_write_that_always_loses_ends_with_the_conflict(table: Table, interrupted: Interrupt) -> None:
    calls = itertools.count(1)
    with pytest.raises(RetriesExhaustedError, match=r"faster each time \(tries: 4\)") as caught:
        table.writer().update({"id": "id + 100"}, **interrupted(lambda: table.rival_overwrite(next(calls))))
    assert caught.value.__cause__ is not None
    assert table.ids() == [4]


def test_a_time_limit_of_zero_means_one_try(table: Table, interrupted: Interrupt) -> None:
    calls = itertools.count(1)
    options = interrupted(lambda: table.rival_overwrite(next(calls)))
    with pytest.raises(RetriesExhaustedError, match=r"tries: 1\)"):
        table.writer().update({"id": "id + 100"}, **options, lock_timeout_seconds=0)
    assert next(calls) == 2


def test_what_before_write_has_read_still_holds_at_the_commit(table: Table) -> None:
    reads = []

    def read_and_let_the_rival_append(_: lock_manager.Hold) -> None:
        reads.append(len(table.ids()))
        if len(reads) == 1:
            table.rival_append(5)

    table.writer().append(table.rows(1), before_write=read_and_let_the_rival_append)
    assert (reads, table.ids()) == ([1, 2], [0, 1, 5])


def test_an_error_of_before_write_ends_the_write(table: Table) -> None:
    calls = itertools.count(1)

    def fail(_: lock_manager.Hold) -> None:
        next(calls)
        raise WriteConflictError(table=str(table.path), reason="no")

    with pytest.raises(WriteConflictError, match="no"):
        table.writer().append(table.rows(1), before_write=fail)
    assert next(calls) == 2


def test_tables_with_hooks_are_refused(table: Table, unguarded_sql: Callable[[str], None]) -> None:
    properties = "'delta.compatibility.symlinkFormatManifest.enabled' = 'true'"
    unguarded_sql(f"ALTER TABLE delta.`{table.path}` SET TBLPROPERTIES ({properties})")
    with pytest.raises(UnsupportedLockError, match="after the commit, and optimistic:// has no locks"):
        table.writer().append(table.rows(1))
    assert table.ids() == [0]


def test_a_transaction_is_written_once(table: Table) -> None:
    writers = [table.writer() for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lambda writer: writer.append(table.rows(1), txn=("load", 1)), writers * 2))
    assert table.ids() == [0, 1]
    assert sorted(result.already_committed for result in results) == [False, True, True, True]


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda table, writer: writer.manager.acquire(str(table.path)), "needs a lock"),
        (
            lambda table, writer: locked(table.spark, str(table.path), manager=writer.manager).__enter__(),
            "needs a lock",
        ),
        (
            lambda table, writer: locked_all(
                table.spark, {str(table.path): None, f"{table.path}-2": None}, manager=writer.manager
            ).__enter__(),
            "needs a lock",
        ),
        (
            lambda table, writer: writer.append(table.rows(1).selectExpr("id", "id AS p"), lock=[{"p": 1}]),
            "asks for a lock on partitions",
        ),
    ],
)
def test_work_that_needs_a_lock_is_refused(table: Table, work: Callable[..., Any], reason: str, copy_of: Any) -> None:
    if "partitions" in reason:
        table.path = copy_of("CREATE TABLE {t} (id LONG, p LONG) USING delta PARTITIONED BY (p)", to="partitioned")
    version = DeltaTable(str(table.path)).version()
    with pytest.raises(
        UnsupportedLockError, match=f"this work {reason}.*use zookeeper:// without a fallback, or s3-lease://"
    ):
        work(table, table.writer())
    assert DeltaTable(str(table.path)).version() == version


def test_without_the_guard_nothing_is_written(
    table: Table, without_guard: Callable[..., AbstractContextManager[None]]
) -> None:
    with without_guard(), pytest.raises(UnsupportedLockError, match="no commit guard"):
        table.writer().append(table.rows(1))
    assert table.ids() == [0]


def test_a_table_belongs_to_writers_with_or_without_locks(
    table: Table, manager: ZookeeperLockManager, zookeeper: Any
) -> None:
    without_locks, on_zookeeper = LockSettings(lock_url=URL), LockSettings(zk_hosts=zookeeper.hosts)
    assert adopt_table(table.spark, str(table.path), without_locks).ensemble == "optimistic"
    table.writer().append(table.rows(1))
    with pytest.raises(EnsembleMismatchError, match="adopted by ensemble optimistic"):
        LockedDeltaWriter(table.spark, manager, str(table.path)).append(table.rows(2))
    moved = adopt_table(table.spark, str(table.path), on_zookeeper, move=True, old_hosts=URL)
    assert moved.moved_from == "optimistic"
    LockedDeltaWriter(table.spark, manager, str(table.path)).append(table.rows(3))
    with pytest.raises(EnsembleMismatchError, match="acquired in ensemble optimistic"):
        table.writer().append(table.rows(4))
    back = adopt_table(table.spark, str(table.path), without_locks, move=True, old_hosts=zookeeper.hosts)
    assert back.moved_from == moved.ensemble
    assert table.ids() == [0, 1, 3]
    assert verify_table(str(table.path)).problems == ()


def test_jobs_append_without_locks_and_refuse_what_needs_them(
    table: Table, csv_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source, target = csv_file("rows.csv", HEADER, ROWS), tmp_path / "new"
    assert append_module.main(["--table", str(target), "--source", str(source), "--lock-url", URL]) == 0
    commits = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["event"] == "commit"]
    assert [line["version"] for line in commits] == [0]
    arguments = ["--table", str(target), "--source", str(source), "--keys", "id", "--sequence-by", "amount"]
    assert upsert_module.main([*arguments, "--lock-url", URL]) == 2
    error = capsys.readouterr().err
    assert "this work needs a lock, and optimistic:// has no locks" in error
    assert len(error.splitlines()) == 1
    assert DeltaTable(str(target)).version() == 0


def test_there_are_no_locks_to_show() -> None:
    result = CliRunner().invoke(app, ["status", "--lock-url", URL])
    assert (result.exit_code, "no locks to show" in result.output) == (2, True)
