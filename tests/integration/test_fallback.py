"""Writers with ``fallback=optimistic`` queue in ZooKeeper while it answers, and go on without it while it does not."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from kazoo.security import make_acl
from pyspark.sql import DataFrame, SparkSession

import lock_manager
from lock_manager import (
    EnsembleMismatchError,
    EnsembleRefusedError,
    LockCancelledError,
    LockSettings,
    LockTimeoutError,
    NotAdoptedError,
    TableResource,
    UnsupportedLockError,
    ZookeeperLockManager,
    courtesy_queue,
)
from lock_manager.events import Event, observe
from lock_manager.managers import inspector_of
from lock_manager.optimistic import OptimisticHold
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.adopt import adopt_table
from sluice.audit.verify import verify_table
from tests.support.append_rows import EMPTY, HEADER, ROWS
from tests.support.at_the_gate import commit_info
from tests.support.lock_znodes import connected_client
from tests.support.new_thread import in_new_thread
from tests.support.submitted_job import SubmittedJob
from tests.support.waiting import eventually
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs import append as append_module
from writer_jobs.commit.gate import StagedWrite
from writer_jobs.commit.held_write import HeldWrite

pytestmark = pytest.mark.spark

ADOPTED = "CREATE TABLE {t} (id LONG) USING delta TBLPROPERTIES ('sluice.ensemble' = 'optimistic')"
FIRST_ROW = "INSERT INTO {t} VALUES (0)"


@dataclass
class Fallback:
    """An ensemble of one server, and writers of a table that go on without it.

    Attributes:
        events: Events of the table's locks.

    """

    spark: SparkSession
    path: Path
    stack: ExitStack
    ensemble: EmbeddedZooKeeper
    monkeypatch: pytest.MonkeyPatch
    events: list[Event] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"zookeeper://{self.ensemble.hosts}?fallback=optimistic&session_timeout_seconds=4"

    def manager(self, **settings: Any) -> lock_manager.LockManager:
        return self.stack.enter_context(lock_manager.connect(self.url, **{"timeout_seconds": 60, **settings}))

    def writer(self, **settings: Any) -> LockedDeltaWriter:
        return LockedDeltaWriter(self.spark, self.manager(**settings), str(self.path))

    def rival(self) -> ZookeeperLockManager:
        """Return a manager that relies on the locks of the ensemble."""
        return self.stack.enter_context(ZookeeperLockManager(self.ensemble.hosts, 30))

    def rows(self, *ids: int) -> DataFrame:
        return self.spark.createDataFrame([(number,) for number in ids], "id long").coalesce(1)

    def ids(self) -> list[int]:
        return sorted(DeltaTable(str(self.path)).to_pyarrow_table()["id"].to_pylist())

    def queue_length(self) -> int:
        with inspector_of(LockSettings.from_url(self.url)) as inspector:
            return len(inspector.table(TableResource.of(self.path)).entries)

    def stop_server(self) -> None:
        """Begin an outage. From now on a writer waits for an answer for a second only."""
        self.monkeypatch.setattr(courtesy_queue, "_ANSWER_SECONDS", 1.0)
        self.ensemble.servers[0].kill()

    def start_server(self) -> None:
        """End the outage."""
        self.monkeypatch.setattr(courtesy_queue, "_ANSWER_SECONDS", 5.0)
        self.ensemble.servers[0].start()


@pytest.fixture
def fallback(spark: SparkSession, copy_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Fallback]:
    monkeypatch.setattr(courtesy_queue, "_WATCH_SECONDS", 0.5)
    with ExitStack() as stack:
        ensemble = stack.enter_context(EmbeddedZooKeeper())
        fallback = Fallback(spark, copy_of(ADOPTED, FIRST_ROW), stack, ensemble, monkeypatch)
        stack.callback(observe(lambda event, *_, **__: fallback.events.append(event)))
        yield fallback


def test_a_writer_waits_in_the_queue_while_zookeeper_answers(fallback: Fallback) -> None:
    with ThreadPoolExecutor(1) as pool:
        with fallback.rival().acquire(fallback.path):
            append = pool.submit(fallback.writer().append, fallback.rows(1))
            eventually(lambda: fallback.queue_length() == 2)
            assert fallback.ids() == [0]
        version = append.result().version
    assert version is not None
    assert commit_info(fallback.path, version)["sluice"]["ensemble"] == "optimistic"
    assert fallback.ids() == [0, 1]
    assert Event.FELL_BACK not in fallback.events
    eventually(lambda: fallback.queue_length() == 0)
    assert fallback.events.count(Event.ACQUIRED) == fallback.events.count(Event.RELEASED) == 2


def test_a_writer_goes_on_without_zookeeper_and_reports_it(
    fallback: Fallback, caplog: pytest.LogCaptureFixture
) -> None:
    writer = fallback.writer()
    writer.append(fallback.rows(1))
    fallback.stop_server()
    for number in (2, 3):
        writer.append(fallback.rows(number))
    assert fallback.ids() == [0, 1, 2, 3]
    assert fallback.events.count(Event.FELL_BACK) == 2
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert sum("does not wait for other writers, because ZooKeeper does not answer" in text for text in warnings) == 2
    assert fallback.events.count(Event.ACQUIRED) == fallback.events.count(Event.RELEASED) == 3
    assert verify_table(str(fallback.path)).problems == ()


def test_a_waiting_writer_goes_on_when_zookeeper_stops(fallback: Fallback) -> None:
    fallback.rival().acquire(fallback.path)
    with ThreadPoolExecutor(1) as pool:
        append = pool.submit(fallback.writer().append, fallback.rows(1))
        eventually(lambda: fallback.queue_length() == 2)
        fallback.stop_server()
        append.result()
    assert fallback.ids() == [0, 1]
    assert Event.FELL_BACK in fallback.events


def test_writers_queue_again_after_an_outage(fallback: Fallback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy_queue, "_OUTAGE_SECONDS", 0.0)
    writer = fallback.writer()
    fallback.stop_server()
    writer.append(fallback.rows(1))
    fallback.start_server()
    eventually(lambda: fallback.queue_length() == 0, within=30)
    fallback.events.clear()
    writer.append(fallback.rows(2))
    assert Event.FELL_BACK not in fallback.events
    assert fallback.ids() == [0, 1, 2]


def test_a_write_goes_on_when_its_place_is_lost(fallback: Fallback, caplog: pytest.LogCaptureFixture) -> None:
    writer, loss = fallback.writer(), "it does not rely on the lock that was lost"

    def lose_place(_: lock_manager.Hold) -> None:
        fallback.stop_server()
        eventually(lambda: loss in caplog.text, within=60)

    writer.append(fallback.rows(1), before_write=lose_place)
    assert fallback.ids() == [0, 1]
    assert Event.LOST not in fallback.events
    assert fallback.events.count(Event.ACQUIRED) == fallback.events.count(Event.RELEASED) == 1


def test_a_write_that_loses_a_race_holds_its_place_when_it_is_repeated(fallback: Fallback) -> None:
    lengths: list[int] = []
    run_held, commit_staged = HeldWrite.run, StagedWrite._commit

    def run(write: HeldWrite, *arguments: Any) -> Any:
        lengths.append(fallback.queue_length())
        return run_held(write, *arguments)

    def commit(*arguments: Any) -> None:
        DeltaTable(str(fallback.path)).delete("id = 0")
        commit_staged(*arguments)

    fallback.monkeypatch.setattr(HeldWrite, "run", run)
    fallback.monkeypatch.setattr(StagedWrite, "_commit", commit)
    fallback.writer().delete("id >= 0")
    assert (fallback.ids(), lengths) == ([], [1])


def test_a_checkpoint_is_written_in_an_outage_without_a_report(
    fallback: Fallback, caplog: pytest.LogCaptureFixture, copy_of: Callable[..., Path]
) -> None:
    properties = "'sluice.ensemble' = 'optimistic', 'delta.checkpointInterval' = '2'"
    fallback.path = copy_of(f"CREATE TABLE {{t}} (id LONG) USING delta TBLPROPERTIES ({properties})", to="other")
    writer = fallback.writer()
    fallback.stop_server()
    writes = 0
    while not list(fallback.path.glob("_delta_log/*.checkpoint*")):
        writes += 1
        writer.append(fallback.rows(writes))
    assert fallback.events.count(Event.FELL_BACK) == writes
    assert "_last_checkpoint" not in caplog.text


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_cancelled_request_is_not_granted_in_an_outage(fallback: Fallback, end: str) -> None:
    manager = fallback.manager()
    fallback.rival().acquire(fallback.path)
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(manager.acquire_all, [str(fallback.path)], needs_exclusion=False)
        eventually(lambda: fallback.queue_length() == 2)
        fallback.stop_server()
        if end == "cancel":
            assert manager.cancel(str(fallback.path)) == 1
        else:
            manager.close()
        assert isinstance(request.exception(30), LockCancelledError)
    assert Event.ACQUIRED not in fallback.events[fallback.events.index(Event.GAVE_UP) :]


def test_a_cancelled_request_is_not_granted_while_zookeeper_is_asked(fallback: Fallback) -> None:
    manager = fallback.manager()
    fallback.stop_server()
    with ThreadPoolExecutor(1) as pool:
        request = pool.submit(manager.acquire_all, [str(fallback.path)], needs_exclusion=False)
        eventually(lambda: manager.cancel(str(fallback.path)) == 1)
        assert isinstance(request.exception(30), LockCancelledError)
    assert Event.ACQUIRED not in fallback.events


def test_a_job_reports_that_it_goes_on_without_zookeeper(
    fallback: Fallback,
    csv_file: Callable[..., Path],
    copy_of: Callable[..., Path],
    submit: Callable[..., SubmittedJob],
) -> None:
    table = copy_of(f"{EMPTY} TBLPROPERTIES ('sluice.ensemble' = 'optimistic')", to="amounts")
    fallback.stop_server()
    source = csv_file("rows.csv", HEADER, ROWS)
    arguments = ["--table", table, "--source", source, "--commits", 2, "--lock-url", fallback.url]
    job = submit(Path(append_module.__file__), *arguments)
    assert job.wait() == 0, job.error
    assert job.error.count("does not wait for other writers, because ZooKeeper does not answer") == 2, job.error


@pytest.mark.full
def test_an_outage_under_load_loses_no_row(fallback: Fallback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy_queue, "_OUTAGE_SECONDS", 0.5)
    numbers, written, is_over = itertools.count(1), [0], threading.Event()

    def append_until_done() -> None:
        writer = fallback.writer()
        while not is_over.is_set():
            number = next(numbers)
            writer.append(fallback.rows(number))
            written.append(number)

    with ThreadPoolExecutor(3) as pool:
        writers = [pool.submit(append_until_done) for _ in range(3)]
        try:
            for outage in range(1, 4):
                fallback.stop_server()
                eventually(lambda outage=outage: fallback.events.count(Event.FELL_BACK) >= 5 * outage, 60)  # type: ignore[misc]
                fallback.start_server()
                length = len(written)
                eventually(lambda length=length: len(written) > length + 5, 60)  # type: ignore[misc]
        finally:
            is_over.set()
        for writer in writers:
            writer.result()
    assert fallback.ids() == sorted(written)
    assert verify_table(str(fallback.path)).problems == ()


# -- what never falls back ---------------------------------------------------------------------------------------------


@pytest.fixture(params=["answers", "does not answer"])
def zookeeper_state(request: pytest.FixtureRequest, fallback: Fallback) -> str:
    if request.param == "does not answer":
        fallback.stop_server()
    return str(request.param)


@pytest.mark.usefixtures("zookeeper_state")
def test_a_table_that_is_not_adopted_is_refused(fallback: Fallback, copy_of: Callable[..., Path]) -> None:
    fallback.path = copy_of("CREATE TABLE {t} (id LONG) USING delta", FIRST_ROW, to="other")
    with pytest.raises(NotAdoptedError, match="sluice adopt TABLE --lock-url URL"):
        fallback.writer().append(fallback.rows(1))
    with pytest.raises(NotAdoptedError):
        fallback.writer().overwrite(fallback.rows(1))
    assert fallback.ids() == [0]


def test_negative_control_without_this_check_a_lock_does_not_exclude(
    fallback: Fallback, copy_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ignored = property(lambda _: False, lambda *_: None)
    monkeypatch.setattr(OptimisticHold, "needs_adoption", ignored)
    fallback.path = copy_of("CREATE TABLE {t} (id LONG) USING delta", FIRST_ROW, to="other")
    hold = fallback.rival().acquire(fallback.path)
    fallback.stop_server()
    fallback.writer().append(fallback.rows(1))
    assert fallback.ids() == [0, 1]
    fallback.start_server()
    # The short outage did not end the hold.
    hold.check()


@pytest.mark.usefixtures("zookeeper_state")
def test_a_table_whose_writers_have_locks_is_refused(fallback: Fallback, copy_of: Callable[..., Path]) -> None:
    properties = "TBLPROPERTIES ('sluice.ensemble' = '11111111-1111-1111-1111-111111111111')"
    fallback.path = copy_of(f"CREATE TABLE {{t}} (id LONG) USING delta {properties}", FIRST_ROW, to="other")
    with pytest.raises(EnsembleMismatchError):
        fallback.writer().append(fallback.rows(1))
    assert fallback.ids() == [0]


@pytest.mark.usefixtures("zookeeper_state")
def test_work_that_needs_a_lock_is_refused(fallback: Fallback, copy_of: Callable[..., Path]) -> None:
    with (
        pytest.raises(UnsupportedLockError, match="use zookeeper:// without a fallback"),
        locked(fallback.spark, str(fallback.path), manager=fallback.manager()),
    ):
        pytest.fail("there is no lock")
    fallback.path = copy_of("CREATE TABLE {t} (id LONG, p LONG) USING delta PARTITIONED BY (p)", to="partitioned")
    with pytest.raises(UnsupportedLockError, match="lock on partitions"):
        fallback.writer().append(fallback.rows(1).selectExpr("id", "id AS p"), lock=[{"p": 1}])
    assert fallback.ids() == []


def test_a_long_wait_is_a_timeout(fallback: Fallback) -> None:
    with fallback.rival().acquire(fallback.path), pytest.raises(LockTimeoutError):
        fallback.writer(timeout_seconds=2).append(fallback.rows(1))
    assert Event.FELL_BACK not in fallback.events
    assert fallback.ids() == [0]


def test_a_refusal_of_zookeeper_is_an_error(fallback: Fallback) -> None:
    with connected_client(fallback.ensemble.hosts) as client:
        client.create("/readonly", b'{"format": 1, "ensemble": "e"}', acl=[make_acl("world", "anyone", read=True)])
    with pytest.raises(EnsembleRefusedError):
        fallback.writer(lock_root="/readonly").append(fallback.rows(1))
    assert Event.FELL_BACK not in fallback.events


def test_a_new_table_is_adopted_after_its_first_version(fallback: Fallback, tmp_path: Path) -> None:
    fallback.path = tmp_path / "new"
    with pytest.raises(NotAdoptedError):
        fallback.writer().append(fallback.rows(1))
    assert not list(fallback.path.glob("_delta_log/*.json"))
    locked_writer = LockedDeltaWriter(fallback.spark, fallback.rival(), str(fallback.path))
    locked_writer.append(fallback.rows(1))
    adopted = adopt_table(fallback.spark, str(fallback.path), LockSettings.from_url(fallback.url))
    assert adopted.ensemble == "optimistic"
    fallback.writer().append(fallback.rows(2))
    with pytest.raises(EnsembleMismatchError):
        locked_writer.append(fallback.rows(3))
    assert fallback.ids() == [1, 2]


def test_an_adoption_waits_for_the_holder_of_the_lock(fallback: Fallback, copy_of: Callable[..., Path]) -> None:
    fallback.path = copy_of("CREATE TABLE {t} (id LONG) USING delta", FIRST_ROW, to="other")
    settings = LockSettings.from_url(fallback.url, timeout_seconds=2)
    hold = in_new_thread(fallback.rival().acquire, fallback.path).result(30)
    with pytest.raises(LockTimeoutError):
        adopt_table(fallback.spark, str(fallback.path), settings)
    hold.release()
    assert adopt_table(fallback.spark, str(fallback.path), settings).version == 2


def test_a_table_is_moved_back_to_writers_with_locks(fallback: Fallback) -> None:
    settings = LockSettings(zk_hosts=fallback.ensemble.hosts, timeout_seconds=30)
    moved = adopt_table(fallback.spark, str(fallback.path), settings, move=True, old_hosts=fallback.url)
    assert moved.moved_from == "optimistic"
    with pytest.raises(EnsembleMismatchError):
        fallback.writer().append(fallback.rows(1))
    LockedDeltaWriter(fallback.spark, fallback.rival(), str(fallback.path)).append(fallback.rows(1))
    assert fallback.ids() == [0, 1]
