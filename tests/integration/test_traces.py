"""Spans of writes, of blocks under a lock and of plain locks, and the trace ids of commits."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kazoo.client import KazooClient
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from pyspark import InheritableThread
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from lock_manager import LockLostError, LockTimeoutError, ZookeeperLockManager
from lock_manager.table_records.commit_stamp import commit_metadata
from sluice.commands.app import app
from tests.support.at_the_gate import TableAtTheGate, commit_info
from tests.support.lock_znodes import LockZnodes
from tests.support.recorded_spans import RecordedSpans, trace_id_of
from tests.support.rivals import RivalManager
from writer_jobs import CommitResult

pytestmark = pytest.mark.spark

ONE_ROW = "CREATE TABLE {t} USING delta AS SELECT 0L AS id"
WITH_CHECKPOINTS = ONE_ROW.replace(" AS ", " TBLPROPERTIES ('delta.checkpointInterval' = '1') AS ", 1)
GATED = ["work", "queue", "hold", "  gate", "  guard", "  put", "after"]
HELD = ["queue", "hold", "  work", "  guard", "  put"]


class Table(TableAtTheGate):
    """A table with one row."""

    def append(self, *ids: int, **options: Any) -> CommitResult:
        rows = self.spark.createDataFrame([(number,) for number in ids], "id long").coalesce(1)
        return self.writer.append(rows, **options)

    def insert(self, number: int) -> None:
        self.spark.sql(f"INSERT INTO delta.`{self.path}` VALUES ({number})")

    def stamp(self, version: int | None) -> dict[str, Any]:
        stamp: dict[str, Any] = commit_info(self.path, version)["sluice"]
        return stamp

    def logged_trace_ids(self) -> list[str | None]:
        """Return the trace id of each version in ``sluice log --json``, the newest first."""
        output = CliRunner().invoke(app, ["log", str(self.path), "--json"]).stdout
        return [commit["trace_id"] for commit in json.loads(output)["commits"]]


@pytest.fixture
def table(request: pytest.FixtureRequest) -> Table:
    return Table.create(request, getattr(request, "param", ONE_ROW))


@pytest.fixture
def group_commits(spark: SparkSession) -> Iterator[None]:
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set("spark.sluice.groupCommits", "true")
    yield
    conf.remove("spark.sluice.groupCommits")


@pytest.fixture
def spans() -> Iterator[RecordedSpans]:
    with RecordedSpans().installed() as recorded:
        yield recorded


def check_times(spans: RecordedSpans, root: ReadableSpan) -> None:
    """Check that each span contains its children, and that they follow each other."""
    children = spans.children(root)
    for child in children:
        assert (root.start_time or 0) <= (child.start_time or 0) <= (child.end_time or 0) <= (root.end_time or 0)
        check_times(spans, child)
    for earlier, later in pairwise(children):
        assert (earlier.end_time or 0) <= (later.start_time or 0), (earlier.name, later.name)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return {name.removeprefix("sluice."): value for name, value in (span.attributes or {}).items()}


def test_a_gated_append_is_part_of_the_callers_trace(table: Table, spans: RecordedSpans) -> None:
    with trace.get_tracer("the caller").start_as_current_span("load"):
        result = table.append(1, 2, metadata={"trace_id": "the caller's"})
    (load,) = spans.roots()
    assert spans.outline(load) == ["load", "  append", *(f"    {line}" for line in GATED)]
    check_times(spans, load)
    append = spans.one("append")
    assert attributes_of(append) == {
        "table": table.writer.table, "lock": "table", "lock.during": "commit", "outcome": "committed",
        "version": 1, "rows": 2, "write_id": result.commit_id,
    }  # fmt: skip
    assert attributes_of(spans.one("work")) == {"attempt": 1, "write_id": result.commit_id}
    assert attributes_of(spans.one("queue")) == {"lock.scope": table.writer.table, "lock.outcome": "acquired"}
    hold = {"lock.scope": table.writer.table, "hold_id": result.hold_id, "lock.token": result.token}
    assert attributes_of(spans.one("hold")) == hold
    assert attributes_of(spans.one("guard")) == {"version": 1, "operation": "WRITE"}
    assert attributes_of(spans.one("put")) == {"version": 1, "put.outcome": "committed"}
    assert table.stamp(1)["trace_id"] == trace_id_of(load)
    assert table.logged_trace_ids() == [trace_id_of(load), None]


def test_negative_control_without_a_provider_commits_have_no_trace(table: Table) -> None:
    table.append(1, metadata={"trace_id": "the caller's"})
    # The stamp has the metadata of an operation other than append.
    table.writer.delete("id = 1", metadata={"trace_id": "the caller's", "reason": "a test"})
    assert "trace_id" not in table.stamp(1)
    assert "trace_id" not in table.stamp(2)
    assert table.stamp(2)["reason"] == "a test"
    assert table.logged_trace_ids() == [None, None, None]


@pytest.mark.parametrize("operation", ["delete", pytest.param("merge", marks=pytest.mark.full)])
def test_an_operation_under_the_lock_is_one_trace(table: Table, spans: RecordedSpans, operation: str) -> None:
    if operation == "delete":
        result = table.writer.delete("id = 0")
    else:
        source = table.spark.range(2).alias("s")
        result = table.writer.merge(source, "t.id = s.id", alias="t").whenNotMatchedInsertAll().execute()
    (root,) = spans.roots()
    assert spans.outline(root) == [operation, *(f"  {line}" for line in HELD)]
    check_times(spans, root)
    assert attributes_of(root)["lock.during"] == "write"
    assert table.stamp(result.version)["trace_id"] == trace_id_of(root)


def test_a_locked_block_is_one_trace(table: Table, spans: RecordedSpans) -> None:
    with table.locked():
        table.insert(1)
        with trace.get_tracer("the caller").start_as_current_span("step"):
            table.append(2)
            thread = InheritableThread(target=table.insert, args=(3,))
            thread.start()
            thread.join()
    (root,) = spans.roots()
    append = ["append", "  work", "  guard", "  put"]
    body = ["guard", "put", "step", *(f"  {line}" for line in append), "guard", "put"]
    assert spans.outline(root) == ["locked", "  queue", "  hold", *(f"    {line}" for line in body)]
    assert [attributes_of(put)["version"] for put in spans.named("put")] == [1, 2, 3]
    assert table.logged_trace_ids() == [*3 * [trace_id_of(root)], None]
    assert [span.status.is_ok for span in spans.all()] == [True] * len(spans.all())


def test_a_refused_commit_is_an_error_of_its_spans(
    table: Table, spans: RecordedSpans, ensemble_client: KazooClient
) -> None:
    with pytest.raises(LockLostError), table.locked() as hold:
        LockZnodes(ensemble_client, table.writer.table).delete_contenders(hold)
        table.insert(1)
    (root,) = spans.roots()
    assert spans.outline(root) == ["locked", "  queue", "  hold", "    guard"]
    errors = {span.name: attributes_of(span).get("error.type") for span in spans.all()}
    lost = "LockLostError"
    assert errors == {"sluice.locked": lost, "sluice.queue": None, "sluice.hold": lost, "sluice.guard": lost}
    assert [span.status.is_ok for span in spans.all()] == [False, True, False, False]
    assert "removed" in (spans.one("guard").status.description or "")


@pytest.mark.full
def test_a_repeated_write_has_a_span_for_each_attempt(table: Table, spans: RecordedSpans) -> None:
    with table.waiting_write(lambda: table.writer.delete("id >= 0", lock_during="commit")) as running:
        DeltaTable(str(table.path)).update(updates={"id": "id + 1"})
    result = running.result()
    root = spans.one("delete")
    assert attributes_of(root)["version"] == result.version == 2
    works = spans.named("work")
    assert [attributes_of(work)["attempt"] for work in works] == [1, 2]
    assert attributes_of(works[1])["write_id"] == result.commit_id


def test_a_wait_that_ends_is_an_error_of_its_spans(
    table: Table, spans: RecordedSpans, make_rival: Callable[..., RivalManager]
) -> None:
    with make_rival().acquire(table.writer.table), pytest.raises(LockTimeoutError):
        table.append(1, lock_timeout_seconds=0)
    append = spans.one("append")
    work, queue = spans.children(append)
    assert attributes_of(queue) == {
        "lock.scope": table.writer.table, "lock.ahead": 1, "lock.outcome": "gave_up", "error.type": "LockTimeoutError",
    }  # fmt: skip
    assert spans.outline(append) == ["append", "  work", "  queue"]
    assert attributes_of(append)["error.type"] == "LockTimeoutError"
    assert (append.status.is_ok, queue.status.is_ok, work.status.is_ok) == (False, False, True)


@pytest.mark.full
def test_a_failed_job_of_spark_is_an_error_of_the_work(table: Table, spans: RecordedSpans) -> None:
    rows = table.spark.range(1).selectExpr("raise_error('no rows') AS id")
    with pytest.raises(Exception, match="no rows"):
        table.writer.append(rows.selectExpr("CAST(id AS LONG) AS id"))
    append, work = spans.all()
    assert (append.name, work.name) == ("sluice.append", "sluice.work")
    assert attributes_of(append)["error.type"] == "WriteFailedError"
    assert not work.status.is_ok


@pytest.mark.full
@pytest.mark.usefixtures("group_commits")
def test_members_of_a_group_have_their_own_traces(
    table: Table, spans: RecordedSpans, make_rival: Callable[..., RivalManager]
) -> None:
    table.append(1)
    with ThreadPoolExecutor(2) as pool:
        with make_rival().acquire(table.writer.table):
            running = []
            for number in (2, 3):
                running.append(pool.submit(table.append, number))
                table.eventually(lambda: table.queue_length() == len(running) + 1, within=60)
        assert [append.result().version for append in running] == [2, 2]
    _, holder, member = spans.named("append")
    assert spans.outline(holder) == ["append", *(f"  {line}" for line in GATED)]
    assert spans.outline(member) == ["append", "  work", "  queue", "  after"]
    queue = spans.children(member)[1]
    assert (attributes_of(queue)["lock.outcome"], queue.status.is_ok) == ("dismissed", True)
    stamp = table.stamp(2)
    assert stamp["trace_id"] == trace_id_of(holder)
    writers = stamp["group"]
    assert [writer["sluice"]["trace_id"] for writer in writers] == [trace_id_of(holder), trace_id_of(member)]
    (link,) = spans.named("guard")[1].links
    assert link.context.span_id == member.context.span_id


@pytest.mark.full
@pytest.mark.parametrize("table", [WITH_CHECKPOINTS], ids=["checkpoint"], indirect=True)
def test_a_checkpoint_is_part_of_its_write(table: Table, spans: RecordedSpans) -> None:
    table.append(1)
    (root,) = spans.roots()
    checkpoint = ["checkpoint", "  queue", "  hold"]
    assert spans.outline(root) == ["append", *(f"  {line}" for line in [*GATED, *checkpoint])]
    assert attributes_of(spans.one("checkpoint")) == {"table": table.writer.table}


def test_a_commit_of_an_unchanged_program_is_a_trace_of_its_own(
    table: Table, spans: RecordedSpans, set_lock: Callable[[str], None]
) -> None:
    set_lock("commit")
    table.insert(1)
    table.eventually(lambda: spans.named("commit"), label="the end of the ticket")
    (root,) = spans.roots()
    assert spans.outline(root) == ["commit", "  queue", "  hold", "    guard", "    put"]
    assert table.stamp(1)["trace_id"] == trace_id_of(root)


def test_a_lock_of_another_program_has_spans(
    tmp_path: Path, spans: RecordedSpans, manager: ZookeeperLockManager
) -> None:
    with trace.get_tracer("the caller").start_as_current_span("load"), manager.acquire(tmp_path / "t") as hold:
        stamp = json.loads(commit_metadata(hold)["sluice"])
    (root,) = spans.roots()
    assert spans.outline(root) == ["load", "  queue", "  hold"]
    assert stamp["trace_id"] == trace_id_of(root)


class FailingProcessor(SpanProcessor):
    """A processor of spans that fails."""

    def __init__(self) -> None:
        self.failures = 0

    def on_start(self, *_: object, **__: object) -> None:
        self._fail()

    def on_end(self, *_: object) -> None:
        self._fail()

    def _fail(self) -> None:
        self.failures += 1
        raise RuntimeError("a failing processor")


def test_a_failing_provider_does_not_end_a_write(table: Table) -> None:
    processor = FailingProcessor()
    with RecordedSpans(processor).installed():
        assert table.append(1).version == 1
        with table.locked():
            table.insert(2)
    assert processor.failures > 0
    assert table.ids() == [0, 1, 2]


@pytest.mark.full
def test_a_failing_span_does_not_end_a_write(
    table: Table, spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = count(1)

    def is_recording(_: object) -> bool:
        """Succeed at the start of a span, and fail later."""
        if next(calls) % 2 == 0:
            raise RuntimeError("a failing span")
        return True

    monkeypatch.setattr("opentelemetry.sdk.trace.Span.is_recording", is_recording)
    assert table.append(1).version == 1
    with table.locked():
        table.insert(2)
    assert next(calls) > 2
    assert spans.all() != []
    assert table.ids() == [0, 1, 2]
