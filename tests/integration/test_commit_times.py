"""In-commit timestamps are taken under the lock: a reader that polls the change feed by time misses no row."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from lock_manager.guard import ticket as tickets
from tests.support.at_the_gate import TableAtTheGate, commit_info
from writer_jobs import CommitResult
from writer_jobs.commit import gate_rules

pytestmark = pytest.mark.spark

ENABLE = "'delta.enableInCommitTimestamps' = 'true'"
TIMED = (
    f"CREATE TABLE {{t}} (id LONG) USING delta TBLPROPERTIES ({ENABLE}, 'delta.enableChangeDataFeed' = 'true')",
    "INSERT INTO {t} VALUES (0)",
    "INSERT INTO {t} VALUES (1)",
)
UNTIMED = (TIMED[0].replace(f"{ENABLE}, ", ""), *TIMED[1:])
INSERT = "INSERT INTO {t} VALUES (5)"


@dataclass
class Table(TableAtTheGate):
    """A table with a change feed and the rows 0 and 1, in two files."""

    def run(self, operation: str, lock_during: str = "commit") -> CommitResult:
        """Run an operation after which the table has the row 9. ``optimize`` only compacts."""
        options: dict[str, Any] = {"lock_during": lock_during, "before_write": self.record_files}
        row = self.spark.range(9, 10).coalesce(1)
        match operation:
            case "append":
                return self.writer.append(row, **options)
            case "overwrite":
                return self.writer.overwrite(row, replace_where="id >= 9", **options)
            case "update":
                return self.writer.update({"id": "9"}, "id = 1", **options)
            case "optimize":
                return self.writer.optimize(**options)
        merge = self.writer.merge(row.alias("s"), "t.id = s.id", alias="t")
        result: CommitResult = merge.whenNotMatchedInsertAll().execute(**options)
        return result

    def timestamp_ms(self, version: int | None) -> int:
        """Return the in-commit timestamp of a version."""
        return int(commit_info(self.path, version)["inCommitTimestamp"])

    def inserted(self, after_ms: int, until_ms: int) -> list[int]:
        """Return the ids that the change feed reports as inserted or updated between two times."""
        session = self.spark.newSession()
        session.conf.set("spark.databricks.delta.changeDataFeed.timestampOutOfRange.enabled", "true")
        limits = {"startingTimestamp": after_ms, "endingTimestamp": until_ms}
        changes = session.read.format("delta").option("readChangeFeed", "true")
        for name, milliseconds in limits.items():
            moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
            changes = changes.option(name, moment.isoformat(timespec="milliseconds"))
        rows = changes.load(str(self.path)).where("_change_type IN ('insert', 'update_postimage')")
        return sorted(row["id"] for row in rows.collect())


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    return Table.create(request, *getattr(request, "param", TIMED))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def read_while_waiting(table: Table, operation: str, *statements: str) -> tuple[list[int], CommitResult]:
    """Let an operation wait for the lock, run statements, and poll the change feed before and after its commit.

    Returns:
        The inserted rows of both polls, and the result of the operation.

    """
    start_ms = now_ms()
    with table.waiting_write(lambda: table.run(operation)) as running:
        for statement in statements:
            table.sql(statement)
        poll_ms = now_ms()
        rows = table.inserted(start_ms, poll_ms)
    result = running.result()
    return rows + table.inserted(poll_ms, now_ms()), result


@pytest.mark.parametrize(
    "operation",
    ["append", "merge", *(pytest.param(name, marks=pytest.mark.soak) for name in ("overwrite", "update"))],
)
def test_polls_by_timestamp_miss_no_row_that_waited(table: Table, operation: str) -> None:
    rows, result = read_while_waiting(table, operation)
    assert rows == [9]
    assert table.timestamp_ms(result.version) >= int(result.acquired_at * 1000)


@pytest.mark.parametrize("checks_commit", [True, False], ids=["the commit is checked", "negative control"])
def test_the_commit_shows_that_it_has_a_timestamp(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, checks_commit: bool
) -> None:
    """The rule for table properties is off, so only the check of the commit finds the timestamp."""
    monkeypatch.setattr(gate_rules, "_table_reason", lambda *_: None)
    if not checks_commit:
        monkeypatch.setattr(tickets, "staging_obstacle", lambda *_, **__: None)
    rows, _ = read_while_waiting(table, "append", INSERT)
    assert rows == ([5, 9] if checks_commit else [5])


@pytest.mark.parametrize("table", [UNTIMED], ids=["enabled later"], indirect=True)
def test_timestamps_enabled_at_the_gate_repeat_the_write(table: Table) -> None:
    with table.waiting_write(lambda: table.run("append")) as running:
        table.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({ENABLE})")
        enabled_ms = now_ms()
    result = running.result()
    assert table.timestamp_ms(result.version) >= int(result.acquired_at * 1000) >= enabled_ms


def test_a_compaction_with_timestamps_waits_at_the_gate(table: Table) -> None:
    initial_files = table.files()
    with table.waiting_write(lambda: table.run("optimize")) as running:
        table.sql(INSERT)
        table.eventually(lambda: len(table.files() - initial_files) == 2, label="the compacted file")
    assert running.result().metrics["numRemovedFiles"] == "2"
    assert len(table.files_at_lock) == 1
    assert len(table.files_at_lock[0] - initial_files) == 2, "the compaction did not write its file before the lock"


@pytest.mark.parametrize("operation", ["append", "merge"])
def test_a_write_under_the_lock_gets_a_timestamp_of_the_hold(table: Table, operation: str) -> None:
    with table.waiting_write(lambda: table.run(operation, lock_during="write")) as running:
        table.sql(INSERT)
    result = running.result()
    assert table.timestamp_ms(result.version) >= int(result.acquired_at * 1000)
