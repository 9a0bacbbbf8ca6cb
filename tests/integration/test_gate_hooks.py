"""Hooks that Delta runs after a commit: harmless ones run behind the gate, all others under the lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from lock_manager import HeldLock
from lock_manager.guard.ticket import StagedCommit, Ticket
from tests.support.at_the_gate import TableAtTheGate
from tests.support.spark_settings import spark_settings
from writer_jobs import CommitResult
from writer_jobs.commit import gate_rules
from writer_jobs.commit.operation import Operation
from writer_jobs.delta.session import AUTO_COMPACT

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

    def manifest_files(self) -> set[str]:
        """Return the names of the data files that the manifest lists."""
        manifest = self.path / "_symlink_format_manifest" / "manifest"
        return {Path(line).name for line in manifest.read_text().splitlines()} if manifest.exists() else set()

    def current_files(self) -> set[str]:
        """Return the names of the data files of the newest version."""
        return {Path(name).name for name in DeltaTable(str(self.path)).file_uris()}

    @contextmanager
    def hooks_after_the_release(self, patch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
        """Delay the hooks behind the gate; at each release record whether the manifest is complete."""
        record_outcome, release = Ticket.record_outcome, HeldLock.release
        released = threading.Event()
        complete: list[bool] = []

        def wait_for_the_release(ticket: Ticket, request: Mapping[str, Any]) -> None:
            record_outcome(ticket, request)
            released.wait(60)

        def record_and_release(hold: HeldLock) -> None:
            if hold.resource == self.writer.table:
                complete.append(self.manifest_files() == self.current_files())
            release(hold)
            released.set()

        patch.setattr(Ticket, "record_outcome", wait_for_the_release)
        patch.setattr(HeldLock, "release", record_and_release)
        yield complete


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    return Table.create(request, getattr(request, "param", WITH_MANIFEST))


@pytest.mark.full
@pytest.mark.parametrize("operation", ["append", "update"])
def test_the_manifest_is_complete_when_the_lock_is_released(
    table: Table, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with table.hooks_after_the_release(monkeypatch) as complete:
        assert (table.append(1) if operation == "append" else table.update()).version == 1
    assert complete == [True]


def test_a_manifest_hook_of_the_commit_is_refused_at_the_gate(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule for table properties is off, so only Delta's transaction shows the hook."""
    monkeypatch.setattr(gate_rules, "_table_reason", lambda *_: None)
    initial_files = table.files()
    with table.hooks_after_the_release(monkeypatch) as complete:
        assert table.append(1).version == 1
    assert complete == [True]
    assert len(table.files() - initial_files) == 1, "the file of the first attempt was not removed"


def test_negative_control_without_the_rule_the_manifest_is_incomplete(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gate_rules, "_table_reason", lambda *_: None)
    staged_commit = StagedCommit.of
    monkeypatch.setattr(StagedCommit, "of", lambda request: staged_commit({**request, "hooks": []}))
    with table.hooks_after_the_release(monkeypatch) as complete:
        table.append(1)
    assert complete == [False]


@pytest.mark.full
def test_the_manifest_lists_all_files_of_concurrent_appends(table: Table) -> None:
    for row in (1, 3):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(table.append, range(row, row + 2)))
        assert table.manifest_files() == table.current_files()


@pytest.mark.full
@pytest.mark.parametrize(
    ("table", "staged"),
    [
        (ONE_ROW, True),
        (with_property("autoOptimize.autoCompact", "true"), True),
        (with_property("checkpointInterval", "1"), True),
        (WITH_MANIFEST, False),
    ],
    ids=["plain", "auto-compaction that the session turns off", "checkpoint", "manifest"],
    indirect=["table"],
)
def test_a_write_with_harmless_hooks_goes_through_the_gate(table: Table, *, staged: bool) -> None:
    initial_files = table.files()
    table.append(1, before_write=table.record_files)
    assert (table.files_at_lock[-1] != initial_files) == staged


@pytest.mark.parametrize("table", [ONE_ROW], ids=["one row"], indirect=True)
def test_the_table_properties_show_the_conversion_to_hudi(table: Table) -> None:
    """The jars lack the classes for Hudi, so delta-rs sets the property."""
    formats = {"delta.universalFormat.enabledFormats": "hudi"}
    DeltaTable(str(table.path)).alter.set_table_properties(formats, raise_if_not_exists=False)
    table.spark.read.format("delta").load(str(table.path)).collect()
    reason = gate_rules.reason_for_whole_write(table.spark, table.writer.log, Operation(lambda *_: None))
    assert reason is not None
    assert "Hudi" in reason


def test_the_commit_shows_auto_compaction_of_the_session(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate_rules, "_settings_reason", lambda _: None)
    monkeypatch.setattr(gate_rules, "_table_reason", lambda *_: None)
    compacts: list[bool] = []
    has_turn = Ticket.has_turn

    def record_hook(ticket: Ticket, request: Mapping[str, Any]) -> bool:
        compacts.append("Auto Compact" in request["staged"]["hooks"])
        return has_turn(ticket, request)

    monkeypatch.setattr(Ticket, "has_turn", record_hook)
    with spark_settings(table.spark.conf, {AUTO_COMPACT: "true"}):
        table.append(1)
    assert compacts == [True]
