"""An adopted table belongs to one ensemble. Locks of another ensemble allow no write until the table is moved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from lock_manager import Adoption, EnsembleMismatchError, LockSettings, SettingsError, ZookeeperLockManager
from lock_manager.events import Event, observe
from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.adopt import AdoptResult, adopt_table, describe
from sluice.audit.commit_list import read_commit_list
from sluice.audit.verify import verify_table
from sluice.commands.app import app
from tests.support.lake import S3
from tests.support.lock_znodes import LockZnodes, connected_client
from tests.support.rivals import RivalManager
from writer_jobs import DeltaTableLog, LockedDeltaWriter, TableError, locked
from writer_jobs.commit.driver_guard import GUARD

pytestmark = pytest.mark.spark


@dataclass
class Table:
    """A table on disk."""

    spark: SparkSession
    path: str

    @property
    def sql_name(self) -> str:
        return "delta.`{}`".format(self.path.replace("`", "``"))

    def append(self, rows: DataFrame) -> None:
        """Append with Spark. The caller holds the lock."""
        rows.write.format("delta").mode("append").save(self.path)

    def sql(self, statement: str) -> None:
        """Run a statement; ``{}`` stands for the table."""
        self.spark.sql(statement.format(self.sql_name))

    def version_files(self) -> list[str]:
        return sorted(path.name for path in Path(self.path).glob("_delta_log/*.json"))

    def adoption(self) -> Adoption | None:
        state = DeltaTableLog(self.spark, f"file:{self.path}").state()
        assert state is not None
        return state.adoption


@dataclass
class Ensemble:
    """An ensemble, and clients of it."""

    hosts: str
    manager: ZookeeperLockManager
    client: KazooClient

    def adopt(self, table: Table, **options: Any) -> AdoptResult:
        settings = LockSettings(zk_hosts=self.hosts, timeout_seconds=60)
        return adopt_table(table.spark, table.path, settings, **options)

    def locked(self, table: Table) -> AbstractContextManager[Any]:
        return locked(table.spark, table.path, manager=self.manager)

    def append(self, table: Table) -> int | None:
        """Append a row with the writer; return the version."""
        return LockedDeltaWriter(table.spark, self.manager, table.path).append(table.spark.range(1)).version

    def znodes(self, table: Table) -> LockZnodes:
        return LockZnodes(self.client, table.path)

    def intended_versions(self, table: Table) -> list[int]:
        return [intent.version for intent in self.znodes(table).intents().values()]


@contextmanager
def running_ensemble(**options: Any) -> Iterator[Ensemble]:
    with (
        EmbeddedZooKeeper(**options) as server,
        ZookeeperLockManager(server.hosts, timeout_seconds=60, job="writer") as manager,
        connected_client(server.hosts) as client,
    ):
        yield Ensemble(server.hosts, manager, client)


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    with running_ensemble() as ensemble:
        yield ensemble


@pytest.fixture(scope="module")
def second_ensemble() -> Iterator[Ensemble]:
    with running_ensemble() as ensemble:
        yield ensemble


@pytest.fixture
def table(spark: SparkSession, copy_of: Callable[..., Path]) -> Table:
    """A table of three rows and one version, not adopted. The name of its folder needs quotes in SQL."""
    return Table(
        spark, str(copy_of("CREATE TABLE {t} USING delta AS SELECT id FROM range(3)", to="a `table`'s folder"))
    )


@pytest.mark.full
def test_an_adopted_table_is_written_under_one_ensemble_only(
    table: Table, ensemble: Ensemble, second_ensemble: Ensemble, rows_of: Callable[..., list[Any]]
) -> None:
    # Before the adoption the lock of any ensemble allows a write.
    with second_ensemble.locked(table):
        table.append(table.spark.range(3, 4))
    adopted = ensemble.adopt(table)
    assert (adopted.version, adopted.moved_from) == (2, None)
    assert DeltaTable(table.path).metadata().configuration == {
        ENSEMBLE_PROPERTY: adopted.ensemble,
        TABLE_PROPERTY: adopted.table,
    }

    files = table.version_files()
    entered = False
    refusals: list[str] = []
    stop_observing = observe(lambda event, *_, error="", **__: refusals.extend([error] * (event == Event.REFUSED)))
    with pytest.raises(EnsembleMismatchError, match="sluice adopt TABLE --move") as refused:
        with second_ensemble.locked(table):
            entered = True
    assert not entered
    assert refused.value.adopted_by == adopted.ensemble
    with second_ensemble.manager.acquire(table.path) as hold:
        assert refused.value.ensemble == hold.ensemble_id
    with pytest.raises(EnsembleMismatchError):
        second_ensemble.append(table)
    stop_observing()
    # Metrics count them.
    assert refusals == ["EnsembleMismatchError"] * 2
    assert table.version_files() == files
    # Each refusal released the lock.
    assert second_ensemble.manager.queue(table.path) == []

    assert ensemble.append(table) == 3
    with ensemble.locked(table):
        table.sql("DELETE FROM {} WHERE id = 1")
    assert rows_of(table.path) == [(0,), (0,), (2,), (3,)]


def test_another_ensemble_fills_no_version_of_an_adopted_table(
    table: Table, ensemble: Ensemble, second_ensemble: Ensemble
) -> None:
    # Before the adoption, the second ensemble fills the version of an intent.
    second_ensemble.znodes(table).leave_intent(1)
    with second_ensemble.locked(table):
        pass
    assert len(table.version_files()) == 2
    ensemble.adopt(table)
    second_ensemble.znodes(table).leave_intent(3)
    files = table.version_files()
    with pytest.raises(EnsembleMismatchError):
        with second_ensemble.locked(table):
            pass
    assert table.version_files() == files


def test_a_table_moves_only_with_the_option_move(table: Table, ensemble: Ensemble, second_ensemble: Ensemble) -> None:
    adopted = ensemble.adopt(table)
    repeated = ensemble.adopt(table)
    assert repeated == AdoptResult(
        table=adopted.table, ensemble=adopted.ensemble, moved_from=None, renamed_from=None, version=None
    )
    assert describe(repeated).endswith("already; nothing was committed")
    with pytest.raises(EnsembleMismatchError):
        second_ensemble.adopt(table)
    with pytest.raises(SettingsError, match="pass --move, too"):
        second_ensemble.adopt(table, old_hosts=ensemble.hosts)
    assert len(table.version_files()) == 2

    moved = second_ensemble.adopt(table, move=True)
    assert (moved.version, moved.moved_from) == (2, adopted.ensemble)
    assert moved.ensemble != adopted.ensemble
    assert describe(moved).endswith(
        f"moved from ensemble {adopted.ensemble} to ensemble {moved.ensemble}, by version 2"
    )
    with pytest.raises(EnsembleMismatchError):
        ensemble.append(table)
    second_ensemble.append(table)

    # The table no longer belongs to the first ensemble, so its hosts are not the old hosts.
    with pytest.raises(EnsembleMismatchError):
        second_ensemble.adopt(table, move=True, old_hosts=ensemble.hosts)
    # The table is moved back, under the locks of both ensembles.
    moved_back = ensemble.adopt(table, move=True, old_hosts=second_ensemble.hosts)
    assert (moved_back.version, moved_back.ensemble) == (4, adopted.ensemble)
    ensemble.append(table)
    report = verify_table(table.path)
    assert report.problems == ()
    # The first version was committed without the lock.
    assert (report.ensemble, report.unlocked_commits, report.locked_commits) == (adopted.ensemble, 1, 5)


def test_a_move_holds_the_lock_of_the_old_ensemble(table: Table, ensemble: Ensemble, second_ensemble: Ensemble) -> None:
    ensemble.adopt(table)
    settings = LockSettings(zk_hosts=second_ensemble.hosts, timeout_seconds=0)
    with RivalManager(ensemble.hosts, 60) as rival, rival.acquire(table.path):
        with pytest.raises(TimeoutError, match="1 ahead"):
            adopt_table(table.spark, table.path, settings, move=True, old_hosts=ensemble.hosts)
        assert len(table.version_files()) == 2
        # Without the old hosts the move does not wait for the holder.
        assert adopt_table(table.spark, table.path, settings, move=True).version == 2


def test_a_commit_under_two_ensembles_has_an_intent_in_each(
    table: Table, ensemble: Ensemble, second_ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble.adopt(table)
    check, intended = GUARD.check, []

    def check_and_record(request: str) -> str:
        answer = check(request)
        intended.append((ensemble.intended_versions(table), second_ensemble.intended_versions(table)))
        return answer

    monkeypatch.setattr(GUARD, "check", check_and_record)
    assert second_ensemble.adopt(table, move=True, old_hosts=ensemble.hosts).version == 2
    assert intended == [([2], [2])]
    # Both intents are deleted when the outcome is known.
    assert (ensemble.intended_versions(table), second_ensemble.intended_versions(table)) == ([], [])


def test_the_adoption_is_read_again_after_a_late_put(
    table: Table, ensemble: Ensemble, unguarded_sql: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The PUT of a disconnected writer moves the table, just before the holder fills the version of this PUT."""
    ensemble.znodes(table).leave_intent(1)
    make_empty_commit = DeltaTableLog.make_empty_commit

    def commit_after_a_late_put(log: DeltaTableLog) -> int:
        unguarded_sql(f"ALTER TABLE {table.sql_name} SET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}' = 'another')")
        return make_empty_commit(log)

    monkeypatch.setattr(DeltaTableLog, "make_empty_commit", commit_after_a_late_put)
    with pytest.raises(EnsembleMismatchError) as refused:
        with ensemble.locked(table):
            raise AssertionError("the block was entered")
    assert refused.value.adopted_by == "another"


@pytest.mark.full
def test_an_ensemble_without_the_old_data_has_another_id(table: Table, tmp_path: Path) -> None:
    data_dir = tmp_path / "zookeeper"
    with running_ensemble(data_dir=data_dir) as original:
        adopted = original.adopt(table)
    with running_ensemble(data_dir=data_dir) as restarted:
        restarted.append(table)
    with running_ensemble() as new_ensemble:
        with pytest.raises(EnsembleMismatchError) as refused:
            new_ensemble.append(table)
        assert refused.value.adopted_by == adopted.ensemble
        moved = new_ensemble.adopt(table, move=True)
        assert moved.ensemble == refused.value.ensemble
        new_ensemble.append(table)


@pytest.mark.full
def test_the_adoption_survives_changes_of_the_table(table: Table, ensemble: Ensemble) -> None:
    adopted = ensemble.adopt(table)
    for statement in ("ALTER TABLE {} ADD COLUMNS (more STRING)", "INSERT OVERWRITE {} VALUES (7, 'x')"):
        with ensemble.locked(table):
            table.sql(statement)
        assert table.adoption() == Adoption(adopted.ensemble, adopted.table), statement
    with ensemble.locked(table):
        rows = table.spark.range(2).selectExpr("id AS another")
        rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table.path)
    assert table.adoption() == Adoption(adopted.ensemble, adopted.table)


REPLACE = "CREATE OR REPLACE TABLE {} USING delta AS SELECT id FROM range(3)"


@pytest.mark.full
def test_the_adoption_is_set_again_after_replace_and_restore(table: Table, ensemble: Ensemble) -> None:
    adopted = ensemble.adopt(table)
    adoption = Adoption(adopted.ensemble, adopted.table)
    for statement in (REPLACE, "RESTORE TABLE {} TO VERSION AS OF 0"):
        with ensemble.locked(table) as hold:
            table.sql(statement)
        assert table.adoption() == adoption, statement
        _, (newest, previous, *_) = read_commit_list(table.path, limit=2)
        assert not isinstance(newest, str)
        assert not isinstance(previous, str)
        assert (previous.adopted_by, newest.adopted_by) == ("", adoption.ensemble)
        assert (previous.adopted_name, newest.adopted_name) == ("", adoption.table)
        assert newest.stamp is not None
        assert newest.stamp.hold == hold.hold_id
    assert verify_table(table.path).problems == ()
    # An explicit UNSET ends the adoption.
    with ensemble.locked(table):
        table.sql(f"ALTER TABLE {{}} UNSET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}', '{TABLE_PROPERTY}')")
    assert table.adoption() is None
    assert verify_table(table.path).ensemble is None


def replace_and_fail(table: Table, ensemble: Ensemble) -> None:
    """Replace the table in a block that raises."""
    with pytest.raises(ZeroDivisionError), ensemble.locked(table):
        table.sql(REPLACE)
        raise ZeroDivisionError


def test_the_adoption_is_restored_after_a_failed_block(table: Table, ensemble: Ensemble) -> None:
    adopted = ensemble.adopt(table)
    replace_and_fail(table, ensemble)
    assert table.adoption() == Adoption(adopted.ensemble, adopted.table)
    assert len(table.version_files()) == 4


def test_negative_control_without_a_restoration_the_adoption_is_lost(
    table: Table, ensemble: Ensemble, monkeypatch: pytest.MonkeyPatch
) -> None:
    ensemble.adopt(table)
    monkeypatch.setattr("writer_jobs.commit.guarded._restore_adoption", lambda *_: None)
    replace_and_fail(table, ensemble)
    assert table.adoption() is None


def test_the_append_job_under_another_ensemble_exits_with_3(
    table: Table,
    ensemble: Ensemble,
    second_ensemble: Ensemble,
    append: Callable[..., Any],
    csv_file: Callable[..., Path],
) -> None:
    adopted_by = ensemble.adopt(table).ensemble
    files = table.version_files()
    arguments = ("--table", table.path, "--source", csv_file("s.csv", "id", [(7,)]))
    failed = append(*arguments, hosts=second_ensemble.hosts)
    assert failed.code == 3, failed.error
    (message,) = failed.error.splitlines()
    assert message.startswith("append.py: ")
    assert f"is adopted by ensemble {adopted_by}" in message
    assert failed.commits == []
    assert table.version_files() == files
    assert append(*arguments, hosts=ensemble.hosts).code == 0


@pytest.mark.full
@pytest.mark.s3
def test_the_log_of_an_s3_table_shows_its_adoption(
    spark: SparkSession, s3: S3, ensemble: Ensemble, second_ensemble: Ensemble
) -> None:
    table = Table(spark, f"s3a://{s3.root}/adopted")
    with ensemble.locked(table) as hold:
        table.append(spark.range(3))
    adopted = ensemble.adopt(replace(table, path=f"s3://{s3.root}/adopted"))
    with pytest.raises(EnsembleMismatchError):
        second_ensemble.adopt(replace(table, path=f"{table.path}/"))

    def run(command: str) -> Any:
        return json.loads(CliRunner().invoke(app, [command, table.path, "--json"]).stdout)

    newest, oldest = run("log")["commits"]
    assert (newest["version"], newest["operation"], newest["adopted_by"]) == (1, "SET TBLPROPERTIES", adopted.ensemble)
    assert (oldest["version"], oldest["rows"], oldest["locked"], oldest["job"]) == (0, 3, True, "writer")
    assert list(oldest["tokens"].values()) == [hold.token]
    report = run("verify")
    assert (report["ok"], report["ensemble"]) == (True, adopted.ensemble)


@pytest.mark.full
def test_the_command_starts_spark_and_reports_refusals(
    table: Table, jars: list[Path], ensemble: Ensemble, second_ensemble: Ensemble
) -> None:
    def adopt(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sluice", "adopt", table.path, "--zookeeper", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    adopted = adopt(ensemble.hosts, "--json")
    assert adopted.returncode == 0, adopted.stderr
    result = json.loads(adopted.stdout)
    assert (result["version"], result["moved_from"]) == (1, None)
    assert result["ensemble"] == DeltaTable(table.path).metadata().configuration[ENSEMBLE_PROPERTY]
    refused = adopt(second_ensemble.hosts)
    assert refused.returncode == 1
    assert refused.stdout == ""
    location = f"file:{Path(table.path).resolve()}"
    assert refused.stderr.splitlines()[-1].startswith(f"sluice: {location} is adopted by ensemble")
    assert len(table.version_files()) == 2


def test_a_missing_table_is_not_adopted(spark: SparkSession, tmp_path: Path, ensemble: Ensemble) -> None:
    with pytest.raises(TableError, match="there is no Delta table at"):
        ensemble.adopt(Table(spark, str(tmp_path / "nothing")))
    assert list(tmp_path.iterdir()) == []


def test_observe_mode_records_commits_under_another_ensemble(
    table: Table,
    ensemble: Ensemble,
    second_ensemble: Ensemble,
    without_guard: Callable[..., AbstractContextManager[None]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    ensemble.adopt(table)
    with without_guard("observe"), second_ensemble.locked(table):
        table.append(table.spark.range(1))
    assert "required mode would refuse" in caplog.text
    report = verify_table(table.path)
    assert report.observed == {"EnsembleMismatchError": (2,)}
    assert report.problems == ()
    _, (newest, *_) = read_commit_list(table.path, limit=1)
    assert not isinstance(newest, str)
    assert (newest.stamp, newest.observed) == (None, "EnsembleMismatchError")
