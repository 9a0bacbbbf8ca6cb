"""Other programs in a table's queue: kazoo's locks, and Curator's mutex with the driver of the docs and without."""

from __future__ import annotations

import re
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

from lock_manager import (
    LockTimeoutError,
    PartitionColumn,
    PartitionSchema,
    TableResource,
    ZookeeperLockManager,
    guard_registry,
)
from lock_manager.testing.embedded import find_java, find_spark_jars
from lock_manager.zookeeper.znodes import table_node

ROOT = "/locks/delta_tables"
REPOSITORY = Path(__file__).parents[2]
CLIENT = REPOSITORY / "tests/support/CuratorMutex.java"
JAVA_BLOCK = re.compile(r"^```java\n(.*?class (\w+).*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def table() -> str:
    return f"s3://lake/{uuid.uuid4().hex}"


@pytest.fixture
def node(table: str) -> str:
    return table_node(ROOT, TableResource.of(table))


@pytest.fixture
def rival(zookeeper: Any) -> Iterator[KazooClient]:
    """A program with kazoo of its own."""
    client = KazooClient(zookeeper.hosts)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def in_partition(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, object]]]:
    guard_registry.declare_installed(lambda _: PartitionSchema((PartitionColumn("year", "integer"),)))
    yield [{"year": 2013}]
    guard_registry.declare_installed(None)


def is_free(manager: ZookeeperLockManager, table: str, **asked: Any) -> bool:
    try:
        manager.acquire(table, timeout_seconds=0, **asked).release()
    except LockTimeoutError:
        return False
    return True


def gets_in(lock: Lock) -> bool:
    """Try kazoo's lock, and give it back."""
    if got := lock.acquire(blocking=False):
        lock.release()
    return bool(got)


# -- kazoo -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "shared", "conflict"),
    [
        ("WriteLock", False, True),
        ("WriteLock", True, True),
        ("ReadLock", False, True),
        ("ReadLock", True, False),
        ("Lock", False, True),
    ],
)
def test_kazoo_s_locks_and_ours_exclude_each_other(
    manager: ZookeeperLockManager,
    rival: KazooClient,
    table: str,
    node: str,
    kind: str,
    *,
    shared: bool,
    conflict: bool,
) -> None:
    theirs = getattr(rival, kind)
    with manager.acquire(table, shared=shared):
        assert gets_in(theirs(node)) is not conflict
    assert gets_in(theirs(node)), "the control: it is free"
    with theirs(node, "theirs"):
        assert manager.queue(table)[0].data == {"identifier": "theirs"}
        assert is_free(manager, table, shared=shared) is not conflict
    assert is_free(manager, table, shared=shared)


@pytest.mark.parametrize("kind", ["WriteLock", "ReadLock", "Lock"])
def test_who_waits_behind_the_other_is_served_in_turn(
    manager: ZookeeperLockManager,
    rival: KazooClient,
    table: str,
    node: str,
    kind: str,
    eventually: Callable[..., None],
) -> None:
    order: list[str] = []

    def wait(name: str, lock: Callable[[], AbstractContextManager[Any]]) -> threading.Thread:
        def take() -> None:
            with lock():
                order.append(name)

        queued = len(manager.queue(table))
        thread = threading.Thread(target=take)
        thread.start()
        eventually(lambda: len(manager.queue(table)) > queued)
        return thread

    held = manager.acquire(table)
    waiting = [wait("kazoo", lambda: getattr(rival, kind)(node)), wait("ours", lambda: manager.acquire(table))]
    waiting.append(wait("kazoo again", lambda: getattr(rival, kind)(node)))
    assert order == []
    held.release()
    for thread in waiting:
        thread.join(30)
    assert order == ["kazoo", "ours", "kazoo again"]


def test_to_kazoo_a_lock_on_partitions_is_a_reader(
    manager: ZookeeperLockManager, rival: KazooClient, table: str, node: str, in_partition: list[dict[str, object]]
) -> None:
    with manager.acquire(table, partitions=in_partition):
        assert not gets_in(rival.WriteLock(node))
        assert gets_in(rival.ReadLock(node))
    with rival.WriteLock(node):
        assert not is_free(manager, table, partitions=in_partition)
    with rival.ReadLock(node):
        # Who reads all of it excludes who writes a part of it, if he is ours; kazoo's is waited for, too.
        assert not is_free(manager, table, partitions=in_partition)


def test_kazoo_s_plain_lock_does_not_see_who_shares_unless_told(
    manager: ZookeeperLockManager, rival: KazooClient, table: str, node: str, in_partition: list[dict[str, object]]
) -> None:
    """The limit that the docs name."""
    for asked in ({"shared": True}, {"partitions": in_partition}):
        with manager.acquire(table, **asked):
            assert gets_in(rival.Lock(node))
            assert not gets_in(rival.Lock(node, extra_lock_patterns=["__rlock__"]))
        # The other way round it holds.
        with rival.Lock(node):
            assert not is_free(manager, table, **asked)


# -- Curator ---------------------------------------------------------------------------------------------------------


class Curator:
    """Another program, with a mutex of Curator's on a path."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def order(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def gets_it(self, milliseconds: int = 0) -> bool:
        self.order(f"try {milliseconds}")
        return self.answer() == "true"

    def release(self) -> None:
        self.order("release")
        assert self.answer() == "released"


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The client and the driver that docs/concepts.md shows, compiled; and the driver's name."""
    folder = tmp_path_factory.mktemp("curator")
    (block,) = JAVA_BLOCK.findall((REPOSITORY / "docs/concepts.md").read_text(encoding="utf-8"))
    source, name = block
    (folder / f"{name}.java").write_text(source, encoding="utf-8")
    javac = str(Path(find_java()).with_name("javac"))
    sources = [str(CLIENT), str(folder / f"{name}.java")]
    subprocess.run([javac, "-cp", f"{find_spark_jars()}/*", "-d", str(folder), *sources], check=True)
    return folder, name


@pytest.fixture
def curator(zookeeper: Any, node: str, classes: tuple[Path, str]) -> Callable[..., AbstractContextManager[Curator]]:
    folder, name = classes

    @contextmanager
    def start(*, driver: bool) -> Iterator[Curator]:
        path = f"{folder}:{find_spark_jars()}/*"
        command = [find_java(), "-cp", path, "CuratorMutex", zookeeper.hosts, node, *([name] if driver else [])]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            made = Curator(process)
            assert made.answer() == "ready"
            yield made
            assert process.stdin is not None
            process.stdin.close()

    return start


def test_curator_s_mutex_neither_sees_ours_nor_is_seen(
    manager: ZookeeperLockManager,
    rival: KazooClient,
    table: str,
    node: str,
    curator: Callable[..., AbstractContextManager[Curator]],
) -> None:
    """It sorts all children by what follows ``lock-`` in their names: its own first, whoever came before them."""
    with curator(driver=False) as other:
        with manager.acquire(table):
            assert other.gets_it()
            (theirs,) = [name for name in rival.get_children(node) if name.startswith("_c_")]
            assert re.fullmatch(r"_c_[0-9a-f-]{36}-lock-\d{10}", theirs)
        assert is_free(manager, table)
        assert gets_in(rival.WriteLock(node)), "kazoo's do not see it either"
        other.release()


def test_curator_s_mutex_with_the_driver_of_the_docs_takes_part_in_the_queue(
    manager: ZookeeperLockManager,
    rival: KazooClient,
    table: str,
    in_partition: list[dict[str, object]],
    node: str,
    curator: Callable[..., AbstractContextManager[Curator]],
    eventually: Callable[..., None],
) -> None:
    kinds: tuple[dict[str, Any], ...] = ({}, {"shared": True}, {"partitions": in_partition})
    with curator(driver=True) as other:
        assert other.gets_it(), "the znode is its to make"
        assert rival.get(node)[1].ephemeralOwner == 0, "and no container, which would go by itself"
        other.release()
        for asked in kinds:
            with manager.acquire(table, **asked):
                assert not other.gets_it()
            assert other.gets_it()
            assert not is_free(manager, table, **asked)
            assert not gets_in(rival.Lock(node))
            other.release()
            assert is_free(manager, table, **asked)
        # In turn: ours, Curator's, ours.
        held = manager.acquire(table)
        other.order("try 30000")
        eventually(lambda: len(manager.queue(table)) == 2)
        tokens: list[int] = []
        thread = threading.Thread(target=lambda: tokens.append(manager.acquire(table).token))
        thread.start()
        eventually(lambda: len(manager.queue(table)) == 3)
        held.release()
        assert other.answer() == "true"
        assert tokens == []
        other.release()
        thread.join(30)
        assert tokens[0] > held.token
        manager.release(table)
