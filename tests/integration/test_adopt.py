"""One ensemble per table: a table that A has adopted is not written under the lock of B, until it is moved."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kazoo.client import KazooClient
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from lock_manager import (
    Adoption,
    EnsembleMismatchError,
    LockSettings,
    SettingsError,
    TableResource,
    ZookeeperLockManager,
)
from lock_manager.intents import Intent
from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from lock_manager.testing.embedded import EmbeddedZooKeeper
from lock_manager.zookeeper.znodes import intents_node, table_node
from sluice.adopt import AdoptResult, adopt_table, describe
from sluice.audit.commit_list import read_commit_list
from sluice.audit.verify import verify_table
from sluice.commands.app import app
from tests.support.lake import S3
from tests.support.rivals import RivalManager
from writer_jobs import DeltaTableLog, LockedDeltaWriter, TableError, locked
from writer_jobs.commit.driver_guard import GUARD

pytestmark = pytest.mark.spark

ROOT = "/locks/delta_tables"


@pytest.fixture(scope="module")
def ensemble_a() -> Iterator[str]:
    with EmbeddedZooKeeper() as running:
        yield running.hosts


@pytest.fixture(scope="module")
def ensemble_b() -> Iterator[str]:
    with EmbeddedZooKeeper() as running:
        yield running.hosts


@pytest.fixture
def manager_a(ensemble_a: str) -> Iterator[ZookeeperLockManager]:
    with ZookeeperLockManager(ensemble_a, timeout_seconds=60, job="writer") as made:
        yield made


@pytest.fixture
def manager_b(ensemble_b: str) -> Iterator[ZookeeperLockManager]:
    with ZookeeperLockManager(ensemble_b, timeout_seconds=60, job="writer") as made:
        yield made


@pytest.fixture
def table(copy_of: Callable[..., Path]) -> str:
    """A table of three rows, in a folder whose name has to be quoted; version 0, which nobody adopted."""
    return str(copy_of("CREATE TABLE {t} USING delta AS SELECT id FROM range(3)", to="a `table`'s folder"))


def append(df: DataFrame, table: str) -> None:
    df.write.format("delta").mode("append").save(table)


def adopt(spark: SparkSession, table: str, hosts: str, **how: Any) -> AdoptResult:
    return adopt_table(spark, table, LockSettings(zk_hosts=hosts, timeout_seconds=60), **how)


def version_files(table: str) -> list[str]:
    return sorted(path.name for path in Path(table).glob("_delta_log/*.json"))


@pytest.mark.full
def test_an_adopted_table_is_written_under_its_own_ensemble_and_under_no_other(
    spark: SparkSession, table: str, ensemble_a: str, manager_a: ZookeeperLockManager, manager_b: ZookeeperLockManager
) -> None:
    # Before: whoever has any lock may write. This is what the adoption is for.
    with locked(spark, table, manager=manager_b):
        append(spark.range(3, 4), table)
    done = adopt(spark, table, ensemble_a)
    assert (done.version, done.moved_from) == (2, None)
    assert DeltaTable(table).metadata().configuration == {
        ENSEMBLE_PROPERTY: done.ensemble,
        TABLE_PROPERTY: done.table,
    }

    before = version_files(table)
    entered = False
    with pytest.raises(EnsembleMismatchError, match="sluice adopt TABLE --zookeeper HOSTS --move") as refused:
        with locked(spark, table, manager=manager_b):
            entered = True
    assert not entered
    assert refused.value.adopted_by == done.ensemble
    with manager_b.acquire(table) as hold:
        assert refused.value.ensemble == hold.ensemble_id
    with pytest.raises(EnsembleMismatchError):
        LockedDeltaWriter(spark, manager_b, table).append(spark.range(1))
    assert version_files(table) == before
    # It was given back, each time.
    assert manager_b.queue(table) == []

    assert LockedDeltaWriter(spark, manager_a, table).append(spark.range(4, 6)).version == 3
    with locked(spark, table, manager=manager_a):
        spark.sql("DELETE FROM delta.`{}` WHERE id = 0".format(table.replace("`", "``")))
    assert spark.read.format("delta").load(table).count() == 5


def test_an_ensemble_that_does_not_count_fills_nothing(
    spark: SparkSession, table: str, ensemble_a: str, ensemble_b: str, manager_b: ZookeeperLockManager
) -> None:
    def leave_an_intent(version: int) -> None:
        node = table_node(ROOT, TableResource.of(table))
        client = KazooClient(ensemble_b)
        client.start()
        client.ensure_path(intents_node(node))
        left = Intent(hold_id="0" * 32, version=version, txn="lost", attempt="lost", token=1)
        client.create(f"{intents_node(node)}/{left.hold_id}", left.data())
        client.stop()
        client.close()

    # As long as nobody has adopted the table, the intent is heeded: a version is filled for it.
    leave_an_intent(1)
    with locked(spark, table, manager=manager_b):
        pass
    assert len(version_files(table)) == 2
    adopt(spark, table, ensemble_a)
    leave_an_intent(3)
    before = version_files(table)
    with pytest.raises(EnsembleMismatchError):
        with locked(spark, table, manager=manager_b):
            pass
    assert version_files(table) == before


def test_a_table_moves_only_if_it_is_told_to(
    spark: SparkSession,
    table: str,
    ensemble_a: str,
    ensemble_b: str,
    manager_a: ZookeeperLockManager,
    manager_b: ZookeeperLockManager,
) -> None:
    first = adopt(spark, table, ensemble_a)
    again = adopt(spark, table, ensemble_a)
    assert again == AdoptResult(
        table=first.table, ensemble=first.ensemble, moved_from=None, renamed_from=None, version=None
    )
    assert describe(again).endswith("already; nothing was committed")
    with pytest.raises(EnsembleMismatchError):
        adopt(spark, table, ensemble_b)
    with pytest.raises(SettingsError, match="pass --move, too"):
        adopt(spark, table, ensemble_b, old_hosts=ensemble_a)
    assert len(version_files(table)) == 2

    moved = adopt(spark, table, ensemble_b, move=True)
    assert (moved.version, moved.moved_from) == (2, first.ensemble)
    assert moved.ensemble != first.ensemble
    assert describe(moved).endswith(f"moved from ensemble {first.ensemble} to ensemble {moved.ensemble}, by version 2")
    with pytest.raises(EnsembleMismatchError):
        LockedDeltaWriter(spark, manager_a, table).append(spark.range(1))
    LockedDeltaWriter(spark, manager_b, table).append(spark.range(1))

    # And back, with both locks. The other way round it is not the ensemble that has adopted the table.
    with pytest.raises(EnsembleMismatchError):
        adopt(spark, table, ensemble_b, move=True, old_hosts=ensemble_a)
    back = adopt(spark, table, ensemble_a, move=True, old_hosts=ensemble_b)
    assert (back.version, back.ensemble) == (4, first.ensemble)
    LockedDeltaWriter(spark, manager_a, table).append(spark.range(1))
    found = verify_table(table)
    assert found.problems == ()
    # The first version was made without the lock.
    assert (found.ensemble, found.unlocked_commits, found.locked_commits) == (first.ensemble, 1, 5)


def test_while_a_table_is_moved_the_old_lock_is_held(
    spark: SparkSession, table: str, ensemble_a: str, ensemble_b: str
) -> None:
    adopt(spark, table, ensemble_a)
    settings = LockSettings(zk_hosts=ensemble_b, timeout_seconds=0)
    with RivalManager(ensemble_a, 60) as rival, rival.acquire(table):
        with pytest.raises(TimeoutError):
            adopt_table(spark, table, settings, move=True, old_hosts=ensemble_a)
        assert len(version_files(table)) == 2
        # Without it nothing waits for the one who is at work.
        assert adopt_table(spark, table, settings, move=True).version == 2


def intents_of(hosts: str, table: str) -> list[int]:
    """Return the versions of the intents on a table."""
    client = KazooClient(hosts)
    client.start()
    folder = intents_node(table_node(ROOT, TableResource.of(table)))
    versions = [Intent.parse(client.get(f"{folder}/{name}")[0]).version for name in client.get_children(folder)]
    client.stop()
    client.close()
    return versions


def test_a_commit_under_two_ensembles_leaves_its_intent_at_both_until_its_outcome_is_known(
    spark: SparkSession, table: str, ensemble_a: str, ensemble_b: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt(spark, table, ensemble_a)
    check, seen = GUARD.check, []

    def look(request: str) -> str:
        answer = check(request)
        seen.append((intents_of(ensemble_a, table), intents_of(ensemble_b, table)))
        return answer

    monkeypatch.setattr(GUARD, "check", look)
    assert adopt(spark, table, ensemble_b, move=True, old_hosts=ensemble_a).version == 2
    assert seen == [([2], [2])]
    assert (intents_of(ensemble_a, table), intents_of(ensemble_b, table)) == ([], [])


@pytest.fixture
def unfinished_move(
    spark: SparkSession,
    table: str,
    ensemble_a: str,
    sql_elsewhere: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """A table whose last writer was cut off with its put on the way: that of a move to another ensemble.

    It lands when the next holder is about to fill its version.
    """
    client = KazooClient(ensemble_a)
    client.start()
    left = Intent(hold_id="0" * 32, version=1, txn="lost", attempt="lost", token=1)
    client.ensure_path(intents_node(table_node(ROOT, TableResource.of(table))))
    client.create(f"{intents_node(table_node(ROOT, TableResource.of(table)))}/{left.hold_id}", left.data())
    client.stop()
    client.close()
    commit_nothing = DeltaTableLog.commit_nothing

    def too_late(log: DeltaTableLog) -> int:
        location = table.replace("`", "``")
        sql_elsewhere(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}' = 'another')")
        return commit_nothing(log)

    monkeypatch.setattr(DeltaTableLog, "commit_nothing", too_late)
    return table


def test_the_adoption_is_read_again_when_something_unfinished_was_settled(
    spark: SparkSession, unfinished_move: str, manager_a: ZookeeperLockManager
) -> None:
    with pytest.raises(EnsembleMismatchError) as refused:
        with locked(spark, unfinished_move, manager=manager_a):
            raise AssertionError("the block is not entered")
    assert refused.value.adopted_by == "another"


@pytest.mark.full
def test_an_ensemble_that_was_wiped_and_built_again_is_another_one(
    spark: SparkSession, table: str, tmp_path: Path
) -> None:
    data = tmp_path / "zookeeper"
    with EmbeddedZooKeeper(data_dir=data) as kept:
        adopted = adopt(spark, table, kept.hosts)
    with EmbeddedZooKeeper(data_dir=data) as restarted:
        with ZookeeperLockManager(restarted.hosts, 60) as manager:
            LockedDeltaWriter(spark, manager, table).append(spark.range(1))
    with EmbeddedZooKeeper() as rebuilt:
        with ZookeeperLockManager(rebuilt.hosts, 60) as manager:
            with pytest.raises(EnsembleMismatchError) as refused:
                LockedDeltaWriter(spark, manager, table).append(spark.range(1))
            assert refused.value.adopted_by == adopted.ensemble
            moved = adopt(spark, table, rebuilt.hosts, move=True)
            assert moved.ensemble == refused.value.ensemble
            LockedDeltaWriter(spark, manager, table).append(spark.range(1))


@pytest.mark.full
def test_the_adoption_survives_what_changes_the_table(
    spark: SparkSession, table: str, ensemble_a: str, manager_a: ZookeeperLockManager
) -> None:
    log = DeltaTableLog(spark, f"file:{table}")
    done = adopt(spark, table, ensemble_a)
    adoption = Adoption(done.ensemble, done.table)
    name = "delta.`{}`".format(table.replace("`", "``"))
    for statement in (f"ALTER TABLE {name} ADD COLUMNS (more STRING)", f"INSERT OVERWRITE {name} VALUES (7, 'x')"):
        with locked(spark, table, manager=manager_a):
            spark.sql(statement)
        state = log.state()
        assert state is not None
        assert state.adoption == adoption, statement
    with locked(spark, table, manager=manager_a):
        other = spark.range(2).selectExpr("id AS another")
        other.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(table)
    state = log.state()
    assert state is not None
    assert state.adoption == adoption


@pytest.mark.full
def test_what_replaces_a_table_or_restores_it_is_followed_by_the_adoption(
    spark: SparkSession, table: str, ensemble_a: str, manager_a: ZookeeperLockManager
) -> None:
    log = DeltaTableLog(spark, f"file:{table}")
    done = adopt(spark, table, ensemble_a)
    adoption = Adoption(done.ensemble, done.table)
    name = "delta.`{}`".format(table.replace("`", "``"))
    replacing = f"CREATE OR REPLACE TABLE {name} USING delta AS SELECT id FROM range(3)"
    for statement in (replacing, f"RESTORE TABLE {name} TO VERSION AS OF 0"):
        with locked(spark, table, manager=manager_a) as hold:
            spark.sql(statement)
        state = log.state()
        assert state is not None
        assert state.adoption == adoption, statement
        _, (newest, dropping, *_) = read_commit_list(table, limit=2)
        assert not isinstance(newest, str)
        assert not isinstance(dropping, str)
        assert (dropping.adopted_by, newest.adopted_by) == ("", adoption.ensemble)
        assert (dropping.adopted_name, newest.adopted_name) == ("", adoption.table)
        assert newest.stamp is not None
        assert newest.stamp.hold == hold.hold_id
    assert verify_table(table).problems == ()
    # Whoever says so may.
    with locked(spark, table, manager=manager_a):
        spark.sql(f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}', '{TABLE_PROPERTY}')")
    state = log.state()
    assert state is not None
    assert state.adoption is None
    assert verify_table(table).ensemble is None


def replace_and_fail(spark: SparkSession, table: str, manager: ZookeeperLockManager) -> Adoption | None:
    """Have a block replace the table and raise then; return the adoption afterwards."""
    name = "delta.`{}`".format(table.replace("`", "``"))
    with pytest.raises(ZeroDivisionError), locked(spark, table, manager=manager):
        spark.sql(f"CREATE OR REPLACE TABLE {name} USING delta AS SELECT id FROM range(3)")
        raise ZeroDivisionError
    state = DeltaTableLog(spark, f"file:{table}").state()
    assert state is not None
    return state.adoption


def test_a_block_that_replaced_the_table_and_raised_is_followed_by_the_adoption_too(
    spark: SparkSession, table: str, ensemble_a: str, manager_a: ZookeeperLockManager
) -> None:
    done = adopt(spark, table, ensemble_a)
    assert replace_and_fail(spark, table, manager_a) == Adoption(done.ensemble, done.table)
    assert len(version_files(table)) == 4


def test_negative_control_with_nobody_to_restore_it_the_adoption_is_gone(
    spark: SparkSession,
    table: str,
    ensemble_a: str,
    manager_a: ZookeeperLockManager,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adopt(spark, table, ensemble_a)
    monkeypatch.setattr("writer_jobs.commit.guarded._restore_adoption", lambda *_: None)
    assert replace_and_fail(spark, table, manager_a) is None


def test_the_append_job_under_another_ensemble_ends_with_code_3(
    spark: SparkSession,
    table: str,
    ensemble_a: str,
    ensemble_b: str,
    append: Callable[..., Any],
    csv_file: Callable[..., Path],
) -> None:
    adopted = adopt(spark, table, ensemble_a).ensemble
    before = version_files(table)
    source = csv_file("s.csv", "id", [(7,)])
    failed = append("--table", table, "--source", source, hosts=ensemble_b)
    assert failed.code == 3, failed.error
    (sentence,) = failed.error.splitlines()
    assert sentence.startswith("append.py: ")
    assert f"is adopted by ensemble {adopted}" in sentence
    assert failed.commits == []
    assert version_files(table) == before
    assert append("--table", table, "--source", source, hosts=ensemble_a).code == 0


@pytest.mark.full
@pytest.mark.s3
def test_on_s3_a_table_is_adopted_and_its_log_tells_so(
    spark: SparkSession, s3: S3, ensemble_a: str, ensemble_b: str, manager_a: ZookeeperLockManager
) -> None:
    with locked(spark, f"s3a://{s3.root}/adopted", manager=manager_a) as hold:
        append(spark.range(3), f"s3a://{s3.root}/adopted")
    run = CliRunner()
    done = adopt(spark, f"s3://{s3.root}/adopted", ensemble_a)
    with pytest.raises(EnsembleMismatchError):
        adopt(spark, f"s3a://{s3.root}/adopted/", ensemble_b)
    answer = run.invoke(app, ["log", f"s3a://{s3.root}/adopted", "--json"])
    newest, oldest = json.loads(answer.stdout)["commits"]
    assert (newest["version"], newest["operation"], newest["adopted_by"]) == (1, "SET TBLPROPERTIES", done.ensemble)
    assert (oldest["version"], oldest["rows"], oldest["locked"], oldest["job"]) == (0, 3, True, "writer")
    assert list(oldest["tokens"].values()) == [hold.token]
    verified = json.loads(run.invoke(app, ["verify", f"s3a://{s3.root}/adopted", "--json"]).stdout)
    assert (verified["ok"], verified["ensemble"]) == (True, done.ensemble)


@pytest.mark.full
def test_the_command_starts_its_own_spark_and_ends_in_a_sentence(
    table: str, jars: list[Path], ensemble_a: str, ensemble_b: str
) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sluice", "adopt", table, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)

    done = run("--zookeeper", ensemble_a, "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["version"], said["moved_from"]) == (1, None)
    assert said["ensemble"] == DeltaTable(table).metadata().configuration[ENSEMBLE_PROPERTY]
    refused = run("--zookeeper", ensemble_b)
    assert refused.returncode == 1
    assert refused.stdout == ""
    assert refused.stderr.splitlines()[-1].startswith(f"sluice: file:{Path(table).resolve()} is adopted by ensemble")
    assert len(version_files(table)) == 2


def test_what_is_no_table_is_not_adopted(spark: SparkSession, tmp_path: Path, ensemble_a: str) -> None:
    with pytest.raises(TableError, match="there is no Delta table at"):
        adopt(spark, str(tmp_path / "nothing"), ensemble_a)
    assert list(tmp_path.iterdir()) == []


def test_a_driver_that_only_observes_goes_on_under_the_wrong_ensemble_and_says_so(
    spark: SparkSession,
    table: str,
    ensemble_a: str,
    manager_b: ZookeeperLockManager,
    caplog: pytest.LogCaptureFixture,
) -> None:
    adopt(spark, table, ensemble_a)
    conf = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.sluice.guard", "observe")
    try:
        with locked(spark, table, manager=manager_b):
            append(spark.range(1), table)
    finally:
        conf.set("spark.sluice.guard", "required")
    assert "required mode would refuse" in caplog.text
    found = verify_table(table)
    assert found.observed == {"EnsembleMismatchError": (2,)}
    assert found.problems == ()
    _, (newest, *_) = read_commit_list(table, limit=1)
    assert not isinstance(newest, str)
    assert (newest.stamp, newest.observed) == (None, "EnsembleMismatchError")
