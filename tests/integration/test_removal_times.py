"""The retention of a removed file starts at the commit that removed it, not when the statement ran."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.maintained import age_all_files, set_file_age
from writer_jobs import LockedDeltaWriter, vacuum
from writer_jobs.delta.table_log import DeltaTableLog

pytestmark = pytest.mark.spark

DAY_MS = 24 * 3600 * 1000
REMOVAL_VERSION, NEWEST_VERSION = 2, 3


@dataclass
class AgedTable:
    """A table of four versions, all of them eight days old. Version 2 removed a file and wrote change data."""

    spark: SparkSession
    path: Path
    manager: ZookeeperLockManager

    def version_file(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"

    def set_statement_time(self, days_ago: float) -> None:
        """Set the time of the removal's statement to ``days_ago``, as if its commit had waited since then."""
        path = self.version_file(REMOVAL_VERSION)
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] = int(time.time() * 1000 - days_ago * DAY_MS)
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        age_all_files(self.path)

    def clean_log(self) -> None:
        """Write a checkpoint of the newest version, and delete all older version files."""
        DeltaTableLog(self.spark, f"file:{self.path}").make_newest_checkpoint()
        for version in range(NEWEST_VERSION):
            self.version_file(version).unlink()

    def removable_file_count(self, retain_days: float) -> int:
        """Return the number of files that VACUUM would remove."""
        retain = timedelta(days=retain_days)
        return vacuum(self.spark, str(self.path), retain=retain, streams=[], manager=self.manager, dry_run=True).files


@pytest.fixture
def aged_table(
    writer: LockedDeltaWriter,
    table: Path,
    put: Callable[..., None],
    properties: Callable[..., None],
    spark: SparkSession,
    manager: ZookeeperLockManager,
) -> AgedTable:
    put(range(3))
    properties(delta__enableChangeDataFeed="true")
    assert writer.delete("key = 1", lock_during="commit").version == REMOVAL_VERSION
    put([5])
    # Delta has not loaded the log of this copy.
    return AgedTable(spark, Path(shutil.copytree(table, table.with_name("aged"))), manager)


@pytest.mark.full
@pytest.mark.parametrize(
    ("recorded_in", "statement_days", "retain_days"),
    [("version file", 8, 7), ("checkpoint", 6, 5), ("nothing", 8, 7)],
)
def test_removed_files_stay_for_the_retention_after_their_commit(
    aged_table: AgedTable, recorded_in: str, statement_days: float, retain_days: float
) -> None:
    aged_table.set_statement_time(statement_days)
    if recorded_in == "version file":
        commit_file = aged_table.version_file(REMOVAL_VERSION)
    else:
        aged_table.clean_log()
        commit_file = aged_table.version_file(NEWEST_VERSION)
    set_file_age(commit_file, 24 * (retain_days - 1))
    assert aged_table.removable_file_count(retain_days) == 0
    # The control: VACUUM would remove the file that the DELETE replaced and its change data.
    set_file_age(commit_file, 24 * (retain_days + 1))
    assert aged_table.removable_file_count(retain_days) == 2
