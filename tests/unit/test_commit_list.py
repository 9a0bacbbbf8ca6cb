"""`sluice log`: a line for each commit, the newest first, marked where it was made without the lock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sluice.audit.log_files import parse_commit
from sluice.commands.app import app

RUN = CliRunner()


def write_version(table: Path, version: int, *actions: dict[str, Any], **info: Any) -> None:
    folder = table / "_delta_log"
    folder.mkdir(parents=True, exist_ok=True)
    told = {
        "timestamp": 1_795_261_760_000 + 1000 * version,
        "operation": "WRITE",
        "operationMetrics": {"numOutputRows": "8419"},
        "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
        **info,
    }
    lines = [json.dumps(action) for action in ({"commitInfo": told}, *actions)]
    (folder / f"{version:020}.json").write_text("\n".join(lines))


def held(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "hold": f"{number}0123456789abcdef",
        "ensemble": "eeeeeeee-1111-2222-3333-444444444444",
        "nodes": [{"key": "k", "mode": "exclusive", "token": 0x200000010 + number}],
        "acquired_at": 1_795_261_700.0,
        "attempt": f"attempt-{number}",
        "job": "nightly",
        **changes,
    }


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "flights"
    write_version(path, 0, sluice=held(0))
    write_version(path, 1, operation="MERGE", operationMetrics={}, engineInfo="delta-rs:py-1.6.6")
    write_version(path, 2, operation="DELETE", sluice={"observed": "LockNotHeldError", "attempt": "a"})
    nodes = [
        {"key": "t", "mode": "shared", "token": 0x300000001},
        {"key": "p", "mode": "exclusive", "token": 0x300000002},
    ]
    write_version(path, 3, sluice=held(3, nodes=nodes, job=None))
    return path


def people_read(table: Path) -> tuple[str, list[list[str]]]:
    """Return the title of what is printed, and the words of each commit's line."""
    answer = RUN.invoke(app, ["log", str(table)])
    assert answer.exit_code == 0
    title, *lines = answer.stdout.splitlines()
    return title.strip(), [line.split() for line in lines if line.strip()[:1].isdecimal()]


def test_people_read_a_line_for_each_commit_the_newest_first(table: Path) -> None:
    title, lines = people_read(table)
    assert title == f"{table}, ensemble eeeeeeee-1111-2222-3333-444444444444"
    assert [line[0] for line in lines] == ["3", "2", "1", "0"]
    assert lines[0][1:] == [
        "2026-11-21", "11:49:23", "WRITE", "8,419", "30123456", "12884901890", "+1", "Delta-Lake/4.4.0",
    ]  # fmt: skip
    assert lines[1][3:] == ["DELETE", "8,419", "observed", "Delta-Lake/4.4.0"]
    assert lines[2][3:] == ["MERGE", "no", "lock", "delta-rs:py-1.6.6"]
    assert lines[3][5:] == ["nightly", "00123456", "8589934608", "Delta-Lake/4.4.0"]


def test_two_ensembles_get_a_column(table: Path) -> None:
    write_version(table, 4, sluice=held(4, ensemble="another-ensemble"))
    title, lines = people_read(table)
    assert title == str(table)
    assert lines[0][5:] == ["nightly", "40123456", "8589934612", "another-", "Delta-Lake/4.4.0"]
    assert lines[4][5:] == ["nightly", "00123456", "8589934608", "eeeeeeee", "Delta-Lake/4.4.0"]


def test_programs_read_all_of_it(table: Path) -> None:
    write_version(table, 4, {"metaData": {"configuration": {"sluice.ensemble": "another"}}}, operationMetrics={})
    answer = RUN.invoke(app, ["log", str(table), "--json", "--limit", "3"])
    assert answer.exit_code == 0
    found = json.loads(answer.stdout)
    assert found["table"] == str(table)
    adopted, newest, observed = found["commits"]
    assert (adopted["version"], adopted["adopted_by"], adopted["rows"], adopted["locked"]) == (
        4,
        "another",
        None,
        False,
    )
    assert newest == {
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
        "acquired_at": 1_795_261_700.0,
        "commit_id": "attempt-3",
        "adopted_by": None,
        "adopted_name": None,
    }
    assert (observed["locked"], observed["observed"]) == (False, "LockNotHeldError")


def test_a_limit_reads_no_more_than_it_has_to_and_0_is_all(table: Path) -> None:
    (table / "_delta_log" / f"{0:020}.json").write_text("{")
    limited = RUN.invoke(app, ["log", str(table), "--limit", "3"])
    assert limited.exit_code == 0
    assert "problem" not in limited.stdout
    everything = RUN.invoke(app, ["log", str(table), "--limit", "0"])
    assert everything.exit_code == 0
    assert "problem: version 0 cannot be read" in everything.stdout


def test_what_is_no_table_is_a_sentence_and_exit_code_2(tmp_path: Path) -> None:
    answer = RUN.invoke(app, ["log", str(tmp_path / "nothing")])
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.startswith("sluice: there is no Delta table at")


@pytest.mark.parametrize("command", ["log", "adopt"])
def test_both_commands_have_help_and_refuse_what_makes_no_sense(command: str) -> None:
    answer = RUN.invoke(app, [command, "--help"])
    assert answer.exit_code == 0
    assert f"Usage: sluice {command}" in answer.output
    assert RUN.invoke(app, [command]).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--zookeeper", "a:b:c"], "is not host:port"),
        (["--zookeeper", "a:1", "--conf", "novalue"], "expected KEY=VALUE"),
        ([], "no ensemble given"),
    ],
)
def test_adopt_checks_its_arguments_before_it_starts_spark(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLUICE_ZK_HOSTS", raising=False)
    answer = RUN.invoke(app, ["adopt", "/nowhere", *arguments])
    assert answer.exit_code == 2
    assert said in answer.stderr


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
def test_rows_are_those_that_the_operation_changed(metrics: dict[str, Any], rows: int) -> None:
    added = [{"add": {"path": name, "stats": json.dumps({"numRecords": 3}), "dataChange": True}} for name in ("a", "b")]
    lines = [{"commitInfo": {"operation": metrics.pop("operation", "DELETE"), "operationMetrics": metrics}}, *added]
    assert parse_commit(0, "\n".join(map(json.dumps, lines)).encode()).rows == rows


def test_compaction_and_files_without_statistics_tell_no_rows() -> None:
    moved = {"add": {"path": "a", "stats": json.dumps({"numRecords": 3}), "dataChange": False}}
    assert parse_commit(0, json.dumps(moved).encode()).rows is None
    unknown = {"add": {"path": "a", "dataChange": True}}
    assert parse_commit(0, json.dumps(unknown).encode()).rows is None
