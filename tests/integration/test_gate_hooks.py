"""What Delta runs after a commit: harmless hooks run behind the gate, any other one under the lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import HeldLock, ZookeeperLockManager
from lock_manager.guard.ticket import StagedCommit, Ticket
from tests.support.at_the_gate import TableAtTheGate
from writer_jobs import CommitResult, LockedDeltaWriter
from writer_jobs.commit import gate_rules
from writer_jobs.commit.driver_guard import AUTO_COMPACT
from writer_jobs.commit.operation import Operation

pytestmark = pytest.mark.spark

ONE_ROW = "CREATE TABLE {t} USING delta AS SELECT 0L AS id"


def with_property(name: str, value: str) -> str:
    return ONE_ROW.replace(" AS ", f" TBLPROPERTIES ('delta.{name}' = '{value}') AS ", 1)


WITH_MANIFEST = with_property("compatibility.symlinkFormatManifest.enabled", "true")


@dataclass
class Table(TableAtTheGate):
    """A table with one row."""

    def append(self, row: int, **options: Any) -> CommitResult:
        rows = self.spark.createDataFrame([(row,)], "id long").coalesce(1)
        return self.writer.append(rows, lock_during="commit", **options)

    def update(self) -> CommitResult:
        return self.writer.update({"id": "id + 10"}, lock_during="commit")

    def in_the_manifest(self) -> set[str]:
        manifest = self.path / "_symlink_format_manifest" / "manifest"
        return {Path(line).name for line in manifest.read_text().splitlines()} if manifest.exists() else set()

    def in_the_log(self) -> set[str]:
        return {Path(name).name for name in DeltaTable(str(self.path)).file_uris()}

    @contextmanager
    def hooks_after_the_release(self, patch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
        """Hold back what Delta runs behind the gate; note at each release whether the manifest is complete."""
        record_outcome, release = Ticket.record_outcome, HeldLock.release
        released = threading.Event()
        complete: list[bool] = []

        def wait_for_the_release(ticket: Ticket, request: Mapping[str, Any]) -> None:
            record_outcome(ticket, request)
            released.wait(60)

        def note_and_release(hold: HeldLock) -> None:
            if hold.resource == self.writer.table:
                complete.append(self.in_the_manifest() == self.in_the_log())
            release(hold)
            released.set()

        patch.setattr(Ticket, "record_outcome", wait_for_the_release)
        patch.setattr(HeldLock, "release", note_and_release)
        yield complete


@pytest.fixture
def table(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    copy_of: Callable[..., Path],
    manager: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> Table:
    path = copy_of(getattr(request, "param", WITH_MANIFEST))
    return Table(spark, path, LockedDeltaWriter(spark, manager, str(path)), manager, eventually)


@pytest.mark.full
@pytest.mark.parametrize("operation", ["append", "update"])
def test_the_manifest_is_complete_when_the_lock_is_released(
    table: Table, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.hooks_after_the_release(monkeypatch) as complete:
        assert (table.append(1) if operation == "append" else table.update()).version == 1
    assert complete == [True]


def test_the_commit_itself_is_refused_behind_the_gate(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's properties hide the hook, and Delta's transaction shows it."""
    monkeypatch.setattr(gate_rules, "_table_reason", lambda *_: None)
    previous_files = table.files()
    with table.hooks_after_the_release(monkeypatch) as complete:
        assert table.append(1).version == 1
    assert complete == [True]
    assert len(table.files() - previous_files) == 1, "the first try has left its files"


def test_without_the_rule_the_manifest_is_behind(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control."""
    monkeypatch.setattr(gate_rules, "_table_reason", lambda *_: None)
    of = StagedCommit.of
    monkeypatch.setattr(StagedCommit, "of", lambda request: of({**request, "hooks": []}))
    with table.hooks_after_the_release(monkeypatch) as complete:
        table.append(1)
    assert complete == [False]


@pytest.mark.full
def test_after_appends_side_by_side_the_manifest_lists_all_files(table: Table) -> None:
    for first in range(1, 7, 2):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(table.append, range(first, first + 2)))
        assert table.in_the_manifest() == table.in_the_log()


def written_early(table: Table, write: Callable[..., CommitResult]) -> bool:
    previous_files = table.files()
    files_at_lock: list[set[str]] = []
    write(before_write=lambda _: files_at_lock.append(table.files()))
    return files_at_lock[-1] != previous_files


@pytest.mark.full
@pytest.mark.parametrize(
    ("table", "early"),
    [
        (ONE_ROW, True),
        (with_property("autoOptimize.autoCompact", "true"), True),
        (with_property("checkpointInterval", "1"), True),
        (WITH_MANIFEST, False),
    ],
    ids=["plain", "auto-compaction that the session turns off", "checkpoint", "manifest"],
    indirect=["table"],
)
def test_harmless_hooks_run_behind_the_gate(table: Table, *, early: bool) -> None:
    assert written_early(table, lambda **options: table.append(1, **options)) == early


@pytest.mark.parametrize("table", [ONE_ROW], ids=["one row"], indirect=True)
def test_the_conversion_to_hudi_is_seen_in_the_tables_properties(table: Table) -> None:
    """Its classes are not in the jars, so the property is set by another program."""
    formats = {"delta.universalFormat.enabledFormats": "hudi"}
    DeltaTable(str(table.path)).alter.set_table_properties(formats, raise_if_not_exists=False)
    table.spark.read.format("delta").load(str(table.path)).collect()
    reason = gate_rules.reason_for_whole_write(table.spark, table.writer.log, Operation(lambda *_: None))
    assert reason is not None
    assert "Hudi" in reason


def test_auto_compaction_of_the_session_is_seen_in_the_commit_too(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_rules, "_settings_reason", lambda _: None)
    monkeypatch.setattr(gate_rules, "_table_reason", lambda *_: None)
    usual = table.spark.conf.get(AUTO_COMPACT)
    table.spark.conf.set(AUTO_COMPACT, "true")
    staged: list[bool] = []
    has_turn = Ticket.has_turn

    def note(ticket: Ticket, request: Mapping[str, Any]) -> bool:
        staged.append("Auto Compact" in request["hooks"])
        return has_turn(ticket, request)

    monkeypatch.setattr(Ticket, "has_turn", note)
    try:
        table.append(1)
    finally:
        table.spark.conf.set(AUTO_COMPACT, usual)
    assert staged == [True]
