"""The view of a table's queues: contenders form entries that hold or wait. `sluice status` shows the entries."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import replace
from types import TracebackType
from typing import Self

import pytest

from lock_manager import TableResource
from lock_manager.coordinator import Follower, Inspector
from lock_manager.queue_entry import QueueEntry, TableLocks
from lock_manager.zookeeper.queue_view import ContenderZnode, entries_of
from lock_manager.zookeeper.znodes import parse_queue
from sluice.errors import BreakError, PartitionNameError, TokenError
from sluice.locks.breaking import parse_partition, parse_token, select_holders
from sluice.locks.status import Status, describe, format_duration, read_status, scope_text

A, B, C, D = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
MONTH, DAY = "month=1", "month=1/day=2"


class Queues:
    """Queues of one table, with names and transaction numbers as ZooKeeper assigns them."""

    def __init__(self) -> None:
        self.queues: dict[str, list[str]] = {}
        self.znodes: dict[str, ContenderZnode] = {}
        self.transaction = 100

    def add(self, hold_id: str, *contenders: str, data: object = None) -> None:
        """Add contenders of one hold in one transaction: ``add(A, ":r", "month=1:w")``.

        The letter behind the partition is the mode: ``w`` exclusive, ``r`` shared, ``p`` partial, ``l`` partial shared.
        """
        self.transaction += 1
        for contender in contenders:
            partition, _, mode = contender.rpartition(":")
            children = self.queues.setdefault(partition, [])
            mode_name = {"w": "__lock__", "r": "__rlock__", "p": "-part__rlock__", "l": "-look__rlock__"}[mode]
            name = f"{hold_id}{mode_name}{len(children):010}"
            children.append(name)
            content = b"" if data is None else json.dumps(data).encode()
            self.znodes[f"/{partition}/{name}"] = ContenderZnode(content, self.transaction, float(self.transaction))

    def entries(self) -> list[QueueEntry]:
        queues = {
            partition: {f"/{partition}/{contender.name}": contender for contender in parse_queue(names[::-1])}
            for partition, names in self.queues.items()
        }
        return entries_of(queues, self.znodes)

    def entry(self) -> QueueEntry:
        (entry,) = self.entries()
        return entry

    def table(self) -> TableLocks:
        return TableLocks(uri="s3://lake/t", key="k", entries=tuple(self.entries()))


@pytest.fixture
def queues() -> Queues:
    return Queues()


def test_a_partition_hold_waits_only_for_conflicting_entries(queues: Queues) -> None:
    queues.add(A, ":r", "month=1:r", "month=1/day=2:w")
    queues.add(B, ":r", "month=2:w")
    queues.add(C, ":r", "month=1:w")
    queues.add(D, ":w")
    entries = queues.entries()
    assert [entry.hold_id for entry in entries] == [A, B, C, D]
    assert [entry.holds for entry in entries] == [True, True, False, False]
    assert [entry.waits_for for entry in entries] == [(), (), (A,), (A, B, C)]
    assert [[node.partition for node in entry.targets] for entry in entries] == [[DAY], ["month=2"], [MONTH], [""]]
    assert len(entries[0].nodes) == 3
    assert {entry.token for entry in entries} == {101, 102, 103, 104}


def test_several_partitions_of_one_entry_hold_together_or_wait(queues: Queues) -> None:
    queues.add(A, ":r", "month=2:w")
    queues.add(B, ":r", "month=1:w", "month=2:w")
    queues.add(C, ":r", "month=1:w")
    a, b, c = queues.entries()
    assert a.holds
    assert b.waits_for == (A,)
    # C waits for B, which is before it in the queue of month=1 and does not hold yet.
    assert c.waits_for == (B,)
    assert [node.partition for node in b.targets] == [MONTH, "month=2"]


def test_shared_entries_hold_together(queues: Queues) -> None:
    queues.add(A, ":r")
    queues.add(B, ":r")
    queues.add(C, ":w")
    entries = queues.entries()
    assert [(entry.holds, entry.shared) for entry in entries] == [(True, True), (True, True), (False, False)]


def test_a_name_prefix_does_not_make_a_parent_partition(queues: Queues) -> None:
    queues.add(A, ":r", "month=1:w", "month=11:w")
    assert [node.partition for node in queues.entry().targets] == ["month=1", "month=11"]


def test_an_entry_blocks_only_where_its_znode_was_read(queues: Queues) -> None:
    queues.add(A, ":p", "month=1:w")
    queues.add(B, ":p", "month=1:w")
    queues.add(C, ":w")
    del queues.znodes[f"/month=1/{A}__lock__0000000000"]
    b, c = queues.entries()
    assert (b.hold_id, b.holds) == (B, True)
    assert c.waits_for == (B, A)


def test_the_memory_of_a_long_queue_is_proportional_to_its_length() -> None:
    def peak_and_entries(length: int) -> tuple[int, list[QueueEntry]]:
        queues = Queues()
        for number in range(length):
            queues.add(f"{number:032x}", ":w")
        tracemalloc.start()
        try:
            entries = queues.entries()
            assert [len(entry.waits_for) for entry in entries] == list(range(length))
            return tracemalloc.get_traced_memory()[1], entries
        finally:
            tracemalloc.stop()

    (short_peak, _), (long_peak, entries) = peak_and_entries(100), peak_and_entries(1_000)
    assert long_peak < 12 * short_peak
    assert list(entries[-1].waits_for) == [entry.hold_id for entry in entries[:-1]]
    assert entries[2].waits_for[1] == entries[1].hold_id


def test_an_entry_of_several_queues_waits_once_for_each_entry(queues: Queues) -> None:
    queues.add(A, ":p", "month=1:w", "month=2:w")
    queues.add(B, ":p", "month=2:w", "month=1:w")
    _, b = queues.entries()
    assert (len(b.waits_for), b.waits_for) == (1, (A,))


def test_a_waiting_entry_shows_its_requested_partitions(queues: Queues) -> None:
    queues.add(A, ":w")
    queues.add(B, ":p", data={"partitions": [DAY, "month=2"], "partition_count": 2})
    queues.add(C, ":l", data={"partitions": ["month=3"], "partition_count": 20})
    queues.add(D, ":p")
    _, b, c, d = queues.entries()
    scopes = [f"{DAY}, month=2", "month=3 and 19 more, shared", "partitions of the table"]
    assert [scope_text(entry) for entry in (b, c, d)] == scopes
    assert (b.partitions, b.more_partitions, b.within) == ((DAY, "month=2"), 0, ())
    assert (d.partitions, d.within) == ((), ("",))
    assert not any(entry.holds or entry.shared for entry in (b, d))


def test_an_entry_in_some_of_its_queues_does_not_hold(queues: Queues) -> None:
    """An entry that waited in one queue is admitted there before it joins its other queues."""
    queues.add(A, ":p", "month=1:w", data={"partitions": ["month=1", "month=2"], "partition_count": 2})
    queues.add(B, ":p", "month=3:p", data=None)
    a, b = queues.entries()
    assert [(entry.holds, entry.waits_for) for entry in (a, b)] == [(False, ()), (False, ())]
    assert [scope_text(entry) for entry in (a, b)] == ["month=1, month=2", "partitions of month=3"]
    queues.add(C, ":p", "month=4:p", "month=4/day=1:w", "month=5:w", data={"partition_count": 2})
    # The control: an entry in all of its queues holds.
    assert queues.entries()[2].holds


@pytest.mark.parametrize("data", [{"partitions": 7, "partition_count": "many"}, {"partitions": [1, None]}, ["a"]])
def test_malformed_lists_of_partitions_are_ignored(queues: Queues, data: object) -> None:
    queues.add(A, ":p", "month=1:w", data=data)
    entry = queues.entry()
    assert (entry.partitions, entry.holds) == (("month=1",), True)


@pytest.mark.parametrize(
    ("data", "since"),
    [
        ({"requested_at": 50.0, "acquired_at": 60.0}, 60.0),
        ({"requested_at": 50.0}, 101.0),
        ({"acquired_at": "yesterday"}, 101.0),
        ({"acquired_at": float("nan")}, 101.0),
        ({"acquired_at": 10**400}, 101.0),
        ({"acquired_at": True}, 101.0),
        (["no object"], 101.0),
        (None, 101.0),
    ],
)
def test_a_hold_begins_at_its_recorded_time_or_its_creation(queues: Queues, data: object, since: float) -> None:
    queues.add(A, ":w", data=data)
    assert queues.entry().since == since


def test_a_wait_begins_with_the_request(queues: Queues) -> None:
    queues.add(A, ":w")
    queues.add(B, ":w", data={"requested_at": 40.0})
    status = Status("e", [queues.table()], at=140.0)
    assert [entry.hold_id for _, entry in status.waiting_longer_than(99.0)] == [B]
    assert status.waiting_longer_than(100.0) == []


class ListInspector:
    """An inspector of a coordinator without ZooKeeper."""

    def __init__(self, tables: list[TableLocks]) -> None:
        self._tables = tables

    def ensemble_id(self) -> str | None:
        return "an id"

    def tables(self) -> list[TableLocks]:
        return self._tables

    def table(self, resource: TableResource) -> TableLocks:
        tables = {table.uri: table for table in self._tables}
        return tables.get(resource.uri, TableLocks(uri=resource.uri, key=""))

    def follow(self) -> Follower:
        raise NotImplementedError

    def remove(self, table: TableLocks, holder: QueueEntry) -> bool:
        return holder in self.table(TableResource.of(str(table.uri))).holders

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


def test_status_reads_the_inspector_of_any_coordinator(queues: Queues) -> None:
    queues.add(A, ":w")
    locks = queues.table()
    inspector: Inspector = ListInspector([locks])
    assert (read_status(inspector, None).ensemble, read_status(inspector, None).tables) == ("an id", [locks])
    assert read_status(inspector, TableResource.of("s3://lake/t")).tables == [locks]
    assert read_status(inspector, TableResource.of("s3://lake/u")).tables == [TableLocks(uri="s3://lake/u", key="")]


def test_locks_below_a_delta_log_are_internal(queues: Queues) -> None:
    queues.add(A, ":w")
    table = TableLocks(uri="s3://lake/t", key="k")
    maintenance = TableLocks(uri="s3://lake/t/_delta_log/_sluice_maintenance", key="l")
    held = replace(maintenance, entries=tuple(queues.entries()))
    assert read_status(ListInspector([table, maintenance]), None).tables == [table]
    status = read_status(ListInspector([table, held]), None).to_json()
    assert [row["table"] for row in status["tables"]] == [table.uri]
    assert [row["table"] for row in status["internal"]] == [maintenance.uri]


def test_control_characters_in_holder_data_are_replaced(queues: Queues) -> None:
    queues.add(A, ":w", data={"host": "h\x1b[2J\n", "pid": 7, "job": "j", "app_id": "app-1"})
    assert describe(queues.entry()) == "h?[2J? pid 7, job j, application app-1, the table, token 101"


def test_holders_are_selected_by_partition_and_token(queues: Queues) -> None:
    queues.add(A, ":r", "month=1:r", "month=1/day=2:w")
    queues.add(B, ":r", "month=11:w")
    locks = queues.table()
    assert [entry.hold_id for entry in select_holders(locks, None, None)] == [A, B]
    assert [entry.hold_id for entry in select_holders(locks, "month=1", None)] == [A]
    assert [entry.hold_id for entry in select_holders(locks, DAY, 101)] == [A]
    with pytest.raises(BreakError, match=r"partition month=2; the holders are: .*month=1/day=2.*month=11"):
        select_holders(locks, "month=2", None)
    with pytest.raises(BreakError, match="has token 1"):
        select_holders(locks, None, 1)
    assert select_holders(TableLocks(uri="s3://lake/t", key="k"), "month=2", 1) == []


def test_malformed_partition_names_and_tokens_are_refused() -> None:
    assert parse_partition("/year=2013/month=1/") == "year=2013/month=1"
    for name in ("", "month", "month=", "month=1//day=2", "=1"):
        with pytest.raises(PartitionNameError, match="COLUMN=VALUE"):
            parse_partition(name)
    assert (parse_token("0x1f"), parse_token("31")) == (31, 31)
    for text in ("first", "1f", ""):
        with pytest.raises(TokenError, match="decimal"):
            parse_token(text)


def test_durations_have_at_most_two_units() -> None:
    for seconds, text in ((0.4, "0 s"), (61, "1 min 1 s"), (7500, "2 h 5 min"), (180000, "2 d 2 h")):
        assert format_duration(seconds) == text
