"""Spark drivers on HDFS: paused writers, lost replies, and name nodes that fail over or crash at a commit."""

from __future__ import annotations

import operator
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from threading import Event
from typing import Any

import pytest

from lock_manager.testing.embedded import EmbeddedZooKeeper
from tests.support.driver_process import WAIT, Driver
from tests.support.hdfs import NEEDS_HADOOP, ROOT, HdfsCluster, NameNodeLink, hdfs_cluster, hdfs_conf

pytestmark = [pytest.mark.spark, NEEDS_HADOOP]


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsCluster]:
    with hdfs_cluster(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@dataclass
class HdfsDrivers:
    """Two drivers, their links to the name nodes, and the table of the test."""

    first: Driver
    second: Driver
    link: NameNodeLink
    second_link: NameNodeLink
    table: str = ""

    def begin_rename(self, operation: str) -> None:
        """Let the first driver append the rows 10 and 11 until the link has its rename of the version."""
        self.link.hold_rename()
        self.first.begin(operation, table=self.table, first=10, end=12)
        assert self.link.arrived.wait(WAIT)

    def ids(self) -> list[int]:
        ids: list[int] = self.second.do("ids", table=self.table)
        return ids


@pytest.fixture(scope="module")
def driver_pair(hdfs: HdfsCluster, ensemble_of_drivers: EmbeddedZooKeeper) -> Iterator[HdfsDrivers]:
    hosts = ensemble_of_drivers.hosts
    with (
        closing(NameNodeLink(hdfs)) as link,
        closing(NameNodeLink(hdfs)) as second_link,
        closing(Driver("writer-1", hosts, None, hdfs_conf(link.settings))) as first,
        closing(Driver("writer-2", hosts, None, hdfs_conf(second_link.settings))) as second,
    ):
        first.wait_until_ready()
        second.wait_until_ready()
        yield HdfsDrivers(first, second, link, second_link)


@pytest.fixture
def drivers(driver_pair: HdfsDrivers) -> Iterator[HdfsDrivers]:
    """The drivers, and a table with the ids 0 to 2."""
    driver_pair.table = f"{ROOT}/{uuid.uuid4().hex}"
    driver_pair.first.do("append", table=driver_pair.table, first=0, end=3)
    yield driver_pair
    for driver in (driver_pair.first, driver_pair.second):
        driver.do("protect_again")


def append_during_a_held_rename(
    drivers: HdfsDrivers, paused: str, operation: str, fault: Callable[[], None]
) -> tuple[dict[str, Any], list[int]]:
    """Pause the first driver during its rename while the second commits; return its answer and the second's ids."""
    first = drivers.first
    drivers.begin_rename(operation)
    first.signal(signal.SIGSTOP, paused)
    if paused == "jvm":
        # Python would keep the session alive.
        first.link.cut()
    try:
        fault()
        ids = drivers.second.do("read_then_append", table=drivers.table)
    finally:
        drivers.link.release.set()
        first.link.mend()
        first.signal(signal.SIGCONT, paused)
    return first.answer(), ids


@pytest.mark.parametrize(
    ("paused", "operation", "fault"),
    [
        ("jvm", "append_at_the_gate", None),
        pytest.param("both", "append", None, marks=pytest.mark.full),
        pytest.param("both", "append_at_the_gate", "fail_over", marks=pytest.mark.full),
        pytest.param("jvm", "append", "crash", marks=pytest.mark.full),
        pytest.param("both", "merge", "crash", marks=pytest.mark.full),
    ],
)
def test_a_writer_paused_during_its_rename_commits_nothing_later(
    drivers: HdfsDrivers, hdfs: HdfsCluster, paused: str, operation: str, fault: str | None
) -> None:
    answer, ids = append_during_a_held_rename(
        drivers, paused, operation, getattr(hdfs, fault) if fault else lambda: None
    )
    assert answer["error"] == "LockLostError", answer
    assert ids == [0, 1, 2]
    assert drivers.ids() == [0, 1, 2, 1003]


def test_negative_control_without_intents_a_late_rename_succeeds(drivers: HdfsDrivers) -> None:
    drivers.second.do("ignore_intents")
    drivers.begin_rename("append")
    drivers.first.signal(signal.SIGSTOP, "both")
    drivers.second_link.hold_rename()
    try:
        drivers.second.begin("read_then_append", table=drivers.table)
        assert drivers.second_link.arrived.wait(WAIT)
    finally:
        drivers.link.release.set()
        drivers.first.signal(signal.SIGCONT, "both")
    drivers.first.answer()
    drivers.second_link.release.set()
    assert drivers.second.answer() == {"done": [0, 1, 2]}
    # The second driver committed on top of a version that it had not read.
    assert drivers.ids() == [0, 1, 2, 10, 11, 1003]


@pytest.mark.parametrize(
    "fault", [None, pytest.param("fail_over", marks=pytest.mark.full), pytest.param("crash", marks=pytest.mark.full)]
)
def test_a_commit_whose_reply_is_lost_is_in_the_table_once(
    drivers: HdfsDrivers, hdfs: HdfsCluster, eventually: Callable[..., None], fault: str | None
) -> None:
    drivers.link.lose_reply()
    drivers.first.begin("append", table=drivers.table, first=10, end=12)
    assert drivers.link.arrived.wait(WAIT)
    eventually(lambda: drivers.ids() == [0, 1, 2, 10, 11], within=WAIT)
    if fault:
        getattr(hdfs, fault)()
    drivers.link.release.set()
    assert drivers.first.answer() == {"done": None}
    drivers.second.do("append", table=drivers.table, first=20, end=21)
    assert drivers.ids() == [0, 1, 2, 10, 11, 20]


def test_one_of_two_renames_of_a_version_succeeds(drivers: HdfsDrivers) -> None:
    pairs = (drivers.first, drivers.link), (drivers.second, drivers.second_link)
    for number, (driver, link) in enumerate(pairs):
        driver.do("without_lock")
        link.hold_rename()
        driver.begin("append_at_the_gate", table=drivers.table, first=10 * number + 10, end=10 * number + 12)
    for _, link in pairs:
        assert link.arrived.wait(WAIT)
    for _, link in pairs:
        link.release.set()
    assert ["done" in driver.answer() for driver, _ in pairs] == [True, True]
    assert drivers.ids() == [0, 1, 2, 10, 11, 20, 21]


@pytest.mark.full
@pytest.mark.parametrize("fault", ["fail_over", "crash"])
def test_writers_continue_with_the_other_name_node(drivers: HdfsDrivers, hdfs: HdfsCluster, fault: str) -> None:
    for number in range(10, 20, 2):
        drivers.first.begin("append_at_the_gate", table=drivers.table, first=number, end=number + 1)
        drivers.second.begin("append", table=drivers.table, first=number + 1, end=number + 2)
        getattr(hdfs, fault)()
        assert "done" in drivers.first.answer()
        assert "done" in drivers.second.answer()
    assert drivers.ids() == [0, 1, 2, *range(10, 20)]


@pytest.mark.soak
def test_five_writers_share_a_table_while_name_nodes_fail(
    hdfs: HdfsCluster, ensemble_of_drivers: EmbeddedZooKeeper, eventually: Callable[..., None]
) -> None:
    table, appends, stop = f"{ROOT}/{uuid.uuid4().hex}", [0] * 5, Event()
    with ThreadPoolExecutor(5) as pool, ExitStack() as stack:
        drivers = []
        for number in range(5):
            link = stack.enter_context(NameNodeLink(hdfs))
            conf = hdfs_conf(link.settings)
            driver = Driver(f"writer-{number}", ensemble_of_drivers.hosts, None, conf)
            stack.callback(driver.close)
            drivers.append(driver)
        for driver in drivers:
            driver.wait_until_ready()

        def append(writer: int) -> None:
            while not stop.is_set():
                first = 1000 * writer + appends[writer]
                drivers[writer].do("append_at_the_gate", table=table, first=first, end=first + 1)
                appends[writer] += 1

        running = [pool.submit(append, writer) for writer in range(5)]

        def wait_for_each_writer() -> None:
            goals = [count + 2 for count in appends]
            eventually(
                lambda: all(map(operator.ge, appends, goals)) or any(future.done() for future in running),
                within=WAIT,
                label="two appends of each writer",
            )

        try:
            for fault in (hdfs.fail_over, hdfs.crash) * 5:
                wait_for_each_writer()
                fault()
            wait_for_each_writer()
        finally:
            stop.set()
        for future in running:
            future.result()
        ids = drivers[0].do("ids", table=table)
    assert ids == [1000 * writer + number for writer in range(5) for number in range(appends[writer])]


def test_the_address_of_a_name_node_is_refused(drivers: HdfsDrivers, hdfs: HdfsCluster) -> None:
    address = f"hdfs://{drivers.link.hosts.split(',')[hdfs.active]}"
    table = drivers.table.replace(ROOT, address)
    for operation in ("append", "append_without_the_lock"):
        drivers.first.begin(operation, table=table, first=10, end=12)
        answer = drivers.first.answer()
        assert f"use {drivers.table}" in answer["message"], answer
    assert drivers.ids() == [0, 1, 2]
