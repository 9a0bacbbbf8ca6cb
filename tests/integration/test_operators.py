"""`sluice status` and `sluice break` on a real ZooKeeper, with holders of Sluice and of other programs."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from typer.testing import CliRunner, Result

from lock_manager import (
    LockLostError,
    LockSettings,
    LockTimeoutError,
    PartitionColumn,
    PartitionSchema,
    TableResource,
    ZookeeperLockManager,
    guard_registry,
)
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.queue_entry import QueueEntry
from lock_manager.waits import WAITING_LOGGER
from lock_manager.zookeeper.inspector import ANSWER_SECONDS as INSPECTOR_SECONDS
from lock_manager.zookeeper.inspector import LockInspector
from lock_manager.zookeeper.queue_reader import QueueReader
from lock_manager.zookeeper.znodes import table_node
from sluice.commands.app import app
from tests.support.rivals import RivalManager

ROOT = Path(__file__).parents[2]
TABLE, URI = "s3a://lake/flights", "s3://lake/flights"


@dataclass
class Operators:
    """An empty lock root, a lock manager, a rival, and the commands for this root."""

    client: KazooClient
    settings: LockSettings
    manager: ZookeeperLockManager
    rival: RivalManager
    pool: ThreadPoolExecutor
    eventually: Callable[..., None]

    @property
    def root(self) -> str:
        return self.settings.lock_root

    @property
    def node(self) -> str:
        return table_node(self.root, TableResource.of(TABLE))

    def options(self) -> list[str]:
        return ["--zookeeper", self.settings.zk_hosts, "--lock-root", self.root]

    def run(self, command: str, *arguments: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(app, [command, *arguments, *self.options()], input=answer)

    def tables(self, *arguments: str) -> dict[str, Any]:
        """Return the tables of ``status --json`` by name."""
        result = self.run("status", "--json", *arguments)
        assert result.exit_code == 0, result.output
        return {table["table"]: table for table in json.loads(result.stdout)["tables"]}

    def wait_behind_holder(self, position: int = 1, **options: Any) -> Future[int]:
        """Let the rival wait for the table in a thread, at this position; return a future with its token."""

        def wait() -> int:
            with self.rival.acquire(TABLE, **options) as hold:
                return hold.token

        token = self.pool.submit(wait)
        self.eventually(lambda: len(self.tables()[URI]["waiters"]) == position, label="the rival in the queue")
        return token

    def hold_partition(self, *levels: str) -> list[str]:
        """Create the znodes of a partition hold in one transaction, and return their paths."""
        resource, node = TableResource.of(TABLE), self.node
        self.client.ensure_path(self.root)
        if not self.client.exists(node):
            self.client.create(node, json.dumps({"uri": resource.uri}).encode())
        nodes = [node]
        for level in levels:
            node = f"{node}/partitions/{level}"
            self.client.ensure_path(node)
            nodes.append(node)
        entry, data = uuid.uuid4().hex, json.dumps({"host": "h1", "pid": 1, "job": "by-month"}).encode()
        transaction = self.client.transaction()
        for queue in nodes:
            suffix = "__lock__" if queue == nodes[-1] else "__rlock__"
            transaction.create(f"{queue}/{entry}{suffix}", data, ephemeral=True, sequence=True)
        paths = transaction.commit()
        assert all(isinstance(path, str) for path in paths), paths
        return paths

    @contextmanager
    def busy_partitions(self) -> Iterator[None]:
        """Keep one partition hold, and let three threads create and delete others."""
        stop = threading.Event()

        def create_and_delete(level: str) -> None:
            while not stop.is_set():
                paths = self.hold_partition(level, "day=1")
                stop.wait(0.02)
                transaction = self.client.transaction()
                for path in paths:
                    transaction.delete(path)
                transaction.commit()

        self.hold_partition("month=0", "day=1")
        threads = [self.pool.submit(create_and_delete, f"month={number % 2}") for number in range(3)]
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.result()


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def operators(zookeeper: Any, ensemble_client: KazooClient, eventually: Callable[..., None]) -> Iterator[Operators]:
    root = f"/operators/{uuid.uuid4().hex}"
    settings = LockSettings(zk_hosts=zookeeper.hosts, lock_root=root, timeout_seconds=60, job="nightly", app_id="app-7")
    with (
        ThreadPoolExecutor(3) as pool,
        ZookeeperLockManager(settings) as manager,
        RivalManager(settings, job="rival") as rival,
    ):
        yield Operators(ensemble_client, settings, manager, rival, pool, eventually)


def test_status_and_break_of_no_table_create_no_znode(operators: Operators) -> None:
    for arguments, output in (
        (("status",), "no table was ever locked below this lock root\n"),
        (("status", TABLE), f"{URI}: no holders, no waiters\n"),
        (("break", TABLE), f"{URI}: no holders\n"),
    ):
        result = operators.run(*arguments)
        assert (result.exit_code, result.stdout) == (0, output)
    assert operators.client.exists(operators.root) is None


def test_holders_and_waiters_are_listed_in_order(operators: Operators) -> None:
    with operators.manager.acquire("s3a://lake/idle"):
        pass
    with operators.manager.acquire(TABLE) as hold:
        tokens = [operators.wait_behind_holder(position) for position in (1, 2)]
        table = operators.tables(TABLE)[URI]
        assert list(operators.tables()) == [URI, "s3://lake/idle"]
        (holder,) = table["holders"]
        assert (holder["token"], holder["job"], holder["app_id"]) == (hold.token, "nightly", "app-7")
        assert (holder["partitions"], holder["shared"], holder["waits_for"]) == ([], False, [])
        first, second = table["waiters"]
        rows = [line for line in (ROOT / "docs" / "operate.md").read_text().splitlines() if line.startswith("| `….")]
        documented_fields = {name for row in rows for name in re.findall(r"`…?\.(\w+)`", row)}
        assert set(holder) == set(first) == documented_fields
        assert first["job"] == "rival"
        assert (first["waits_for"], second["waits_for"]) == ([holder["claim"]], [holder["claim"], first["claim"]])
        assert first["token"] < second["token"]
        lines = operators.run("status").stdout.splitlines()
        assert URI in lines[0]
        states = [line.split()[0] for line in lines if "nightly" in line or "rival" in line]
        assert states == ["holds", "waits", "waits"]
        assert "1 table without holders and waiters" in lines[-1]
        operators.eventually(lambda: operators.tables(TABLE)[URI]["holders"][0]["since"] == hold.acquired_at)
    assert [token.result() for token in tokens] == [first["token"], second["token"]]


def test_each_partition_hold_is_listed_with_its_conflicts(operators: Operators) -> None:
    for levels in (("year=2013", "origin=a%2Fb"), ("year=2014",), ("year=2013",), ()):
        operators.hold_partition(*levels)
    table = operators.tables()[URI]
    assert [holder["partitions"] for holder in table["holders"]] == [["year=2013/origin=a%2Fb"], ["year=2014"]]
    assert [waiter["partitions"] for waiter in table["waiters"]] == [["year=2013"], []]
    assert [len(waiter["waits_for"]) for waiter in table["waiters"]] == [1, 3]


def test_many_locked_tables_take_as_many_round_trips_as_one(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def count_calls_of(name: str) -> None:
        method = getattr(QueueReader, name)
        monkeypatch.setattr(QueueReader, name, lambda *arguments: calls.append(name) or method(*arguments))

    for name in ("_newest_change", "children", "read_nodes"):
        count_calls_of(name)
    with LockInspector(operators.settings) as inspector, ExitStack() as holds:
        round_trips = []
        for number in range(3):
            holds.enter_context(operators.manager.acquire(f"s3a://lake/table-{number}"))
            calls.clear()
            assert [len(table.holders) for table in inspector.tables()] == [1] * (number + 1)
            round_trips.append(list(calls))
    assert round_trips == [round_trips[0]] * 3


def test_a_changing_hold_is_listed_completely_or_not_at_all(
    operators: Operators, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LockInspector(operators.settings) as inspector:

        def entries() -> tuple[QueueEntry, ...]:
            return inspector.table(TableResource.of(TABLE)).entries

        with operators.busy_partitions():
            operators.eventually(lambda: len(entries()) > 1)
            listings = [entries() for _ in range(50)]
            assert {len(entry.nodes) for listing in listings for entry in listing} == {3}
            # The permanent hold is the oldest one.
            ((_, holds),) = {(listing[0].hold_id, listing[0].holds) for listing in listings}
            assert holds
            # Control: if changes during the listing are ignored, some holds are listed incompletely.
            monkeypatch.setattr(inspector._reader, "_newest_change", lambda *_: 2**63)
            operators.eventually(lambda: any(len(entry.nodes) != 3 for entry in entries()))


def test_a_waiter_is_listed_with_its_partitions(operators: Operators) -> None:
    schema = PartitionSchema((PartitionColumn("year", "integer"), PartitionColumn("month", "integer")))
    partitions = [schema.partition({"year": 2013, "month": month}) for month in range(10, 25)]
    guard_registry.declare_guard_installed(lambda _: schema)
    try:
        with operators.manager.acquire(TABLE):
            token = operators.wait_behind_holder(partitions=partitions)
            (waiter,) = operators.tables()[URI]["waiters"]
            assert waiter["partitions"] == [f"year=2013/month={month}" for month in range(10, 22)]
            assert (waiter["more_partitions"], waiter["shared"], waiter["within"]) == (3, False, [])
            output = operators.run("status").stdout
            assert re.search(r"waits for 1 .*year=2013/month=21 and 3 more", output, re.DOTALL)
        assert token.result()
        with operators.rival.acquire(TABLE, partitions=partitions):
            (holder,) = operators.tables()[URI]["holders"]
            assert (len(holder["partitions"]), holder["more_partitions"]) == (15, 0)
    finally:
        guard_registry.declare_guard_installed(None)


def test_locks_of_kazoo_are_listed(operators: Operators) -> None:
    with operators.client.WriteLock(operators.node, "a program with kazoo"):
        (table,) = operators.tables().values()
        assert (table["table"], table["key"], len(table["holders"])) == (None, TableResource.of(TABLE).key, 1)
    assert next(iter(operators.tables().values()))["holders"] == []


def test_a_waiter_over_the_limit_gives_exit_code_3(operators: Operators) -> None:
    with operators.manager.acquire(TABLE):
        assert operators.run("status", "--fail-if-waiting", "0").exit_code == 0, "the command failed, but nobody waits"
        token = operators.wait_behind_holder()
        assert operators.run("status", "--fail-if-waiting", "600").exit_code == 0, (
            "the command failed, but nobody waits for 600 s"
        )
        result = operators.run("status", "--fail-if-waiting", "0")
        assert result.exit_code == 3
        assert result.stderr.startswith(f"sluice: {URI}: ")
        assert "job rival" in result.stderr
        # With --watch the command ends as soon as a waiter is over the limit.
        result = operators.run("status", "--watch", "--interval", "0.1", "--json", "--fail-if-waiting", "0.5")
        assert result.exit_code == 3
        listings = [json.loads(line)["tables"] for line in result.stdout.splitlines()]
        assert listings
        assert all(listings)
    assert token.result()


@pytest.mark.usefixtures("heed_ctrl_c")
def test_a_watch_on_a_terminal_overwrites_its_lines(operators: Operators) -> None:
    terminal, child_terminal = pty.openpty()
    command = [sys.executable, "-m", "sluice", "status", "--watch", "--interval", "0.1", *operators.options()]
    environment = {**os.environ, "COLUMNS": "150", "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    output = b""
    with (
        operators.manager.acquire(TABLE),
        subprocess.Popen(
            command, stdin=child_terminal, stdout=child_terminal, stderr=subprocess.PIPE, env=environment
        ) as process,
    ):
        os.close(child_terminal)
        while output.count(b"nightly") < 3:
            output += os.read(terminal, 65536)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while select.select([terminal], [], [], 0.1)[0] or process.poll() is None:
            try:
                os.read(terminal, 65536)
            except OSError:  # the child has closed its terminal
                break
        error = process.stderr.read().decode()
    os.close(terminal)
    assert process.returncode == 130
    assert error == "sluice: stopped by SIGINT; everything that was started has been ended\n"
    assert re.search(rb"\x1b\[\d*A", output), "the cursor never moves up to overwrite earlier lines"


def test_a_waiting_acquire_logs_the_first_holder(
    operators: Operators, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, WAITING_LOGGER)
    operators.rival.connect()
    with operators.manager.acquire(TABLE):
        # Control: an acquire that is shorter than the interval logs nothing.
        with pytest.raises(LockTimeoutError, match=r"1 ahead; first in the queue is .* pid \d+, job nightly"):
            operators.rival.acquire(TABLE, timeout_seconds=2)
        assert caplog.messages == []
        monkeypatch.setattr("lock_manager.waits.LOG_SECONDS", 0.1)
        token = operators.wait_behind_holder()
        operators.eventually(lambda: len(caplog.messages) >= 2)
        messages = list(caplog.messages)
    assert token.result()
    message = rf"waiting for the lock on {URI} for \d+ s: 1 ahead; first .* pid {os.getpid()}, job nightly"
    assert all(re.fullmatch(message, logged_message) for logged_message in messages)


def test_break_fences_the_holder_and_admits_the_next_waiter(operators: Operators) -> None:
    hold = operators.manager.acquire(TABLE)
    guard, block = CommitGuard(), GuardedBlock(hold, {})
    guard.add(block)
    commit = {"kind": "commit", "table": TABLE, "version": 7, "blocks": block.name, "txn": "t", "operation": "WRITE"}
    token = operators.wait_behind_holder()

    declined_break = operators.run("break", TABLE, answer="n\n")
    assert declined_break.exit_code == 1
    assert f"token {hold.token}" in declined_break.stdout
    assert "nothing was removed" in declined_break.stderr
    unanswered_break = operators.run("break", TABLE, answer="")
    assert (unanswered_break.exit_code, "--yes" in unanswered_break.stderr) == (1, True)
    # Control: until the lock is broken, the guard allows the commit.
    assert "holds" in json.loads(guard.check(json.dumps(commit | {"attempt": "before"})))
    assert not token.done()

    confirmed_break = operators.run("break", TABLE, answer="y\n")
    assert confirmed_break.exit_code == 0, confirmed_break.output
    assert f"removed: {declined_break.stdout.split(' by ')[1].splitlines()[0]}" in confirmed_break.stdout
    reply = json.loads(guard.check(json.dumps(commit | {"attempt": "after"})))
    assert reply["refused"] == "LockLostError"
    assert "as `sluice break` does" in reply["message"]
    with pytest.raises(LockLostError, match="as `sluice break` does"):
        hold.release()
    assert token.result() > hold.token


def test_break_with_another_token_removes_no_holder(operators: Operators) -> None:
    with operators.manager.acquire(TABLE) as hold:
        result = operators.run("break", TABLE, "--token", "1", "--yes")
        assert result.exit_code == 1
        assert f"token {hold.token}" in result.stderr
        hold.check()
        for option, value, exit_code in (
            ("--token", "one", 2),
            ("--partition", "month", 2),
            ("--partition", "month=1", 1),
        ):
            assert operators.run("break", TABLE, option, value, "--yes").exit_code == exit_code
        hold.check()
        assert operators.run("break", TABLE, "--token", str(hold.token), "--yes").exit_code == 0
        for action in (hold.check, hold.release):
            with pytest.raises(LockLostError):
                action()


def test_a_new_holder_is_not_removed_in_place_of_an_earlier_one(operators: Operators) -> None:
    resource = TableResource.of(TABLE)
    with LockInspector(operators.settings) as inspector:
        hold = operators.manager.acquire(TABLE)
        locks = inspector.table(resource)
        hold.release()
        with operators.rival.acquire(TABLE) as new_hold:
            assert inspector.remove(locks, locks.holders[0]) is False
            new_hold.check()
            # Control: the same request removes the holder that it names.
            locks = inspector.table(resource)
            assert inspector.remove(locks, locks.holders[0]) is True
            with pytest.raises(LockLostError):
                new_hold.check()
            assert inspector.remove(locks, locks.holders[0]) is False
            with pytest.raises(LockLostError):
                new_hold.release()


def test_break_of_a_partition_removes_only_its_holder(operators: Operators) -> None:
    january_paths, february_paths = (operators.hold_partition("year=2013", month) for month in ("month=1", "month=2"))
    result = operators.run("break", TABLE, "--partition", "year=2013/month=1", "--yes")
    assert result.exit_code == 0, result.output
    assert "year=2013/month=1" in result.stdout
    assert not any(map(operators.client.exists, january_paths))
    assert all(map(operators.client.exists, february_paths))
    assert operators.run("break", TABLE, "--partition", "year=2013", "--yes").exit_code == 0
    assert not any(map(operators.client.exists, february_paths))


def test_a_host_name_without_an_address_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, *_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    start = time.monotonic()
    for command in (["status"], ["break", TABLE]):
        result = CliRunner().invoke(app, [*command, "--zookeeper", "zk1.nowhere:2181,zk2.nowhere:2181"])
        assert result.exit_code == 1
        assert "no address is known for the host name zk1.nowhere, zk2.nowhere" in result.stderr
        assert len(result.stderr.splitlines()) == 1
    assert time.monotonic() - start < INSPECTOR_SECONDS


def test_an_unreachable_ensemble_is_reported_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lock_manager.zookeeper.inspector.ANSWER_SECONDS", 0.5)
    for command in (["status"], ["break", TABLE]):
        result = CliRunner().invoke(app, [*command, "--zookeeper", "127.0.0.1:1"])
        assert result.exit_code == 1
        assert result.stderr.startswith("sluice: ZooKeeper at 127.0.0.1:1 did not answer")
        assert len(result.stderr.splitlines()) == 1


class InterruptedTestError(BaseException):
    """Raised by a handler of a signal."""


class SignallingSocket:
    """Kazoo's socket for new requests, which raises a signal with each of them."""

    def __init__(self, real_socket: socket.socket) -> None:
        self._real_socket = real_socket

    def send(self, data: bytes) -> int:
        sent = self._real_socket.send(data)
        signal.raise_signal(signal.SIGUSR1)
        return sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real_socket, name)


def test_a_signal_during_a_request_is_not_lost(operators: Operators) -> None:
    """Kazoo takes the exception of a signal handler in ``KazooClient._call`` for a closed connection."""

    def interrupt(*_: object) -> None:
        raise InterruptedTestError

    operators.manager.acquire(TABLE).release()
    with LockInspector(operators.settings) as inspector:
        assert [table.uri for table in inspector.tables()] == [URI]
        connection = inspector._session.client._connection
        connection._write_sock = SignallingSocket(connection._write_sock)
        previous = signal.signal(signal.SIGUSR1, interrupt)
        try:
            with pytest.raises(InterruptedTestError):
                inspector.tables()
        finally:
            connection._write_sock = connection._write_sock._real_socket
            signal.signal(signal.SIGUSR1, previous)
        assert [table.uri for table in inspector.tables()] == [URI]
