"""Readers of the log find the write of each writer of a version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql import SparkSession

from lock_manager.table_records.commit_stamp import (
    CHANGES,
    EMPTY_COMMIT,
    GROUP,
    RECORDS,
    WATERMARK,
    batch_of,
    writer_infos,
)
from tests.support.group_commits import group_info, writer
from writer_jobs import DeltaTableLog, PinError, StorageError
from writer_jobs.delta.commit_lines import commit_lines, record_field
from writer_jobs.pins.watermarks import Watermarks

pytestmark = pytest.mark.spark


@dataclass
class Log:
    """A table without rows, whose version files a test writes."""

    spark: SparkSession
    path: Path
    newest: int = 0

    def __post_init__(self) -> None:
        DeltaTable.create(self.path, Schema([Field("id", PrimitiveType("long"))]))

    @property
    def reader(self) -> DeltaTableLog:
        return DeltaTableLog(self.spark, str(self.path))

    def version_file(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020d}.json"

    def add(self, *writers: Mapping[str, Any]) -> None:
        self.add_info(group_info(*writers))

    def add_info(self, info: Mapping[str, Any]) -> None:
        self.newest += 1
        self.version_file(self.newest).write_text(json.dumps({"commitInfo": info}) + "\n")

    def remove_behind_checkpoint(self, version: int) -> None:
        DeltaTable(self.path).create_checkpoint()
        self.version_file(version).unlink()


@pytest.fixture
def log(spark: SparkSession, tmp_path: Path) -> Log:
    return Log(spark, tmp_path / "table")


@pytest.mark.parametrize("is_guarded", [True, False])
def test_the_commit_of_each_writer_has_its_metrics(log: Log, *, is_guarded: bool) -> None:
    log.add(writer("a", rows=1, note=1), writer("b", rows=2, note=1), writer("c", rows=3, note=1))
    log.add(writer("d", note=1))
    for write_id, rows in (("a", 1), ("b", 2), ("c", 3)):
        commit, _ = log.reader.find_commit(write_id, after=0, guarded=is_guarded)
        assert commit is not None
        assert (commit.version, commit.rows) == (1, rows)
    assert log.reader.find_commit("e", after=0, guarded=is_guarded) == (None, 2)


def test_the_commit_of_a_member_is_found_after_a_gap(log: Log) -> None:
    log.add(writer("a"))
    log.add(writer("b"))
    log.add(writer("c", rows=1), writer("d", rows=2))
    log.remove_behind_checkpoint(2)
    commit, _ = log.reader.find_commit("d", after=0, guarded=True)
    assert commit is not None
    assert (commit.version, commit.rows) == (3, 2)
    with pytest.raises(StorageError, match=r"versions 2 to 2 of .* were removed by log clean-up"):
        log.reader.find_commit("e", after=0, guarded=True)


def test_the_batch_of_a_member_is_found(log: Log) -> None:
    log.add(writer("a"), writer("b", **{CHANGES: "batch"}))
    assert log.reader.has_batch("batch", after=0)
    assert not log.reader.has_batch("another", after=0)


def test_writers_of_one_version_do_not_hide_a_missing_version(log: Log) -> None:
    log.add(writer("a"), writer("b"), writer("c"))
    log.add(writer("d"))
    log.add(writer("e"))
    assert not log.reader.has_batch("batch", after=0)
    log.remove_behind_checkpoint(2)
    assert log.reader.has_batch("batch", after=0)


def test_the_run_of_a_member_is_found(log: Log) -> None:
    log.add(writer("a"), writer("b", run={"id": "r", "commit": 1}))
    log.add(writer("c", run={"id": "s", "commit": 1}), writer("d", run={"id": "r", "commit": 2}), writer("e"))
    log.add(writer("f"))
    assert log.reader.find_run("r", newest=3) == ({"id": "r", "commit": 2}, 2)
    assert log.reader.find_run("another", newest=3) == (None, 0)
    assert log.reader.run_versions("r", newest=3) == {1: 1, 2: 2}


def test_the_watermark_of_a_member_counts(log: Log) -> None:
    def member(commit_id: str, day: int, stream: str) -> dict[str, Any]:
        return writer(commit_id, **{WATERMARK: {"at": f"2013-01-{day:02}T00:00:00+00:00", "stream": stream}})

    moment = datetime(2013, 1, 10, tzinfo=UTC)
    log.add(writer("a"), member("b", 9, "slow"), member("c", 11, "fast"))
    watermarks = Watermarks(log.spark, log.reader, moment)

    def passed_version() -> int | None:
        return watermarks.passed_version("t", left_out=(), accept_none=False)

    with pytest.raises(PinError, match="stream slow has its watermark at 2013-01-09"):
        passed_version()
    log.add(writer("d"), member("e", 11, "slow"))
    assert passed_version() == 2
    assert Watermarks(log.spark, log.reader, moment).passed_version("t", left_out=(), accept_none=False) == 2


def test_spark_reads_the_records_that_python_reads(log: Log) -> None:
    def noted(record: object) -> dict[str, Any]:
        return {"userMetadata": json.dumps({RECORDS: {CHANGES: record}})}

    group = group_info(writer("a", **{CHANGES: "holder"}), writer("b"), writer("c", **{CHANGES: "member"}))
    infos: list[dict[str, Any]] = [
        {},
        {RECORDS: {CHANGES: "stamp"}, **noted("note")},
        {RECORDS: {CHANGES: {}}, **noted("note")},
        {RECORDS: json.dumps({CHANGES: "claim"}), **noted("note")},
        {"userMetadata": "no JSON"},
        {RECORDS: {CHANGES: "stamp", EMPTY_COMMIT: []}, **noted("note")},
        group,
        {**group, RECORDS: {**group[RECORDS], EMPTY_COMMIT: []}},
        # A writer without the key gets the metadata of the version.
        {**noted("version"), RECORDS: {GROUP: [{RECORDS: {}}, {RECORDS: {CHANGES: "stamp"}}]}},
    ]
    groups = ([], {}, "text", None, [None], ["text"], [[]], [{}], [{RECORDS: "text"}], [{RECORDS: {}}, {}])
    infos += [{**noted("version"), RECORDS: {GROUP: malformed}} for malformed in groups]
    for info in infos:
        log.add_info(info)
    expected = [
        (version, batch_of(writer_info)) for version, info in enumerate(infos, 1) for writer_info in writer_infos(info)
    ]
    commits = commit_lines(log.spark, str(log.path)).where("version > 0").select("version", record_field(CHANGES))
    # The writers of a version are in the order of its group.
    assert sorted(map(tuple, commits.collect()), key=lambda commit: commit[0]) == expected
    assert {batch for _, batch in expected} == {None, "stamp", "note", "holder", "member", "version"}
