"""Locks on partitions and on several tables, against a real server: what excludes what, and that nothing is left."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from kazoo.security import make_acl

from lock_manager import (
    EnsembleRefusedError,
    HeldLock,
    LockLostError,
    LockOrderError,
    LockTimeoutError,
    PartitionColumn,
    PartitionSchema,
    ResourceError,
    TableResource,
    TableScope,
    UnguardedError,
    ZookeeperLockManager,
    guard_registry,
)
from lock_manager.zookeeper.inspector import LockInspector
from lock_manager.zookeeper.znodes import table_node
from tests.support.months import SCHEMA, part
from tests.support.rivals import RivalManager

pytestmark = pytest.mark.usefixtures("guard_said_to_be_there")

ROOT = "/locks/delta_tables"


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


def excluded(manager: RivalManager, table: str, **asked) -> bool:
    try:
        manager.acquire(table, timeout_seconds=0, **asked).release()
    except LockTimeoutError:
        return True
    return False


def contenders(client, table: str) -> list[str]:
    """Every contender of a table and of its partitions."""

    def below(path: str) -> Iterator[str]:
        for name in client.get_children(path):
            if "lock__" in name:
                yield f"{path}/{name}"
            elif name != "intents":
                yield from below(f"{path}/{name}")

    return list(below(table_node(ROOT, TableResource.of(table))))


@pytest.mark.parametrize(
    ("held", "asked", "conflict"),
    [
        ([part(2013, 1)], [part(2013, 2)], False),
        ([part(2013, 1)], [part(2013, 1)], True),
        ([part(2013)], [part(2013, 1)], True),
        ([part(2013, 1)], [part(2013)], True),
        ([part(2013)], [part(2014)], False),
        ([part(2013)], [part(2014, 1)], False),
        ([part(2013, 1), part(2014, 2)], [part(2014, 2), part(2015, 1)], True),
        (None, [part(2013, 1)], True),
        ([part(2013, 1)], None, True),
    ],
)
def test_a_partition_excludes_what_it_is_part_of_and_what_is_part_of_it(
    make_manager, make_rival, table, ensemble_client, held, asked, conflict
):
    other = make_rival()
    with make_manager().acquire(table, partitions=held):
        assert excluded(other, table, partitions=asked) is conflict
    assert not excluded(other, table, partitions=asked)
    assert contenders(ensemble_client, table) == []


@pytest.mark.parametrize(
    ("held", "asked", "conflict"),
    [
        ({"shared": True}, {"partitions": [part(2013)]}, True),
        ({"partitions": [part(2013)]}, {"shared": True}, True),
        ({"shared": True}, {"shared": True}, False),
        ({"partitions": [part(2013)], "shared": True}, {"partitions": [part(2013)], "shared": True}, False),
        ({"partitions": [part(2013)], "shared": True}, {"partitions": [part(2013, 1)]}, True),
        ({"partitions": [part(2013)], "shared": True}, {"partitions": [part(2014)]}, False),
        ({"partitions": [part(2013)], "shared": True}, {"partitions": [part(2013, 1)], "shared": True}, False),
        ({"partitions": [part(2013)], "shared": True}, {"shared": True}, False),
        ({"partitions": [part(2013)], "shared": True}, {}, True),
    ],
)
def test_readers_exclude_writers_of_what_they_read(make_manager, make_rival, table, held, asked, conflict):
    other = make_rival()
    with make_manager().acquire(table, **held):
        assert excluded(other, table, **asked) is conflict


def test_the_queue_tells_that_a_writer_of_a_partition_waits_for_a_reader_of_the_table(
    make_manager, make_rival, table, eventually
):
    reader, writer = make_manager(), make_rival()
    held = reader.acquire(table, shared=True)
    waiting = threading.Thread(target=lambda: writer.acquire(table, partitions=[part(2013)]).release())
    waiting.start()
    eventually(lambda: len(reader.queue(table)) == 2)
    first, second = reader.queue(table)
    assert (first.holds, first.shared) == (True, True)
    assert (second.holds, second.waits_for) == (False, (held.hold_id,))
    held.release()
    waiting.join(30)
    assert not waiting.is_alive()


def test_a_waiter_gets_in_when_the_last_one_in_front_leaves(make_manager, make_rival, table, eventually):
    first, second, third = make_manager(), make_rival(), make_manager()
    one, two = first.acquire(table, partitions=[part(2013, 1)]), second.acquire(table, partitions=[part(2013, 2)])
    got: list[HeldLock] = []
    waiting = threading.Thread(target=lambda: got.append(third.acquire(table, partitions=[part(2013)])))
    waiting.start()
    eventually(lambda: len(first.queue(table)) == 3)
    one.release()
    assert not got
    two.release()
    waiting.join(30)
    assert got[0].token > two.token
    got[0].check()
    got[0].release()


def test_who_waits_in_one_queue_stands_in_no_later_one(make_manager, make_rival, table, ensemble_client, eventually):
    """Else a circle: it would stand in front of somebody who holds what it waits for."""
    first, second = make_manager(), make_manager()
    held = first.acquire(table, partitions=[part(2013, 1)])
    got: list[HeldLock] = []
    wanted = [part(2013, 1), part(2013, 2)]
    waiting = threading.Thread(target=lambda: got.append(second.acquire(table, partitions=wanted)))
    waiting.start()
    # The table, the year and the first month; the second month is given up before the wait.
    eventually(lambda: len([path for path in contenders(ensemble_client, table) if held.hold_id not in path]) == 3)
    third = make_rival()
    assert not excluded(third, table, partitions=[part(2013, 2)])
    held.release()
    waiting.join(30)
    got[0].release()
    assert contenders(ensemble_client, table) == []


def test_several_tables_are_one_hold_and_opposite_orders_do_not_block(make_manager, table, ensemble_client):
    tables = [f"{table}/{name}" for name in "abc"]

    def work(number: int) -> None:
        manager = make_manager()
        for turn in range(10):
            order = tables if (number + turn) % 2 else tables[::-1]
            scopes = [TableScope.of(TableResource.of(each), [part(2013, turn % 3 + 1)]) for each in order]
            with manager.acquire_all(scopes, timeout_seconds=60) as hold:
                assert set(hold.scope) == set(tables)
                hold.check()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    assert [path for each in tables for path in contenders(ensemble_client, each)] == []


def test_a_thread_that_has_it_gets_it_again_and_gives_it_back_as_often(make_manager, make_rival, table):
    manager, other = make_manager(), make_rival()
    with manager.acquire(table) as outer:
        with manager.acquire(table) as inner, manager.acquire(table, partitions=[part(2013)]) as covered:
            assert outer is inner is covered
        assert excluded(other, table)
        outer.check()
    assert not excluded(other, table)
    with manager.acquire(table, partitions=[part(2013)]):
        with manager.acquire(table, partitions=[part(2013, 1)]):
            pass
        assert excluded(other, table, partitions=[part(2013, 1)])


def test_an_upgrade_is_refused_and_says_what_to_do(make_manager, table):
    manager = make_manager()
    with manager.acquire(table, shared=True), pytest.raises(LockOrderError, match="exclusive lock from the start"):
        manager.acquire(table)
    with manager.acquire(table, partitions=[part(2013)]):
        with pytest.raises(LockOrderError, match="at once"):
            manager.acquire(table)
        with pytest.raises(LockOrderError, match="at once"):
            manager.acquire(table, partitions=[part(2014)])
    low, high = f"{table}/a", f"{table}/b"
    with manager.acquire(high), pytest.raises(LockOrderError, match=f"{low} first"):
        manager.acquire(low)
    with manager.acquire(low), manager.acquire(high):
        pass


def test_more_than_64_partitions_are_the_table_and_that_is_said_once(make_manager, table, caplog):
    manager = make_manager()
    many = [part(year, month) for year in range(2000, 2006) for month in range(1, 12)]
    with caplog.at_level(logging.WARNING), manager.acquire(table, partitions=many) as hold:
        assert hold.scope[table].partitions is None
    assert caplog.text.count("locking the whole table") == 1
    with manager.acquire(table, partitions=many[:64]) as hold:
        assert len(hold.scope[table].partitions or ()) == 64


def test_partitions_are_not_locked_where_nobody_sees_what_is_committed(make_manager, table):
    guard_registry.declare_installed(None)
    with pytest.raises(UnguardedError, match="attach"):
        make_manager().acquire(table, partitions=[part(2013)])


def test_a_lost_contender_at_any_level_is_a_lost_hold(make_manager, make_rival, table, ensemble_client, eventually):
    manager = make_manager()
    for number in range(3):
        hold = manager.acquire(table, partitions=[part(2013, 1)])
        ensemble_client.delete(sorted(contenders(ensemble_client, table), key=len)[number])
        with pytest.raises(LockLostError):
            hold.check()
        with pytest.raises(LockLostError):
            hold.release()
        # The others are removed in the background.
        eventually(lambda: contenders(ensemble_client, table) == [])
        assert not excluded(make_rival(), table)


def test_what_times_out_leaves_nothing_at_any_level(make_manager, make_rival, table, ensemble_client, eventually):
    manager, held = make_manager(), make_rival().acquire(table, partitions=[part(2013, 1)])
    manager.connect()
    mine = len(contenders(ensemble_client, table))
    for wanted in ([part(2013, 1)], [part(2013)], [part(2012), part(2013, 1), part(2014)], None):
        with pytest.raises(LockTimeoutError):
            manager.acquire(table, partitions=wanted, timeout_seconds=0.5)
        # On a slow server some are removed in the background.
        eventually(lambda: len(contenders(ensemble_client, table)) == mine)
    held.release()


def test_a_partition_node_says_which_it_is(make_manager, table, ensemble_client):
    values = {"year": 2013, "month": 1}
    with make_manager().acquire(table, partitions=[SCHEMA.partition(values)]):
        node = f"{table_node(ROOT, TableResource.of(table))}/partitions/year=2013/partitions/month=1"
        assert ensemble_client.get(node)[0] == b'{"partition": {"year": "2013", "month": "1"}}'


def test_partitions_are_given_by_their_values(make_manager, make_rival, table):
    manager = make_manager()
    with manager.acquire(table, partitions=[{"Year": "2013", "month": "01"}]) as hold:
        assert hold.covers({table: TableScope.of(table, [part(2013, 1)])})
        assert excluded(make_rival(), table, partitions=[part(2013, 1)])
    with pytest.raises(ResourceError, match="does not fit the"):
        manager.acquire(table, partitions=[{"year": "last"}])
    with manager.acquire_all([f"{table}/b", TableScope.of(f"{table}/a", [{"year": 1}])]) as both:
        assert len(both.tokens) == 3


@pytest.mark.parametrize("end", ["session", "broken", "too long", "not settled"])
def test_the_next_holder_of_a_partition_finds_what_the_last_one_intended(
    end, make_manager, zookeeper, table, ensemble_client, eventually
):
    """The queues of a table and of its partitions are different znodes: a partition must not be free before both."""
    most = 2 if end == "too long" else None
    node = f"{table_node(ROOT, TableResource.of(table))}/partitions/year=2013"
    for attempt in range(5):
        following = make_manager()
        following.connect()
        with ZookeeperLockManager(zookeeper.hosts, timeout_seconds=30, max_hold_seconds=most) as first:
            hold = first.acquire(table, partitions=[part(2013, 1)])
            hold.intend(attempt, txn=None, attempt="it")
            with ThreadPoolExecutor(1) as pool:
                next_one = pool.submit(following.acquire, table, partitions=[part(2013, 1)])
                eventually(lambda: len(ensemble_client.get_children(node)) == 3)
                if end == "session":
                    first.close()
                elif end == "broken":
                    with LockInspector(first.settings) as inspector:
                        locks = inspector.table(TableResource.of(table))
                        assert inspector.remove(locks, locks.holders[0])
                elif end == "not settled":
                    hold.release()
                with next_one.result(30) as found:
                    assert found.intents.unfinished == (hold.hold_id,)
                    found.intents.read()
                    found.intents.clear()


def test_a_block_gives_back_what_it_has_and_no_more(make_manager, make_rival, table):
    manager = make_manager()
    with manager.acquire(table):
        with manager.acquire(table) as inner:
            inner.release()
        assert excluded(make_rival(), table)
        with manager.acquire(table):
            pass
        assert excluded(make_rival(), table)
    assert not excluded(make_rival(), table)


def test_a_manager_that_is_closed_in_a_block_is_a_lost_lock(make_manager, table):
    manager, told = make_manager(), threading.Event()
    with pytest.raises(LockLostError, match="the manager that gave it was closed"):
        with manager.acquire(table) as hold:
            hold.on_loss(lambda _: told.set())
            manager.close()
    assert told.wait(10)
    # Without a block it is a release.
    manager = make_manager()
    hold = manager.acquire(table)
    manager.close()
    assert hold.lost is None


def test_what_the_ensemble_does_not_allow_below_a_table_is_a_refusal(make_manager, table, ensemble_client):
    node = f"{table_node(ROOT, TableResource.of(table))}/partitions"
    ensemble_client.ensure_path(node)
    ensemble_client.create(f"{node}/year=2013", b"", acl=[make_acl("world", "anyone", read=True)])
    with pytest.raises(EnsembleRefusedError, match="NoAuth"):
        make_manager().acquire(table, partitions=[part(2013)], timeout_seconds=20)


def test_values_that_no_path_takes_as_they_are_can_be_locked(make_manager, table):
    schema = PartitionSchema((PartitionColumn("word", "string"), PartitionColumn("money", "decimal(38,18)")))
    for word in ("\U0001f600", "a/b", "..", "100 %", "\u202e", "é", "\ue000", "x" * 200):
        values = {"word": word, "money": Decimal("12345678901.000000000000000000")}
        with make_manager().acquire(table, partitions=[schema.partition(values)]) as hold:
            hold.check()
