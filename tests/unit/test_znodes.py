"""Names and paths of znodes: what is put together is taken apart again, and what others made is told from ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lock_manager.partitions import Partition
from lock_manager.resources import TableResource
from lock_manager.zookeeper import znodes
from lock_manager.zookeeper.znodes import Mode

TABLE = TableResource.of("s3://lake/flights")
ROOT = "/locks/delta_tables"
NODE = znodes.table_node(ROOT, TABLE)
HOLD, OTHER = "a" * 32, "b" * 32
MONTH = Partition((("year", "2013"), ("month", "1")))
MONTH_NODE = f"{NODE}/partitions/year=2013/partitions/month=1"


def test_paths_are_those_of_the_drawing() -> None:
    assert znodes.child_node(ROOT, TABLE.key) == f"{ROOT}/{TABLE.key}" == NODE
    assert znodes.partition_node(NODE, MONTH) == MONTH_NODE
    assert znodes.partitions_node(NODE) == f"{NODE}/partitions"
    assert znodes.child_node(znodes.partitions_node(NODE), "year=2013") == f"{NODE}/partitions/year=2013"
    assert znodes.new_contender(NODE, HOLD, Mode.PARTIAL) == f"{NODE}/{HOLD}-part__rlock__"
    assert znodes.child_node(NODE, f"{HOLD}__lock__7") == f"{NODE}/{HOLD}__lock__7"
    assert znodes.intents_node(NODE) == f"{NODE}/intents"
    assert znodes.intent_node(f"{NODE}/intents", HOLD) == f"{NODE}/intents/{HOLD}"
    assert znodes.child_node(f"{NODE}/intents", f"{HOLD}-2") == znodes.intent_node(f"{NODE}/intents", HOLD, 2)
    assert znodes.scratch_node_in(ROOT, "1") == f"{ROOT}/scratch-1"
    assert znodes.scratch_node_in("/", "1") == "/scratch-1"


@pytest.mark.parametrize(("node", "parent"), [("/a/b/c", "/a/b"), ("/a", ""), (f"{NODE}/intents", NODE)])
def test_the_parent_of_a_node(node: str, parent: str) -> None:
    assert znodes.parent_of(node) == parent


# What is below the lock root, a table, a folder of partitions.
NAMES = [
    TABLE.key,
    TABLE.key.upper(),
    TABLE.key[1:],
    "intents",
    "partitions",
    "year=2013",
    "scratch-1",
    f"{HOLD}__lock__0000000000",
]


@pytest.mark.parametrize(
    ("tells", "names"),
    [
        (znodes.is_table_name, [TABLE.key]),
        (znodes.is_partition_name, ["year=2013"]),
        (lambda name: znodes.is_partitions_node(f"{NODE}/{name}"), ["partitions"]),
        (lambda name: znodes.is_contender_of(name, HOLD), [f"{HOLD}__lock__0000000000"]),
        (lambda name: bool(znodes.parse_queue([name])), [f"{HOLD}__lock__0000000000"]),
    ],
)
def test_what_a_name_is_of(tells: Callable[[str], bool], names: list[str]) -> None:
    assert [name for name in NAMES if tells(name)] == names


def test_the_queue_of_a_partition_is_below_its_table_s() -> None:
    assert znodes.table_of(MONTH_NODE) == znodes.table_of(NODE) == NODE
    assert list(znodes.partition_queues([NODE, MONTH_NODE, f"{NODE}/intents"])) == [MONTH_NODE]
    above = [f"{NODE}/partitions/year=2013/partitions", f"{NODE}/partitions/year=2013", f"{NODE}/partitions"]
    assert list(znodes.below_table(MONTH_NODE)) == [MONTH_NODE, *above]
    assert list(znodes.below_table(above[0])) == above
    assert list(znodes.below_table(NODE)) == []


@pytest.mark.parametrize("mode", Mode)
def test_a_contender_s_name_says_what_it_was_made_with(mode: Mode) -> None:
    contender = znodes.contender_at(f"{znodes.new_contender(MONTH_NODE, HOLD, mode)}0000000012")
    assert (contender.hold_id, contender.mode, contender.sequence) == (HOLD, mode, 12)
    assert znodes.is_contender_of(contender.name, HOLD)
    assert not znodes.is_contender_of(contender.name, OTHER)


@pytest.mark.parametrize("renewed", [0, 1, 12])
def test_an_intent_s_name_says_whose_it_is(renewed: int) -> None:
    name = znodes.intent_node("", HOLD, renewed).removeprefix("/")
    assert znodes.hold_of_intent(name) == HOLD


def test_what_another_program_put_into_a_queue_is_a_contender_only_if_kazoo_names_them_so() -> None:
    children = [
        "intents",
        "partitions",
        "lock-0000000001",
        "x__lock__",
        "them__lock__0000000003",
        "__rlock__0000000002",
    ]
    assert [(each.hold_id, each.mode) for each in znodes.parse_queue(children)] == [
        ("", Mode.SHARED),
        ("them", Mode.EXCLUSIVE),
    ]


def test_queue_order_goes_on_where_the_counter_wraps_around() -> None:
    """The counter is a signed 32-bit number: names are compared as numbers, not as text, and by distance."""
    names = ["d__lock__-2147483647", "a__lock__2147483646", "c__rlock__-2147483648", "b__lock__2147483647", "about"]
    assert [contender.name[0] for contender in znodes.parse_queue(names)] == ["a", "b", "c", "d"]
    names = ["c__rlock__0000000010", "b__lock__0000000009", "a__lock__-000000001"]
    assert [contender.name[0] for contender in znodes.parse_queue(names)] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Mode.EXCLUSIVE, Mode.EXCLUSIVE),
        (Mode.EXCLUSIVE, Mode.SHARED),
        (Mode.EXCLUSIVE, Mode.PARTIAL),
        (Mode.EXCLUSIVE, Mode.PARTIAL_SHARED),
        (Mode.SHARED, Mode.PARTIAL),
    ],
)
def test_only_these_conflict(one: Mode, other: Mode) -> None:
    def conflict(first: Mode, second: Mode) -> bool:
        names = [f"{HOLD}{first.value}1", f"{OTHER}{second.value}2"]
        queue = znodes.parse_queue(names)
        return znodes.conflicting_predecessors(queue, queue[1]) == queue[:1]

    assert conflict(one, other)
    assert conflict(other, one)
    conflicts = [(first, second) for first in Mode for second in Mode if conflict(first, second)]
    assert len(conflicts) == 1 + 4 * 2
