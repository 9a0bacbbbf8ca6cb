"""`verify_table` accepts correct tables and names each kind of damage to a log or its data files."""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from arro3.core import Array, DataType
from arro3.core import Table as ArrowTable
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY
from sluice.audit.checks import version_ranges
from sluice.audit.verify import Verification, verify_table
from sluice.commands.app import app
from sluice.errors import AuditError, LogAccessError
from tests.support.group_commits import group_info, writer

TABLE = "s3://lake/flights"
SPARK_TABLE = Path(__file__).parents[1] / "data" / "deletion_vectors.zip"
SPARK_ENGINE = "Apache-Spark/4.2.0 Delta-Lake/4.4.0"

CommitInfo = dict[str, Any]


def stamp(number: int, **changes: Any) -> CommitInfo:
    """Return the guard's stamp in ``commitInfo``, with the writer's record in its ``userMetadata``."""
    commit_id = changes.pop("commit_id", f"commit-{number}")
    record = {
        "hold": f"hold-{number}",
        "ensemble": "an-ensemble",
        "nodes": [{"key": TABLE, "mode": "exclusive", "token": changes.pop("token", 100 + number)}],
        "acquired_at": 1000.0 + 10 * number,
        "attempt": f"attempt-{number}",
        "job": "nightly",
    }
    user_metadata = json.dumps({"sluice": {"commit_id": commit_id}, "user": "text"})
    return {"sluice": record | changes, "userMetadata": user_metadata}


@dataclass(frozen=True)
class EditableTable:
    """A Delta table whose version files a test changes."""

    path: Path

    def version_file(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"

    def checksum_file(self, version: int) -> Path:
        return self.version_file(version).with_suffix(".crc")

    def remove_versions(self, *versions: int) -> None:
        for version in versions:
            self.version_file(version).unlink()

    def edit(self, version: int, change: Callable[[dict[str, Any]], None]) -> None:
        """Apply ``change`` to each action of a version file."""
        actions = [json.loads(line) for line in self.version_file(version).read_text().splitlines()]
        for action in actions:
            change(action)
        self.version_file(version).write_text("\n".join(map(json.dumps, actions)) + "\n")

    def update_action(self, version: int, action_name: str, **fields: Any) -> None:
        """Set fields of the actions with this name, for example of ``commitInfo``."""
        self.edit(version, lambda action: action.get(action_name, {}).update(fields))

    def append(self, ids: Sequence[int], commit_info: CommitInfo | None = None, month: int = 1) -> None:
        columns = {
            "id": Array(list(ids), type=DataType.int64()),
            "name": Array([f"n{number}" for number in ids], type=DataType.string()),
            "month": Array([month] * len(ids), type=DataType.int64()),
        }
        write_deltalake(self.path, ArrowTable.from_pydict(columns), mode="append", partition_by=["month"])
        self.update_action(DeltaTable(self.path).version(), "commitInfo", **(commit_info or {}))

    def adopt(self, ensemble: str, commit_info: CommitInfo) -> None:
        """Adopt the table, as `sluice adopt` does."""
        # delta-rs sets known properties only. Set one of them, and add the ensemble to the version file.
        DeltaTable(self.path).alter.set_table_properties({"delta.appendOnly": "false"})
        version = DeltaTable(self.path).version()

        def set_ensemble(action: dict[str, Any]) -> None:
            if "metaData" in action:
                action["metaData"]["configuration"][ENSEMBLE_PROPERTY] = ensemble

        self.edit(version, set_ensemble)
        self.update_action(version, "commitInfo", **commit_info)

    def create_checkpoint(self) -> None:
        DeltaTable(self.path).create_checkpoint()

    def verify(self, **options: Any) -> Verification:
        return verify_table(self.path, **options)

    def problem(self, **options: Any) -> str:
        """Verify the table, and return its only problem."""
        verification = self.verify(**options)
        assert not verification.ok
        (problem,) = verification.problems
        return problem


@pytest.fixture
def table(tmp_path: Path) -> EditableTable:
    """Return a table with five appends of two rows each. Their five holds of 5 s begin every 10 s."""
    table = EditableTable(tmp_path / "flights")
    for number in range(5):
        table.append([2 * number, 2 * number + 1], stamp(number), month=number % 2)
        table.update_action(number, "commitInfo", timestamp=1_005_000 + 10_000 * number, readVersion=number - 1)
    return table


@pytest.fixture
def spark_table(tmp_path: Path) -> EditableTable:
    """Return a table by Spark: appends, two DELETEs by deletion vector, OPTIMIZE, and a checkpoint at version 10."""
    with zipfile.ZipFile(SPARK_TABLE) as archive:
        archive.extractall(tmp_path / "spark")
    return EditableTable(tmp_path / "spark")


def test_a_correct_table_passes(table: EditableTable) -> None:
    result = table.verify(key=["id"])
    assert result.problems == ()
    assert result.ok
    assert (result.version, result.first_version, result.commits) == (4, 0, 5)
    assert (result.rows_found, result.rows_in_log, result.duplicate_rows) == (10, 10, 0)
    assert (result.locked_commits, result.unlocked_commits, result.conflicts, result.overlapping_holds) == (5, 0, 0, 0)
    assert json.loads(json.dumps(result.to_json()))["ok"] is True


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}", "file:{}/", "relative"])
def test_every_spelling_of_a_local_table_is_accepted(
    table: EditableTable, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.path.parent)
    name = table.path.name if spelling == "relative" else spelling.format(table.path)
    assert verify_table(name).rows_found == 10


def test_a_location_that_deltalake_decodes_is_refused(table: EditableTable) -> None:
    """For the location ``flights%202013`` deltalake would read the folder ``flights 2013``."""
    encoded_path, decoded_path = table.path.with_name("flights%202013"), table.path.with_name("flights 2013")
    shutil.copytree(table.path, encoded_path)
    table.path.rename(decoded_path)
    assert verify_table(decoded_path).ok
    with pytest.raises(LogAccessError, match="cannot be checked: deltalake decodes %20 in a location as ' '"):
        verify_table(encoded_path)


def test_commits_without_the_lock_are_counted_by_engine(table: EditableTable) -> None:
    table.append([10])
    table.append([11], {"sluice": {"nodes": "not one of ours"}})
    table.append([12], {"sluice": "plain text"})
    table.append([13], {"sluice": {"attempt": "with the guard off"}})
    # The writer's own record does not prove a hold.
    table.append([14], {"userMetadata": stamp(1)["userMetadata"]})
    result = table.verify()
    assert result.ok
    assert (result.locked_commits, result.unlocked_commits) == (5, 5)
    ((engine, versions),) = result.unlocked_writers.items()
    assert engine.startswith("delta-rs")
    assert versions == (5, 6, 7, 8, 9)
    assert result.observed == {}
    table.update_action(6, "commitInfo", engineInfo=SPARK_ENGINE)
    assert table.verify().unlocked_writers == {SPARK_ENGINE: (6,), engine: (5, 7, 8, 9)}


def test_observed_commits_are_named_and_without_the_lock(table: EditableTable) -> None:
    table.append([10], {"sluice": {"observed": "LockNotHeldError", "attempt": "a"}})
    table.append([11], stamp(6))
    table.append([12], {"sluice": {"observed": "LockLostError", "attempt": "b"}})
    table.append([13], {"sluice": {"observed": "LockNotHeldError", "attempt": "c"}})
    result = table.verify()
    assert result.ok
    assert result.observed == {"LockLostError": (7,), "LockNotHeldError": (5, 8)}
    assert (result.locked_commits, result.unlocked_commits) == (6, 3)


def test_the_command_lists_writers_without_the_lock(table: EditableTable, monkeypatch: pytest.MonkeyPatch) -> None:
    table.append([10])
    table.append([11])
    table.append([12], stamp(7))
    table.append([13], {"sluice": {"observed": "LockNotHeldError"}, "engineInfo": SPARK_ENGINE})
    monkeypatch.setenv("COLUMNS", "200")
    result = CliRunner().invoke(app, ["verify", str(table.path)])
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert any(re.fullmatch(r"by delta-rs:\S+: versions 5 to 6 +2", line) for line in lines), lines
    assert any(re.fullmatch(rf"by {SPARK_ENGINE}: version 8 +1", line) for line in lines)
    assert any(re.fullmatch(r"only observed, LockNotHeldError: version 8 +1", line) for line in lines)
    report = json.loads(CliRunner().invoke(app, ["verify", str(table.path), "--json"]).stdout)
    assert report["unlocked_writers"][SPARK_ENGINE] == [8]
    assert report["observed"] == {"LockNotHeldError": [8]}


@pytest.mark.parametrize(
    ("versions", "text"),
    [
        ([3], "version 3"),
        ([1, 2, 3, 5], "versions 1 to 3, 5"),
        ([1, 2], "versions 1 to 2"),
        ([1, 3, 5, 7, 9, 11, 13], "versions 1, 3, 5, 7, 9, …"),
    ],
)
def test_versions_are_printed_in_ranges(versions: list[int], text: str) -> None:
    assert version_ranges(versions) == text


def test_a_removed_version_is_a_gap(table: EditableTable) -> None:
    table.remove_versions(2)
    assert table.problem() == (
        "version 2 is missing from the log, but version 3 exists: either files were deleted, or version 3 "
        "is a late commit to an earlier table, which was dropped here before this table was created"
    )


def test_removed_first_versions_without_a_checkpoint_are_a_gap(table: EditableTable) -> None:
    table.remove_versions(0, 1)
    assert "versions 0 to 1 are missing from the log, and no checkpoint fills the gap" in table.problem()


def test_a_gap_below_a_checkpoint_is_found(table: EditableTable) -> None:
    """Readers of the table do not notice such a gap."""
    table.create_checkpoint()
    table.remove_versions(1)
    assert table.problem().startswith("version 1 is missing from the log, but version 2 exists")
    result = table.verify()
    assert result.rows_found == result.rows_in_log == 10


def test_log_clean_up_behind_a_checkpoint_is_no_gap(table: EditableTable) -> None:
    table.create_checkpoint()
    table.append([10], stamp(5))
    table.remove_versions(*range(4))
    result = table.verify(key=["id"])
    assert result.problems == ()
    assert (result.first_version, result.version, result.commits, result.rows_in_log) == (4, 5, 2, 11)


def test_a_version_overwritten_with_an_earlier_one_is_found(table: EditableTable) -> None:
    shutil.copy(table.version_file(1), table.version_file(3))
    problems = "\n".join(table.verify(key=["id"]).problems)
    assert "version 3 adds month=1/" in problems
    assert "write commit-1 is in the log 2 times (versions 1, 3)" in problems
    assert "version 3 carries fencing token 101, not above 102 of version 2" in problems


def test_writes_of_several_writers_of_a_version_are_counted(
    table: EditableTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    ordinary_output = CliRunner().invoke(app, ["verify", str(table.path)]).stdout
    assert "writes in these commits" not in ordinary_output
    table.append([10, 11, 12], group_info(writer("a", rows=1), writer("b", rows=2), hold=stamp(5)["sluice"]))
    result = table.verify(key=["id"])
    assert result.problems == ()
    assert (result.commits, result.writes, result.locked_commits) == (6, 7, 6)
    lines = CliRunner().invoke(app, ["verify", str(table.path)]).stdout.splitlines()
    assert any(re.fullmatch(r" *writes in these commits +7 *", line) for line in lines), lines


def test_a_write_that_is_repeated_by_a_member_is_found(table: EditableTable) -> None:
    table.append([10, 11], group_info(writer("a"), writer("commit-1"), hold=stamp(5)["sluice"]))
    assert table.problem() == "write commit-1 is in the log 2 times (versions 1, 5)"
    table.append([12, 13], group_info(writer("b"), writer("b"), hold=stamp(6)["sluice"]))
    assert "write b is in the log 2 times (versions 6, 6)" in table.verify().problems


def test_a_version_overwritten_by_a_later_holder_is_found(table: EditableTable, tmp_path: Path) -> None:
    # On a store without put-if-absent, a rival stores its own commit under the same version.
    rival = EditableTable(tmp_path / "rival")
    for number in range(2):
        rival.append([100 + number], stamp(90 + number))
    shutil.copytree(rival.path, table.path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("_delta_log"))
    shutil.copy(rival.version_file(1), table.version_file(2))
    # The tokens of the later versions are below the rival's token.
    assert [problem.partition(",")[0] for problem in table.verify().problems] == [
        "version 3 carries fencing token 103",
        "version 4 carries fencing token 104",
    ]


def test_an_overwritten_version_below_a_checkpoint_is_found(table: EditableTable) -> None:
    table.create_checkpoint()
    table.update_action(3, "add", path="month=1/another.parquet")
    expected = "the version files add up to 5 data files and the snapshot has 5, but 1 are missing from the snapshot"
    assert expected in table.problem()


def test_a_version_file_that_is_not_json_is_named(table: EditableTable) -> None:
    table.version_file(2).write_text('{"add":')
    assert table.problem().startswith("version 2 cannot be read")


def test_duplicate_rows_are_counted_and_shown(table: EditableTable) -> None:
    table.append([3, 3, 4])
    assert table.problem(key=["id"]) == "3 duplicate rows by (id), for example (3) 3 times; (4) 2 times"
    assert table.verify(key=["id"]).duplicate_rows == 3
    assert table.verify(key=["id", "month"]).duplicate_rows == 2
    assert table.verify().ok


def test_key_columns_with_special_characters_are_quoted(tmp_path: Path) -> None:
    data = ArrowTable.from_pydict({'a "b"; c': Array([1, 1], type=DataType.int64())})
    write_deltalake(tmp_path / "t", data)
    assert verify_table(tmp_path / "t", key=['a "b"; c']).duplicate_rows == 1


def test_a_missing_data_file_is_found(table: EditableTable) -> None:
    next(table.path.glob("month=1/*.parquet")).unlink()
    assert table.problem().startswith("the data cannot be read")


def test_a_data_file_with_fewer_rows_than_in_the_log_is_found(table: EditableTable) -> None:
    table.update_action(1, "add", stats='{"numRecords": 3}')
    assert table.problem() == "10 rows are in the data files, but 11 by the log's statistics"


def test_tokens_out_of_order_are_found(table: EditableTable) -> None:
    table.append([10], stamp(5, token=103))
    assert table.problem() == (
        "version 5 carries fencing token 103, not above 104 of version 4: an earlier holder wrote after a later one"
    )


def test_a_hold_commits_several_times_before_the_next_holder(table: EditableTable) -> None:
    table.append([10], stamp(5, commit_id="a"))
    table.append([11], stamp(5, commit_id="b"))
    assert table.verify().overlapping_holds == 0
    table.append([12], stamp(6))
    table.append([13], stamp(5, commit_id="c"))
    problems = table.verify().problems
    assert any("version 8 carries fencing token 105, not above 106" in problem for problem in problems)


def test_tokens_of_different_ensembles_are_not_compared(table: EditableTable) -> None:
    table.append([10], stamp(5, token=1, ensemble="another"))
    assert table.verify().ok


@pytest.mark.parametrize("log_clean_up", [False, True], ids=["adoption in the log", "adoption in the checkpoint"])
def test_a_commit_under_another_ensemble_is_found(table: EditableTable, *, log_clean_up: bool) -> None:
    table.adopt("an-ensemble", stamp(5))
    table.append([10], stamp(6))
    for version in (5, 6):
        table.update_action(version, "commitInfo", timestamp=1_005_000 + 10_000 * version)
    if log_clean_up:
        table.create_checkpoint()
        table.remove_versions(*range(6))
    result = table.verify()
    assert result.problems == ()
    assert result.ensemble == "an-ensemble"
    table.append([11], stamp(7, ensemble="another"))
    assert table.problem() == (
        "version 7 was made under ensemble another, but the table is adopted by an-ensemble: two ensembles could have "
        "granted its lock"
    )


def test_overlapping_holds_are_found_beyond_the_clock_skew(table: EditableTable) -> None:
    table.append([10], stamp(5, acquired_at=1044.5))  # version 4 was committed at 1045.0
    assert table.problem() == "two holds overlap by 0.500 s: hold-4 and hold-5"
    assert table.verify().overlapping_holds == 1
    assert table.verify(clock_skew_seconds=0.6).ok


def test_conflicts_are_counted_by_the_versions_that_writers_read(table: EditableTable) -> None:
    table.update_action(3, "commitInfo", readVersion=0)
    # A commit under the lock waited for its turn, so it is no conflict.
    assert table.verify().conflicts == 0

    def remove_stamp(action: dict[str, Any]) -> None:
        for name in ("sluice", "userMetadata"):
            action.get("commitInfo", {}).pop(name, None)

    table.edit(3, remove_stamp)
    result = table.verify()
    assert (result.unlocked_commits, result.conflicts) == (1, 1)


def test_missing_statistics_are_no_problem(table: EditableTable) -> None:
    table.update_action(1, "add", stats=None)
    result = table.verify()
    assert result.ok
    assert (result.rows_found, result.rows_in_log) == (10, None)


def test_deletion_vectors_and_compaction_are_supported(spark_table: EditableTable) -> None:
    result = spark_table.verify(key=["id"])
    assert result.problems == ()
    assert (result.version, result.rows_found, result.rows_in_log) == (16, 34, 34)


def test_deletion_vectors_are_supported_after_log_clean_up(spark_table: EditableTable) -> None:
    spark_table.remove_versions(*range(10))
    result = spark_table.verify(key=["id"])
    assert result.problems == ()
    assert (result.first_version, result.rows_in_log) == (10, 34)


def test_a_removed_newest_version_is_found_by_its_checksum(spark_table: EditableTable) -> None:
    spark_table.remove_versions(16)
    expected = "version 16 is missing from the log, but a later checksum or checkpoint exists"
    assert spark_table.verify().problems[0] == expected


def test_an_overwritten_version_is_found_by_its_checksum(spark_table: EditableTable) -> None:
    spark_table.update_action(7, "commitInfo", txnId="another")
    assert "version 7 was overwritten" in spark_table.problem()


def test_each_writer_of_a_version_may_write_its_checksum(spark_table: EditableTable) -> None:
    member = {**writer("b"), "txnId": json.loads(spark_table.checksum_file(7).read_text())["txnId"]}
    spark_table.update_action(7, "commitInfo", **group_info(writer("a"), member))
    assert spark_table.verify().problems == ()


def test_an_overwritten_version_is_found_by_a_later_checksum(spark_table: EditableTable) -> None:
    spark_table.checksum_file(15).unlink()
    spark_table.update_action(15, "add", size=1)
    assert spark_table.verify().problems[0].startswith("up to version 16 the log adds up to 3 files of")


def test_a_version_overwritten_after_it_was_read_is_named(spark_table: EditableTable) -> None:
    # A late PUT replaces an empty commit, which had no checksum: version 6 gets a file that later writers did not see.
    spark_table.checksum_file(6).unlink()
    with spark_table.version_file(6).open("a") as file:
        file.write('{"add":{"path":"p=1/late.parquet","partitionValues":{"p":"1"},"size":1,"dataChange":true}}\n')
    assert [problem for problem in spark_table.verify().problems if "the log adds up to" in problem] == [
        (
            "up to version 7 the log adds up to 9 files of 7929 bytes, but the writer of that version "
            "recorded 8 of 7928 bytes: version 6 was overwritten after it was read"
        )
    ]


def test_without_lists_of_files_the_possible_versions_are_named(spark_table: EditableTable) -> None:
    for version in range(17):
        checksum = json.loads(spark_table.checksum_file(version).read_text())
        del checksum["allFiles"]
        spark_table.checksum_file(version).write_text(json.dumps(checksum))
    spark_table.checksum_file(6).unlink()
    assert spark_table.verify().ok
    spark_table.update_action(6, "add", size=1)
    problems = spark_table.verify().problems
    assert [problem.partition(": ")[2] for problem in problems if "the log adds up to" in problem] == [
        "one of versions 5 to 7 was overwritten"
    ]


def test_a_table_without_checksums_is_no_problem(spark_table: EditableTable) -> None:
    for checksum in (spark_table.path / "_delta_log").glob("*.crc"):
        checksum.unlink()
    assert spark_table.verify().ok


@pytest.mark.parametrize("name", ["nothing/here", "gs://bucket/table", "catalog.table"])
def test_a_name_that_is_no_table_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AuditError, LogAccessError), match=r"no Delta table|only s3://"):
        verify_table(name)


def test_an_unknown_key_column_is_refused(table: EditableTable) -> None:
    with pytest.raises(AuditError, match="no column 'flight'; it has id, name, month"):
        table.verify(key=["id", "flight"])


def peak_of_verifying(path: Path, versions: int) -> int:
    """Write a log whose versions replace all 50 files, and return the peak memory of its verification in bytes."""
    log = path / "_delta_log"
    log.mkdir(parents=True)
    schema = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}
    metadata = {
        "id": "a", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema),
        "partitionColumns": [], "configuration": {},
    }  # fmt: skip
    previous: list[dict[str, Any]] = []
    for version in range(versions):
        paths = (f"{version}-{number}.parquet" for number in range(50))
        adds = [
            {"path": path, "partitionValues": {}, "size": 1, "modificationTime": 0, "dataChange": True}
            for path in paths
        ]
        actions: list[dict[str, Any]] = [{"commitInfo": stamp(version)}]
        if version == 0:
            actions += [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
        actions += [{"remove": {"path": add["path"], "dataChange": True, "size": 1}} for add in previous]
        actions += [{"add": add} for add in adds]
        (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, actions)))
        (log / f"{version:020}.crc").write_text(json.dumps({"numFiles": 50, "tableSizeBytes": 50, "allFiles": adds}))
        previous = adds
    tracemalloc.start()
    try:
        verification = verify_table(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert verification.commits == versions
    assert all("cannot be read" in problem for problem in verification.problems), verification.problems
    return peak


@pytest.mark.full
def test_the_memory_of_a_verification_does_not_grow_with_replaced_files(tmp_path: Path) -> None:
    # A version's commit without its files has a few kilobytes, its 100 files and the keys of its checksum 60.
    difference = peak_of_verifying(tmp_path / "long", 300) - peak_of_verifying(tmp_path / "short", 100)
    assert difference / 200 < 5_000
