"""Parts of ``writer_jobs`` without Spark and ZooKeeper: commit records, source files, runs, signals, output."""

from __future__ import annotations

import hashlib
import json
import os
import pkgutil
import signal
import sys
import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql.types import StructType

import writer_jobs
from lock_manager import Hold
from lock_manager.table_records.commit_stamp import (
    CHANGES,
    MAINTENANCE,
    WATERMARK,
    batch_of,
    begun_at_of,
    commit_ids_of,
    is_commit_of,
    maintenance_of,
    note_as_user_metadata,
    note_of,
    note_of_write,
    parse_stamp,
    run_of,
    stamp_of,
    watermark_of,
    writer_infos,
)
from tests.support.group_commits import HOLD, group_info, writer
from writer_jobs.delta.hadoop_files import FileStatus, HadoopFiles, escape_glob
from writer_jobs.delta.jvm_errors import _gist
from writer_jobs.errors import RunError, SourceError
from writer_jobs.job.append.runs import Run, RunRecords, check_same_basis
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.output import JobOutput
from writer_jobs.job.stop_signals import JobStopped, StopSignals
from writer_jobs.streaming.checkpoint import _table_around


def test_the_public_names_are_pinned_and_documented() -> None:
    assert writer_jobs.__all__ == [
        "ChangedSince", "ChangesError", "ChangesResult", "CheckpointError", "Commit", "CommitResult",
        "CommitUnknownError", "DeltaTableLog", "FeedError", "GuardMissingError", "HBaseMapping", "Head",
        "HeldTooLongError", "LockedDeltaWriter", "MaintenanceError", "MappingError", "Pin", "PinError",
        "PinnedTable", "RetriesExhaustedError", "RewriteOptions", "RowsResult", "RunError", "SchemaMismatchError",
        "SourceError", "StorageError", "StreamError", "TableError", "TableState", "UnprovenCommitError",
        "UnsafeStoreError", "UnsupportedSessionError", "VacuumResult", "WriteConflictError", "WriteFailedError",
        "WriteOptions",
        "apply_cells", "apply_changes", "apply_events", "apply_rows", "attach", "build_session",
        "changed_before", "changed_since", "find_pin", "list_pins", "locate_table", "locked", "locked_all",
        "pinned_rows", "remove_pin", "rows_since", "stream_into", "take_pin", "vacuum",
    ]  # fmt: skip
    for name in writer_jobs.__all__:
        assert getattr(writer_jobs, name).__doc__


def test_no_job_shadows_a_module_of_the_standard_library() -> None:
    names = {module.name for module in pkgutil.iter_modules(writer_jobs.__path__)}
    assert "append" in names
    assert names.isdisjoint(sys.stdlib_module_names)


@pytest.mark.parametrize(
    ("message", "gist"),
    [
        ("", ""),
        ("Job aborted due to stage failure", ""),
        ("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03", "Path does not exist: file:/x."),
        ("[A.B_C] A metadata mismatch was detected.\n- Columns differ.\nGiven: [x]", "Columns differ. Given: [x]"),
        ("boom\n\tat org.apache.X.y(X.scala:1)\n\tat z", "boom"),
        ("first " + "x" * 300 + "\nsecond", "first " + "x" * 293 + "…"),
        ("on s3a://b: a.b.S3Exception: Denied (Service: S3, ID: r) (SDK Attempt Count: 1): x", "on s3a://b: Denied"),
    ],
)  # fmt: skip
def test_a_gist_has_no_codes_stack_traces_and_class_names(message: str, gist: str) -> None:
    assert _gist(message) == gist


def test_notes_of_other_programs_are_ignored() -> None:
    info = {"userMetadata": json.dumps({"sluice": {"commit_id": "c"}, "user": "x"})}
    assert note_of(info) == {"commit_id": "c"}
    assert note_of({}) == {}
    for text in (None, "text", "[1]", '{"sluice": 3}'):
        assert note_of({"userMetadata": text}) == {}


def test_commit_ids_come_from_the_stamp_and_the_note() -> None:
    note = {"userMetadata": json.dumps({"sluice": {"commit_id": "of the session"}})}
    assert commit_ids_of({**note, "sluice": {"commit_id": "c"}}) == ["c", "of the session"]
    assert commit_ids_of({"sluice": "text of delta-rs"}) == []


STAMP = {"hold": "h", "ensemble": "e", "nodes": [], "acquired_at": 1.0, "attempt": "put", "job": "nightly"}


def test_each_writer_of_a_group_has_its_records() -> None:
    watermark = {"at": "2013-01-01T00:00:00+00:00", "stream": "s"}
    info = group_info(
        writer("a", rows=1, job="nightly", run={"id": "r", "commit": 1}),
        writer("b", rows=2),
        writer("c", rows=3, job="hourly", **{CHANGES: "batch", WATERMARK: watermark}),
    )
    infos = writer_infos(info)
    assert [is_commit_of(info, "c", guarded=True) for info in infos] == [False, False, True]
    assert [is_commit_of(info, "c", guarded=False) for info in infos] == [False, False, True]
    assert [commit_ids_of(info) for info in infos] == [["a"], ["b"], ["c"]]
    assert [run_of(info).get("id") for info in infos] == ["r", None, None]
    assert [batch_of(info) for info in infos] == [None, None, "batch"]
    assert [watermark_of(info) for info in infos] == [None, None, (datetime(2013, 1, 1, tzinfo=UTC), "s")]
    assert [info["operationMetrics"]["numOutputRows"] for info in infos] == ["1", "2", "3"]
    assert all("group" not in info["sluice"] for info in infos)
    stamps = [stamp for info in infos if (stamp := parse_stamp(info)) is not None]
    assert [(stamp.commit_id, stamp.job) for stamp in stamps] == [("a", "nightly"), ("b", None), ("c", "hourly")]
    assert {(stamp.hold, *stamp.tokens.items()) for stamp in stamps} == {(HOLD["hold"], ("t", 7))}


@pytest.mark.parametrize("group", [None, [], {}, "text", [1], [{}], [{"sluice": "text"}], [writer("a"), {"sluice": 1}]])
def test_a_group_that_cannot_be_parsed_is_ignored(group: object) -> None:
    info = {"sluice": {**STAMP, "commit_id": "c", "group": group}}
    assert writer_infos(info) == [info]


@pytest.mark.parametrize(
    "info", [{}, {"sluice": "text"}, {"sluice": {}}, {"sluice": {"group": [writer("a")], "occupies": ["h"]}}]
)
def test_other_commits_have_one_writer(info: dict[str, Any]) -> None:
    assert writer_infos(info) == [info]


def test_metadata_of_a_caller_sets_no_group() -> None:
    fields = {"tokens": {}, "exclusive_keys": (), "requested_at": 0.5, "acquired_at": 1.0}
    hold = cast("Hold", SimpleNamespace(hold_id="h", ensemble_id="e", **fields))
    assert "group" not in stamp_of(hold, {"group": [writer("a")], "job": "nightly"})


@pytest.mark.parametrize("source", ["stamp", "note"])
def test_an_empty_commit_belongs_to_no_operation(source: str) -> None:
    """Earlier releases stamped empty commits with the waiting operation."""
    records = {
        "commit_id": "c",
        CHANGES: "batch",
        MAINTENANCE: {"action": "compact"},
        WATERMARK: {"at": "2013-01-01T00:00:00+00:00", "stream": "s"},
    }

    def info(**stamp_fields: object) -> dict[str, Any]:
        if source == "stamp":
            return {"sluice": {**STAMP, **records, **stamp_fields}}
        return {"sluice": {**STAMP, **stamp_fields}, "userMetadata": note_as_user_metadata(records)}

    empty_commit, commit = info(occupies=["h"]), info()
    assert is_commit_of(commit, "c", guarded=source == "stamp")
    assert not is_commit_of(commit, "c", guarded=source != "stamp")
    assert not any(is_commit_of(empty_commit, "c", guarded=guarded) for guarded in (True, False))
    readers = (commit_ids_of, batch_of, maintenance_of, watermark_of)
    assert all(reader(commit) for reader in readers)
    assert not any(reader(empty_commit) for reader in readers)
    stamp = parse_stamp(empty_commit)
    assert stamp is not None
    assert stamp.commit_id == "put"


def test_a_caller_s_note_cannot_set_the_commit_id_and_the_time() -> None:
    note = note_of_write({"commit_id": "the caller's", "begun_at": 1.0, "team": "a"}, "c", 2.0)
    assert begun_at_of({"userMetadata": note_as_user_metadata(note)}) == 2.0
    assert commit_ids_of({"userMetadata": note_as_user_metadata(note)}) == ["c"]
    assert note["team"] == "a"


def source_files(*names: str) -> SourceFiles:
    return SourceFiles(tuple(FileStatus(f"file:/x/{name}", 1, 1, is_folder=False) for name in names), None)


@pytest.mark.parametrize(
    ("names", "file_format"),
    [
        (["a.csv", "b.CSV.gz"], "csv"),
        (["a.jsonl", "b.ndjson.zst", "c.json"], "json"),
        (["part-0.snappy.parquet"], "parquet"),
    ],
)
def test_the_format_follows_from_file_names(names: list[str], file_format: str) -> None:
    assert source_files(*names).format == file_format


@pytest.mark.parametrize("names", [["a.csv", "b.json"], ["data"], ["a.csv", "b.txt"], ["csv"], ["x.gz"]])
def test_names_without_a_common_format_are_refused(names: list[str]) -> None:
    with pytest.raises(SourceError, match="give --format"):
        _ = source_files(*names).format


def test_glob_characters_in_paths_are_escaped() -> None:
    assert escape_glob("s3a://b/a[1]{x}*?.csv") == "s3a://b/a\\[1\\]\\{x\\}\\*\\?.csv"


def test_each_run_id_has_its_own_folder_of_records() -> None:
    def paths(run_id: str) -> tuple[str, str]:
        records = RunRecords(HadoopFiles(None, None), "/t", run_id)
        return records.folder, records.earlier_path

    assert paths("nightly-2013") == ("/t/_sluice/runs/nightly-2013", "/t/_sluice/runs/nightly-2013.json")
    # The folder is neither a parent nor the file in which an earlier release stored run "r".
    assert paths("..")[0] == "/t/_sluice/runs/%2E%2E"
    assert paths("r.json")[0] == "/t/_sluice/runs/r%2Ejson"
    assert paths("../a:b c%2F") == (
        "/t/_sluice/runs/%2E%2E%2Fa%3Ab%20c%252F",
        "/t/_sluice/runs/..%2Fa%3Ab%20c%252F.json",
    )


def test_changed_options_of_a_run_are_named_without_values() -> None:
    basis = {"number of commits": 4, "format": "csv", "source files": [["a", 1, 2]]}
    options = {"Sep": ";", "kms.token": "a-secret"}
    run = Run.begin("r", basis, options, StructType())
    check_same_basis(run, basis, {"sep": ";", "KMS.token": "a-secret"}, 2)
    with pytest.raises(RunError, match=r"2 of 4 commits.*the format and the source files changed"):
        check_same_basis(run, basis | {"format": "json", "source files": []}, options, 2)
    with pytest.raises(RunError, match=r"the reader option header and the reader option sep changed") as error:
        check_same_basis(run, basis, {"header": "a-secret-2", "kms.token": "a-secret"}, 2)
    assert "secret" not in str(error.value)


def test_reader_options_are_recorded_as_salted_hashes() -> None:
    runs = [Run.begin("r", {}, {"option": "a-secret", "option-2": "a-secret"}, StructType()) for _ in range(2)]
    assert runs[0].digest != runs[1].digest
    assert not any("a-secret" in (run.text or "") for run in runs)
    hashes = [value for run in runs for value in run.basis["reader options"]["hashes"].values()]
    assert len(set(hashes)) == 4
    assert hashlib.sha256(b"a-secret").hexdigest() not in hashes


def test_a_signal_raises_job_stopped() -> None:
    with pytest.raises(JobStopped, match="stopped by SIGTERM") as stopped, StopSignals():
        signal.raise_signal(signal.SIGTERM)
    assert stopped.value.exit_code == 143
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_deferred_block_cancels_once_and_raises_at_its_end() -> None:
    cancelled = threading.Semaphore(0)
    steps = []
    with pytest.raises(JobStopped) as stopped, StopSignals() as stop, stop.deferred(cancelled.release):
        signal.raise_signal(signal.SIGINT)
        assert cancelled.acquire(timeout=10)
        signal.raise_signal(signal.SIGTERM)
        steps.append("the end of the block")
    assert stopped.value.exit_code == 130
    assert steps == ["the end of the block"]
    assert not cancelled.acquire(blocking=False)


def test_an_error_after_a_signal_is_the_cause_of_job_stopped() -> None:
    with pytest.raises(JobStopped) as stopped, StopSignals() as stop, stop.deferred(lambda: None):
        signal.raise_signal(signal.SIGTERM)
        raise ZeroDivisionError
    assert isinstance(stopped.value.__cause__, ZeroDivisionError)


def test_without_a_signal_a_deferred_block_changes_nothing() -> None:
    with StopSignals() as stop:
        with stop.deferred(lambda: None):
            pass
        with pytest.raises(ZeroDivisionError), stop.deferred(lambda: None):
            raise ZeroDivisionError
        # After the block, a signal is raised at once.
        with pytest.raises(JobStopped):
            signal.raise_signal(signal.SIGTERM)


def test_a_closed_output_pipe_does_not_stop_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    stream = os.fdopen(write_end, "w")
    monkeypatch.setattr(sys, "stdout", stream)
    output = JobOutput(2)
    output.begun(1, 0.0)
    output.commit(1, None)
    replacement = sys.stdout
    monkeypatch.undo()
    assert replacement is not stream
    replacement.close()
    assert [line["commit"] for line in output.report_fields["commits"]] == [1]
    with pytest.raises(BrokenPipeError):
        stream.close()


@pytest.mark.parametrize(
    ("checkpoint", "table"),
    [
        ("/lake/t/notes", "file:/lake/t"),
        ("/lake/t", "file:/lake/t"),
        ("/lake/t_late/notes", "file:/lake/t_late"),
        ("/lake/t_cells/a/_notes", "file:/lake/t_cells"),
        ("/lake/t/_delta_log/notes", "file:/lake/t"),
        ("/lake/t/_day=1/notes", "file:/lake/t"),
        ("/lake/t/_checkpoints/notes", None),
        ("/lake/t_dead_letters/.notes", None),
        ("/lake/t_other/notes", None),
    ],
)
def test_a_checkpoint_in_a_folder_that_vacuum_cleans_is_found(checkpoint: str, table: str | None) -> None:
    assert _table_around(checkpoint, "file:/lake/t") == table
