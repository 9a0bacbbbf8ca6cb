"""The retention of a removed file starts at the commit that removed it, not when the statement ran."""

from __future__ import annotations

import json
import time
from datetime import timedelta

import pytest

from tests.support.maintained import age_all_files, set_file_age
from tests.support.maintained_table import MaintainedTable
from writer_jobs.delta.table_log import DeltaTableLog

pytestmark = pytest.mark.spark

DAY_MS = 24 * 3600 * 1000
REMOVAL_VERSION, NEWEST_VERSION = 2, 3


class AgedTable(MaintainedTable):
    """A table of four versions. Version 2 removed a file and wrote change data."""

    def set_statement_time(self, days_ago: float) -> None:
        """Set the time of the removal's statement to ``days_ago``, and the age of all files to eight days."""
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
        return self.vacuum(retain=timedelta(days=retain_days), streams=[], dry_run=True).files


@pytest.fixture
def aged_table(request: pytest.FixtureRequest) -> AgedTable:
    table = AgedTable.of(request)
    table.append(*range(3))
    table.set_properties(delta__enableChangeDataFeed="true")
    assert table.writer.delete("key = 1", lock_during="commit").version == REMOVAL_VERSION
    table.append(5)
    # Delta has no snapshot of this copy in memory.
    return table.copy_to(table.path.with_name("aged"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("recorded_in", "statement_days", "retain_days"),
    # A checkpoint contains the removals of the last seven days, Delta's default retention.
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
        # A removal whose version file is gone counts from the oldest version of the log.
        commit_file = aged_table.version_file(NEWEST_VERSION)
    set_file_age(commit_file, 24 * (retain_days - 1))
    assert aged_table.removable_file_count(retain_days) == 0
    # The control: VACUUM would remove the file that the DELETE replaced and its change data.
    set_file_age(commit_file, 24 * (retain_days + 1))
    assert aged_table.removable_file_count(retain_days) == 2
