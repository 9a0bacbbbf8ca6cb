"""`sluice log` lists commits, newest first, and marks commits without the lock; `sluice adopt` checks its arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lock_manager.table_records.commit_stamp import note_as_user_metadata, note_of_write
from sluice.audit.log_files import parse_commit
from sluice.commands.app import app
from tests.support.group_commits import group_info, writer

RUNNER = CliRunner()


def write_version(table: Path, version: int, *actions: dict[str, Any], **info: Any) -> None:
    folder = table / "_delta_log"
    folder.mkdir(parents=True, exist_ok=True)
    commit_info = {
        "timestamp": 1_795_261_760_000 + 1000 * version,
        "operation": "WRITE",
        "operationMetrics": {"numOutputRows": "8419"},
        "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
        **info,
    }
    lines = [json.dumps(action) for action in ({"commitInfo": commit_info}, *actions)]
    (folder / f"{version:020}.json").write_text("\n".join(lines))


def stamp(number: int, **changes: Any) -> dict[str, Any]:
    """Return the stamp of a commit under a lock."""
    return {
        "hold": f"{number}0123456789abcdef",
        "ensemble": "eeeeeeee-1111-2222-3333-444444444444",
        "nodes": [{"key": "k", "mode": "exclusive", "token": 0x200000010 + number}],
        "requested_at": 1_795_261_690.5,
        "acquired_at": 1_795_261_700.0,
        "attempt": f"attempt-{number}",
        "job": "nightly",
        **changes,
    }


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "flights"
    write_version(path, 0, sluice=stamp(0))
    write_version(path, 1, operation="MERGE", operationMetrics={}, engineInfo="delta-rs:py-1.6.6")
    write_version(path, 2, operation="DELETE", sluice={"observed": "LockNotHeldError", "attempt": "a"})
    nodes = [
        {"key": "t", "mode": "shared", "token": 0x300000001},
        {"key": "p", "mode": "exclusive", "token": 0x300000002},
    ]
    note = note_of_write({}, "attempt-3", 1_795_261_680.25)
    write_version(path, 3, sluice=stamp(3, nodes=nodes, job=None), userMetadata=note_as_user_metadata(note))
    return path


def printed_log(table: Path) -> tuple[str, list[list[str]]]:
    """Return the printed title, and the words of each commit's line."""
    result = RUNNER.invoke(app, ["log", str(table)])
    assert result.exit_code == 0
    title, *lines = result.stdout.splitlines()
    return title.strip(), [line.split() for line in lines if line.strip()[:1].isdecimal()]


def test_the_log_has_a_line_for_each_commit_the_newest_first(table: Path) -> None:
    title, lines = printed_log(table)
    assert title == f"{table}, ensemble eeeeeeee-1111-2222-3333-444444444444"
    assert [line[0] for line in lines] == ["3", "2", "1", "0"]
    assert lines[0][1:] == [
        "2026-11-21", "11:49:23", "WRITE", "8,419", "30123456", "12884901890", "+1", "Delta-Lake/4.4.0",
    ]  # fmt: skip
    assert lines[1][3:] == ["DELETE", "8,419", "observed", "Delta-Lake/4.4.0"]
    assert lines[2][3:] == ["MERGE", "no", "lock", "delta-rs:py-1.6.6"]
    assert lines[3][5:] == ["nightly", "00123456", "8589934608", "Delta-Lake/4.4.0"]


def test_two_ensembles_get_a_column(table: Path) -> None:
    write_version(table, 4, sluice=stamp(4, ensemble="another-ensemble"))
    title, lines = printed_log(table)
    assert title == str(table)
    assert lines[0][5:] == ["nightly", "40123456", "8589934612", "another-", "Delta-Lake/4.4.0"]
    assert lines[4][5:] == ["nightly", "00123456", "8589934608", "eeeeeeee", "Delta-Lake/4.4.0"]


def test_a_job_with_brackets_is_printed_as_it_is(table: Path) -> None:
    write_version(table, 4, sluice=stamp(4, job="x[/y]"))
    assert "x[/y]" in printed_log(table)[1][0]


def test_json_output_has_every_field_of_a_commit(table: Path) -> None:
    write_version(table, 4, {"metaData": {"configuration": {"sluice.ensemble": "another"}}}, operationMetrics={})
    result = RUNNER.invoke(app, ["log", str(table), "--json", "--limit", "3"])
    assert result.exit_code == 0
    output = json.loads(result.stdout)
    assert output["table"] == str(table)
    adoption, locked_commit, observed_commit = output["commits"]
    assert (adoption["version"], adoption["adopted_by"]) == (4, "another")
    assert (adoption["rows"], adoption["locked"]) == (None, False)
    assert locked_commit == {
        "version": 3,
        "timestamp": 1_795_261_763.0,
        "operation": "WRITE",
        "rows": 8419,
        "engine": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
        "locked": True,
        "fenced": True,
        "observed": None,
        "job": None,
        "hold": "30123456789abcdef",
        "ensemble": "eeeeeeee-1111-2222-3333-444444444444",
        "tokens": {"p": 0x300000002},
        "shared_tokens": {"t": 0x300000001},
        "requested_at": 1_795_261_690.5,
        "acquired_at": 1_795_261_700.0,
        "commit_id": "attempt-3",
        "trace_id": None,
        "writers": [
            {
                "commit_id": "attempt-3",
                "job": None,
                "rows": 8419,
                "begun_at": 1_795_261_680.25,
                "lineage_run": None,
                "trace_id": None,
            }
        ],
        "adopted_by": None,
        "adopted_name": None,
    }
    assert (observed_commit["locked"], observed_commit["observed"]) == (False, "LockNotHeldError")


def test_a_version_of_several_writers_has_a_line_for_each(table: Path) -> None:
    info = group_info(
        writer("a", rows=1000, job="nightly"),
        writer("b", rows=2),
        writer("c", rows=3, job="hourly", lineage_run="r"),
        hold=stamp(4),
    )
    write_version(table, 4, **info)
    result = RUNNER.invoke(app, ["log", str(table), "--limit", "2"])
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines()]
    first = next(index for index, line in enumerate(lines) if line[:1] == ["4"])
    assert lines[first][3:] == ["WRITE", "1,005", "3", "writers", "40123456", "8589934612", "Delta-Lake/4.4.0"]
    assert lines[first + 1 : first + 4] == [
        ["writer", "1", "1,000", "nightly"],
        ["writer", "2", "2"],
        ["writer", "3", "3", "hourly"],
    ]
    assert lines[first + 4][0] == "3"
    commit = json.loads(RUNNER.invoke(app, ["log", str(table), "--json", "--limit", "1"]).stdout)["commits"][0]
    assert (commit["rows"], commit["commit_id"], commit["job"]) == (1005, "a", "nightly")
    assert commit["writers"] == [
        {"commit_id": "a", "job": "nightly", "rows": 1000, "begun_at": None, "lineage_run": None, "trace_id": None},
        {"commit_id": "b", "job": None, "rows": 2, "begun_at": None, "lineage_run": None, "trace_id": None},
        {"commit_id": "c", "job": "hourly", "rows": 3, "begun_at": None, "lineage_run": "r", "trace_id": None},
    ]


TRACES = ("0af7651916cd43dd8448eb211c80319c", "4bf92f3577b34da6a3ce929d0e0e4736")


def test_traces_have_a_column_if_a_commit_has_one(table: Path) -> None:
    def printed_lines() -> list[list[str]]:
        return [line.split() for line in RUNNER.invoke(app, ["log", str(table)]).stdout.splitlines()]

    def header() -> list[str]:
        return next(line for line in printed_lines() if line[:1] == ["version"])

    assert "trace" not in header()
    write_version(table, 4, sluice=stamp(4, trace_id=TRACES[0]))
    holder, member = writer("a"), writer("b")
    member["sluice"]["trace_id"] = TRACES[1]
    write_version(table, 5, **group_info(holder, member, hold=stamp(5)))
    lines = printed_lines()
    assert "trace" in header()
    assert [line for line in lines if "4bf92f35" in line] == [["writer", "2", "1", "4bf92f35"]]
    assert [line[0] for line in lines if "0af76519" in line] == ["4"]
    commits = json.loads(RUNNER.invoke(app, ["log", str(table), "--json"]).stdout)["commits"]
    assert [commit["trace_id"] for commit in commits] == [None, TRACES[0], None, None, None, None]
    assert [writer["trace_id"] for writer in commits[0]["writers"]] == [None, TRACES[1]]


def test_a_limit_reads_no_further_versions_and_0_is_no_limit(table: Path) -> None:
    (table / "_delta_log" / f"{0:020}.json").write_text("{")
    limited_log = RUNNER.invoke(app, ["log", str(table), "--limit", "3"])
    assert limited_log.exit_code == 0
    assert "problem" not in limited_log.stdout
    complete_log = RUNNER.invoke(app, ["log", str(table), "--limit", "0"])
    assert complete_log.exit_code == 0
    assert "problem: version 0 cannot be read" in complete_log.stdout


def test_a_missing_table_is_one_message_and_exit_code_2(tmp_path: Path) -> None:
    result = RUNNER.invoke(app, ["log", str(tmp_path / "nothing")])
    assert (result.exit_code, result.stdout) == (2, "")
    (message,) = result.stderr.splitlines()
    assert message.startswith("sluice: there is no Delta table at")


@pytest.mark.parametrize("command", ["log", "adopt"])
def test_a_command_without_a_table_exits_with_code_2(command: str) -> None:
    assert RUNNER.invoke(app, [command]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--zookeeper", "a:b:c"], "is not host:port"),
        (["--zookeeper", "a:1", "--conf", "novalue"], "expected KEY=VALUE"),
        ([], "no ensemble given"),
    ],
)
def test_adopt_checks_its_arguments_before_it_starts_spark(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_ZK_HOSTS", raising=False)
    monkeypatch.setattr("sluice.local.spark.start_spark", None)
    result = RUNNER.invoke(app, ["adopt", "/nowhere", *arguments])
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("metrics", "rows"),
    [
        ({"numTargetRowsInserted": "3", "numTargetRowsUpdated": "2", "numOutputRows": "99"}, 5),
        ({"numDeletedRows": "4", "numOutputRows": "0"}, 4),
        ({"numDeletedRows": "1", "numOutputRows": "2", "operation": "WRITE"}, 2),
        ({"numUpdatedRows": 7}, 7),
        ({"num_added_rows": 12}, 12),
        ({"numOutputRows": "no number"}, 6),
        ({}, 6),
    ],
)
def test_rows_counts_the_rows_that_the_operation_changed(metrics: dict[str, Any], rows: int) -> None:
    adds = [{"add": {"path": name, "stats": json.dumps({"numRecords": 3}), "dataChange": True}} for name in ("a", "b")]
    lines = [{"commitInfo": {"operation": metrics.pop("operation", "DELETE"), "operationMetrics": metrics}}, *adds]
    assert parse_commit(0, "\n".join(map(json.dumps, lines)).encode()).rows == rows


@pytest.mark.parametrize(
    "file",
    [{"stats": json.dumps({"numRecords": 3}), "dataChange": False}, {"dataChange": True}],
    ids=["compaction", "no statistics"],
)
def test_rows_of_a_compaction_or_without_statistics_are_unknown(file: dict[str, Any]) -> None:
    assert parse_commit(0, json.dumps({"add": {"path": "a", **file}}).encode()).rows is None
