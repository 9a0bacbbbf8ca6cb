"""`verify_table` on tables made by hand: sound ones pass, and every kind of damage is named."""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY
from sluice.audit.checks import version_ranges
from sluice.audit.verify import Verification, verify_table
from sluice.commands.app import app
from sluice.errors import AuditError, LogAccessError

TABLE = "s3://lake/flights"
SPARK_TABLE = Path(__file__).parents[1] / "data" / "deletion_vectors.zip"


def rows(ids: Sequence[int], month: int = 1) -> Table:
    return Table.from_pydict(
        {
            "id": Array(list(ids), type=DataType.int64()),
            "name": Array([f"n{number}" for number in ids], type=DataType.string()),
            "month": Array([month] * len(ids), type=DataType.int64()),
        }
    )


Stamp = dict[str, Any]


def stamp(number: int, **changes: Any) -> Stamp:
    """What the guard notes in a commit, and in its ``userMetadata`` the writer."""
    nodes = [{"key": key, "mode": "exclusive", "token": token} for key, token in changes.pop("tokens", {}).items()]
    nodes += [{"key": key, "mode": "shared", "token": token} for key, token in changes.pop("shared", {}).items()]
    told = {
        "hold": f"hold-{number}",
        "ensemble": "an-ensemble",
        "nodes": nodes or [{"key": TABLE, "mode": "exclusive", "token": changes.pop("token", 100 + number)}],
        "acquired_at": 1000.0 + 10 * number,
        "attempt": f"attempt-{number}",
        "job": "nightly",
    }
    write = {"commit_id": changes.pop("commit_id", f"commit-{number}")}
    return {"sluice": told | changes, "userMetadata": json.dumps({"sluice": write, "user": "kept"})}


def version_file(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def edit(table: Path, version: int, change: Callable[[dict[str, Any]], None]) -> None:
    """Rewrite a version file with ``change`` applied to each of its actions."""
    actions = [json.loads(line) for line in version_file(table, version).read_text().splitlines()]
    for action in actions:
        change(action)
    version_file(table, version).write_text("\n".join(map(json.dumps, actions)) + "\n")


def note(table: Path, version: int, **noted: Any) -> None:
    """Note something in a commit's ``commitInfo``, as the guarded log store does."""

    def change(action: dict[str, Any]) -> None:
        if "commitInfo" in action:
            action["commitInfo"].update(noted)

    edit(table, version, change)


def append(table: Path, ids: Sequence[int], noted: Stamp | None = None, month: int = 1) -> int:
    write_deltalake(table, rows(ids, month), mode="append", partition_by=["month"])
    version = DeltaTable(table).version()
    note(table, version, **(noted or {}))
    return version


def adopt(table: Path, ensemble: str, noted: Stamp) -> int:
    """Adopt a table, as `sluice adopt` does."""
    # delta-rs sets known properties only: change one, and add ours to what it wrote.
    DeltaTable(table).alter.set_table_properties({"delta.appendOnly": "false"})
    version = DeltaTable(table).version()

    def change(action: dict[str, Any]) -> None:
        if "metaData" in action:
            action["metaData"]["configuration"][ENSEMBLE_PROPERTY] = ensemble

    edit(table, version, change)
    note(table, version, **noted)
    return version


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Five appends of two rows under five holds of 5 s, 10 s apart."""
    path = tmp_path / "flights"
    for number in range(5):
        append(path, [2 * number, 2 * number + 1], stamp(number), month=number % 2)
        note(path, number, timestamp=1_005_000 + 10_000 * number, readVersion=number - 1)
    return path


@pytest.fixture
def spark_table(tmp_path: Path) -> Path:
    """A table that Spark wrote: appends, two DELETEs by deletion vector, OPTIMIZE, a checkpoint at version 10."""
    with zipfile.ZipFile(SPARK_TABLE) as archive:
        archive.extractall(tmp_path / "spark")
    return tmp_path / "spark"


def problem(verification: Verification) -> str:
    """Return the one problem that was found."""
    assert not verification.ok
    assert len(verification.problems) == 1, verification.problems
    return verification.problems[0]


def test_a_sound_table_passes(table: Path) -> None:
    found = verify_table(table, key=["id"])
    assert found.problems == ()
    assert found.ok
    assert (found.version, found.first_version, found.commits) == (4, 0, 5)
    assert (found.rows_found, found.rows_in_log, found.duplicate_rows) == (10, 10, 0)
    assert (found.locked_commits, found.unlocked_commits, found.conflicts, found.overlapping_holds) == (5, 0, 0, 0)
    assert json.loads(json.dumps(found.to_json()))["ok"] is True


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}", "file:{}/", "relative"])
def test_every_spelling_of_a_local_table_is_understood(
    table: Path, spelling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(table.parent)
    name = table.name if spelling == "relative" else spelling.format(table)
    assert verify_table(name).rows_found == 10


def test_a_location_that_deltalake_decodes_is_not_checked(table: Path) -> None:
    """Deltalake would read the folder ``flights 2013`` next to it."""
    escaped, decoded = table.with_name("flights%202013"), table.with_name("flights 2013")
    shutil.copytree(table, escaped)
    table.rename(decoded)
    assert verify_table(decoded).ok
    with pytest.raises(LogAccessError, match="cannot be checked: deltalake takes %20 in a location for ' '"):
        verify_table(escaped)


def test_commits_without_the_lock_are_counted_by_engine_and_are_no_problem(table: Path) -> None:
    append(table, [10])
    append(table, [11], {"sluice": {"nodes": "not one of ours"}})
    append(table, [12], {"sluice": "plain text"})
    append(table, [13], {"sluice": {"attempt": "with the guard off"}})
    # What a writer says of itself is no hold.
    append(table, [14], {"userMetadata": stamp(1)["userMetadata"]})
    found = verify_table(table)
    assert found.ok
    assert (found.locked_commits, found.unlocked_commits) == (5, 5)
    ((engine, versions),) = found.unlocked_writers.items()
    assert engine.startswith("delta-rs")
    assert versions == (5, 6, 7, 8, 9)
    assert found.observed == {}
    note(table, 6, engineInfo="Apache-Spark/4.2.0 Delta-Lake/4.4.0")
    assert verify_table(table).unlocked_writers == {
        "Apache-Spark/4.2.0 Delta-Lake/4.4.0": (6,),
        engine: (5, 7, 8, 9),
    }


def test_commits_that_the_guard_only_observed_are_without_the_lock_and_named(table: Path) -> None:
    append(table, [10], {"sluice": {"observed": "LockNotHeldError", "attempt": "a"}})
    append(table, [11], stamp(6))
    append(table, [12], {"sluice": {"observed": "LockLostError", "attempt": "b"}})
    append(table, [13], {"sluice": {"observed": "LockNotHeldError", "attempt": "c"}})
    found = verify_table(table)
    assert found.ok
    assert found.observed == {"LockLostError": (7,), "LockNotHeldError": (5, 8)}
    assert (found.locked_commits, found.unlocked_commits) == (6, 3)


def test_people_are_told_who_writes_without_the_lock_and_in_which_versions(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, [10])
    append(table, [11])
    append(table, [12], stamp(7))
    append(
        table, [13], {"sluice": {"observed": "LockNotHeldError"}, "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0"}
    )
    monkeypatch.setenv("COLUMNS", "200")
    answer = CliRunner().invoke(app, ["verify", str(table)])
    lines = [line.strip() for line in answer.stdout.splitlines()]
    assert any(re.fullmatch(r"by delta-rs:\S+: versions 5 to 6 +2", line) for line in lines), lines
    assert any(re.fullmatch(r"by Apache-Spark/4.2.0 Delta-Lake/4.4.0: version 8 +1", line) for line in lines)
    assert any(re.fullmatch(r"only observed, LockNotHeldError: version 8 +1", line) for line in lines)
    found = json.loads(CliRunner().invoke(app, ["verify", str(table), "--json"]).stdout)
    assert found["unlocked_writers"]["Apache-Spark/4.2.0 Delta-Lake/4.4.0"] == [8]
    assert found["observed"] == {"LockNotHeldError": [8]}


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ([3], "version 3"),
        ([1, 2, 3, 5], "versions 1 to 3, 5"),
        ([1, 2], "versions 1 to 2"),
        ([1, 3, 5, 7, 9, 11, 13], "versions 1, 3, 5, 7, 9, …"),
    ],
)
def test_versions_are_told_in_ranges(versions: list[int], said: str) -> None:
    assert version_ranges(versions) == said


def test_a_removed_version_is_a_gap(table: Path) -> None:
    version_file(table, 2).unlink()
    assert problem(verify_table(table)) == (
        "version 2 is missing from the log, and version 3 is there: either files were deleted, or version 3 "
        "is a late commit to a table that was dropped here before this one was made"
    )


def test_removed_first_versions_without_a_checkpoint_are_a_gap(table: Path) -> None:
    version_file(table, 0).unlink()
    version_file(table, 1).unlink()
    assert "versions 0 to 1 are missing from the log, and there is no checkpoint" in problem(verify_table(table))


def test_a_gap_below_a_checkpoint_is_found_although_the_table_can_be_read(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    version_file(table, 1).unlink()
    found = verify_table(table)
    assert problem(found).startswith("version 1 is missing from the log, and version 2 is there")
    assert found.rows_found == found.rows_in_log == 10


def test_versions_removed_by_a_clean_up_behind_a_checkpoint_are_fine(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    append(table, [10], stamp(5))
    for version in range(4):
        version_file(table, version).unlink()
    found = verify_table(table, key=["id"])
    assert found.problems == ()
    assert (found.first_version, found.version, found.commits, found.rows_in_log) == (4, 5, 2, 11)


def test_a_version_overwritten_with_another_one_is_found(table: Path) -> None:
    shutil.copy(version_file(table, 1), version_file(table, 3))
    found = verify_table(table, key=["id"])
    text = "\n".join(found.problems)
    assert "version 3 adds month=1/" in text
    assert "write commit-1 is in the log 2 times (versions 1, 3)" in text
    assert "version 3 carries fencing token 101, not above 102 of version 2" in text


def test_a_version_overwritten_by_a_later_holder_is_found(table: Path, tmp_path: Path) -> None:
    # What a rival on a store without put-if-absent does: its own commit, under the same version.
    rival = tmp_path / "rival"
    for number in range(2):
        append(rival, [100 + number], stamp(90 + number))
    shutil.copytree(rival, table, dirs_exist_ok=True, ignore=shutil.ignore_patterns("_delta_log"))
    shutil.copy(version_file(rival, 1), version_file(table, 2))
    # All that came before it are below its token now.
    assert [sentence[:39] for sentence in verify_table(table).problems] == [
        "version 3 carries fencing token 103, no",
        "version 4 carries fencing token 104, no",
    ]


def test_a_version_overwritten_before_a_checkpoint_is_found(table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    edit(table, 3, lambda action: action.get("add", {}).update(path="month=1/another.parquet"))
    assert "the version files add up to 5 data files, but the snapshot has 5: 1 are not in it" in problem(
        verify_table(table)
    )


def test_a_version_file_that_is_no_json_is_named(table: Path) -> None:
    version_file(table, 2).write_text('{"add":')
    assert problem(verify_table(table)).startswith("version 2 cannot be read")


def test_duplicate_rows_are_counted_and_shown(table: Path) -> None:
    append(table, [3, 3, 4])
    assert problem(verify_table(table, key=["id"])) == (
        "3 duplicate rows by (id), for example (3) 3 times; (4) 2 times"
    )
    assert verify_table(table, key=["id"]).duplicate_rows == 3
    assert verify_table(table, key=["id", "month"]).duplicate_rows == 2
    assert verify_table(table).ok


def test_key_columns_with_awkward_names_are_quoted(tmp_path: Path) -> None:
    data = Table.from_pydict({'a "b"; c': Array([1, 1], type=DataType.int64())})
    write_deltalake(tmp_path / "t", data)
    assert verify_table(tmp_path / "t", key=['a "b"; c']).duplicate_rows == 1


def test_a_missing_data_file_is_found(table: Path) -> None:
    next(table.glob("month=1/*.parquet")).unlink()
    assert problem(verify_table(table)).startswith("the data cannot be read")


def test_a_data_file_with_other_rows_than_the_log_says_is_found(table: Path) -> None:
    edit(table, 1, lambda action: action.get("add", {}).update(stats='{"numRecords": 3}'))
    assert problem(verify_table(table)) == "10 rows are in the data files, but 11 by the log's statistics"


def test_tokens_out_of_order_are_found(table: Path) -> None:
    append(table, [10], stamp(5, token=103))
    assert problem(verify_table(table)) == (
        "version 5 carries fencing token 103, not above 104 of version 4: an earlier holder wrote after a later one"
    )


def test_one_hold_may_commit_several_times_but_not_after_the_next_holder(table: Path) -> None:
    append(table, [10], stamp(5, commit_id="a"))
    append(table, [11], stamp(5, commit_id="b"))
    assert verify_table(table).overlapping_holds == 0
    append(table, [12], stamp(6))
    append(table, [13], stamp(5, commit_id="c"))
    found = verify_table(table)
    assert any("version 8 carries fencing token 105, not above 106" in sentence for sentence in found.problems)


def test_tokens_of_different_ensembles_do_not_compare(table: Path) -> None:
    append(table, [10], stamp(5, token=1, ensemble="another"))
    assert verify_table(table).ok


def test_an_adoption_whose_commit_was_cleaned_up_still_counts(table: Path) -> None:
    adopt(table, "an-ensemble", stamp(5))
    append(table, [10], stamp(6))
    note(table, 6, timestamp=1_065_000)
    DeltaTable(table).create_checkpoint()
    for version in range(6):
        version_file(table, version).unlink()
    assert verify_table(table).problems == ()
    append(table, [11], stamp(7, ensemble="another"))
    assert problem(verify_table(table)) == (
        "version 7 was made under ensemble another, but the table is adopted by an-ensemble: two ensembles could have "
        "granted its lock"
    )


def test_a_commit_under_another_ensemble_than_the_table_s_own_is_found(table: Path) -> None:
    adopt(table, "an-ensemble", stamp(5))
    append(table, [10], stamp(6))
    for version in (5, 6):
        note(table, version, timestamp=1_005_000 + 10_000 * version)
    found = verify_table(table)
    assert found.problems == ()
    assert found.ensemble == "an-ensemble"
    append(table, [11], stamp(7, ensemble="another"))
    assert problem(verify_table(table)) == (
        "version 7 was made under ensemble another, but the table is adopted by an-ensemble: two ensembles could have "
        "granted its lock"
    )


def test_overlapping_holds_are_found_and_clock_skew_is_tolerated_if_asked(table: Path) -> None:
    append(table, [10], stamp(5, acquired_at=1044.5))  # version 4 was committed at 1045.0
    found = verify_table(table)
    assert problem(found) == "two holds overlap by 0.500 s: hold-4 and hold-5"
    assert found.overlapping_holds == 1
    assert verify_table(table, clock_skew_seconds=0.6).ok


def test_conflicts_are_counted_from_the_versions_that_writers_had_read(table: Path) -> None:
    def read_before(action: dict[str, Any]) -> None:
        action.get("commitInfo", {}).update(readVersion=0)

    edit(table, 3, read_before)
    assert verify_table(table).conflicts == 0, "with the lock it put nothing before its turn"

    def without_the_lock(action: dict[str, Any]) -> None:
        for name in ("sluice", "userMetadata"):
            action.get("commitInfo", {}).pop(name, None)

    edit(table, 3, without_the_lock)
    found = verify_table(table)
    assert (found.unlocked_commits, found.conflicts) == (1, 1)


def test_missing_statistics_are_no_problem(table: Path) -> None:
    edit(table, 1, lambda action: action.get("add", {}).update(stats=None))
    found = verify_table(table)
    assert found.ok
    assert (found.rows_found, found.rows_in_log) == (10, None)


def test_deletion_vectors_and_compaction_are_understood(spark_table: Path) -> None:
    found = verify_table(spark_table, key=["id"])
    assert found.problems == ()
    assert (found.version, found.rows_found, found.rows_in_log) == (16, 34, 34)


def test_deletion_vectors_are_understood_after_a_clean_up(spark_table: Path) -> None:
    for version in range(10):
        version_file(spark_table, version).unlink()
    found = verify_table(spark_table, key=["id"])
    assert found.problems == ()
    assert (found.first_version, found.rows_in_log) == (10, 34)


def test_a_removed_newest_version_betrays_itself_by_its_checksum(spark_table: Path) -> None:
    version_file(spark_table, 16).unlink()
    assert verify_table(spark_table).problems[0] == (
        "version 16 is missing from the log: a checksum or checkpoint is there"
    )


def test_an_overwritten_version_betrays_itself_by_its_checksum(spark_table: Path) -> None:
    edit(spark_table, 7, lambda action: action.get("commitInfo", {}).update(txnId="another"))
    assert "version 7 was overwritten" in problem(verify_table(spark_table))


def test_an_overwritten_version_betrays_itself_by_what_later_writers_saw(spark_table: Path) -> None:
    (spark_table / "_delta_log" / f"{15:020}.crc").unlink()
    edit(spark_table, 15, lambda action: action.get("add", {}).update(size=1))
    assert verify_table(spark_table).problems[0].startswith("up to version 16 the log adds up to 3 files of")


def test_a_version_that_was_replaced_after_others_had_read_it_is_named(spark_table: Path) -> None:
    # A late PUT replaces an empty commit, which had no checksum: version 6 gets a file that later writers did not see.
    (spark_table / "_delta_log" / f"{6:020}.crc").unlink()
    with version_file(spark_table, 6).open("a") as file:
        file.write('{"add":{"path":"p=1/late.parquet","partitionValues":{"p":"1"},"size":1,"dataChange":true}}\n')
    verification = verify_table(spark_table)
    assert [sentence for sentence in verification.problems if "the log adds up to" in sentence] == [
        (
            "up to version 7 the log adds up to 9 files of 7929 bytes, but its writer saw 8 of 7928 bytes: version 6 "
            "was overwritten after it was read"
        )
    ]


def test_without_a_list_of_files_the_versions_in_question_are_named(spark_table: Path) -> None:
    for version in range(17):
        checksum = spark_table / "_delta_log" / f"{version:020}.crc"
        noted = json.loads(checksum.read_text())
        del noted["allFiles"]
        checksum.write_text(json.dumps(noted))
        if version == 6:
            checksum.unlink()
    assert verify_table(spark_table).ok
    edit(spark_table, 6, lambda action: action.get("add", {}).update(size=1))
    verification = verify_table(spark_table)
    assert [sentence.partition(": ")[2] for sentence in verification.problems if "the log adds up to" in sentence] == [
        "one of versions 5 to 7 was overwritten"
    ]


def test_a_table_without_checksums_is_no_problem(spark_table: Path) -> None:
    for checksum in (spark_table / "_delta_log").glob("*.crc"):
        checksum.unlink()
    assert verify_table(spark_table).ok


@pytest.mark.parametrize("name", ["nothing/here", "gs://bucket/table", "catalog.table"])
def test_what_is_no_table_is_refused_in_a_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((AuditError, LogAccessError), match=r"no Delta table|only s3://"):
        verify_table(name)


def test_an_unknown_key_column_is_refused_and_the_columns_are_named(table: Path) -> None:
    with pytest.raises(AuditError, match="no column 'flight'; it has id, name, month"):
        verify_table(table, key=["id", "flight"])
