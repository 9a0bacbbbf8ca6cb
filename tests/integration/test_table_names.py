"""Two names of one table that do not show it, and one adoption that was copied: the table's own name settles it."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

from lock_manager import (
    Adoption,
    AdoptionMismatchError,
    EnsembleMismatchError,
    LockSettings,
    LockTimeoutError,
    TableNameMismatchError,
    ZookeeperLockManager,
    canonical_table_uri,
)
from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.adopt import AdoptResult, adopt_table, describe
from sluice.audit.verify import verify_table
from sluice.commands.app import app
from sluice.local._s3_server import OneAtATimePerKey, WsgiApplication, make_s3_server, moto_application
from sluice.local.s3 import LocalS3
from tests.support.rivals import RivalManager
from writer_jobs import DeltaTableLog, LockedDeltaWriter, locate_table, locked

pytestmark = pytest.mark.spark

THREE_ROWS = "CREATE TABLE {t} USING delta AS SELECT id FROM range(3)"
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
def ensemble(zookeeper: Any) -> str:
    hosts: str = zookeeper.hosts
    return hosts


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


def append(spark: SparkSession, table: str, number: int) -> None:
    row(spark, number).write.format("delta").mode("append").save(table)


def row(spark: SparkSession, number: int) -> DataFrame:
    return spark.range(number, number + 1).coalesce(1)


def adopt(spark: SparkSession, table: str, hosts: str, *, seconds: float = 60, **how: Any) -> AdoptResult:
    return adopt_table(spark, table, LockSettings(zk_hosts=hosts, timeout_seconds=seconds), **how)


def adoption_on_s3(spark: SparkSession, table: str) -> Adoption | None:
    state = DeltaTableLog(spark, locate_table(spark, table)).state()
    assert state is not None
    return state.adoption


def version_on_s3(spark: SparkSession, table: str) -> int:
    # Not by deltalake: it would keep this process, which serves the S3, from running.
    return DeltaTableLog(spark, locate_table(spark, table)).head().version


def adoption_of(table: str) -> Adoption | None:
    return Adoption.of(DeltaTable(table).metadata().configuration)


def version_of(table: str) -> int:
    return DeltaTable(table).version()


@pytest.fixture(scope="module")
def adopted(
    spark: SparkSession, original: Callable[..., Path], ensemble: str, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A table of three rows, version 0, on the disk; adopted by version 1."""
    table = tmp_path_factory.mktemp("adopted") / "the 'source'"
    shutil.copytree(original(THREE_ROWS), table)
    assert adopt(spark, str(table), ensemble).version == 1
    return table


def set_adopted_name(table: Path, name: str | None) -> None:
    """Put another name into the adoption that version 1 of a table sets, or none, as in an earlier release."""
    for kind in ("json", "crc"):
        file = table / f"_delta_log/{1:020d}.{kind}"
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        (metadata,) = (each[key] for each in actions for key in ("metaData", "metadata") if key in each)
        del metadata["configuration"][TABLE_PROPERTY]
        metadata["configuration"] |= {TABLE_PROPERTY: name} if name else {}
        file.write_text("".join(json.dumps(each) + "\n" for each in actions))


@pytest.fixture
def source(adopted: Path, tmp_path: Path) -> str:
    """Such a table, of the test's own, as if it had been made and adopted where it is."""
    table = tmp_path / adopted.name
    shutil.copytree(adopted, table)
    set_adopted_name(table, canonical_table_uri(str(table)))
    return str(table)


@pytest.fixture
def append_job(append: Callable[..., Any], csv_file: Callable[..., Path], ensemble: str) -> Callable[..., Any]:
    source = csv_file("s.csv", "id", [(7,)])
    return lambda *arguments: append(*arguments, "--source", source, hosts=ensemble)


@pytest.fixture
def upload(endpoint: str, by_name: str) -> Callable[[Path], None]:
    """Copy a table from the disk to where it has two names."""

    def copy(table: Path) -> None:
        bucket, _, prefix = by_name.removeprefix("s3a://").partition("/")
        client = boto3.client("s3", endpoint_url=endpoint)
        for path in filter(Path.is_file, table.rglob("*")):
            client.put_object(Bucket=bucket, Key=f"{prefix}/{path.relative_to(table)}", Body=path.read_bytes())

    return copy


@pytest.fixture
def on_s3(original: Callable[..., Path], upload: Callable[[Path], None], by_name: str) -> str:
    """A table of three rows, version 0, with two names."""
    upload(original(THREE_ROWS))
    return by_name


def test_negative_control_without_the_adoption_two_names_are_two_locks(
    spark: SparkSession, by_name: str, by_alias: str, one: ZookeeperLockManager, other: ZookeeperLockManager
) -> None:
    with locked(spark, by_name, manager=one):
        append(spark, by_name, 0)
        with locked(spark, by_alias, manager=other, timeout_seconds=0):
            append(spark, by_alias, 1)
        append(spark, by_name, 2)
    assert version_on_s3(spark, by_name) == 2


@pytest.mark.full
def test_a_table_is_written_under_its_own_name_and_under_no_other(
    spark: SparkSession,
    on_s3: str,
    by_alias: str,
    ensemble: str,
    one: ZookeeperLockManager,
    other: ZookeeperLockManager,
    append_job: Callable[..., Any],
) -> None:
    done = adopt(spark, on_s3, ensemble)
    assert (done.table, done.version, done.renamed_from) == (canonical_table_uri(on_s3), 1, None)
    assert adoption_on_s3(spark, by_alias) == Adoption(done.ensemble, done.table)

    entered = False
    with locked(spark, on_s3, manager=one):
        with pytest.raises(TableNameMismatchError) as refused:
            with locked(spark, by_alias, manager=other, timeout_seconds=0):
                entered = True
        append(spark, on_s3, 3)
    assert not entered
    assert (refused.value.resource, refused.value.adopted_name) == (canonical_table_uri(by_alias), done.table)
    assert refused.value.resource in str(refused.value)
    assert done.table in str(refused.value)
    assert "--move" in str(refused.value)
    with pytest.raises(TableNameMismatchError):
        LockedDeltaWriter(spark, other, by_alias).append(row(spark, 0))
    failed = append_job("--table", by_alias)
    assert failed.code == 3, failed.error
    assert f"is adopted under the name {done.table}" in failed.error
    # Nothing was written, and each lock was given back.
    assert other.queue(by_alias) == []
    assert version_on_s3(spark, on_s3) == 2


@pytest.mark.full
def test_a_table_gets_another_name_only_if_it_is_told_to_and_while_nobody_is_at_work(
    spark: SparkSession,
    source: str,
    upload: Callable[[Path], None],
    by_name: str,
    by_alias: str,
    ensemble: str,
    one: ZookeeperLockManager,
    other: ZookeeperLockManager,
) -> None:
    old = canonical_table_uri(by_name)
    set_adopted_name(Path(source), old)
    upload(Path(source))
    with pytest.raises(TableNameMismatchError):
        adopt(spark, by_alias, ensemble)
    with locked(spark, by_name, manager=one):
        with pytest.raises(LockTimeoutError):
            adopt(spark, by_alias, ensemble, move=True, seconds=0)
    assert version_on_s3(spark, by_name) == 1
    moved = adopt(spark, by_alias, ensemble, move=True)
    assert (moved.version, moved.moved_from, moved.renamed_from) == (2, None, old)
    assert describe(moved) == (
        f"{canonical_table_uri(by_alias)} was adopted by ensemble {moved.ensemble} under this name, "
        f"no longer {old}, by version 2"
    )
    with pytest.raises(TableNameMismatchError):
        LockedDeltaWriter(spark, one, by_name).append(row(spark, 0))
    LockedDeltaWriter(spark, other, by_alias).append(row(spark, 3))
    assert version_on_s3(spark, by_name) == 3


def test_a_table_that_an_earlier_release_adopted_stays_valid_and_gets_its_name_by_another_adopt(
    spark: SparkSession, source: str, one: ZookeeperLockManager, ensemble: str
) -> None:
    before = adoption_of(source)
    assert before is not None
    set_adopted_name(Path(source), None)
    assert adoption_of(source) == Adoption(before.ensemble)
    LockedDeltaWriter(spark, one, source).append(row(spark, 3))
    done = adopt(spark, source, ensemble)
    assert (done.version, done.moved_from, done.renamed_from) == (3, None, None)
    assert adoption_of(source) == before
    assert version_of(source) == 3
    assert describe(done).startswith(f"{before.table} was adopted by ensemble")
    assert adopt(spark, source, ensemble).version is None


def test_a_copied_folder_has_the_adoption_of_the_original_and_is_refused_until_it_gets_its_own(
    spark: SparkSession,
    source: str,
    one: ZookeeperLockManager,
    ensemble: str,
    tmp_path: Path,
    rows_of: Callable[..., list[tuple[int]]],
) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(source, copy)
    with pytest.raises(TableNameMismatchError) as refused:
        LockedDeltaWriter(spark, one, copy).append(row(spark, 0))
    assert refused.value.adopted_name == canonical_table_uri(source)
    assert version_of(copy) == 1
    found = verify_table(copy)
    assert (found.problems, found.adopted_name) == ((), canonical_table_uri(source))
    told = CliRunner().invoke(app, ["verify", copy], env={"COLUMNS": "300"})
    assert told.exit_code == 0
    assert f"adopted under another name {canonical_table_uri(source)}" in " ".join(told.stdout.split())

    done = adopt(spark, copy, ensemble, move=True)
    assert (done.version, done.renamed_from) == (2, canonical_table_uri(source))
    LockedDeltaWriter(spark, one, copy).append(row(spark, 3))
    LockedDeltaWriter(spark, one, source).append(row(spark, 9))
    assert (rows_of(copy), rows_of(source)) == ([(0,), (1,), (2,), (3,)], [(0,), (1,), (2,), (9,)])
    assert verify_table(copy).problems == ()


@pytest.mark.full
def test_a_copy_for_another_ensemble_is_moved_once(
    spark: SparkSession, source: str, ensemble: str, another_ensemble: str, tmp_path: Path
) -> None:
    copy = str(tmp_path / "copy")
    shutil.copytree(source, copy)
    before = adoption_of(source)
    assert before is not None
    with pytest.raises(TableNameMismatchError):
        adopt(spark, copy, another_ensemble)
    with pytest.raises(EnsembleMismatchError):
        adopt(spark, copy, ensemble, move=True, old_hosts=another_ensemble)
    done = adopt(spark, copy, another_ensemble, move=True, old_hosts=ensemble)
    assert (done.version, done.moved_from, done.renamed_from) == (2, before.ensemble, before.table)
    assert " was moved from ensemble " in describe(done)
    assert adoption_of(source) == before
    assert verify_table(copy).problems == ()


def test_a_renamed_folder_gets_its_new_name(
    spark: SparkSession, source: str, one: ZookeeperLockManager, ensemble: str, tmp_path: Path
) -> None:
    renamed = str(tmp_path / "renamed")
    Path(source).rename(renamed)
    with pytest.raises(AdoptionMismatchError):
        LockedDeltaWriter(spark, one, renamed).append(row(spark, 0))
    adopt(spark, renamed, ensemble, move=True)
    assert LockedDeltaWriter(spark, one, renamed).append(row(spark, 3)).version == 3


@pytest.mark.full
def test_a_clone_that_is_made_under_its_own_lock_gets_its_own_adoption(
    spark: SparkSession,
    source: str,
    one: ZookeeperLockManager,
    ensemble: str,
    tmp_path: Path,
    rows_of: Callable[..., list[tuple[int]]],
) -> None:
    clone, of_killed = str(tmp_path / "clone"), str(tmp_path / "of a driver that is killed here")
    of_source = adoption_of(source)
    assert of_source is not None
    with locked(spark, clone, manager=one):
        spark.sql(f"CREATE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
        # This is what Delta makes of it.
        assert adoption_of(clone) == of_source
        shutil.copytree(clone, of_killed)
    own = Adoption(of_source.ensemble, canonical_table_uri(clone))
    assert adoption_of(clone) == own
    assert version_of(clone) == 1
    assert LockedDeltaWriter(spark, one, clone).append(row(spark, 3)).version == 2
    assert (rows_of(clone), rows_of(source)) == ([(0,), (1,), (2,), (3,)], [(0,), (1,), (2,)])
    assert adoption_of(source) == of_source
    # The clone's first files are the source's: the versions say so, and nothing is wrong with them.
    assert [each for each in verify_table(clone).problems if "gates" in each] == []
    # One whose driver was killed before it was adopted is refused.
    with pytest.raises(TableNameMismatchError):
        LockedDeltaWriter(spark, one, of_killed).append(row(spark, 0))
    assert adopt(spark, of_killed, ensemble, move=True).version == 1
    assert LockedDeltaWriter(spark, one, of_killed).append(row(spark, 0)).version == 2


@pytest.mark.full
def test_what_replaces_a_table_by_a_clone_does_not_take_over_the_adoption_of_its_source(
    spark: SparkSession, source: str, one: ZookeeperLockManager, ensemble: str, copy_of: Callable[..., Path]
) -> None:
    clone = str(copy_of(THREE_ROWS))
    adopt(spark, clone, ensemble)
    own = adoption_of(clone)
    with locked(spark, clone, manager=one):
        # Delta replaces none that has rows.
        spark.sql(f"DELETE FROM delta.`{clone}`")
        spark.sql(f"CREATE OR REPLACE TABLE delta.`{clone}` SHALLOW CLONE delta.`{source}`")
        assert adoption_of(clone) == adoption_of(source)
    assert adoption_of(clone) == own != adoption_of(source)


def test_a_table_like_another_has_its_properties_and_not_its_adoption(
    spark: SparkSession, source: str, one: ZookeeperLockManager, tmp_path: Path
) -> None:
    alike = str(tmp_path / "alike")
    spark.sql(f"CREATE TABLE the_source USING delta LOCATION {json.dumps(source)}")
    try:
        with locked(spark, alike, manager=one):
            spark.sql(f"CREATE TABLE alike LIKE the_source USING delta LOCATION '{alike}'")
        try:
            adoption = adoption_of(alike)
            assert adoption is None or adoption.table == canonical_table_uri(alike)
            assert LockedDeltaWriter(spark, one, alike).append(row(spark, 3)).version is not None
        finally:
            spark.sql("DROP TABLE alike")
    finally:
        spark.sql("DROP TABLE the_source")


@pytest.mark.parametrize("by_restore", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_what_brings_back_an_older_adoption_is_followed_by_the_one_that_counts(
    spark: SparkSession,
    source: str,
    one: ZookeeperLockManager,
    another_ensemble: str,
    *,
    by_restore: bool,
) -> None:
    older = adoption_of(source)
    assert older is not None
    moved = adopt(spark, source, another_ensemble, move=True)
    with ZookeeperLockManager(another_ensemble, timeout_seconds=60) as there:
        with locked(spark, source, manager=there):
            if by_restore:
                spark.sql(f"RESTORE TABLE delta.`{source}` TO VERSION AS OF 1")
            else:
                properties = ", ".join(f'"{name}" = "{value}"' for name, value in older.properties.items())
                spark.sql(f"ALTER TABLE delta.`{source}` SET TBLPROPERTIES ({properties})")
            assert adoption_of(source) == older
        assert adoption_of(source) == Adoption(moved.ensemble, moved.table)
        LockedDeltaWriter(spark, there, source).append(row(spark, 3))
    assert DeltaTable(source).metadata().configuration == {
        ENSEMBLE_PROPERTY: moved.ensemble,
        TABLE_PROPERTY: moved.table,
    }
    assert verify_table(source).problems == ()
    with pytest.raises(EnsembleMismatchError):
        LockedDeltaWriter(spark, one, source).append(row(spark, 0))


def test_a_link_is_one_name_with_what_it_leads_to(
    spark: SparkSession, source: str, one: ZookeeperLockManager, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(source)
    assert LockedDeltaWriter(spark, one, str(link)).append(row(spark, 3)).version == 2
