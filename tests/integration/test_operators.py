"""`sluice status` and `sluice break` against a real ZooKeeper, with holders of ours and of others."""

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
from contextlib import contextmanager
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
from lock_manager.coordinator import WAITING_LOGGER
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guarded_hold import GuardedHold
from lock_manager.queue_entry import QueueEntry
from lock_manager.zookeeper.inspector import ANSWER_SECONDS as INSPECTOR_SECONDS
from lock_manager.zookeeper.inspector import LockInspector
from lock_manager.zookeeper.znodes import table_node
from sluice.commands.app import app
from tests.support.rivals import RivalManager

ROOT = Path(__file__).parents[2]
TABLE = "s3a://lake/flights"


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def root() -> str:
    return f"/operators/{uuid.uuid4().hex}"


@pytest.fixture
def settings(zookeeper: Any, root: str) -> LockSettings:
    return LockSettings(zk_hosts=zookeeper.hosts, lock_root=root, timeout_seconds=60, job="nightly", app_id="app-7")


@pytest.fixture
def manager(settings: LockSettings) -> Iterator[ZookeeperLockManager]:
    with ZookeeperLockManager(settings) as made:
        yield made


@pytest.fixture
def rival(settings: LockSettings) -> Iterator[RivalManager]:
    with RivalManager(settings, job="rival") as made:
        yield made


@pytest.fixture
def sluice(zookeeper: Any, root: str) -> Callable[..., Result]:
    def run(command: str, *arguments: str, said: str | None = None) -> Result:
        line = [command, *arguments, "--zookeeper", zookeeper.hosts, "--lock-root", root]
        return CliRunner().invoke(app, line, input=said)

    return run


@pytest.fixture
def tables(sluice: Callable[..., Result]) -> Callable[..., Any]:
    """What `status --json` says, by table."""

    def look(*arguments: str) -> dict[str, Any]:
        answer = sluice("status", "--json", *arguments)
        assert answer.exit_code == 0, answer.output
        return {table["table"]: table for table in json.loads(answer.stdout)["tables"]}

    return look


def waiting(manager: ZookeeperLockManager, table: str, outcome: list[Any], **asked: Any) -> threading.Thread:
    """Have another thread wait for a table, and note what came of it."""

    def wait() -> None:
        try:
            with manager.acquire(table, **asked) as hold:
                outcome.append(hold.token)
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def partition_hold(client: KazooClient, root: str, table: str, *levels: str) -> list[str]:
    """Create what a partition hold consists of, as the layout says, in one transaction."""
    resource = TableResource.of(table)
    node = table_node(root, resource)
    client.ensure_path(root)
    if not client.exists(node):
        client.create(node, json.dumps({"uri": resource.uri}).encode())
    nodes = [node]
    for level in levels:
        client.ensure_path(f"{node}/partitions/{level}")
        node = f"{node}/partitions/{level}"
        nodes.append(node)
    entry, data = uuid.uuid4().hex, json.dumps({"host": "h1", "pid": 1, "job": "by-month"}).encode()
    transaction = client.transaction()
    for each in nodes:
        mark = "__lock__" if each == nodes[-1] else "__rlock__"
        transaction.create(f"{each}/{entry}{mark}", data, ephemeral=True, sequence=True)
    made = transaction.commit()
    assert all(isinstance(path, str) for path in made), made
    return made


def test_nothing_is_told_of_nothing_and_nothing_is_made(
    sluice: Callable[..., Result], ensemble_client: KazooClient, root: str
) -> None:
    answer = sluice("status")
    assert (answer.exit_code, answer.stdout) == (0, "no table was ever locked here\n")
    answer = sluice("status", TABLE)
    assert (answer.exit_code, answer.stdout) == (0, "s3://lake/flights: no holders, no waiters\n")
    answer = sluice("break", TABLE)
    assert (answer.exit_code, answer.stdout) == (0, "s3://lake/flights: no holders\n")
    assert ensemble_client.exists(root) is None


def test_holder_and_waiters_are_told_in_order(
    sluice: Callable[..., Result],
    tables: Callable[..., Any],
    manager: ZookeeperLockManager,
    rival: RivalManager,
    eventually: Callable[..., None],
) -> None:
    with manager.acquire("s3a://lake/idle"):
        pass
    outcomes: list[Any] = []
    threads = []
    with manager.acquire(TABLE) as hold:
        for number in range(1, 3):
            threads.append(waiting(rival, TABLE, outcomes))
            eventually(lambda number=number: len(tables()["s3://lake/flights"]["waiters"]) == number)
        found = tables(TABLE)["s3://lake/flights"]
        assert list(tables()) == ["s3://lake/flights", "s3://lake/idle"]
        (holder,) = found["holders"]
        assert (holder["token"], holder["job"], holder["app_id"]) == (hold.token, "nightly", "app-7")
        assert (holder["partitions"], holder["shared"], holder["waits_for"]) == ([], False, [])
        first, second = found["waiters"]
        rows = [line for line in (ROOT / "docs" / "operate.md").read_text().splitlines() if line.startswith("| `….")]
        documented = {name for row in rows for name in re.findall(r"`…?\.(\w+)`", row)}
        assert set(holder) == set(first) == documented
        assert first["job"] == "rival"
        assert (first["waits_for"], second["waits_for"]) == ([holder["claim"]], [holder["claim"], first["claim"]])
        assert first["token"] < second["token"]
        lines = sluice("status").stdout.splitlines()
        assert "s3://lake/flights" in lines[0]
        assert [line.split()[0] for line in lines if "nightly" in line or "rival" in line] == [
            "holds",
            "waits",
            "waits",
        ]
        assert "1 table without holders and waiters" in lines[-1]
        eventually(lambda: tables(TABLE)["s3://lake/flights"]["holders"][0]["since"] == hold.acquired_at)
        expected = sorted([first["token"], second["token"]])
    for thread in threads:
        thread.join()
    assert outcomes == expected


def test_partition_holds_are_grouped_and_told_by_partition(
    tables: Callable[..., Any], ensemble_client: KazooClient, root: str
) -> None:
    partition_hold(ensemble_client, root, TABLE, "year=2013", "origin=a%2Fb")
    partition_hold(ensemble_client, root, TABLE, "year=2014")
    partition_hold(ensemble_client, root, TABLE, "year=2013")
    partition_hold(ensemble_client, root, TABLE)
    found = tables()["s3://lake/flights"]
    assert [holder["partitions"] for holder in found["holders"]] == [["year=2013/origin=a%2Fb"], ["year=2014"]]
    assert [waiter["partitions"] for waiter in found["waiters"]] == [["year=2013"], []]
    assert [len(waiter["waits_for"]) for waiter in found["waiters"]] == [1, 3]


@contextmanager
def busy_partitions(client: KazooClient, root: str) -> Iterator[None]:
    """One partition hold that stays, and three threads whose partition holds come and go."""
    ended = threading.Event()

    def come_and_go(level: str) -> None:
        while not ended.is_set():
            made = partition_hold(client, root, TABLE, level, "day=1")
            ended.wait(0.02)
            transaction = client.transaction()
            for path in made:
                transaction.delete(path)
            transaction.commit()

    partition_hold(client, root, TABLE, "month=0", "day=1")
    threads = [threading.Thread(target=come_and_go, args=(f"month={number % 2}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_holds_that_come_and_go_are_told_whole_or_not_at_all(
    settings: LockSettings,
    ensemble_client: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Callable[..., None],
) -> None:
    with LockInspector(settings) as inspector:

        def look() -> tuple[QueueEntry, ...]:
            return inspector.table(TableResource.of(TABLE)).entries

        def is_told_in_part() -> bool:
            return any(len(entry.nodes) != 3 for entry in look())

        with busy_partitions(ensemble_client, settings.lock_root):
            eventually(lambda: len(look()) > 1)
            seen = [look() for _ in range(100)]
            assert {len(entry.nodes) for entries in seen for entry in entries} == {3}
            assert all(any(entry.holds for entry in entries) for entries in seen), "one never goes"
            # The control: without regard to what came while it looked, some are told in part.
            monkeypatch.setattr(inspector._reader, "_newest_change", lambda *_: 2**63)
            eventually(is_told_in_part)


def test_who_waits_behind_a_table_is_told_with_the_partitions_it_asked_for(
    sluice: Callable[..., Result],
    tables: Callable[..., Any],
    manager: ZookeeperLockManager,
    rival: RivalManager,
    eventually: Callable[..., None],
) -> None:
    schema = PartitionSchema((PartitionColumn("year", "integer"), PartitionColumn("month", "integer")))
    many = [schema.partition({"year": 2013, "month": month}) for month in range(10, 25)]
    outcome: list[Any] = []
    guard_registry.declare_installed(lambda _: schema)
    try:
        with manager.acquire(TABLE):
            thread = waiting(rival, TABLE, outcome, partitions=many)
            eventually(lambda: tables()["s3://lake/flights"]["waiters"])
            (waiter,) = tables()["s3://lake/flights"]["waiters"]
            assert waiter["partitions"] == [f"year=2013/month={month}" for month in range(10, 22)]
            assert (waiter["more_partitions"], waiter["shared"], waiter["within"]) == (3, False, [])
            assert re.search(r"waits for 1 .*year=2013/month=21 and 3 more", sluice("status").stdout, re.DOTALL)
        thread.join()
        with rival.acquire(TABLE, partitions=many):
            (holder,) = tables()["s3://lake/flights"]["holders"]
            assert (len(holder["partitions"]), holder["more_partitions"]) == (15, 0)
    finally:
        guard_registry.declare_installed(None)
    assert len(outcome) == 1


def test_locks_of_kazoo_are_told_too(tables: Callable[..., Any], ensemble_client: KazooClient, root: str) -> None:
    node = table_node(root, TableResource.of(TABLE))
    with ensemble_client.WriteLock(node, "a program with kazoo"):
        (found,) = tables().values()
        assert (found["table"], found["key"], len(found["holders"])) == (None, TableResource.of(TABLE).key, 1)
    assert next(iter(tables().values()))["holders"] == []


def test_who_waits_too_long_is_exit_code_3_and_named(
    sluice: Callable[..., Result],
    tables: Callable[..., Any],
    manager: ZookeeperLockManager,
    rival: RivalManager,
    eventually: Callable[..., None],
) -> None:
    outcome: list[Any] = []
    with manager.acquire(TABLE):
        assert sluice("status", "--fail-if-waiting", "0").exit_code == 0, "nobody waits"
        thread = waiting(rival, TABLE, outcome)
        eventually(lambda: tables()["s3://lake/flights"]["waiters"])
        assert sluice("status", "--fail-if-waiting", "600").exit_code == 0, "nobody waits that long"
        answer = sluice("status", "--fail-if-waiting", "0")
        assert answer.exit_code == 3
        assert answer.stderr.startswith("sluice: s3://lake/flights: ")
        assert "job rival" in answer.stderr
        # A watch ends when it becomes true.
        answer = sluice("status", "--watch", "--interval", "0.1", "--json", "--fail-if-waiting", "0.5")
        assert answer.exit_code == 3
        assert all(json.loads(line)["tables"] for line in answer.stdout.splitlines())
    thread.join()


def test_a_watch_on_a_terminal_is_shown_in_place_and_ends_with_ctrl_c(
    zookeeper: Any, root: str, manager: ZookeeperLockManager, heed_ctrl_c: None
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sluice", "status", "--watch", "--interval", "0.1"]
    line = [*command, "--zookeeper", zookeeper.hosts, "--lock-root", root]
    environment = {**os.environ, "COLUMNS": "150", "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    shown = b""
    with (
        manager.acquire(TABLE),
        subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=environment) as process,
    ):
        os.close(theirs)
        while shown.count(b"nightly") < 3:
            shown += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while select.select([ours], [], [], 0.1)[0] or process.poll() is None:
            try:
                os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
        said = process.stderr.read().decode()
    os.close(ours)
    assert process.returncode == 130
    assert said == "sluice: stopped by SIGINT; everything that was started has been ended\n"
    assert b"\x1b[" in shown, "the cursor goes back to the first line"


def test_who_waits_logs_now_and_then_for_whom(
    manager: ZookeeperLockManager,
    rival: RivalManager,
    eventually: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, WAITING_LOGGER)
    outcome: list[Any] = []
    rival.connect()
    with manager.acquire(TABLE):
        # The control: who waits for less than the interval says nothing.
        with pytest.raises(LockTimeoutError, match=r"1 ahead; first in the queue is .* pid \d+, job nightly"):
            rival.acquire(TABLE, timeout_seconds=2)
        assert caplog.messages == []
        monkeypatch.setattr("lock_manager.zookeeper.queue.REPORT_SECONDS", 0.1)
        thread = waiting(rival, TABLE, outcome)
        eventually(lambda: len(caplog.messages) >= 2)
        messages = list(caplog.messages)
    thread.join()
    said = rf"waiting for the lock on s3://lake/flights for \d+ s: 1 ahead; first .* pid {os.getpid()}, job nightly"
    assert all(re.fullmatch(said, message) for message in messages)
    assert len(outcome) == 1


def test_break_fences_the_holder_that_was_shown_and_the_next_one_gets_the_lock(
    sluice: Callable[..., Result],
    tables: Callable[..., Any],
    manager: ZookeeperLockManager,
    rival: RivalManager,
    eventually: Callable[..., None],
) -> None:
    outcome: list[Any] = []
    hold = manager.acquire(TABLE)
    guard, guarded = CommitGuard(), GuardedHold(hold, {})
    guard.add(guarded)
    commit = {
        "kind": "commit",
        "table": TABLE,
        "version": 7,
        "blocks": guarded.name,
        "txn": "t",
        "operation": "WRITE",
    }
    thread = waiting(rival, TABLE, outcome)
    eventually(lambda: tables()["s3://lake/flights"]["waiters"])

    refused = sluice("break", TABLE, said="n\n")
    assert refused.exit_code == 1
    assert f"token {hold.token}" in refused.stdout
    assert "nothing was removed" in refused.stderr
    unheard = sluice("break", TABLE, said="")
    assert (unheard.exit_code, "--yes" in unheard.stderr) == (1, True)
    # The control: as long as it is not broken, the guard lets it pass.
    assert "holds" in json.loads(guard.check(json.dumps(commit | {"attempt": "before"})))
    assert outcome == []

    broken = sluice("break", TABLE, said="y\n")
    assert broken.exit_code == 0, broken.output
    assert f"removed: {refused.stdout.split(' by ')[1].splitlines()[0]}" in broken.stdout
    answer = json.loads(guard.check(json.dumps(commit | {"attempt": "after"})))
    assert answer["refused"] == "LockLostError"
    assert "as `sluice break` does" in answer["message"]
    with pytest.raises(LockLostError, match="as `sluice break` does"):
        hold.release()
    thread.join()
    assert len(outcome) == 1
    assert outcome[0] > hold.token


def test_break_with_another_token_removes_nobody(sluice: Callable[..., Result], manager: ZookeeperLockManager) -> None:
    with manager.acquire(TABLE) as hold:
        answer = sluice("break", TABLE, "--token", "1", "--yes")
        assert answer.exit_code == 1
        assert f"token {hold.token}" in answer.stderr
        hold.check()
        assert sluice("break", TABLE, "--token", "one", "--yes").exit_code == 2
        assert sluice("break", TABLE, "--partition", "month", "--yes").exit_code == 2
        assert sluice("break", TABLE, "--partition", "month=1", "--yes").exit_code == 1
        hold.check()
        assert sluice("break", TABLE, "--token", str(hold.token), "--yes").exit_code == 0
        with pytest.raises(LockLostError):
            hold.check()
        with pytest.raises(LockLostError):
            hold.release()


def test_who_got_the_lock_in_the_meantime_keeps_it(
    settings: LockSettings, manager: ZookeeperLockManager, rival: RivalManager
) -> None:
    resource = TableResource.of(TABLE)
    with LockInspector(settings) as inspector:
        hold = manager.acquire(TABLE)
        locks = inspector.table(resource)
        hold.release()
        with rival.acquire(TABLE) as newer:
            assert inspector.remove(locks, locks.holders[0]) is False
            newer.check()
            # The control: the same request does remove the one that it was made for.
            locks = inspector.table(resource)
            assert inspector.remove(locks, locks.holders[0]) is True
            with pytest.raises(LockLostError):
                newer.check()
            assert inspector.remove(locks, locks.holders[0]) is False
            with pytest.raises(LockLostError):
                newer.release()


def test_break_of_a_partition_removes_every_contender_of_its_holder_and_no_other(
    sluice: Callable[..., Result], ensemble_client: KazooClient, root: str
) -> None:
    january = partition_hold(ensemble_client, root, TABLE, "year=2013", "month=1")
    february = partition_hold(ensemble_client, root, TABLE, "year=2013", "month=2")
    answer = sluice("break", TABLE, "--partition", "year=2013/month=1", "--yes")
    assert answer.exit_code == 0, answer.output
    assert "year=2013/month=1" in answer.stdout
    assert not any(map(ensemble_client.exists, january))
    assert all(map(ensemble_client.exists, february))
    assert sluice("break", TABLE, "--partition", "year=2013", "--yes").exit_code == 0
    assert not any(map(ensemble_client.exists, february))


def test_a_host_name_without_an_address_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(host: str, *_: object, **__: object) -> list[object]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    started = time.monotonic()
    for command in (["status"], ["break", TABLE]):
        answer = CliRunner().invoke(app, [*command, "--zookeeper", "zk1.nowhere:2181,zk2.nowhere:2181"])
        assert answer.exit_code == 1
        assert "no address is known for the host name zk1.nowhere, zk2.nowhere" in answer.stderr
        assert len(answer.stderr.splitlines()) == 1
    assert time.monotonic() - started < INSPECTOR_SECONDS


def test_an_ensemble_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lock_manager.zookeeper.inspector.ANSWER_SECONDS", 0.5)
    for command in (["status"], ["break", TABLE]):
        answer = CliRunner().invoke(app, [*command, "--zookeeper", "127.0.0.1:1"])
        assert answer.exit_code == 1
        assert answer.stderr.startswith("sluice: ZooKeeper at 127.0.0.1:1 did not answer")
        assert len(answer.stderr.splitlines()) == 1
