"""The output lines of the job without a lock, to which the demo compares Sluice, match the table."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from sluice.audit.log_files import LogCommit, read_commits
from sluice.audit.log_folder import open_log
from sluice.demo.flights import deal_flights, read_contents
from sluice.demo.outcome import commit_id
from sluice.demo.records import Writer


@pytest.mark.spark
def test_the_output_of_the_rival_job_matches_its_commits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], without_guard: Callable[..., AbstractContextManager[None]]
) -> None:
    from sluice.demo import rival_append

    (source,), contents = deal_flights(tmp_path, 1, limit=300)
    table = str(tmp_path / "flights")
    with without_guard():
        rival_append.main(["--table", table, "--source", str(source), "--partition-by", "month", "--commits", "2"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["event"] for line in lines] == ["writing", "commit", "writing", "commit"]
    writer = Writer(1, 0.0)
    for line in lines:
        writer.apply(line, 0.0)
    assert writer.rows == 300
    assert [commit.hold for commit in writer.commits] == [None, None]
    assert all(commit.released_at > commit.requested_at for commit in writer.commits)
    commits = [commit for commit in read_commits(open_log(table), [0, 1]) if isinstance(commit, LogCommit)]
    assert [commit_id(commit) for commit in commits] == [commit.commit_id for commit in writer.commits]
    assert [commit.stamp for commit in commits] == [None, None]
    assert read_contents(table, {}) == contents
