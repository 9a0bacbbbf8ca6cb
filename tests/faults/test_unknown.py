"""Commits of which nobody knows for a while: how that is said, and that doing them again makes no second copy.

The version file's PUT gets only 500s, or is held back past S3A's patience and arrives before or after the repetition.
Or it is stored, its reply is lost and the lock, too: the writer finds its own commit all the same.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from lock_manager import ZookeeperLockManager, canonical_table_uri
from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.s3_faults import FaultyS3, S3Fault
from tests.support.at_the_gate import contenders
from tests.support.driver_process import IMPATIENT, WAIT, Driver
from tests.support.s3_table import copy, rows, stored
from tests.support.sessions import end_session

pytestmark = [pytest.mark.spark, pytest.mark.s3]

NAME = "writer-1"


@pytest.fixture(scope="module")
def ensemble(ensemble_of_drivers: EmbeddedZooKeeper) -> EmbeddedZooKeeper:
    return ensemble_of_drivers


@pytest.fixture(scope="module")
def driver(s3: FaultyS3, shared_driver: Driver) -> Driver:
    shared_driver.wait_until_ready()
    return shared_driver


@pytest.fixture
def new_table() -> str:
    return f"s3a://{IMPATIENT}/{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def original(driver: Driver) -> Callable[[int], str]:
    """Make a table of the ids 0 to 2 in so many files, once."""

    @functools.cache
    def make(files: int) -> str:
        name = f"s3a://{IMPATIENT}/{uuid.uuid4().hex}"
        driver.do("append", table=name, first=0, end=3, files=files)
        return name

    return make


@pytest.fixture
def table(s3: FaultyS3, original: Callable[[int], str], new_table: str) -> str:
    copy(s3, original(1), new_table)
    return new_table


@pytest.fixture
def fault(s3: FaultyS3) -> Iterator[Callable[..., S3Fault]]:
    """Spoil every PUT of a commit: ``fault(status=500)``, or of a later one: ``fault(after=1, status=500)``.

    With ``held=True`` the first one waits, and those by which it is repeated get a 500.
    """
    armed: list[S3Fault] = []

    def arm(*, after: int = 0, held: bool = False, status: int = 500) -> S3Fault:
        for _ in range(after):
            s3.gate.arm(NAME, S3Fault())
        if held:
            armed.append(s3.gate.arm(NAME, S3Fault(held=True)))
        every = s3.gate.arm(NAME, S3Fault(times=99, status=status))
        return armed[-1] if held else every

    yield arm
    s3.gate.disarm(NAME)
    for each in armed:
        each.release.set()


def answers(s3: FaultyS3, table: str, version: int) -> list[int]:
    """Return what the store said to each PUT of a version that reached it."""
    folder = table.removeprefix("s3a://") + "/"
    return [put.status for put in s3.gate.puts if put.key.startswith(folder) and put.version == version]


@pytest.mark.parametrize(
    ("how", "arrives", "already_committed"),
    [
        ({"status": 500}, "never", False),
        ({"held": True}, "before", True),
        # By then its version is filled.
        ({"held": True}, "after", False),
    ],
    ids=["500 each time", "stored before it is repeated", "put late"],
)
def test_an_append_that_may_be_stored_is_repeated_as_the_same_transaction_and_there_once(
    driver: Driver,
    s3: FaultyS3,
    table: str,
    fault: Callable[..., S3Fault],
    eventually: Callable[..., None],
    how: dict[str, Any],
    arrives: str,
    already_committed: bool,  # noqa: FBT001 (pytest gives it by name)
) -> None:
    append = {"do": "append_as", "table": table, "first": 10, "end": 12, "txn": ["app", 1]}
    spoiled = fault(**how)
    driver.begin(**append)
    answer = driver.answer()
    s3.gate.disarm(NAME)
    assert answer.get("error") == "CommitUnknownError", answer
    assert "was committed is not known" in answer["message"]
    assert stored(s3, table) == {0: 1}
    if arrives == "before":
        spoiled.release.set()
        eventually(lambda: stored(s3, table) == {0: 1, 1: 1}, what="the late PUT")
    done = driver.do(**append)
    assert done["already_committed"] is already_committed
    if arrives == "after":
        spoiled.release.set()
        eventually(lambda: 412 in answers(s3, table, 1), what="the end of the late PUT")
    assert rows(table) == [0, 1, 2, 10, 11]
    assert set(stored(s3, table).values()) == {1}


def test_negative_control_without_a_transaction_the_repetition_is_a_second_copy(
    driver: Driver, s3: FaultyS3, table: str, fault: Callable[..., S3Fault], eventually: Callable[..., None]
) -> None:
    append = {"do": "append_as", "table": table, "first": 10, "end": 12, "txn": None}
    spoiled = fault(held=True)
    driver.begin(**append)
    assert driver.answer()["error"] == "CommitUnknownError"
    s3.gate.disarm(NAME)
    spoiled.release.set()
    eventually(lambda: stored(s3, table) == {0: 1, 1: 1}, what="the late PUT")
    assert driver.do(**append)["already_committed"] is False
    assert rows(table) == [0, 1, 2, 10, 10, 11, 11]


def look_twice_around_the_late_put(
    driver: Driver, s3: FaultyS3, table: str, fault: Callable[..., S3Fault], eventually: Callable[..., None]
) -> tuple[list[list[int]], bool]:
    """Look in a second block of the hold under which nobody answered, then as the next holder, twice.

    Returns:
        What was found each time, and whether the second block has filled the version before it looked.

    """
    spoiled = fault(held=True)
    driver.begin("append_then_look", table=table, first=10, end=12)
    assert driver.answer() == {"done": "CommitUnknownError"}
    s3.gate.disarm(NAME)
    driver.tell("go")
    in_the_second_block = driver.answer()["done"]
    filled = stored(s3, table).get(1) == 1
    driver.begin("read_twice", table=table)
    read = driver.answer()["done"]
    spoiled.release.set()
    eventually(spoiled.ended.is_set, what="the end of the late PUT")
    driver.tell("go")
    return [in_the_second_block, read, driver.answer()["done"]], filled


def test_a_put_of_one_block_is_not_forgotten_by_a_later_block_of_the_same_hold(
    driver: Driver, s3: FaultyS3, table: str, fault: Callable[..., S3Fault], eventually: Callable[..., None]
) -> None:
    looks, filled = look_twice_around_the_late_put(driver, s3, table, fault, eventually)
    assert (looks, filled) == ([[0, 1, 2]] * 3, True)
    assert rows(table) == [0, 1, 2]
    assert set(stored(s3, table).values()) == {1}


def test_negative_control_if_a_block_settles_what_another_left_open_it_lands_between_two_reads_under_one_lock(
    driver: Driver, s3: FaultyS3, table: str, fault: Callable[..., S3Fault], eventually: Callable[..., None]
) -> None:
    driver.do("settle_by_block")
    try:
        looks, filled = look_twice_around_the_late_put(driver, s3, table, fault, eventually)
    finally:
        driver.do("protect_again")
    assert (looks, filled) == ([[0, 1, 2], [0, 1, 2], [0, 1, 2, 10, 11]], False)


@pytest.fixture
def load(driver: Driver, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the append job on a file of the ids 10 to 39: ``load(table, "--commits", "3")``."""
    source = tmp_path / "ids.csv"
    source.write_text("\n".join(["id", *map(str, range(10, 40))]) + "\n", encoding="utf-8")

    def run(table: str, *arguments: str) -> dict[str, Any]:
        done: dict[str, Any] = driver.do("job", arguments=["--table", table, "--source", str(source), *arguments])
        return done

    return run


def said(table: str) -> str:
    """Return how the sentence of exit code 6 begins."""
    return f"append.py: whether the write to {table.replace('s3a:', 's3:')} was committed is not known: "


@pytest.mark.parametrize(
    ("how", "before"),
    [
        pytest.param({"held": True}, [], id="stored late, of a new table"),
        pytest.param({"held": True}, [0, 1, 2], id="stored late", marks=pytest.mark.soak),
        pytest.param({"status": 500}, [], id="500 each time, of a new table", marks=pytest.mark.soak),
    ],
)
def test_a_job_that_cannot_know_ends_with_code_6_and_started_again_completes_its_run(
    s3: FaultyS3,
    new_table: str,
    load: Callable[..., dict[str, Any]],
    fault: Callable[..., S3Fault],
    eventually: Callable[..., None],
    original: Callable[[int], str],
    how: dict[str, Any],
    before: list[int],
) -> None:
    table, run = new_table, uuid.uuid4().hex
    if before:
        copy(s3, original(1), table)
    spoiled = fault(**how)
    failed = load(table, "--run-id", run)
    s3.gate.disarm(NAME)
    assert failed["code"] == 6, failed
    assert [line["event"] for line in failed["lines"]] == ["begun", "holding"]
    (sentence,) = failed["error"].splitlines()
    assert sentence.startswith(said(table))
    assert sentence.endswith("before writing again")
    spoiled.release.set()
    already_committed = "held" in how
    if already_committed:
        eventually(lambda: len(stored(s3, table)) == (2 if before else 1), what="the late PUT")
    done = load(table, "--run-id", run)
    assert (done["code"], done["error"]) == (0, "")
    (commit,) = [line for line in done["lines"] if line["event"] == "commit"]
    assert commit["already_committed"] is already_committed
    assert rows(table) == [*before, *range(10, 40)]
    assert set(stored(s3, table).values()) == {1}


def test_a_job_says_which_of_its_commits_were_made_before_the_one_that_failed(
    s3: FaultyS3,
    table: str,
    load: Callable[..., dict[str, Any]],
    fault: Callable[..., S3Fault],
) -> None:
    made = 2
    arguments = ("--commits", "3", "--run-id", uuid.uuid4().hex)
    fault(after=made, status=500)
    failed = load(table, *arguments)
    s3.gate.disarm(NAME)
    assert failed["code"] == 6, failed
    assert failed["error"].startswith(said(table))
    assert failed["error"].endswith(" (commits 1 to 2 of 3 are in the table)\n")
    assert [line["commit"] for line in failed["lines"] if line["event"] == "commit"] == list(range(1, made + 1))
    done = load(table, *arguments)
    assert (done["code"], done["error"]) == (0, "")
    commits = [line for line in done["lines"] if line["event"] == "commit"]
    assert [line["already_committed"] for line in commits] == [True] * made + [False] * (3 - made)
    assert rows(table) == [0, 1, 2, *range(10, 40)]


AFTERWARDS = {
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
"""Ids in a table of 0, 1 and 2 after each operation of the driver's."""
LIKEWISE = ("append as a transaction", "overwrite where", "delete", "update", "optimize")


@pytest.fixture
def three_files(s3: FaultyS3, original: Callable[[int], str], new_table: str) -> str:
    """A table of three rows, each in a file of its own: there is something to optimize."""
    copy(s3, original(3), new_table)
    return new_table


@pytest.fixture
def lose(driver: Driver, ensemble: EmbeddedZooKeeper) -> Callable[[str, str], None]:
    """Take the driver's lock on a table away: its contender, or the session that keeps it."""

    def take(table: str, what: str) -> None:
        if what == "session":
            number, password = session
            end_session(ensemble.hosts, (number, bytes.fromhex(password)))
            return
        client = KazooClient(ensemble.hosts)
        client.start()
        (contender,) = contenders(client, table)
        client.delete(contender)
        client.stop()
        client.close()

    session = driver.do("session")
    return take


@pytest.fixture
def next_holder(ensemble: EmbeddedZooKeeper) -> Iterator[ZookeeperLockManager]:
    with ZookeeperLockManager(ensemble.hosts, timeout_seconds=WAIT) as manager:
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
    """Have an operation's PUT answered to nobody, its lock lost and given on, and its PUT repeated then."""
    faults: list[S3Fault] = []

    def play(operation: str, lost: str, *, rival: bool = False) -> dict[str, Any]:
        first = s3.gate.arm(NAME, S3Fault(held=True, rival=rival))
        again = s3.gate.arm(NAME, S3Fault(held=True))
        faults.extend((first, again))
        driver.begin("operate", table=three_files, operation=operation)
        assert first.arrived.wait(WAIT)
        lose(three_files, lost)
        # It has waited for the reply, and found the version free.
        assert again.arrived.wait(WAIT)
        first.release.set()
        assert first.ended.wait(WAIT)
        with next_holder.acquire(three_files) as hold:
            assert [intent.version for intent in hold.intents_of(canonical_table_uri(three_files)).read()] == [1]
            again.release.set()
            eventually(lambda: answers(s3, three_files, 1)[-1:] == [412], what="the answer to the repeated PUT")
            return driver.answer()

    yield play
    s3.gate.disarm(NAME)
    for each in faults:
        each.release.set()
    driver.do("protect_again")


@pytest.mark.parametrize(
    ("operation", "lost"),
    [
        *((operation, "contender") for operation in ("append", "overwrite", "merge", "statement")),
        ("append", "session"),
        pytest.param("statement", "session", marks=pytest.mark.soak),
        # The writer does these as it does one of those above.
        *(pytest.param(operation, "contender", marks=pytest.mark.soak) for operation in LIKEWISE),
    ],
)
def test_a_commit_whose_reply_and_lock_were_lost_is_found_by_the_writer_that_puts_it_again(
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
        # The lock was held for the commit alone, and the next holder has found that.
        assert answer["done"]["version"] == 1, answer
    else:
        assert (answer["error"], answer["version"]) == ("UnprovenCommitError", 1), answer
    assert stored(s3, three_files) == {0: 1, 1: 1}
    assert rows(three_files) == AFTERWARDS[operation]


def test_negative_control_a_writer_that_finds_no_commit_of_its_own_does_not_know_of_it(
    driver: Driver, three_files: str, lose_reply_and_lock: Callable[..., dict[str, Any]]
) -> None:
    driver.do("find_no_commit")
    answer = lose_reply_and_lock("overwrite", "contender")
    assert (answer["error"], answer["version"]) == ("CommitUnknownError", None), answer
    assert rows(three_files) == AFTERWARDS["overwrite"]


@pytest.mark.parametrize("operation", ["append", "statement"])
def test_negative_control_a_version_that_is_a_rival_s_is_not_taken_for_ones_own(
    s3: FaultyS3, three_files: str, lose_reply_and_lock: Callable[..., dict[str, Any]], operation: str
) -> None:
    answer = lose_reply_and_lock(operation, "contender", rival=True)
    assert (answer["error"], answer["version"], answer["commits"]) == ("LockLostError", None, {}), answer
    assert stored(s3, three_files) == {0: 1, 1: 1}
    assert rows(three_files) == [0, 1, 2]


@pytest.mark.parametrize(
    "operation",
    [
        "delete",
        "merge as a transaction",
        *(pytest.param(name, marks=pytest.mark.soak) for name in ("update", "optimize")),
    ],
)
def test_an_empty_commit_does_not_prove_an_operation_whose_put_has_no_answer(
    driver: Driver,
    s3: FaultyS3,
    three_files: str,
    fault: Callable[..., S3Fault],
    next_holder: ZookeeperLockManager,
    operation: str,
) -> None:
    with next_holder.acquire(three_files) as hold:
        # This holder dies between the permission and its PUT.
        hold.intend(1, txn=None, attempt=uuid.uuid4().hex)
    # The first PUT is the empty commit.
    fault(after=1, status=500)
    driver.begin("operate", table=three_files, operation=operation, lock_during="commit")
    answer = driver.answer()
    assert answer.get("error") == "CommitUnknownError", answer
    s3.gate.disarm(NAME)
    assert stored(s3, three_files) == {0: 1, 1: 1}
    assert rows(three_files) == [0, 1, 2]
