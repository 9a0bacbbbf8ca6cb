"""Other programs in a table's queue: kazoo's locks, and Curator's mutex with and without the driver of the docs."""

from __future__ import annotations

import re
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

from lock_manager import LockTimeoutError, TableResource, ZookeeperLockManager
from lock_manager.testing.embedded import find_java, find_spark_jars
from lock_manager.zookeeper.znodes import table_node
from tests.support.lock_znodes import LOCK_ROOT, connected_client

REPOSITORY = Path(__file__).parents[2]
CLIENT_SOURCE = REPOSITORY / "tests/support/CuratorMutex.java"
JAVA_BLOCK = re.compile(r"^```java\n(.*?class (\w+).*?)^```$", re.MULTILINE | re.DOTALL)
PARTITIONS = {"partitions": [{"year": 2013}]}


@dataclass
class Queue:
    """The queue of one table, our lock manager, and a kazoo client of another program."""

    manager: ZookeeperLockManager
    kazoo: KazooClient
    eventually: Callable[..., None]

    def __post_init__(self) -> None:
        self.table = f"s3://lake/{uuid.uuid4().hex}"
        self.node = table_node(LOCK_ROOT, TableResource.of(self.table))

    def acquire(self, **options: Any) -> Any:
        return self.manager.acquire(self.table, **options)

    def is_free(self, **options: Any) -> bool:
        """Return whether our lock is acquired at once, and release it."""
        try:
            self.acquire(timeout_seconds=0, **options).release()
        except LockTimeoutError:
            return False
        return True

    def lock_of(self, recipe: str, *arguments: str, **options: Any) -> Lock:
        """Return a lock of one of kazoo's recipes."""
        return getattr(self.kazoo, recipe)(self.node, *arguments, **options)

    def is_free_for_kazoo(self, recipe: str, **options: Any) -> bool:
        """Return whether kazoo's lock is acquired at once, and release it."""
        lock = self.lock_of(recipe, **options)
        if is_acquired := lock.acquire(blocking=False):
            lock.release()
        return bool(is_acquired)

    def length(self) -> int:
        return len(self.manager.queue(self.table))

    def start_waiting(self, acquire: Callable[[], None]) -> threading.Thread:
        """Call ``acquire`` in a new thread, and return when it waits in the queue."""
        previous_length = self.length()
        thread = threading.Thread(target=acquire)
        thread.start()
        self.eventually(lambda: self.length() > previous_length)
        return thread


@pytest.fixture
def queue(zookeeper: Any, manager: ZookeeperLockManager, eventually: Callable[..., None]) -> Iterator[Queue]:
    with connected_client(zookeeper.hosts) as client:
        yield Queue(manager, client, eventually)


@pytest.mark.parametrize(
    ("recipe", "shared", "conflict"),
    [
        ("WriteLock", False, True),
        ("WriteLock", True, True),
        ("ReadLock", False, True),
        ("ReadLock", True, False),
        ("Lock", False, True),
    ],
)
def test_kazoo_s_locks_and_ours_exclude_each_other(queue: Queue, recipe: str, *, shared: bool, conflict: bool) -> None:
    with queue.acquire(shared=shared):
        assert queue.is_free_for_kazoo(recipe) is not conflict
    assert queue.is_free_for_kazoo(recipe), "kazoo's lock is not free after our release"
    with queue.lock_of(recipe, "theirs"):
        assert queue.manager.queue(queue.table)[0].data == {"identifier": "theirs"}
        assert queue.is_free(shared=shared) is not conflict
    assert queue.is_free(shared=shared)


@pytest.mark.parametrize("recipe", ["WriteLock", "ReadLock", "Lock"])
def test_kazoo_s_contenders_and_ours_are_served_in_order(queue: Queue, recipe: str) -> None:
    served_names: list[str] = []

    def hold_once(name: str) -> None:
        with queue.acquire() if name == "ours" else queue.lock_of(recipe):
            served_names.append(name)

    names = ["kazoo", "ours", "kazoo again"]
    with queue.acquire():
        threads = [queue.start_waiting(partial(hold_once, name)) for name in names]
        assert served_names == []
    for thread in threads:
        thread.join(30)
    assert served_names == names


@pytest.mark.usefixtures("guard_declared")
def test_kazoo_s_locks_treat_a_partition_lock_as_a_reader(queue: Queue) -> None:
    with queue.acquire(**PARTITIONS):
        assert not queue.is_free_for_kazoo("WriteLock")
        assert queue.is_free_for_kazoo("ReadLock")
    with queue.lock_of("WriteLock"):
        assert not queue.is_free(**PARTITIONS)
    with queue.lock_of("ReadLock"):
        # Our partition lock excludes readers of the table, so it waits for kazoo's reader, too.
        assert not queue.is_free(**PARTITIONS)


@pytest.mark.usefixtures("guard_declared")
@pytest.mark.parametrize("options", [{"shared": True}, PARTITIONS], ids=["shared", "partitions"])
def test_kazoo_s_lock_ignores_shared_holds_without_a_pattern(queue: Queue, options: dict[str, Any]) -> None:
    """docs/concepts.md names this limit."""
    with queue.acquire(**options):
        assert queue.is_free_for_kazoo("Lock")
        assert not queue.is_free_for_kazoo("Lock", extra_lock_patterns=["__rlock__"])
    # A shared hold waits for kazoo's lock.
    with queue.lock_of("Lock"):
        assert not queue.is_free(**options)


@dataclass
class Curator:
    """Another program that uses a mutex of Curator on the table's znode."""

    process: subprocess.Popen[str]

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def acquires(self) -> bool:
        """Return whether the mutex is acquired at once."""
        self.send("try 0")
        return self.answer() == "true"

    def release(self) -> None:
        self.send("release")
        assert self.answer() == "released"


@pytest.fixture(scope="module")
def compiled_client(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Compile the Curator client and the driver of docs/concepts.md; return the folder and the driver's name."""
    folder = tmp_path_factory.mktemp("curator")
    (block,) = JAVA_BLOCK.findall((REPOSITORY / "docs/concepts.md").read_text(encoding="utf-8"))
    source, name = block
    (folder / f"{name}.java").write_text(source, encoding="utf-8")
    javac = str(Path(find_java()).with_name("javac"))
    sources = [str(CLIENT_SOURCE), str(folder / f"{name}.java")]
    subprocess.run([javac, "-cp", f"{find_spark_jars()}/*", "-d", str(folder), *sources], check=True)
    return folder, name


@pytest.fixture
def start_curator(
    zookeeper: Any, queue: Queue, compiled_client: tuple[Path, str]
) -> Callable[..., AbstractContextManager[Curator]]:
    folder, name = compiled_client

    @contextmanager
    def start(*, driver: bool) -> Iterator[Curator]:
        path = f"{folder}:{find_spark_jars()}/*"
        command = [find_java(), "-cp", path, "CuratorMutex", zookeeper.hosts, queue.node, *([name] if driver else [])]
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            curator = Curator(process)
            assert curator.answer() == "ready"
            yield curator
            assert process.stdin is not None
            process.stdin.close()

    return start


def test_curator_s_mutex_and_our_lock_do_not_see_each_other(
    queue: Queue, start_curator: Callable[..., AbstractContextManager[Curator]]
) -> None:
    """Curator sorts all children by the text after ``lock-``, so its contenders precede older ones of others."""
    with start_curator(driver=False) as curator:
        with queue.acquire():
            assert curator.acquires()
            (contender,) = [name for name in queue.kazoo.get_children(queue.node) if name.startswith("_c_")]
            assert re.fullmatch(r"_c_[0-9a-f-]{36}-lock-\d{10}", contender)
        assert queue.is_free()
        assert queue.is_free_for_kazoo("WriteLock"), "kazoo's lock waits for Curator's contender"
        curator.release()


@pytest.mark.usefixtures("guard_declared")
def test_curator_s_mutex_with_the_docs_driver_joins_the_queue(
    queue: Queue, start_curator: Callable[..., AbstractContextManager[Curator]]
) -> None:
    with start_curator(driver=True) as curator:
        assert curator.acquires(), "Curator did not acquire the lock of a znode that it had to create"
        assert queue.kazoo.get(queue.node)[1].ephemeralOwner == 0, "Curator created a container znode"
        curator.release()
        for options in ({}, {"shared": True}, PARTITIONS):
            with queue.acquire(**options):
                assert not curator.acquires()
            assert curator.acquires()
            assert not queue.is_free(**options)
            assert not queue.is_free_for_kazoo("Lock")
            curator.release()
            assert queue.is_free(**options)
        # The lock is granted to our hold, then to Curator, then to our second hold.
        hold = queue.acquire()
        curator.send("try 30000")
        queue.eventually(lambda: queue.length() == 2)
        tokens: list[int] = []
        thread = queue.start_waiting(lambda: tokens.append(queue.acquire().token))
        assert queue.length() == 3
        hold.release()
        assert curator.answer() == "true"
        assert tokens == []
        curator.release()
        thread.join(30)
        assert tokens[0] > hold.token
        queue.manager.release(queue.table)
