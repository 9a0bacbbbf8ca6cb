"""The demo's verdict on a recorded load: each kind of damage to the record is reported."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from lock_manager.table_records.commit_stamp import CommitStamp
from sluice.audit.checks import Interval, find_overlaps
from sluice.audit.log_files import LogCommit
from sluice.demo.flights import Contents
from sluice.demo.outcome import Outcome, commit_id, judge
from sluice.demo.records import AcknowledgedCommit, Phase, Writer

SOURCE = Contents(
    Counter([(f"2013-01-01T{hour:02}:00:00Z", "UA", "1") for hour in range(8)]),
    {"flight": (8, 8), "distance": (8, 800)},
)


def commit(number: int, **changes: Any) -> AcknowledgedCommit:
    """Return a commit of two rows. Its hold starts ``100 + 10 * number`` seconds after the start and takes 3 s."""
    fields = {
        "writer": number % 2 + 1,
        "commit_id": f"c{number}",
        "rows": 2,
        "version": number,
        "requested_at": 10.0 + number,
        "acquired_at": 100.0 + 10 * number,
        "released_at": 103.0 + 10 * number,
        "token": number + 1,
    }
    return AcknowledgedCommit(**(fields | changes))


def logged_commit(number: int, **changes: Any) -> LogCommit:
    stamp = CommitStamp(f"c{number}", f"h{number}", "e", {"s3://lake/t": number + 1}, {}, 100.0 + 10 * number)
    return replace(LogCommit(number, 102.0 + 10 * number, read_version=number - 1, stamp=stamp), **changes)


class Record:
    """A correct load of four commits by two writers, which a test damages."""

    def __init__(self) -> None:
        self.writers = [Writer(1, 0.0), Writer(2, 0.5)]
        for number in range(4):
            self.writers[number % 2].commits.append(commit(number))
        for writer in self.writers:
            writer.end(0, 140.0)
        self.log = [logged_commit(number) for number in range(4)]
        self.table = Contents(Counter(SOURCE.keys), dict(SOURCE.sums))
        self.locked = True

    def judge(self, **options: Any) -> Outcome:
        return judge(
            self.writers, self.log, SOURCE, self.table,
            locked=self.locked, commits_planned=4, wall_seconds=140.0, **options,
        )  # fmt: skip


@pytest.fixture
def record() -> Record:
    return Record()


def test_a_correct_load_passes_with_correct_figures(record: Record) -> None:
    outcome = record.judge()
    assert outcome.ok
    assert outcome.problems == ()
    assert (outcome.rows_expected, outcome.rows_found, outcome.duplicate_rows, outcome.missing_rows) == (8, 8, 0, 0)
    assert (outcome.commits_acknowledged, outcome.commits_in_log, outcome.lost_commits) == (4, 4, 0)
    assert (outcome.conflicts, outcome.overlapping_holds, outcome.retries) == (0, 0, 0)
    assert outcome.loading_seconds == 123.0
    assert (outcome.hold_seconds_p50, outcome.wait_seconds_p50) == (3.0, 103.5)
    assert json.loads(json.dumps(outcome.to_json()))["lost_commits"] == 0


def test_a_lost_commit_is_reported_with_its_writer(record: Record) -> None:
    del record.log[2]
    outcome = record.judge()
    assert outcome.lost == ("c2",)
    assert outcome.problems == ("1 acknowledged commit not in the log: c2 (writer 1, 2 rows)",)


def test_a_missing_version_is_counted(record: Record) -> None:
    assert record.judge().missing_versions == 0
    del record.log[1]
    assert record.judge().missing_versions == 1


def test_a_commit_that_no_writer_reported_is_reported(record: Record) -> None:
    record.log.append(logged_commit(4))
    assert record.judge().problems == ("1 commit in the log, but reported by no writer: c4",)


def test_a_commit_that_is_in_the_log_twice_is_reported(record: Record) -> None:
    record.log.append(replace(record.log[1], version=4, read_version=3))
    assert record.judge().problems == ("1 commit in the log more than once",)


def test_commits_of_all_writers_of_a_version_are_counted(record: Record) -> None:
    record.log[2:] = [replace(record.log[2], group=(record.log[2], replace(record.log[3], version=2)))]
    outcome = record.judge()
    assert outcome.ok, outcome.problems
    assert (outcome.commits_in_log, outcome.versions) == (4, 3)


def test_a_planned_commit_without_a_record_is_reported(record: Record) -> None:
    record.writers[1].commits.pop()
    record.log.pop()
    assert record.judge().problems == ("4 commits were planned, and 3 acknowledged",)


def test_overlapping_holds_are_reported(record: Record) -> None:
    record.writers[0].commits[1] = commit(2, acquired_at=112.0)  # commit 1 holds until 113
    outcome = record.judge()
    assert outcome.overlapping_holds == 1
    assert outcome.problems == ("two holds overlap by 1.000 s: writer 2, commit c1 and writer 1, commit c2",)


def test_missing_duplicate_and_unexpected_rows_are_reported(record: Record) -> None:
    missing_key, duplicate_key, *_ = record.table.keys
    record.table.keys.pop(missing_key)
    record.table.keys[duplicate_key] += 1
    record.table.keys["2014-01-01T00:00:00Z", "UA", "1"] += 1
    outcome = record.judge()
    assert (outcome.rows_found, outcome.missing_rows, outcome.duplicate_rows, outcome.unexpected_rows) == (9, 1, 1, 1)
    assert [problem.split(",")[0] for problem in outcome.problems] == [
        "1 row missing",
        "1 duplicate row by (time_hour",
        "1 row not from the source",
    ]


def test_a_row_with_changed_values_is_reported(record: Record) -> None:
    record.table = Contents(record.table.keys, {"flight": (8, 8), "distance": (7, 800)})
    assert record.judge().problems == ("1 column with other values than the source: distance",)


def test_repeated_writes_without_the_lock_are_counted(record: Record) -> None:
    record.writers[0].apply({"event": "retry", "at": 120.0}, 120.0)
    record.locked = False
    outcome = record.judge()
    assert (outcome.ok, outcome.retries) == (True, 1)


def test_a_writer_that_failed_is_reported(record: Record) -> None:
    record.writers[1].end(5, 141.0)
    outcome = record.judge()
    assert outcome.problems == ("writer 2 failed",)
    assert outcome.failed_writers == (2,)


def test_a_problem_of_the_table_is_a_problem_of_the_load(record: Record) -> None:
    assert record.judge(table_problems=["version 2 was overwritten"]).problems == ("version 2 was overwritten",)


def test_an_empty_load_is_reported_without_an_error() -> None:
    writer = Writer(1, 0.0)
    writer.end(3, 9.0)
    outcome = judge([writer], [], SOURCE, Contents(), locked=True, commits_planned=4, wall_seconds=9.0)
    examples = ", ".join(f"2013-01-01T0{hour}:00:00Z UA 1" for hour in range(3))
    assert outcome.problems[:3] == (
        "writer 1 failed",
        "4 commits were planned, and 0 acknowledged",
        f"8 rows missing, for example {examples} …",
    )
    assert (outcome.loading_seconds, outcome.hold_seconds_p50) == (0.0, None)


@pytest.mark.parametrize(
    ("metadata", "expected_id"),
    [
        ('{"rival": {"commit_id": "r1"}}', "r1"),
        ('{"rival": {"commit_id": 1}}', None),
        ('{"rival": 1}', None),
        ("x", None),
    ],
)
def test_commits_without_the_lock_have_an_id_in_their_metadata(metadata: str, expected_id: str | None) -> None:
    assert commit_id(LogCommit(0, user_metadata=metadata)) == expected_id
    assert commit_id(LogCommit(0)) is None


@pytest.mark.parametrize(
    ("holds", "pair_count"),
    [
        ([(0, 1, "a"), (1, 2, "b"), (2, 3, "a")], 0),
        ([(0, 2, "a"), (1, 3, "b")], 1),
        ([(1, 3, "b"), (0, 2, "a")], 1),
        ([(0, 10, "a"), (1, 2, "b"), (3, 4, "c"), (11, 12, "d")], 2),
        ([(0, 10, "a"), (1, 9, "b"), (2, 8, "c")], 3),
        ([(0, 2, "a"), (1, 3, "a")], 0),
        ([], 0),
    ],
)
def test_find_overlaps_returns_every_pair(holds: list[tuple[float, float, str]], pair_count: int) -> None:
    assert len(find_overlaps([Interval(*hold) for hold in holds])) == pair_count


def test_the_output_lines_of_a_writer_change_its_state() -> None:
    writer = Writer(3, 50.0)
    assert (writer.phase, writer.since, writer.is_running) == (Phase.STARTING, 50.0, True)
    writer.apply({"event": "begun", "commit": 1, "commits": 2, "begun_at": 60.0}, 60.1)
    assert (writer.phase, writer.since) == (Phase.BEGUN, 60.0)
    writer.apply({"event": "holding", "commit": 1, "token": 7, "acquired_at": 61.0}, 61.1)
    assert (writer.phase, writer.since) == (Phase.HOLDING, 61.0)
    writer.apply({"event": "unknown", "from": "a later release"}, 61.5)
    line = {
        "event": "commit", "commit": 1, "commits": 2, "version": 4, "rows": 10, "token": 7, "hold_id": "h",
        "commit_id": "c", "requested_at": 60.0, "acquired_at": 61.0, "released_at": 63.0,
    }  # fmt: skip
    writer.apply(line, 63.1)
    (commit,) = writer.commits
    assert (commit.writer, commit.version, commit.rows) == (3, 4, 10)
    assert commit.hold == Interval(61.0, 63.0, "writer 3, commit c")
    assert (writer.phase, writer.rows) == (Phase.BETWEEN, 10)
    writer.end(0, 70.0)
    assert (writer.phase, writer.is_running, writer.ended_at) == (Phase.DONE, False, 70.0)
