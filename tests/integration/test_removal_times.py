"""A file counts as removed from the commit that removed it, not from the time at which its statement ran."""

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
REMOVAL, NEWEST = 2, 3


@dataclass
class AgedTable:
    """A table of four versions, all of them eight days old. Version 2 removed a file, and has change data."""

    spark: SparkSession
    path: Path
    manager: ZookeeperLockManager

    def version_file(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"

    def date_removal(self, days: float) -> None:
        """Date the removal so many days back, as if its commit had waited since then."""
        path = self.version_file(REMOVAL)
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        for action in actions:
            if "remove" in action:
                action["remove"]["deletionTimestamp"] = int(time.time() * 1000 - days * DAY_MS)
        path.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        age_all_files(self.path)

    def clean_log(self) -> None:
        """Write a checkpoint of the newest version, and delete all older version files."""
        DeltaTableLog(self.spark, f"file:{self.path}").make_newest_checkpoint()
        for version in range(NEWEST):
            self.version_file(version).unlink()

    def removable(self, retain_days: float) -> int:
        """Return how many files VACUUM would remove."""
        retain = timedelta(days=retain_days)
        return vacuum(self.spark, str(self.path), retain=retain, streams=[], manager=self.manager, dry_run=True).files


@pytest.fixture
def aged(
    writer: LockedDeltaWriter,
    table: Path,
    put: Callable[..., None],
    properties: Callable[..., None],
    spark: SparkSession,
    manager: ZookeeperLockManager,
) -> AgedTable:
    put(range(3))
    properties(delta__enableChangeDataFeed="true")
    assert writer.delete("key = 1", lock_during="commit").version == REMOVAL
    put([5])
    # Delta has no log of this copy in memory.
    return AgedTable(spark, Path(shutil.copytree(table, table.with_name("aged"))), manager)


@pytest.mark.full
@pytest.mark.parametrize(
    ("known_from", "statement_days", "retain_days"),
    [("version file", 8, 7), ("checkpoint", 6, 5), ("nothing", 8, 7)],
)
def test_removed_files_stay_for_the_retention_after_their_commit(
    aged: AgedTable, known_from: str, statement_days: float, retain_days: float
) -> None:
    aged.date_removal(statement_days)
    if known_from == "version file":
        committed = aged.version_file(REMOVAL)
    else:
        aged.clean_log()
        committed = aged.version_file(NEWEST)
    set_file_age(committed, 24 * (retain_days - 1))
    assert aged.removable(retain_days) == 0
    # The control: VACUUM would remove the file that the DELETE replaced and its change data.
    set_file_age(committed, 24 * (retain_days + 1))
    assert aged.removable(retain_days) == 2
