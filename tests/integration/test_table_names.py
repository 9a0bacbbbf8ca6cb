"""The adopted name of a table: other names of the table, and copies of its adoption, are refused."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
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


class AliasGate:
    """An S3 application that accepts a second name of a bucket, as S3 accepts the alias of an access point."""

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        for name in ("PATH_INFO", "RAW_URI", "REQUEST_URI", "HTTP_X_AMZ_COPY_SOURCE"):
            if name in environ:
                environ[name] = environ[name].replace(f"/{ALIAS}", f"/{BUCKET}", 1)
        return self._application(environ, start_response)


@pytest.fixture(scope="module")
def endpoint(spark: SparkSession) -> Iterator[str]:
    """The endpoint of an S3 whose bucket has two names. The driver uses this endpoint for both names."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # no line per request
    server = make_s3_server(AliasGate(OneAtATimePerKey(moto_application())))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    local_s3 = LocalS3()
    local_s3._port = server.server_port
    local_s3.create_bucket(BUCKET)
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    for name in (BUCKET, ALIAS):
        conf.set(f"fs.s3a.bucket.{name}.endpoint", address)
    yield address
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass
class NamedTable:
    """A table under one of its names, and a lock manager of an ensemble."""

    spark: SparkSession
    location: str
    manager: ZookeeperLockManager

    @property
    def uri(self) -> str:
        return canonical_table_uri(self.location)

    @property
    def path(self) -> Path:
        return Path(self.location)

    def at_location(self, location: Path) -> NamedTable:
        """Return another location with the same manager. No file is moved."""
        return replace(self, location=str(location))

    def copy_to(self, location: Path) -> NamedTable:
        shutil.copytree(self.path, location)
        return self.at_location(location)

    def upload_to(self, table: NamedTable, endpoint: str) -> None:
        """Copy a local table to S3."""
        bucket, _, prefix = table.location.removeprefix("s3a://").partition("/")
        client = boto3.client("s3", endpoint_url=endpoint)
        for path in filter(Path.is_file, self.path.rglob("*")):
            client.put_object(Bucket=bucket, Key=f"{prefix}/{path.relative_to(self.path)}", Body=path.read_bytes())

    def locked(self, **options: Any) -> AbstractContextManager[Any]:
        return locked(self.spark, self.location, manager=self.manager, **options)

    def sql(self, statement: str) -> None:
        """Run a statement; ``{t}`` stands for the table."""
        self.spark.sql(statement.replace("{t}", f"delta.`{self.location}`"))

    def row(self, number: int) -> DataFrame:
        return self.spark.range(number, number + 1).coalesce(1)

    def append(self, number: int) -> int | None:
        """Append a row under the lock; return the version."""
        return LockedDeltaWriter(self.spark, self.manager, self.location).append(self.row(number)).version

    def append_in_block(self, number: int) -> None:
        """Append a row with Spark's own writer, in a block of ``locked``."""
        self.row(number).write.format("delta").mode("append").save(self.location)

    def adopt(self, hosts: str = "", *, seconds: float = 60, **options: Any) -> AdoptResult:
        """Adopt the table for the ensemble of the manager, or for another one."""
        settings = LockSettings(zk_hosts=hosts or self.manager.settings.zk_hosts, timeout_seconds=seconds)
        return adopt_table(self.spark, self.location, settings, **options)

    def _log(self) -> DeltaTableLog:
        # On S3 Spark reads the log: deltalake would block this process, which serves the S3.
        return DeltaTableLog(self.spark, locate_table(self.spark, self.location))

    def adoption(self) -> Adoption | None:
        if not self.location.startswith("s3a:"):
            return Adoption.of(DeltaTable(self.location).metadata().configuration)
        state = self._log().state()
        assert state is not None
        return state.adoption

    def version(self) -> int:
        is_on_s3 = self.location.startswith("s3a:")
        return self._log().head().version if is_on_s3 else DeltaTable(self.location).version()

    def set_adopted_name(self, name: str | None) -> None:
        """Replace the name in the adoption of version 1. None removes it: earlier releases stored no name."""
        for suffix in ("json", "crc"):
            file = self.path / f"_delta_log/{1:020d}.{suffix}"
            actions = [json.loads(line) for line in file.read_text().splitlines()]
            (metadata,) = (action[key] for action in actions for key in ("metaData", "metadata") if key in action)
            del metadata["configuration"][TABLE_PROPERTY]
            metadata["configuration"] |= {TABLE_PROPERTY: name} if name else {}
            file.write_text("".join(json.dumps(action) + "\n" for action in actions))


@pytest.fixture
def table_by_name(
    spark: SparkSession, endpoint: str, zookeeper: Any, request: pytest.FixtureRequest
) -> Iterator[NamedTable]:
    """A location on S3 without a table."""
    with RivalManager(zookeeper.hosts, timeout_seconds=60, job="by name") as manager:
        yield NamedTable(spark, f"s3a://{BUCKET}/{request.node.name}", manager)


@pytest.fixture
def table_by_alias(table_by_name: NamedTable, zookeeper: Any) -> Iterator[NamedTable]:
    """The location of ``table_by_name`` under its second name, with another lock manager."""
    with RivalManager(zookeeper.hosts, timeout_seconds=60, job="by alias") as manager:
        yield NamedTable(table_by_name.spark, table_by_name.location.replace(BUCKET, ALIAS), manager)


@pytest.fixture(scope="module")
def another_ensemble() -> Iterator[str]:
    with EmbeddedZooKeeper() as server:
        yield server.hosts


@pytest.fixture(scope="module")
def adopted_path(
    spark: SparkSession, original: Callable[..., Path], zookeeper: Any, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A local table of three rows. Version 0 creates the table, and version 1 adopts it."""
    path = tmp_path_factory.mktemp("adopted") / "the 'source'"
    shutil.copytree(original(THREE_ROWS), path)
    settings = LockSettings(zk_hosts=zookeeper.hosts, timeout_seconds=60)
    assert adopt_table(spark, str(path), settings).version == 1
    return path


@pytest.fixture
def source(spark: SparkSession, adopted_path: Path, zookeeper: Any, tmp_path: Path) -> Iterator[NamedTable]:
    """A copy of the table at ``adopted_path``, changed as if it had been adopted at its own location."""
    with RivalManager(zookeeper.hosts, timeout_seconds=60) as manager:
        table = NamedTable(spark, str(adopted_path), manager).copy_to(tmp_path / adopted_path.name)
        table.set_adopted_name(table.uri)
        yield table


def test_negative_control_without_adoption_two_names_are_two_locks(
    table_by_name: NamedTable, table_by_alias: NamedTable
) -> None:
    with table_by_name.locked():
        table_by_name.append_in_block(0)
        with table_by_alias.locked(timeout_seconds=0):
            table_by_alias.append_in_block(1)
        table_by_name.append_in_block(2)
    assert table_by_name.version() == 2


@pytest.mark.full
def test_an_adopted_table_is_written_under_one_name_only(
    table_by_name: NamedTable,
    table_by_alias: NamedTable,
    endpoint: str,
    original: Callable[..., Path],
    append: Callable[..., Any],
    csv_file: Callable[..., Path],
) -> None:
    table_by_name.at_location(original(THREE_ROWS)).upload_to(table_by_name, endpoint)
    result = table_by_name.adopt()
    assert (result.table, result.version, result.renamed_from) == (table_by_name.uri, 1, None)
    assert table_by_alias.adoption() == Adoption(result.ensemble, result.table)

    block_was_entered = False
    with table_by_name.locked():
        with pytest.raises(TableNameMismatchError) as error:
            with table_by_alias.locked(timeout_seconds=0):
                block_was_entered = True
        table_by_name.append_in_block(3)
    assert not block_was_entered
    assert (error.value.resource, error.value.adopted_name) == (table_by_alias.uri, result.table)
    assert error.value.resource in str(error.value)
    assert result.table in str(error.value)
    assert "--move" in str(error.value)
    with pytest.raises(TableNameMismatchError):
        table_by_alias.append(0)
    job = append("--table", table_by_alias.location, "--source", csv_file("s.csv", "id", [(7,)]))
    assert job.code == 3, job.error
    assert f"is adopted under the name {result.table}" in job.error
    # Nothing is written, and each lock is released.
    assert table_by_alias.manager.queue(table_by_alias.location) == []
    assert table_by_name.version() == 2


@pytest.mark.full
def test_a_table_is_renamed_only_with_move_and_without_holders(
    source: NamedTable, table_by_name: NamedTable, table_by_alias: NamedTable, endpoint: str
) -> None:
    source.set_adopted_name(table_by_name.uri)
    source.upload_to(table_by_name, endpoint)
    with pytest.raises(TableNameMismatchError):
        table_by_alias.adopt()
    with table_by_name.locked():
        with pytest.raises(LockTimeoutError):
            table_by_alias.adopt(move=True, seconds=0)
    assert table_by_name.version() == 1
    result = table_by_alias.adopt(move=True)
    assert (result.version, result.moved_from, result.renamed_from) == (2, None, table_by_name.uri)
    assert describe(result) == (
        f"{table_by_alias.uri} was adopted by ensemble {result.ensemble} under this name, "
        f"no longer {table_by_name.uri}, by version 2"
    )
    with pytest.raises(TableNameMismatchError):
        table_by_name.append(0)
    table_by_alias.append(3)
    assert table_by_name.version() == 3


def test_an_adoption_without_a_name_is_valid_and_completed(source: NamedTable) -> None:
    adoption = source.adoption()
    assert adoption is not None
    source.set_adopted_name(None)
    assert source.adoption() == Adoption(adoption.ensemble)
    source.append(3)
    result = source.adopt()
    assert (result.version, result.moved_from, result.renamed_from) == (3, None, None)
    assert source.adoption() == adoption
    assert source.version() == 3
    assert describe(result).startswith(f"{adoption.table} was adopted by ensemble")
    assert source.adopt().version is None


def test_a_copied_folder_is_refused_until_it_is_adopted(
    source: NamedTable, tmp_path: Path, rows_of: Callable[..., list[tuple[int]]]
) -> None:
    copy = source.copy_to(tmp_path / "copy")
    with pytest.raises(TableNameMismatchError) as error:
        copy.append(0)
    assert error.value.adopted_name == source.uri
    assert copy.version() == 1
    verification = verify_table(copy.location)
    assert (verification.problems, verification.adopted_name) == ((), source.uri)
    verify_result = CliRunner().invoke(app, ["verify", copy.location], env={"COLUMNS": "300"})
    assert verify_result.exit_code == 0
    assert f"adopted under another name {source.uri}" in " ".join(verify_result.stdout.split())

    result = copy.adopt(move=True)
    assert (result.version, result.renamed_from) == (2, source.uri)
    copy.append(3)
    source.append(9)
    assert rows_of(copy.path) == [(0,), (1,), (2,), (3,)]
    assert rows_of(source.path) == [(0,), (1,), (2,), (9,)]
    assert verify_table(copy.location).problems == ()


@pytest.mark.full
def test_a_copy_is_moved_and_renamed_by_one_version(source: NamedTable, another_ensemble: str, tmp_path: Path) -> None:
    copy, ensemble = source.copy_to(tmp_path / "copy"), source.manager.settings.zk_hosts
    adoption = source.adoption()
    assert adoption is not None
    with pytest.raises(TableNameMismatchError):
        copy.adopt(another_ensemble)
    with pytest.raises(EnsembleMismatchError):
        copy.adopt(move=True, old_hosts=another_ensemble)
    result = copy.adopt(another_ensemble, move=True, old_hosts=ensemble)
    assert (result.version, result.moved_from, result.renamed_from) == (2, adoption.ensemble, adoption.table)
    assert " was moved from ensemble " in describe(result)
    assert source.adoption() == adoption
    assert verify_table(copy.location).problems == ()


def test_a_renamed_folder_is_adopted_under_its_new_name(source: NamedTable, tmp_path: Path) -> None:
    renamed_table = source.at_location(source.path.rename(tmp_path / "renamed"))
    with pytest.raises(AdoptionMismatchError):
        renamed_table.append(0)
    renamed_table.adopt(move=True)
    assert renamed_table.append(3) == 3


@pytest.mark.full
def test_a_clone_gets_its_own_adoption(
    source: NamedTable, tmp_path: Path, rows_of: Callable[..., list[tuple[int]]]
) -> None:
    clone = source.at_location(tmp_path / "clone")
    source_adoption = source.adoption()
    assert source_adoption is not None
    with clone.locked():
        clone.sql(f"CREATE TABLE {{t}} SHALLOW CLONE delta.`{source.location}`")
        # Delta copies the adoption of the source.
        assert clone.adoption() == source_adoption
        clone_of_killed_driver = clone.copy_to(tmp_path / "of a driver that is killed here")
    assert clone.adoption() == Adoption(source_adoption.ensemble, clone.uri)
    assert clone.version() == 1
    assert clone.append(3) == 2
    assert (rows_of(clone.path), rows_of(source.path)) == ([(0,), (1,), (2,), (3,)], [(0,), (1,), (2,)])
    assert source.adoption() == source_adoption
    # The first files of the clone belong to the source.
    assert verify_table(clone.location).problems == ()
    # If the driver is killed before it adopts the clone, the clone is refused.
    with pytest.raises(TableNameMismatchError):
        clone_of_killed_driver.append(0)
    assert clone_of_killed_driver.adopt(move=True).version == 1
    assert clone_of_killed_driver.append(0) == 2


@pytest.mark.full
def test_a_table_keeps_its_adoption_when_a_clone_replaces_it(source: NamedTable, copy_of: Callable[..., Path]) -> None:
    table = source.at_location(copy_of(THREE_ROWS))
    table.adopt()
    adoption = table.adoption()
    with table.locked():
        # Delta replaces only tables without rows.
        table.sql("DELETE FROM {t}")
        table.sql(f"CREATE OR REPLACE TABLE {{t}} SHALLOW CLONE delta.`{source.location}`")
        assert table.adoption() == source.adoption()
    assert table.adoption() == adoption != source.adoption()


def test_a_table_like_another_does_not_get_its_adoption(source: NamedTable, tmp_path: Path) -> None:
    table = source.at_location(tmp_path / "alike")
    source.sql(f"CREATE TABLE the_source USING delta LOCATION {json.dumps(source.location)}")
    try:
        with table.locked():
            table.sql(f"CREATE TABLE alike LIKE the_source USING delta LOCATION '{table.location}'")
        try:
            adoption = table.adoption()
            assert adoption is None or adoption.table == table.uri
            assert table.append(3) is not None
        finally:
            table.sql("DROP TABLE alike")
    finally:
        source.sql("DROP TABLE the_source")


@pytest.mark.parametrize(
    "by_restore", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["properties", "restore"]
)
def test_an_older_adoption_is_undone_after_its_block(
    source: NamedTable, another_ensemble: str, *, by_restore: bool
) -> None:
    older_adoption = source.adoption()
    assert older_adoption is not None
    move_result = source.adopt(another_ensemble, move=True)
    with ZookeeperLockManager(another_ensemble, timeout_seconds=60) as manager:
        moved_table = replace(source, manager=manager)
        with moved_table.locked():
            if by_restore:
                moved_table.sql("RESTORE TABLE {t} TO VERSION AS OF 1")
            else:
                properties = ", ".join(f'"{name}" = "{value}"' for name, value in older_adoption.properties.items())
                moved_table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({properties})")
            assert moved_table.adoption() == older_adoption
        assert moved_table.adoption() == Adoption(move_result.ensemble, move_result.table)
        moved_table.append(3)
    assert DeltaTable(source.location).metadata().configuration == {
        ENSEMBLE_PROPERTY: move_result.ensemble,
        TABLE_PROPERTY: move_result.table,
    }
    assert verify_table(source.location).problems == ()
    with pytest.raises(EnsembleMismatchError):
        source.append(0)


def test_a_symbolic_link_is_not_another_name(source: NamedTable, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(source.path)
    assert source.at_location(link).append(3) == 2
