"""Two names of one table that do not show it, and one pin that was copied: the table's own name settles it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from lock_manager import (
    EnsembleMismatchError,
    LockSettings,
    LockTimeoutError,
    Pin,
    PinMismatchError,
    TableNameMismatchError,
    ZookeeperLockManager,
    canonical_table_uri,
)
from lock_manager.pin import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.adopt import Adoption, adopt_table, describe
from sluice.audit.verify import verify_table
from sluice.commands.app import app
from sluice.local._s3_server import OneAtATimePerKey, WsgiApplication, make_s3_server, moto_application
from sluice.local.s3 import LocalS3
from tests.support.rivals import RivalManager
from writer_jobs import DeltaTableLog, LockedDeltaWriter, locate_table, locked

pytestmark = pytest.mark.spark

BUCKET, ALIAS = "flights-bucket", "flights-access-point-s3alias"


class ByAlias:
    """An S3 gate that takes a second name of a bucket, as S3 takes the alias of an access point."""

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        for name in ("PATH_INFO", "RAW_URI", "REQUEST_URI", "HTTP_X_AMZ_COPY_SOURCE"):
            if name in environ:
                environ[name] = environ[name].replace(f"/{ALIAS}", f"/{BUCKET}", 1)
        return self._application(environ, start_response)


@pytest.fixture(scope="module")
def endpoint(spark: SparkSession) -> Iterator[str]:
    """An S3 where one bucket has two names; the driver finds it by either."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else one line per request
    server = make_s3_server(ByAlias(OneAtATimePerKey(moto_application())))
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    address = f"http://127.0.0.1:{server.server_port}"
    there = LocalS3()
    there._port = server.server_port
    there.create_bucket(BUCKET)
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    for name in (BUCKET, ALIAS):
        conf.set(f"fs.s3a.bucket.{name}.endpoint", address)
    yield address
    server.shutdown()
    serving.join()
    server.server_close()


@pytest.fixture
def by_name(endpoint: str, request: pytest.FixtureRequest) -> str:
    return f"s3a://{BUCKET}/{request.node.name}"


@pytest.fixture
def by_alias(endpoint: str, request: pytest.FixtureRequest) -> str:
    return f"s3a://{ALIAS}/{request.node.name}"


@pytest.fixture(scope="module")
def ensemble() -> Iterator[str]:
    with EmbeddedZooKeeper() as running:
        yield running.hosts


@pytest.fixture(scope="module")
def another_ensemble() -> Iterator[str]:
    with EmbeddedZooKeeper() as running:
        yield running.hosts


@pytest.fixture
def one(ensemble: str) -> Iterator[ZookeeperLockManager]:
    with RivalManager(ensemble, timeout_seconds=60, job="one") as made:
        yield made


@pytest.fixture
def other(ensemble: str) -> Iterator[ZookeeperLockManager]:
    with RivalManager(ensemble, timeout_seconds=60, job="other") as made:
        yield made


def append(spark: SparkSession, table: str, first: int, end: int) -> None:
    spark.range(first, end).write.format("delta").mode("append").save(table)


def ids(spark: SparkSession, table: str) -> list[int]:
    return sorted(row.id for row in spark.read.format("delta").load(table).collect())


def adopt(spark: SparkSession, table: str, hosts: str, *, seconds: float = 60, **how: Any) -> Adoption:
    return adopt_table(spark, table, LockSettings(zk_hosts=hosts, timeout_seconds=seconds), **how)


def pin_of(spark: SparkSession, table: str) -> Pin | None:
    state = DeltaTableLog(spark, locate_table(spark, table)).state()
    assert state is not None
    return state.pin


def version_of(spark: SparkSession, table: str) -> int:
    return DeltaTableLog(spark, locate_table(spark, table)).head().version


def test_negative_control_without_the_pin_two_names_are_two_locks(
    spark: SparkSession, by_name: str, by_alias: str, one: ZookeeperLockManager, other: ZookeeperLockManager
) -> None:
    with locked(spark, by_name, manager=one):
        append(spark, by_name, 0, 3)
        with locked(spark, by_alias, manager=other, timeout_seconds=0):
            append(spark, by_alias, 3, 5)
        append(spark, by_name, 5, 6)
    assert ids(spark, by_name) == list(range(6))


def test_a_table_is_written_under_its_own_name_and_under_no_other(
    spark: SparkSession,
    endpoint: str,
    by_name: str,
    by_alias: str,
    ensemble: str,
    one: ZookeeperLockManager,
    other: ZookeeperLockManager,
    append_job: Callable[..., Any],
) -> None:
    with locked(spark, by_name, manager=one):
        append(spark, by_name, 0, 3)
    done = adopt(spark, by_name, ensemble)
    assert (done.table, done.version, done.renamed_from) == (canonical_table_uri(by_name), 1, None)
    assert pin_of(spark, by_alias) == Pin(done.ensemble, done.table)

    entered = False
    with locked(spark, by_name, manager=one):
        with pytest.raises(TableNameMismatchError) as refused:
            with locked(spark, by_alias, manager=other, timeout_seconds=0):
                entered = True
        append(spark, by_name, 3, 4)
    assert not entered
    assert (refused.value.resource, refused.value.pinned_name) == (canonical_table_uri(by_alias), done.table)
    assert refused.value.resource in str(refused.value)
    assert done.table in str(refused.value)
    assert "--move" in str(refused.value)
    with pytest.raises(TableNameMismatchError):
        LockedDeltaWriter(spark, other, by_alias).append(spark.range(1))
    failed = append_job("--table", by_alias)
    assert failed.code == 3, failed.error
    assert f"is pinned to the name {done.table}" in failed.error
    # Nothing was written, and each lock was given back.
    assert other.queue(by_alias) == []
    assert version_of(spark, by_name) == 2
    # In a process of its own: deltalake would keep this one, which serves the S3, from running.
    command = [sys.executable, "-m", "sluice", "verify", by_alias, "--json"]
    environment = {**os.environ, "AWS_ENDPOINT_URL": endpoint}
    verified = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=120)
    assert json.loads(verified.stdout)["pinned_name"] == done.table


@pytest.fixture
def append_job(append: Callable[..., Any], csv_file: Callable[..., Path], ensemble: str) -> Callable[..., Any]:
    source = csv_file("s.csv", "id", [(7,)])
    return lambda *arguments: append(*arguments, "--source", source, hosts=ensemble)


def test_a_table_gets_another_name_only_if_it_is_told_to_and_while_nobody_is_at_work(
    spark: SparkSession,
    by_name: str,
    by_alias: str,
    ensemble: str,
    one: ZookeeperLockManager,
    other: ZookeeperLockManager,
) -> None:
    with locked(spark, by_name, manager=one):
        append(spark, by_name, 0, 3)
    first = adopt(spark, by_name, ensemble)
    with pytest.raises(TableNameMismatchError):
        adopt(spark, by_alias, ensemble)
    with locked(spark, by_name, manager=one):
        with pytest.raises(LockTimeoutError):
            adopt(spark, by_alias, ensemble, move=True, seconds=0.5)
    assert version_of(spark, by_name) == 1
    moved = adopt(spark, by_alias, ensemble, move=True)
    assert (moved.version, moved.moved_from, moved.renamed_from) == (2, None, first.table)
    assert describe(moved) == (
        f"{canonical_table_uri(by_alias)} was pinned to ensemble {first.ensemble} under this name, "
        f"no longer {first.table}, by version 2"
    )
    with pytest.raises(TableNameMismatchError):
        LockedDeltaWriter(spark, one, by_name).append(spark.range(1))
    LockedDeltaWriter(spark, other, by_alias).append(spark.range(3, 4))
    assert ids(spark, by_name) == [0, 1, 2, 3]


@pytest.fixture
def source(spark: SparkSession, one: ZookeeperLockManager, ensemble: str, tmp_path: Path) -> str:
    """A pinned table of three rows on the disk, version 1."""
    table = str(tmp_path / "the 'source'")
    with locked(spark, table, manager=one):
        append(spark, table, 0, 3)
    adopt(spark, table, ensemble)
    return table


def test_a_table_that_an_earlier_release_pinned_stays_valid_and_gets_its_name_by_another_adopt(
    spark: SparkSession, source: str, one: ZookeeperLockManager, ensemble: str
) -> None:
    before = pin_of(spark, source)
    assert before is not None
    with locked(spark, source, manager=one):
        spark.sql(f"ALTER TABLE delta.`{source}` UNSET TBLPROPERTIES ('{TABLE_PROPERTY}')")
    assert pin_of(spark, source) == Pin(before.ensemble)
    LockedDeltaWriter(spark, one, source).append(spark.range(3, 4))
    done = adopt(spark, source, ensemble)
    assert (done.version, done.moved_from, done.renamed_from) == (4, None, None)
    assert pin_of(spark, source) == before
    assert version_of(spark, source) == 4
    assert describe(done).startswith(f"{before.table} was pinned to ensemble")
    assert adopt(spark, source, ensemble).version is None


def test_a_copied_folder_has_the_pin_of_the_original_and_is_refused_until_it_gets_its_own(
    spark: SparkSession, source: str, one: ZookeeperLockManager, ensemble: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(source, copy)
    with pytest.raises(TableNameMismatchError) as refused:
        LockedDeltaWriter(spark, one, copy).append(spark.range(1))
    assert refused.value.pinned_name == canonical_table_uri(source)
    assert version_of(spark, copy) == 1
    found = verify_table(copy)
    assert (found.problems, found.pinned_name) == ((), canonical_table_uri(source))
    told = CliRunner().invoke(app, ["verify", copy], env={"COLUMNS": "300"})
    assert told.exit_code == 0
    assert f"locked by another name than this {canonical_table_uri(source)}" in " ".join(told.stdout.split())

    done = adopt(spark, copy, ensemble, move=True)
    assert (done.version, done.renamed_from) == (2, canonical_table_uri(source))
    LockedDeltaWriter(spark, one, copy).append(spark.range(3, 4))
    LockedDeltaWriter(spark, one, source).append(spark.range(9, 10))
    assert (ids(spark, copy), ids(spark, source)) == ([0, 1, 2, 3], [0, 1, 2, 9])
    assert verify_table(copy).problems == ()


def test_a_copy_for_another_ensemble_is_moved_once(
    spark: SparkSession, source: str, ensemble: str, another_ensemble: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(source, copy)
    before = pin_of(spark, source)
    assert before is not None
    with pytest.raises(TableNameMismatchError):
        adopt(spark, copy, another_ensemble)
    with pytest.raises(EnsembleMismatchError):
        adopt(spark, copy, ensemble, move=True, old_hosts=another_ensemble)
    done = adopt(spark, copy, another_ensemble, move=True, old_hosts=ensemble)
    assert (done.version, done.moved_from, done.renamed_from) == (2, before.ensemble, before.table)
    assert " was moved from ensemble " in describe(done)
    assert pin_of(spark, source) == before
    assert verify_table(copy).problems == ()


def test_a_renamed_folder_gets_its_new_name(
    spark: SparkSession, source: str, one: ZookeeperLockManager, ensemble: str, tmp_path: Path
) -> None:
    renamed = str(tmp_path / "renamed")
    Path(source).rename(renamed)
    with pytest.raises(PinMismatchError):
        LockedDeltaWriter(spark, one, renamed).append(spark.range(1))
    adopt(spark, renamed, ensemble, move=True)
    assert LockedDeltaWriter(spark, one, renamed).append(spark.range(3, 4)).version == 3


def test_a_clone_that_is_made_under_its_own_lock_gets_its_own_pin(
    spark: SparkSession, source: str, one: ZookeeperLockManager, tmp_path: Path
) -> None:
    clone = str(tmp_path / "clone")
    of_source = pin_of(spark, source)
    assert of_source is not None
    with locked(spark, clone, manager=one):
        spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
        # This is what Delta makes of it.
        assert pin_of(spark, clone) == of_source
    own = Pin(of_source.ensemble, canonical_table_uri(clone))
    assert pin_of(spark, clone) == own
    assert version_of(spark, clone) == 1
    assert LockedDeltaWriter(spark, one, clone).append(spark.range(3, 4)).version == 2
    assert (ids(spark, clone), ids(spark, source)) == ([0, 1, 2, 3], [0, 1, 2])
    assert pin_of(spark, source) == of_source
    # The clone's first files are the source's: the versions say so, and nothing is wrong with them.
    assert [each for each in verify_table(clone).problems if "gates" in each] == []
    # What replaces a table by a clone does not take over the source's name, either.
    with locked(spark, clone, manager=one):
        spark.sql(f"DELETE FROM delta.`{clone}`")
        spark.sql(f"CREATE OR REPLACE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
    assert pin_of(spark, clone) == own


def test_a_clone_whose_driver_was_killed_before_it_was_pinned_is_refused(
    spark: SparkSession,
    source: str,
    one: ZookeeperLockManager,
    ensemble: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clone = str(tmp_path / "clone")
    with monkeypatch.context() as killed:
        killed.setattr("writer_jobs.commit.guarded._restore_pin", lambda *_: None)
        with locked(spark, clone, manager=one):
            spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
    with pytest.raises(TableNameMismatchError):
        LockedDeltaWriter(spark, one, clone).append(spark.range(1))
    assert adopt(spark, clone, ensemble, move=True).version == 1
    assert LockedDeltaWriter(spark, one, clone).append(spark.range(1)).version == 2


def test_a_table_like_another_has_its_properties_and_not_its_pin(
    spark: SparkSession, source: str, one: ZookeeperLockManager, tmp_path: Path
) -> None:
    alike = str(tmp_path / "alike")
    spark.sql(f"CREATE TABLE the_source USING delta LOCATION {json.dumps(source)}")
    try:
        with locked(spark, alike, manager=one):
            spark.sql(f"CREATE TABLE alike LIKE the_source USING delta LOCATION '{alike}'")
        try:
            pin = pin_of(spark, alike)
            assert pin is None or pin.table == canonical_table_uri(alike)
            assert LockedDeltaWriter(spark, one, alike).append(spark.range(3)).version is not None
        finally:
            spark.sql("DROP TABLE alike")
    finally:
        spark.sql("DROP TABLE the_source")


def test_what_restores_an_older_pin_is_followed_by_the_one_that_counts(
    spark: SparkSession,
    source: str,
    one: ZookeeperLockManager,
    another_ensemble: str,
) -> None:
    moved = adopt(spark, source, another_ensemble, move=True)
    name = f"delta.`{source}`"
    with ZookeeperLockManager(another_ensemble, timeout_seconds=60) as there:
        for statement in (f"RESTORE TABLE {name} TO VERSION AS OF 1", f"RESTORE TABLE {name} TO VERSION AS OF 0"):
            with locked(spark, source, manager=there):
                spark.sql(statement)
            assert pin_of(spark, source) == Pin(moved.ensemble, moved.table), statement
        LockedDeltaWriter(spark, there, source).append(spark.range(3, 4))
    assert DeltaTable(source).metadata().configuration == {
        ENSEMBLE_PROPERTY: moved.ensemble,
        TABLE_PROPERTY: moved.table,
    }
    assert verify_table(source).problems == ()
    with pytest.raises(EnsembleMismatchError):
        LockedDeltaWriter(spark, one, source).append(spark.range(1))


def test_a_link_is_one_name_with_what_it_leads_to(
    spark: SparkSession, source: str, one: ZookeeperLockManager, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(source)
    assert LockedDeltaWriter(spark, one, str(link)).append(spark.range(3, 4)).version == 2
