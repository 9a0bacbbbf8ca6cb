"""An append through the gate begins with the snapshot of the driver's last commit, and is as safe as any other write.

A transaction begins with the version ``commitInfo.readVersion``.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Field, Transaction, write_deltalake
from deltalake.schema import PrimitiveType
from pyarrow import table as arrow_table
from pyspark.sql import SparkSession

from tests.support.at_the_gate import TableAtTheGate, actions, commit_info, version_path
from tests.support.checksums import checksum_file
from writer_jobs import CommitResult, SchemaMismatchError, WriteFailedError

pytestmark = pytest.mark.spark

SETTING = "spark.sluice.lightCommits"
# Delta's own interval of checkpoints, and the maximum that Sluice makes of it.
INTERVAL, MOST_VERSIONS = 10, 100
# Versions between two checkpoints at most, and how many times as long a table of more versions may take to open.
CYCLE, MAX_RATIO = MOST_VERSIONS + INTERVAL, 5


@dataclass
class Table(TableAtTheGate):
    """A table to which this driver appends through the gate, and another writer without Spark."""

    def append(self, number: int, **options: Any) -> CommitResult:
        return self.writer.append(self.spark.createDataFrame([(number,)], "id long").coalesce(1), **options)

    def append_elsewhere(self, number: int, commit: CommitProperties | None = None) -> None:
        """Commit as another writer, which this driver does not see before it lists the log."""
        write_deltalake(str(self.path), arrow_table({"id": [number]}), mode="append", commit_properties=commit)

    def read_version(self) -> int:
        """Return the ``readVersion`` of the newest version."""
        return int(commit_info(self.path, DeltaTable(str(self.path)).version())["readVersion"])

    def delta_log_class(self) -> Any:
        return self.spark._jvm.org.apache.spark.sql.delta.DeltaLog

    def seconds_to_open(self) -> tuple[float, float]:
        """Return the seconds that delta-rs takes to open the table, and Spark without its cache to count the rows."""
        start = time.perf_counter()
        DeltaTable(str(self.path))
        opened = time.perf_counter()
        self.delta_log_class().clearCache()
        self.spark.read.format("delta").load(str(self.path)).count()
        return opened - start, time.perf_counter() - opened

    def make_old(self, days: int = 1) -> None:
        """Change the time of version 0 to this many days ago."""
        moment = time.time() - days * 86_400
        os.utime(self.version_path(0), (moment, moment))

    def version_path(self, version: int) -> Path:
        return version_path(self.path, version)


@pytest.fixture
def table_of(request: pytest.FixtureRequest) -> Callable[..., Table]:
    def make(clause: str = "") -> Table:
        return Table.create(request, f"CREATE TABLE {{t}} (id LONG) USING delta {clause}")

    return make


@pytest.fixture
def table(table_of: Callable[..., Table]) -> Table:
    """A table with this driver's commit as its version 1."""
    table = table_of()
    table.append(1)
    return table


@pytest.fixture
def old_table(table_of: Callable[..., Table]) -> Table:
    """A table like ``table``, which was created yesterday."""
    table = table_of()
    table.make_old()
    table.delta_log_class().clearCache()
    table.append(1)
    return table


@pytest.fixture
def without_light_commits(spark: SparkSession) -> Iterator[None]:
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set(SETTING, "false")
    yield
    conf.remove(SETTING)


def test_an_append_begins_with_the_snapshot_of_the_last_own_commit(table: Table) -> None:
    table.append_elsewhere(2)
    assert table.append(3).version == 3
    assert table.read_version() == 1
    # Another writer was seen, so the next append lists the log.
    table.append_elsewhere(4)
    assert table.append(5).version == 5
    assert table.read_version() == 4
    assert table.ids() == [1, 2, 3, 4, 5]


def test_without_light_commits_each_append_lists_the_log(table: Table, without_light_commits: None) -> None:
    table.append_elsewhere(2)
    table.append(3)
    assert table.read_version() == 2


def test_a_write_under_the_lock_lists_the_log(table: Table) -> None:
    table.append_elsewhere(2)
    table.append(3, lock_during="write")
    assert table.read_version() == 2


def test_a_constraint_that_was_added_since_the_snapshot_is_checked(table: Table) -> None:
    DeltaTable(str(table.path)).alter.add_constraint({"small": "id < 100"})
    with pytest.raises(WriteFailedError, match="small"):
        table.append(100)
    assert table.append(99).version == 3
    assert table.ids() == [1, 99]


def test_a_column_that_was_added_since_the_snapshot_is_null(table: Table) -> None:
    DeltaTable(str(table.path)).alter.add_columns([Field("word", PrimitiveType("string"))])
    table.append(2)
    assert table.values("id", "word") == [(1, None), (2, None)]
    assert table.read_version() == 2


def test_rows_with_a_column_that_was_added_since_the_snapshot_are_appended(table: Table) -> None:
    rows = table.spark.createDataFrame([(2, "a")], "id long, word string")
    with pytest.raises(SchemaMismatchError):
        table.writer.append(rows)
    DeltaTable(str(table.path)).alter.add_columns([Field("word", PrimitiveType("string"))])
    assert table.writer.append(rows).version == 3
    assert table.values("id", "word") == [(1, None), (2, "a")]


def test_a_constraint_that_was_dropped_since_the_snapshot_is_not_checked(table_of: Callable[..., Table]) -> None:
    table = table_of()
    DeltaTable(str(table.path)).alter.add_constraint({"small": "id < 100"})
    table.append(1)
    with pytest.raises(WriteFailedError, match="small"):
        table.append(100)
    DeltaTable(str(table.path)).alter.drop_constraint("small")
    assert table.append(100).version == 4
    assert table.ids() == [1, 100]


def test_a_transaction_that_was_committed_since_the_snapshot_is_not_repeated(table: Table) -> None:
    table.append_elsewhere(2, CommitProperties(app_transactions=[Transaction("nightly", 1)]))
    assert table.append(2, txn=("nightly", 1)).already_committed
    assert table.append(3, txn=("nightly", 2)).version == 3
    assert table.ids() == [1, 2, 3]


def test_rows_go_to_a_table_that_was_created_again(table: Table) -> None:
    shutil.rmtree(table.path)
    table.append_elsewhere(10)
    table.append_elsewhere(11)
    table.append(12)
    assert table.ids() == [10, 11, 12]


def test_an_append_with_options_of_the_file_system_lists_the_log(table: Table) -> None:
    table.append_elsewhere(2)
    table.append(3, options={"fs.sluice.test": "1"})
    assert table.read_version() == 2


def test_row_ids_do_not_overlap_with_a_commit_since_the_snapshot(
    table_of: Callable[..., Table], without_guard: Callable[..., AbstractContextManager[None]]
) -> None:
    table = table_of("TBLPROPERTIES ('delta.enableRowTracking' = 'true')")
    table.append(1)
    with without_guard():
        # With such an option Delta uses another log object, so this driver does not see the commit.
        rows = table.spark.range(5).coalesce(1)
        rows.write.format("delta").mode("append").option("fs.sluice.test", "1").save(str(table.path))
    table.append(3)
    assert table.read_version() == 1
    added = [file for version in (1, 2, 3) for file in actions(table.path, version, "add")]
    assert [file["baseRowId"] for file in added] == [0, 1, 6]


def test_versions_that_change_only_files_are_no_conflict(table: Table) -> None:
    table.append_elsewhere(2)
    rows = DeltaTable(str(table.path))
    rows.delete("id = 1")
    rows.update({"id": "id + 10"})
    table.append_elsewhere(3, CommitProperties(app_transactions=[Transaction("hourly", 1)]))
    assert table.append(4).version == 6
    assert table.read_version() == 1
    assert table.ids() == [3, 4, 12]


def test_an_append_does_not_follow_a_version_that_cannot_be_read(table: Table) -> None:
    table.version_path(2).write_text('{"commitInfo":{}}\n{"add":{"path":"a"')
    with pytest.raises(WriteFailedError):
        table.append(2)
    assert not table.version_path(3).exists()


@pytest.mark.parametrize(
    "feature", ["ChangeDataFeed", "DeletionVectors", "InCommitTimestamps", "RowTracking", "TypeWidening"]
)
def test_a_feature_that_was_enabled_since_the_snapshot_is_used(
    table: Table, unguarded_sql: Callable[[str], None], feature: str, tmp_path: Path
) -> None:
    enabled = tmp_path / "enabled"
    unguarded_sql(
        f"CREATE TABLE delta.`{enabled}` (id LONG) USING delta TBLPROPERTIES ('delta.enable{feature}' = 'true')"
    )
    (metadata,) = actions(table.path, 0, "metaData")
    (enabled_metadata,) = actions(enabled, 0, "metaData")
    enabled_metadata |= {key: metadata[key] for key in ("id", "createdTime")}
    (protocol,) = actions(enabled, 0, "protocol")
    version = {"commitInfo": commit_info(enabled, 0)}, {"metaData": enabled_metadata}, {"protocol": protocol}
    table.version_path(2).write_text("".join(json.dumps(action) + "\n" for action in version))
    table.append(2)
    added = actions(table.path, 3, "add")[0]
    assert ("inCommitTimestamp" in commit_info(table.path, 3)) == (feature == "InCommitTimestamps")
    assert ("baseRowId" in added) == (feature == "RowTracking")
    assert [row.id for row in table.spark.read.format("delta").load(str(table.path)).orderBy("id").collect()] == [1, 2]


def test_an_append_that_fails_before_its_transaction_does_not_affect_the_next_one(table: Table) -> None:
    with pytest.raises(WriteFailedError):
        table.append(1, options={"maxRecordsPerFile": "none"})
    table.append_elsewhere(2)
    table.append(3, lock_during="write")
    assert table.read_version() == 2


@pytest.mark.parametrize("options", [{}, {"fs.sluice.test": "1"}], ids=["the driver's log", "another log"])
def test_readers_of_the_driver_find_the_rows_without_checksum_files(table: Table, options: dict[str, str]) -> None:
    """With options of a file system Delta reads the table with a log object of its own."""
    for number in (2, 3):
        table.append_elsewhere(number)
    for file in table.path.glob("_delta_log/*.crc"):
        file.unlink()

    def ids() -> list[int]:
        rows = table.spark.read.options(**options).format("delta").load(str(table.path)).orderBy("id").collect()
        return [row.id for row in rows]

    assert ids() == [1, 2, 3]
    assert table.append(4).version == 4
    assert ids() == [1, 2, 3, 4]


def test_writers_without_sluice_continue_the_log(table: Table, unguarded_sql: Callable[[str], None]) -> None:
    for number in range(2, 6):
        table.append(number)
    unguarded_sql(f"INSERT INTO delta.`{table.path}` VALUES (6)")
    unguarded_sql(f"DELETE FROM delta.`{table.path}` WHERE id = 1")
    table.append_elsewhere(7)
    table.append(8)
    assert table.ids() == [2, 3, 4, 5, 6, 7, 8]


def test_checkpoints_of_a_new_table_are_left_out(table: Table) -> None:
    # However slow the machine is, the table is new.
    table.make_old(days=-1)
    table.delta_log_class().clearCache()
    for versions in (INTERVAL, MOST_VERSIONS):
        assert table.checkpoints() == []
        table.forge_versions(versions - 1)
        table.append(2)
    assert table.checkpoints() == [MOST_VERSIONS]


def test_checkpoints_that_would_follow_the_last_one_too_soon_are_left_out(old_table: Table) -> None:
    table = old_table
    table.forge_versions(INTERVAL - 1)
    table.append(2)
    (checkpoint,) = table.checkpoint_files()
    # However fast the machine is, the checkpoint is new.
    tomorrow = time.time() + 86_400
    os.utime(checkpoint, (tomorrow, tomorrow))
    for factor, options in ((2, {}), (3, {"lock_during": "write"})):
        table.forge_versions(factor * INTERVAL - 1)
        table.append(factor, **options)
    assert table.checkpoints() == [INTERVAL]
    # They are never left out for good.
    table.forge_versions(INTERVAL + MOST_VERSIONS - 1)
    table.append(4)
    assert table.checkpoints() == [INTERVAL, INTERVAL + MOST_VERSIONS]


def test_a_checkpoint_that_failed_causes_no_pause(old_table: Table) -> None:
    table = old_table
    table.forge_versions(INTERVAL - 3)
    for number in (2, 3):
        table.append(number)
    # This driver does not list the log again, so only the checkpoint needs the missing version.
    version = table.version_path(3)
    away = version.rename(table.path / "away")
    table.append(4)
    assert table.checkpoints() == []
    away.rename(version)
    table.forge_versions(2 * INTERVAL - 1)
    table.append(5)
    assert table.checkpoints() == [2 * INTERVAL]


def test_a_table_that_was_created_again_has_no_pause(old_table: Table) -> None:
    table = old_table
    table.forge_versions(2 * INTERVAL - 1)
    table.append(2)
    assert table.checkpoints() == [2 * INTERVAL]
    shutil.rmtree(table.path)
    table.append_elsewhere(1)
    table.make_old()
    table.forge_versions(INTERVAL - 1)
    table.append(2)
    assert table.checkpoints() == [INTERVAL]


def test_the_table_s_own_interval_of_checkpoints_counts(table_of: Callable[..., Table]) -> None:
    table = table_of("TBLPROPERTIES ('delta.checkpointInterval' = '2')")
    for number in range(1, 8):
        table.append(number)
    assert table.checkpoints() == [2, 4, 6]
    # The driver lists the log after a checkpoint, so its own list of versions does not grow.
    log = table.delta_log_class().forTable(table.spark._jsparkSession, str(table.path))
    assert log.unsafeVolatileSnapshot().logSegment().deltas().size() == 1


def check_readers(table: Table, number: int) -> None:
    """Append; check that the version has a checksum, and that its readers read few versions after a checkpoint."""
    version = table.append(number).version or 0
    assert version - max(table.checkpoints(), default=0) <= CYCLE
    assert json.loads(checksum_file(table.path, version).read_text())["numFiles"] == number


def test_readers_of_a_version_find_its_checksum_and_read_few_versions(table: Table) -> None:
    # Without a checkpoint of the next versions, the last append fails the test.
    table.forge_versions(CYCLE - 10)
    for number in range(2, 13):
        check_readers(table, number)
    assert len(table.ids()) == 12


@pytest.mark.soak
def test_many_versions_do_not_make_readers_slower(table: Table) -> None:
    seconds = []
    for number in range(2, 1_001):
        check_readers(table, number)
        if number % INTERVAL == 0:
            seconds.append(table.seconds_to_open())
    assert len(table.ids()) == 1_000
    # A reader takes longest just before a checkpoint. Each of the two periods contains that moment.
    measurements = CYCLE // INTERVAL
    for reader in range(2):
        early, late = ([pair[reader] for pair in part] for part in (seconds[:measurements], seconds[-measurements:]))
        assert median(late) <= MAX_RATIO * median(early), (early, late)
