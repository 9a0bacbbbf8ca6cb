"""Locks on partitions and on several tables, on a real server: conflicts, errors and the removal of contenders."""

from __future__ import annotations

import logging
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import pytest
from kazoo.security import make_acl

from lock_manager import (
    EnsembleRefusedError,
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
from tests.support.lock_znodes import LockZnodes
from tests.support.months import SCHEMA, part
from tests.support.new_thread import in_new_thread
from tests.support.rivals import RivalManager
from tests.support.waiting import lock_timeout

pytestmark = pytest.mark.usefixtures("guard_declared")


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


@pytest.fixture
def znodes(ensemble_client, table: str) -> LockZnodes:
    return LockZnodes(ensemble_client, table)


def is_excluded(manager: RivalManager, table: str, **scope) -> bool:
    """Return whether another hold excludes this request."""
    try:
        manager.acquire(table, timeout_seconds=0, **scope).release()
    except LockTimeoutError:
        return True
    return False


@pytest.mark.parametrize(
    ("held_partitions", "requested_partitions", "conflict"),
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
def test_a_partition_excludes_its_ancestors_and_descendants(
    make_manager, make_rival, table, znodes, held_partitions, requested_partitions, conflict
):
    rival = make_rival()
    with make_manager().acquire(table, partitions=held_partitions):
        assert is_excluded(rival, table, partitions=requested_partitions) is conflict
    assert not is_excluded(rival, table, partitions=requested_partitions)
    assert znodes.all_contenders() == []


@pytest.mark.parametrize(
    ("held_scope", "requested_scope", "conflict"),
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
def test_readers_exclude_writers_of_their_partitions(
    make_manager, make_rival, table, held_scope, requested_scope, conflict
):
    rival = make_rival()
    with make_manager().acquire(table, **held_scope):
        assert is_excluded(rival, table, **requested_scope) is conflict


def test_the_queue_shows_a_writer_behind_a_reader_of_the_table(make_manager, table, eventually):
    reader, writer = make_manager(), make_manager()
    hold = reader.acquire(table, shared=True)
    waiting_request = in_new_thread(writer.acquire, table, partitions=[part(2013)])
    eventually(lambda: len(reader.queue(table)) == 2)
    first_entry, second_entry = reader.queue(table)
    assert (first_entry.holds, first_entry.shared) == (True, True)
    assert (second_entry.holds, second_entry.waits_for) == (False, (hold.hold_id,))
    hold.release()
    waiting_request.result(30).release()


def test_a_waiter_is_granted_after_its_last_predecessor(make_manager, make_rival, table, eventually):
    manager, rival, waiter = make_manager(), make_rival(), make_manager()
    first_hold = manager.acquire(table, partitions=[part(2013, 1)])
    second_hold = rival.acquire(table, partitions=[part(2013, 2)])
    waiting_request = in_new_thread(waiter.acquire, table, partitions=[part(2013)])
    eventually(lambda: len(manager.queue(table)) == 3)
    first_hold.release()
    eventually(lambda: manager.queue(table)[-1].waits_for == (second_hold.hold_id,))
    assert not waiting_request.done()
    second_hold.release()
    hold = waiting_request.result(30)
    assert hold.token > second_hold.token
    hold.check()
    hold.release()


def test_a_waiter_in_one_queue_stands_in_no_later_queue(make_manager, make_rival, table, znodes, eventually):
    """A waiter in a later queue could block its own predecessor, and both would wait forever."""
    hold = make_manager().acquire(table, partitions=[part(2013, 1)])
    waiting_request = in_new_thread(make_manager().acquire, table, partitions=[part(2013, 1), part(2013, 2)])
    # The waiter stands in the queues of the table, the year and the first month. It has left that of the second month.
    eventually(lambda: len([path for path in znodes.all_contenders() if hold.hold_id not in path]) == 3)
    assert not is_excluded(make_rival(), table, partitions=[part(2013, 2)])
    hold.release()
    waiting_request.result(30).release()
    assert znodes.all_contenders() == []


def test_several_tables_in_opposite_orders_do_not_deadlock(make_manager, table, ensemble_client):
    tables = [f"{table}/{name}" for name in "abc"]

    def acquire_repeatedly(number: int) -> None:
        manager = make_manager()
        for round_number in range(10):
            order = tables if (number + round_number) % 2 else tables[::-1]
            scopes = [TableScope.of(TableResource.of(name), [part(2013, round_number % 3 + 1)]) for name in order]
            with manager.acquire_all(scopes, timeout_seconds=60) as hold:
                assert set(hold.scope) == set(tables)
                hold.check()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(acquire_repeatedly, range(6)))
    assert [path for name in tables for path in LockZnodes(ensemble_client, name).all_contenders()] == []


def test_a_thread_acquires_its_lock_again(make_manager, make_rival, table):
    """A thread must release the lock as often as it acquires it."""
    manager, rival = make_manager(), make_rival()
    with manager.acquire(table) as outer:
        with manager.acquire(table) as inner, manager.acquire(table, partitions=[part(2013)]) as partition_hold:
            assert outer is inner is partition_hold
        assert is_excluded(rival, table)
        outer.check()
    assert not is_excluded(rival, table)
    with manager.acquire(table, partitions=[part(2013)]):
        with manager.acquire(table, partitions=[part(2013, 1)]):
            pass
        assert is_excluded(rival, table, partitions=[part(2013, 1)])


def test_an_upgrade_is_refused_with_a_remedy(make_manager, table):
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


def test_more_than_64_partitions_lock_the_table_with_one_warning(make_manager, table, caplog):
    manager = make_manager()
    partitions = [part(year, month) for year in range(2000, 2006) for month in range(1, 12)]
    with caplog.at_level(logging.WARNING), manager.acquire(table, partitions=partitions) as hold:
        assert hold.scope[table].partitions is None
    assert caplog.text.count("locking the whole table") == 1
    with manager.acquire(table, partitions=partitions[:64]) as hold:
        assert len(hold.scope[table].partitions or ()) == 64


def test_partitions_are_not_locked_without_a_guard(make_manager, table):
    guard_registry.declare_guard_installed(None)
    with pytest.raises(UnguardedError, match="attach"):
        make_manager().acquire(table, partitions=[part(2013)])


def test_a_hold_is_lost_with_any_of_its_contenders(make_manager, make_rival, table, znodes, eventually):
    manager = make_manager()
    for level in range(3):
        hold = manager.acquire(table, partitions=[part(2013, 1)])
        znodes.client.delete(sorted(znodes.all_contenders(), key=len)[level])
        with pytest.raises(LockLostError):
            hold.check()
        with pytest.raises(LockLostError):
            hold.release()
        # The other contenders are removed in the background.
        eventually(lambda: znodes.all_contenders() == [])
        assert not is_excluded(make_rival(), table)


def test_a_timeout_leaves_no_contender_at_any_level(make_manager, make_rival, table, znodes, eventually):
    manager, hold = make_manager(), make_rival().acquire(table, partitions=[part(2013, 1)])
    manager.connect()
    contenders = znodes.all_contenders()
    for partitions in ([part(2013, 1)], [part(2013)], [part(2012), part(2013, 1), part(2014)], None):
        lock_timeout(lambda partitions=partitions: manager.acquire(table, partitions=partitions, timeout_seconds=0.5))
        # On a slow server some contenders are removed in the background.
        eventually(lambda: len(znodes.all_contenders()) == len(contenders))
    hold.release()


def test_the_znode_of_a_partition_contains_its_values(make_manager, table, znodes):
    values = {"year": 2013, "month": 1}
    with make_manager().acquire(table, partitions=[SCHEMA.partition(values)]):
        path = f"{znodes.path}/partitions/year=2013/partitions/month=1"
        assert znodes.client.get(path)[0] == b'{"partition": {"year": "2013", "month": "1"}}'


def test_partitions_are_named_by_their_values(make_manager, make_rival, table):
    manager = make_manager()
    with manager.acquire(table, partitions=[{"Year": "2013", "month": "01"}]) as hold:
        assert hold.covers({table: TableScope.of(table, [part(2013, 1)])})
        assert is_excluded(make_rival(), table, partitions=[part(2013, 1)])
    with pytest.raises(ResourceError, match="does not fit the"):
        manager.acquire(table, partitions=[{"year": "last"}])
    with manager.acquire_all([f"{table}/b", TableScope.of(f"{table}/a", [{"year": 1}])]) as hold:
        assert len(hold.tokens) == 3


@pytest.mark.parametrize("end", ["closed", "broken", "too long", "released"])
def test_the_next_holder_of_a_partition_finds_the_intent(end, make_manager, zookeeper, table, znodes, eventually):
    """An intent is unfinished once its hold has left the table's queue. So a hold leaves no other queue before it."""
    max_hold_seconds = 2 if end == "too long" else None
    year_path = f"{znodes.path}/partitions/year=2013"
    for version in range(2 if max_hold_seconds else 5):
        next_manager = make_manager()
        next_manager.connect()
        with ZookeeperLockManager(zookeeper.hosts, timeout_seconds=30, max_hold_seconds=max_hold_seconds) as manager:
            hold = manager.acquire(table, partitions=[part(2013, 1)])
            hold.intend(version, txn=None, attempt="it")
            waiting_request = in_new_thread(next_manager.acquire, table, partitions=[part(2013, 1)])
            eventually(lambda: len(znodes.client.get_children(year_path)) == 3)
            if end == "closed":
                manager.close()
            elif end == "broken":
                with LockInspector(manager.settings) as inspector:
                    locks = inspector.table(TableResource.of(table))
                    assert inspector.remove(locks, locks.holders[0])
            elif end == "released":
                hold.release()
            with waiting_request.result(30) as next_hold:
                assert next_hold.intents.unfinished == (hold.hold_id,)
                next_hold.intents.read()
                next_hold.intents.clear()


def test_a_block_releases_only_its_own_acquire(make_manager, make_rival, table):
    manager, rival = make_manager(), make_rival()
    with manager.acquire(table):
        with manager.acquire(table) as inner:
            inner.release()
        assert is_excluded(rival, table)
        with manager.acquire(table):
            pass
        assert is_excluded(rival, table)
    assert not is_excluded(rival, table)


def test_closing_a_manager_inside_a_block_loses_the_lock(make_manager, table):
    manager, loss_reported = make_manager(), threading.Event()
    with pytest.raises(LockLostError, match="the manager that granted it was closed"):
        with manager.acquire(table) as hold:
            hold.on_loss(lambda _: loss_reported.set())
            manager.close()
    assert loss_reported.wait(10)
    # Outside a block, closing the manager releases the hold.
    manager = make_manager()
    hold = manager.acquire(table)
    manager.close()
    assert hold.lost is None


def test_an_acl_on_a_partition_s_znode_refuses_the_request(make_manager, table, znodes):
    path = f"{znodes.path}/partitions"
    znodes.client.ensure_path(path)
    znodes.client.create(f"{path}/year=2013", b"", acl=[make_acl("world", "anyone", read=True)])
    with pytest.raises(EnsembleRefusedError, match="NoAuth"):
        make_manager().acquire(table, partitions=[part(2013)], timeout_seconds=20)


def test_partition_values_that_are_no_znode_names_are_locked(make_manager, table):
    schema = PartitionSchema((PartitionColumn("word", "string"), PartitionColumn("money", "decimal(38,18)")))
    for word in ("\U0001f600", "a/b", "..", "100 %", "\u202e", "é", "\ue000", "x" * 200):
        values = {"word": word, "money": Decimal("12345678901.000000000000000000")}
        with make_manager().acquire(table, partitions=[schema.partition(values)]) as hold:
            hold.check()
