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
    AdoptionMismatchError,
    EnsembleMismatchError,
    EnsembleRefusedError,
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
from tests.support.at_the_gate import commit_info
from tests.support.lock_znodes import connected_client
from tests.support.waiting import eventually
from writer_jobs import LockedDeltaWriter, locked

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
        self.ensemble.servers[0].kill()

    def start_server(self) -> None:
        self.ensemble.servers[0].start()


@pytest.fixture
def fallback(spark: SparkSession, copy_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Fallback]:
    monkeypatch.setattr(courtesy_queue, "_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(courtesy_queue, "_WATCH_SECONDS", 0.5)
    with ExitStack() as stack:
        ensemble = stack.enter_context(EmbeddedZooKeeper())
        fallback = Fallback(spark, copy_of(ADOPTED, FIRST_ROW), stack, ensemble)
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
    assert fallback.events.count(Event.ACQUIRED) == fallback.events.count(Event.RELEASED) == 2
    assert fallback.queue_length() == 0


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
    assert fallback.events.count(Event.ACQUIRED) == fallback.events.count(Event.RELEASED) + fallback.events.count(
        Event.LOST
    )
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
    writer = fallback.writer()
    lost = threading.Event()
    fallback.stack.callback(observe(lambda event, *_, **__: lost.set() if event is Event.LOST else None))

    def lose_place(_: lock_manager.Hold) -> None:
        fallback.stop_server()
        assert lost.wait(60)

    writer.append(fallback.rows(1), before_write=lose_place)
    assert fallback.ids() == [0, 1]
    assert "it does not rely on the lock that was lost" in caplog.text


@pytest.mark.full
def test_an_outage_under_load_loses_no_row(fallback: Fallback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(courtesy_queue, "_OUTAGE_SECONDS", 0.5)
    numbers, written, done = itertools.count(1), [0], threading.Event()

    def append_until_done() -> None:
        writer = fallback.writer()
        while not done.is_set():
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
            done.set()
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


def test_a_new_table_needs_its_adoption_after_the_first_version(fallback: Fallback, tmp_path: Path) -> None:
    fallback.path = tmp_path / "new"
    fallback.writer().append(fallback.rows(1))
    with pytest.raises(AdoptionMismatchError):
        fallback.writer().append(fallback.rows(2))
    adopted = adopt_table(fallback.spark, str(fallback.path), LockSettings.from_url(fallback.url))
    assert adopted.ensemble == "optimistic"
    fallback.writer().append(fallback.rows(2))
    with pytest.raises(EnsembleMismatchError):
        LockedDeltaWriter(fallback.spark, fallback.rival(), str(fallback.path)).append(fallback.rows(3))
    assert fallback.ids() == [1, 2]
