"""Jobs, drivers and commands with locks in objects on S3 instead of ZooKeeper."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import lock_manager
from lock_manager import EnsembleMismatchError, LockSettings, ZookeeperLockManager
from sluice.adopt import adopt_table
from sluice.audit.verify import verify_table
from sluice.commands.app import app
from tests.support.append_rows import HEADER, ROWS
from tests.support.lake import S3
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs import append as append_module
from writer_jobs.commit.driver_guard import default_manager

pytestmark = [pytest.mark.spark, pytest.mark.s3]


@dataclass
class Lake:
    """A table on disk whose locks are on S3."""

    spark: SparkSession
    url: str
    table: Path

    def run(self, *arguments: object) -> int:
        """Run the append job; return its exit code."""
        return append_module.main(["--table", str(self.table), *map(str, arguments)])

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.spark.read.format("delta").load(str(self.table)).collect())

    def append(self, manager: lock_manager.LockManager, first: int) -> Any:
        rows = self.spark.range(first, first + 2, numPartitions=1)
        return LockedDeltaWriter(self.spark, manager, str(self.table)).append(rows)


@pytest.fixture
def lake(spark: SparkSession, s3: S3, tmp_path: Path) -> Lake:
    return Lake(spark, f"s3-lease://{s3.root}/{tmp_path.name}", tmp_path / "table")


@pytest.fixture
def managers(lake: Lake) -> Iterator[list[lock_manager.LockManager]]:
    with lock_manager.connect(lake.url) as first, lock_manager.connect(lake.url) as second:
        yield [first, second]


@pytest.mark.full
def test_writers_append_and_nothing_is_lost(lake: Lake, managers: list[lock_manager.LockManager]) -> None:
    lake.append(managers[0], 0)
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(lake.append, managers * 3, range(10, 16 * 10, 25)))
    assert len({result.token for result in results}) == 6
    assert lake.ids() == sorted([0, 1, *(first + row for first in range(10, 160, 25) for row in (0, 1))])
    verification = verify_table(str(lake.table))
    assert verification.problems == ()
    managers[0].acquire(str(lake.table)).release()


def test_the_append_job_runs_without_zookeeper(
    lake: Lake, csv_file: Callable[..., Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = csv_file("rows.csv", HEADER, ROWS)
    assert lake.run("--lock-url", lake.url, "--source", source) == 0
    monkeypatch.setenv("SLUICE_LOCK_URL", f"{lake.url}?session_timeout_seconds=20")
    assert lake.run("--source", source) == 0
    commits = [line for line in map(json.loads, capsys.readouterr().out.splitlines()) if line["event"] == "commit"]
    assert [line["version"] for line in commits] == [0, 1]
    assert commits[0]["token"] < commits[1]["token"]
    assert lake.run("--zookeeper", "127.0.0.1:1", "--lock-url", lake.url, "--source", source) == 2
    assert "give one of them" in capsys.readouterr().err
    assert lake.run("--lock-url", "s3://lake", "--source", source) == 2
    assert "s3-lease://BUCKET/PREFIX" in capsys.readouterr().err


@pytest.mark.full
def test_a_table_belongs_to_one_coordinator_and_can_be_moved(
    lake: Lake, managers: list[lock_manager.LockManager], manager: ZookeeperLockManager, zookeeper: Any
) -> None:
    lake.append(managers[0], 0)
    on_s3, on_zookeeper = LockSettings(lock_url=lake.url), LockSettings(zk_hosts=zookeeper.hosts)
    adopt_table(lake.spark, str(lake.table), on_s3)
    lake.append(managers[0], 10)
    with pytest.raises(EnsembleMismatchError):
        lake.append(manager, 20)
    moved = adopt_table(lake.spark, str(lake.table), on_zookeeper, move=True, old_hosts=lake.url)
    assert moved.moved_from is not None
    lake.append(manager, 30)
    with pytest.raises(EnsembleMismatchError):
        lake.append(managers[0], 40)
    back = adopt_table(lake.spark, str(lake.table), on_s3, move=True, old_hosts=zookeeper.hosts)
    assert (back.ensemble, back.moved_from) == (moved.moved_from, moved.ensemble)
    assert lake.ids() == [0, 1, 10, 11, 30, 31]


def test_status_and_break_show_and_remove_a_holder(lake: Lake, managers: list[lock_manager.LockManager]) -> None:
    hold = managers[0].acquire(str(lake.table))
    listed = CliRunner().invoke(app, ["status", "--lock-url", lake.url, "--json"])
    (table,) = json.loads(listed.output)["tables"]
    assert table["table"] == f"file:{lake.table}"
    assert [holder["token"] for holder in table["holders"]] == [hold.token]
    removed = CliRunner().invoke(app, ["break", str(lake.table), "--lock-url", lake.url, "--yes"])
    assert "removed: " in removed.output, removed.output
    with pytest.raises(lock_manager.LockLostError):
        hold.check()
    assert CliRunner().invoke(app, ["ensemble", "status"], env={"SLUICE_LOCK_URL": lake.url}).exit_code == 2


def test_a_block_of_a_driver_uses_the_url_in_its_settings(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_LOCK_URL", lake.url)
    monkeypatch.delenv("SLUICE_ZK_HOSTS", raising=False)
    with locked(lake.spark, str(lake.table), manager=default_manager(lake.spark)) as hold:
        lake.spark.range(2).write.format("delta").save(str(lake.table))
    assert hold.commits == {f"file:{lake.table}": (0,)}
    assert lake.ids() == [0, 1]
