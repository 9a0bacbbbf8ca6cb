"""Commits with an unknown outcome: how they are reported, and that a repetition makes no second copy.

The PUT of the version file gets only 500s, or is held back past S3A's timeouts and arrives before or after the
repetition. Or the PUT is stored, but its reply and the lock are lost; then the writer finds its commit in the log.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lock_manager import ZookeeperLockManager, canonical_table_uri
from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.s3_faults import FaultyS3, S3Fault
from tests.support.driver_process import IMPATIENT, WAIT, Driver
from tests.support.lock_znodes import LockZnodes, connected_client
from tests.support.s3_table import copy, count_stored_puts, rows
from tests.support.sessions import end_session

pytestmark = [pytest.mark.spark, pytest.mark.s3]

NAME = "writer-1"


@pytest.fixture(scope="module")
def driver(s3: FaultyS3, shared_driver: Driver) -> Driver:
    shared_driver.wait_until_ready()
    return shared_driver


@pytest.fixture(
    params=[
        pytest.param(IMPATIENT[0], id="createFile"),
        pytest.param(IMPATIENT[1], id="S3A's client", marks=pytest.mark.full),
    ]
)
def new_table(request: pytest.FixtureRequest) -> str:
    """The location of a table in a bucket, for each of the two ways to put a version."""
    return f"s3a://{request.param}/{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def original(driver: Driver) -> Callable[[int], str]:
    """Create a table with the ids 0 to 2 in ``files`` files, once for each number of files."""

    @functools.cache
    def make(files: int) -> str:
        name = f"s3a://{IMPATIENT[0]}/{uuid.uuid4().hex}"
        driver.do("append", table=name, first=0, end=3, files=files)
        return name

    return make


@pytest.fixture
def table(s3: FaultyS3, original: Callable[[int], str], new_table: str) -> str:
    copy(s3, original(1), new_table)
    return new_table


@pytest.fixture
def fault(s3: FaultyS3) -> Iterator[Callable[..., S3Fault]]:
    """Let every PUT of a commit fail: ``fault(status=500)``, or all after the first: ``fault(after=1, status=500)``.

    With ``held=True`` the first PUT waits, and its repetitions get a 500.
    """
    held_faults: list[S3Fault] = []

    def arm(*, after: int = 0, held: bool = False, status: int = 500) -> S3Fault:
        for _ in range(after):
            s3.gate.arm(NAME, S3Fault())
        if held:
            held_faults.append(s3.gate.arm(NAME, S3Fault(held=True)))
        errors = s3.gate.arm(NAME, S3Fault(times=99, status=status))
        return held_faults[-1] if held else errors

    yield arm
    s3.gate.disarm(NAME)
    for held_fault in held_faults:
        held_fault.release.set()


def put_statuses(s3: FaultyS3, table: str, version: int) -> list[int]:
    """Return the store's status for each PUT of a version that reached it."""
    folder = table.removeprefix("s3a://") + "/"
    return [put.status for put in s3.gate.puts if put.key.startswith(folder) and put.version == version]


@pytest.mark.parametrize(
    ("options", "arrives", "already_committed"),
    [
        ({"status": 500}, "never", False),
        ({"held": True}, "before", True),
        # The version is filled before the PUT arrives.
        ({"held": True}, "after", False),
    ],
    ids=["500 each time", "stored before it is repeated", "arrives after the repetition"],
)
def test_a_repeated_append_with_a_transaction_is_there_once(
    driver: Driver,
    s3: FaultyS3,
    table: str,
    fault: Callable[..., S3Fault],
    eventually: Callable[..., None],
    options: dict[str, Any],
    arrives: str,
    already_committed: bool,  # noqa: FBT001 (pytest passes it by name)
) -> None:
    append = {"command": "append_as", "table": table, "first": 10, "end": 12, "txn": ["app", 1]}
    put = fault(**options)
    driver.begin(**append)
    answer = driver.answer()
    s3.gate.disarm(NAME)
    assert answer.get("error") == "CommitUnknownError", answer
    assert "was committed is not known" in answer["message"]
    assert count_stored_puts(s3, table) == {0: 1}
    if arrives == "before":
        put.release.set()
        eventually(lambda: count_stored_puts(s3, table) == {0: 1, 1: 1}, label="the late PUT")
    repeated = driver.do(**append)
    assert repeated["already_committed"] is already_committed
    if arrives == "after":
        put.release.set()
        eventually(lambda: 412 in put_statuses(s3, table, 1), label="the end of the late PUT")
    assert rows(table) == [0, 1, 2, 10, 11]
    assert set(count_stored_puts(s3, table).values()) == {1}


def test_negative_control_a_repeated_append_is_a_second_copy(
    driver: Driver, s3: FaultyS3, table: str, fault: Callable[..., S3Fault], eventually: Callable[..., None]
) -> None:
    append = {"command": "append_as", "table": table, "first": 10, "end": 12, "txn": None}
    put = fault(held=True)
    driver.begin(**append)
    assert driver.answer()["error"] == "CommitUnknownError"
    s3.gate.disarm(NAME)
    put.release.set()
    eventually(lambda: count_stored_puts(s3, table) == {0: 1, 1: 1}, label="the late PUT")
    assert driver.do(**append)["already_committed"] is False
    assert rows(table) == [0, 1, 2, 10, 10, 11, 11]


def read_around_a_late_put(
    driver: Driver, s3: FaultyS3, table: str, fault: Callable[..., S3Fault], eventually: Callable[..., None]
) -> tuple[list[list[int]], bool]:
    """Read in a second block of the hold whose PUT got no answer, and then twice as the next holder.

    Returns:
        The ids of each read, and whether the second block had filled the version before its read.

    """
    put = fault(held=True)
    driver.begin("append_then_read", table=table, first=10, end=12)
    assert driver.answer() == {"done": "CommitUnknownError"}
    s3.gate.disarm(NAME)
    driver.send_line("go")
    second_block_ids = driver.answer()["done"]
    filled = count_stored_puts(s3, table).get(1) == 1
    driver.begin("read_twice", table=table)
    first_ids = driver.answer()["done"]
    put.release.set()
    eventually(put.ended.is_set, label="the end of the late PUT")
    driver.send_line("go")
    return [second_block_ids, first_ids, driver.answer()["done"]], filled


@pytest.mark.full
def test_a_later_block_of_the_hold_fills_the_version_of_a_put(
    driver: Driver, s3: FaultyS3, table: str, fault: Callable[..., S3Fault], eventually: Callable[..., None]
) -> None:
    reads, filled = read_around_a_late_put(driver, s3, table, fault, eventually)
    assert (reads, filled) == ([[0, 1, 2]] * 3, True)
    assert rows(table) == [0, 1, 2]
    assert set(count_stored_puts(s3, table).values()) == {1}


@pytest.mark.full
def test_negative_control_a_late_put_lands_between_two_reads(
    driver: Driver, s3: FaultyS3, table: str, fault: Callable[..., S3Fault], eventually: Callable[..., None]
) -> None:
    driver.do("settle_by_block")
    try:
        reads, filled = read_around_a_late_put(driver, s3, table, fault, eventually)
    finally:
        driver.do("protect_again")
    assert (reads, filled) == ([[0, 1, 2], [0, 1, 2], [0, 1, 2, 10, 11]], False)


@pytest.fixture
def load(driver: Driver, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the append job on a file of the ids 10 to 39: ``load(table, "--commits", "3")``."""
    source = tmp_path / "ids.csv"
    source.write_text("\n".join(["id", *map(str, range(10, 40))]) + "\n", encoding="utf-8")

    def run(table: str, *arguments: str) -> dict[str, Any]:
        report: dict[str, Any] = driver.do("job", arguments=["--table", table, "--source", str(source), *arguments])
        return report

    return run


def unknown_message(table: str) -> str:
    """Return the beginning of the message of exit code 6."""
    return f"append.py: whether the write to {table.replace('s3a:', 's3:')} was committed is not known: "


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        pytest.param({"held": True}, [], id="stored late, new table"),
        pytest.param({"held": True}, [0, 1, 2], id="stored late", marks=pytest.mark.soak),
        pytest.param({"status": 500}, [], id="500 each time, new table", marks=pytest.mark.soak),
    ],
)
def test_a_job_with_an_unknown_outcome_can_be_repeated(
    s3: FaultyS3,
    new_table: str,
    load: Callable[..., dict[str, Any]],
    fault: Callable[..., S3Fault],
    eventually: Callable[..., None],
    original: Callable[[int], str],
    options: dict[str, Any],
    ids: list[int],
) -> None:
    table, run = new_table, uuid.uuid4().hex
    if ids:
        copy(s3, original(1), table)
    put = fault(**options)
    failed = load(table, "--run-id", run)
    s3.gate.disarm(NAME)
    assert failed["code"] == 6, failed
    assert [line["event"] for line in failed["lines"]] == ["begun", "holding"]
    (sentence,) = failed["error"].splitlines()
    assert sentence.startswith(unknown_message(table))
    assert sentence.endswith("before writing again")
    put.release.set()
    already_committed = "held" in options
    if already_committed:
        eventually(lambda: len(count_stored_puts(s3, table)) == (2 if ids else 1), label="the late PUT")
    repeated = load(table, "--run-id", run)
    assert (repeated["code"], repeated["error"]) == (0, "")
    (commit,) = [line for line in repeated["lines"] if line["event"] == "commit"]
    assert commit["already_committed"] is already_committed
    assert rows(table) == [*ids, *range(10, 40)]
    assert set(count_stored_puts(s3, table).values()) == {1}


@pytest.mark.full
def test_a_failed_job_reports_its_earlier_commits(
    s3: FaultyS3,
    table: str,
    load: Callable[..., dict[str, Any]],
    fault: Callable[..., S3Fault],
) -> None:
    committed = 2
    arguments = ("--commits", "3", "--run-id", uuid.uuid4().hex)
    fault(after=committed, status=500)
    failed = load(table, *arguments)
    s3.gate.disarm(NAME)
    assert failed["code"] == 6, failed
    assert failed["error"].startswith(unknown_message(table))
    assert failed["error"].endswith(" (commits 1 to 2 of 3 are in the table)\n")
    assert [line["commit"] for line in failed["lines"] if line["event"] == "commit"] == list(range(1, committed + 1))
    repeated = load(table, *arguments)
    assert (repeated["code"], repeated["error"]) == (0, "")
    commits = [line for line in repeated["lines"] if line["event"] == "commit"]
    assert [line["already_committed"] for line in commits] == [True] * committed + [False] * (3 - committed)
    assert rows(table) == [0, 1, 2, *range(10, 40)]


IDS_AFTER = {
    "append": [0, 1, 2, 10, 11],
    "append as a transaction": [0, 1, 2, 10, 11],
    "overwrite": [10, 11],
    "overwrite where": [0, 1, 10, 11],
    "merge": [0, 1, 2, 10, 11],
    "delete": [0, 2],
    "update": [0, 2, 11],
    "optimize": [0, 1, 2],
    "statement": [0, 2, 11],
}
"""Ids in a table of 0, 1 and 2 after each operation of the driver."""
SOAK_OPERATIONS = ("append as a transaction", "overwrite where", "delete", "update", "optimize")


@pytest.fixture
def three_files(s3: FaultyS3, original: Callable[[int], str], new_table: str) -> str:
    """A table of three rows in three files, so that OPTIMIZE has work to do."""
    copy(s3, original(3), new_table)
    return new_table


@pytest.fixture
def lose(driver: Driver, ensemble_of_drivers: EmbeddedZooKeeper) -> Callable[[str, str], None]:
    """Let the driver lose its lock on a table, with its ``contender`` or its ``session``."""
    hosts = ensemble_of_drivers.hosts
    session_id, password = driver.do("session")

    def lose_lock(table: str, lost: str) -> None:
        if lost == "session":
            end_session(hosts, (session_id, bytes.fromhex(password)))
            return
        with connected_client(hosts) as client:
            (contender,) = LockZnodes(client, table).contenders()
            client.delete(contender)

    return lose_lock


@pytest.fixture
def next_holder(ensemble_of_drivers: EmbeddedZooKeeper) -> Iterator[ZookeeperLockManager]:
    with ZookeeperLockManager(ensemble_of_drivers.hosts, timeout_seconds=WAIT) as manager:
        yield manager


@pytest.fixture
def lose_reply_and_lock(
    driver: Driver,
    s3: FaultyS3,
    three_files: str,
    lose: Callable[[str, str], None],
    next_holder: ZookeeperLockManager,
    eventually: Callable[..., None],
) -> Iterator[Callable[..., dict[str, Any]]]:
    """Lose the reply to a PUT and the lock; let the next holder acquire the lock, and the PUT be repeated."""
    faults: list[S3Fault] = []

    def operate(operation: str, lost: str, *, rival: bool = False) -> dict[str, Any]:
        first = s3.gate.arm(NAME, S3Fault(held=True, rival=rival))
        repeated = s3.gate.arm(NAME, S3Fault(held=True))
        faults.extend((first, repeated))
        driver.begin("operate", table=three_files, operation=operation)
        assert first.arrived.wait(WAIT)
        lose(three_files, lost)
        # The first PUT is still held back, so the version looks free.
        assert repeated.arrived.wait(WAIT)
        first.release.set()
        assert first.ended.wait(WAIT)
        with next_holder.acquire(three_files) as hold:
            assert [intent.version for intent in hold.intents_of(canonical_table_uri(three_files)).read()] == [1]
            repeated.release.set()
            eventually(lambda: put_statuses(s3, three_files, 1)[-1:] == [412], label="the answer to the repeated PUT")
            return driver.answer()

    yield operate
    s3.gate.disarm(NAME)
    for fault in faults:
        fault.release.set()
    driver.do("protect_again")


@pytest.mark.full
@pytest.mark.parametrize(
    ("operation", "lost"),
    [
        *((operation, "contender") for operation in ("append", "overwrite", "merge", "statement")),
        ("append", "session"),
        pytest.param("statement", "session", marks=pytest.mark.soak),
        # The writer executes these like the operations above.
        *(pytest.param(operation, "contender", marks=pytest.mark.soak) for operation in SOAK_OPERATIONS),
    ],
)
def test_a_writer_finds_its_commit_after_lost_reply_and_lock(
    s3: FaultyS3,
    three_files: str,
    lose_reply_and_lock: Callable[..., dict[str, Any]],
    operation: str,
    lost: str,
) -> None:
    answer = lose_reply_and_lock(operation, lost)
    if operation == "statement":
        assert answer["error"] == "LockLostError", answer
        assert answer["commits"] == {canonical_table_uri(three_files): [1]}
    elif operation.startswith(("append", "optimize")):
        # The operation needs the lock for the commit alone, and finds its commit in the log.
        assert answer["done"]["version"] == 1, answer
    else:
        assert (answer["error"], answer["version"]) == ("UnprovenCommitError", 1), answer
    assert count_stored_puts(s3, three_files) == {0: 1, 1: 1}
    assert rows(three_files) == IDS_AFTER[operation]


@pytest.mark.full
def test_negative_control_without_the_search_the_outcome_is_unknown(
    driver: Driver, three_files: str, lose_reply_and_lock: Callable[..., dict[str, Any]]
) -> None:
    driver.do("find_no_commit")
    answer = lose_reply_and_lock("overwrite", "contender")
    assert (answer["error"], answer["version"]) == ("CommitUnknownError", None), answer
    assert rows(three_files) == IDS_AFTER["overwrite"]


@pytest.mark.full
@pytest.mark.parametrize("operation", ["append", "statement"])
def test_negative_control_the_version_of_a_rival_proves_nothing(
    s3: FaultyS3, three_files: str, lose_reply_and_lock: Callable[..., dict[str, Any]], operation: str
) -> None:
    answer = lose_reply_and_lock(operation, "contender", rival=True)
    assert (answer["error"], answer["version"], answer["commits"]) == ("LockLostError", None, {}), answer
    assert count_stored_puts(s3, three_files) == {0: 1, 1: 1}
    assert rows(three_files) == [0, 1, 2]


@pytest.mark.full
@pytest.mark.parametrize(
    "operation",
    [
        "delete",
        "merge as a transaction",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("update", "optimize")),
    ],
)
def test_an_empty_commit_does_not_prove_an_unanswered_operation(
    driver: Driver,
    s3: FaultyS3,
    three_files: str,
    fault: Callable[..., S3Fault],
    next_holder: ZookeeperLockManager,
    operation: str,
) -> None:
    with next_holder.acquire(three_files) as hold:
        # This holder ends between the guard's answer and its PUT.
        hold.intend(1, txn=None, attempt=uuid.uuid4().hex)
    # The first PUT is the empty commit.
    fault(after=1, status=500)
    driver.begin("operate", table=three_files, operation=operation, lock_during="commit")
    answer = driver.answer()
    assert answer.get("error") == "CommitUnknownError", answer
    s3.gate.disarm(NAME)
    assert count_stored_puts(s3, three_files) == {0: 1, 1: 1}
    assert rows(three_files) == [0, 1, 2]
