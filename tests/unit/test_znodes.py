"""Names and paths of znodes: they are built, parsed, and distinguished from znodes of other programs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from lock_manager.partitions import Partition
from lock_manager.resources import TableResource
from lock_manager.zookeeper import znodes
from lock_manager.zookeeper.znodes import Mode

TABLE = TableResource.of("s3://lake/flights")
ROOT = "/locks/delta_tables"
NODE = znodes.table_node(ROOT, TABLE)
HOLD, ANOTHER_HOLD = "a" * 32, "b" * 32
MONTH = Partition((("year", "2013"), ("month", "1")))
MONTH_NODE = f"{NODE}/partitions/year=2013/partitions/month=1"


def test_paths_have_the_documented_layout() -> None:
    assert znodes.child_node(ROOT, TABLE.key) == f"{ROOT}/{TABLE.key}" == NODE
    assert znodes.partition_node(NODE, MONTH) == MONTH_NODE
    assert znodes.partitions_node(NODE) == f"{NODE}/partitions"
    assert znodes.child_node(znodes.partitions_node(NODE), "year=2013") == f"{NODE}/partitions/year=2013"
    assert znodes.new_contender_path(NODE, HOLD, Mode.PARTIAL) == f"{NODE}/{HOLD}-part__rlock__"
    assert znodes.child_node(NODE, f"{HOLD}__lock__7") == f"{NODE}/{HOLD}__lock__7"
    assert znodes.intents_node(NODE) == f"{NODE}/intents"
    assert znodes.intent_node(f"{NODE}/intents", HOLD) == f"{NODE}/intents/{HOLD}"
    assert znodes.child_node(f"{NODE}/intents", f"{HOLD}-2") == znodes.intent_node(f"{NODE}/intents", HOLD, 2)
    assert znodes.scratch_node_in(ROOT, "1") == f"{ROOT}/scratch-1"
    assert znodes.scratch_node_in("/", "1") == "/scratch-1"


@pytest.mark.parametrize(("node", "parent"), [("/a/b/c", "/a/b"), ("/a", ""), (f"{NODE}/intents", NODE)])
def test_parent_of_returns_the_parent(node: str, parent: str) -> None:
    assert znodes.parent_of(node) == parent


# Children of the lock root, of a table's node and of a node of partitions.
NAMES = [
    TABLE.key, TABLE.key.upper(), TABLE.key[1:],
    "intents", "partitions", "year=2013", "scratch-1", f"{HOLD}__lock__0000000000",
]  # fmt: skip


@pytest.mark.parametrize(
    ("is_match", "names"),
    [
        (znodes.is_table_name, [TABLE.key]),
        (znodes.is_partition_name, ["year=2013"]),
        (lambda name: znodes.is_partitions_node(f"{NODE}/{name}"), ["partitions"]),
        (lambda name: znodes.is_contender_of(name, HOLD), [f"{HOLD}__lock__0000000000"]),
        (lambda name: bool(znodes.parse_queue([name])), [f"{HOLD}__lock__0000000000"]),
    ],
)
def test_each_kind_of_name_is_recognized(is_match: Callable[[str], bool], names: list[str]) -> None:
    assert [name for name in NAMES if is_match(name)] == names


def test_the_queue_of_a_partition_is_below_its_table() -> None:
    assert znodes.table_of(MONTH_NODE) == znodes.table_of(NODE) == NODE
    assert list(znodes.partition_queues([NODE, MONTH_NODE, f"{NODE}/intents"])) == [MONTH_NODE]
    parents = [f"{NODE}/partitions/year=2013/partitions", f"{NODE}/partitions/year=2013", f"{NODE}/partitions"]
    assert list(znodes.nodes_below_table(MONTH_NODE)) == [MONTH_NODE, *parents]
    assert list(znodes.nodes_below_table(parents[0])) == parents
    assert list(znodes.nodes_below_table(NODE)) == []


@pytest.mark.parametrize("mode", Mode)
def test_a_contender_s_name_contains_hold_mode_and_sequence(mode: Mode) -> None:
    contender = znodes.contender_at(f"{znodes.new_contender_path(MONTH_NODE, HOLD, mode)}0000000012")
    assert (contender.hold_id, contender.mode, contender.sequence) == (HOLD, mode, 12)
    assert znodes.is_contender_of(contender.name, HOLD)
    assert not znodes.is_contender_of(contender.name, ANOTHER_HOLD)


@pytest.mark.parametrize("renewal", [0, 1, 12])
def test_an_intent_s_name_contains_its_hold(renewal: int) -> None:
    name = znodes.intent_node("", HOLD, renewal).removeprefix("/")
    assert znodes.hold_of_intent(name) == HOLD


def test_znodes_with_kazoo_s_names_are_contenders() -> None:
    names = ["intents", "partitions", "lock-0000000001", "x__lock__", "them__lock__0000000003", "__rlock__0000000002"]
    assert [(contender.hold_id, contender.mode) for contender in znodes.parse_queue(names)] == [
        ("", Mode.SHARED),
        ("them", Mode.EXCLUSIVE),
    ]


def test_queue_order_survives_an_overflow_of_the_counter() -> None:
    """The counter is a signed 32-bit number. Names are ordered by the distance of their numbers, not as text."""
    names = ["d__lock__-2147483647", "a__lock__2147483646", "c__rlock__-2147483648", "b__lock__2147483647", "about"]
    assert [contender.name[0] for contender in znodes.parse_queue(names)] == ["a", "b", "c", "d"]
    names = ["c__rlock__0000000010", "b__lock__0000000009", "a__lock__-000000001"]
    assert [contender.name[0] for contender in znodes.parse_queue(names)] == ["a", "b", "c"]


def test_exclusive_conflicts_with_all_and_shared_with_partial() -> None:
    def conflict(holder_mode: Mode, waiter_mode: Mode) -> bool:
        names = [f"{HOLD}{holder_mode.value}1", f"{ANOTHER_HOLD}{waiter_mode.value}2"]
        queue = znodes.parse_queue(names)
        return znodes.conflicting_predecessors(queue, queue[1]) == queue[:1]

    expected = {(Mode.EXCLUSIVE, mode) for mode in Mode} | {(Mode.SHARED, Mode.PARTIAL)}
    expected |= {(second, first) for first, second in expected}
    assert {modes for modes in product(Mode, repeat=2) if conflict(*modes)} == expected
