"""The coordinator is down: an ensemble without a quorum, an S3 that answers with errors, or that cannot be reached.

A request that waits or begins then ends with the documented error, no later than its deadline. A holder commits nothing
that the coordinator does not confirm. After a short outage the same hold goes on.
"""

from __future__ import annotations

import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lock_manager import (
    EnsembleRefusedError,
    EnsembleUnavailableError,
    Hold,
    LockManager,
    LockSettings,
    SluiceError,
    TableResource,
    canonical_table_uri,
)
from lock_manager.managers import inspector_of, manager_of
from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.s3_faults import FaultyS3, S3Fault
from soak.tcp_proxy import Link
from tests.support.waiting import eventually
from writer_jobs import append as append_module
from writer_jobs.commit.driver_guard import GUARD

pytestmark = pytest.mark.spark

TABLE = "s3://lake/table"
CREATE = "CREATE TABLE {t} USING delta AS SELECT id FROM range(3)"
SESSION_SECONDS = 20.0
"""Session timeout of the locks, in seconds. An outage takes 0.4 of it, in which a commit waits for its confirmation."""
WAIT_SECONDS = 7.0
"""Time limit of a request, in seconds. A request on S3 reports an outage only if that has lasted for 4 s."""
SLACK_SECONDS = 8.0
"""Time for the end of a request after its deadline, in seconds."""
LOCKS = re.compile(r"/locks/.*")
EVERYBODY = ""
"""Name for the gate of S3 of all processes that have no name."""


class Outage(ABC):
    """An outage of one coordinator.

    Attributes:
        url: URL of the coordinator.
        error: Error of a request that waits or begins during the outage.
        ends: Whether the outage can be ended.

    """

    url: str
    error: type[SluiceError] = EnsembleUnavailableError
    ends = True

    @abstractmethod
    def begin(self) -> None:
        """Begin the outage."""

    @abstractmethod
    def end(self) -> None:
        """End the outage."""

    def settings(self) -> LockSettings:
        return LockSettings.from_url(self.url, session_timeout_seconds=SESSION_SECONDS, timeout_seconds=30)

    def queue(self) -> list[str]:
        """Return the hold ids in the queue of the table; not during an outage."""
        with inspector_of(self.settings()) as inspector:
            return [entry.hold_id for entry in inspector.table(TableResource.of(TABLE)).entries]


class NoQuorum(Outage):
    """An ensemble of three servers. Two of them are killed."""

    def __init__(self, ensemble: EmbeddedZooKeeper) -> None:
        self.url = f"zookeeper://{ensemble.hosts}"
        self._servers = ensemble.servers[1:]

    def begin(self) -> None:
        for server in self._servers:
            if not server.has_ended():
                server.kill()

    def end(self) -> None:
        for server in self._servers:
            if server.has_ended():
                server.start()
        for server in self._servers:
            server.wait_until_serving(time.monotonic() + 60)


class S3Errors(Outage):
    """An S3 that answers each request for a lock with an error."""

    def __init__(self, s3: FaultyS3, url: str, status: int, error: type[SluiceError]) -> None:
        self.url, self.error = url, error
        self._gate, self._status = s3.gate, status

    def begin(self) -> None:
        fault = S3Fault(status=self._status, times=10**9, keys=LOCKS, methods=frozenset({"GET", "PUT"}))
        self._gate.arm(EVERYBODY, fault)

    def end(self) -> None:
        self._gate.disarm(EVERYBODY)


class S3Unreachable(Outage):
    """An S3 that refuses connections."""

    ends = False

    def __init__(self, link: Link, url: str) -> None:
        self.url = url
        self._link = link

    def begin(self) -> None:
        self._link.close()

    def end(self) -> None:
        """Do nothing: the port of the proxy is closed for good."""


@pytest.fixture(scope="module")
def faulty_s3() -> Iterator[FaultyS3]:
    with FaultyS3() as s3:
        s3.create_bucket("locks")
        yield s3


@pytest.fixture(scope="module")
def ensemble_of_three() -> Iterator[EmbeddedZooKeeper]:
    with EmbeddedZooKeeper(3) as ensemble:
        yield ensemble


def outages(quick: str) -> pytest.MarkDecorator:
    """Run a test with each outage. Only one of them is part of ``make test``."""
    names = ("503", "403", "unreachable", "no quorum")
    params = [pytest.param(name, marks=() if name == quick else pytest.mark.full) for name in names]
    return pytest.mark.parametrize("outage", params, indirect=True)


@pytest.fixture
def outage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outage]:
    if request.param == "no quorum":
        outage: Outage = NoQuorum(request.getfixturevalue("ensemble_of_three"))
        yield outage
        outage.end()
        return
    s3, url = request.getfixturevalue("faulty_s3"), f"s3-lease://locks/{tmp_path.name}"
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    if request.param == "unreachable":
        with Link(s3.endpoint.removeprefix("http://")) as link:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{link.hosts}")
            yield S3Unreachable(link, url)
        return
    error = EnsembleRefusedError if request.param == "403" else EnsembleUnavailableError
    outage = S3Errors(s3, url, int(request.param), error)
    yield outage
    outage.end()


@pytest.fixture
def managers(outage: Outage) -> Iterator[list[LockManager]]:
    with ExitStack() as stack:
        yield [stack.enter_context(manager_of(outage.settings())) for _ in range(3)]


def confirms(hold: Hold) -> bool:
    """Return whether the coordinator confirms a hold. If it does not answer, the hold must not be lost."""
    try:
        hold.check()
    except EnsembleUnavailableError:
        return False
    return True


@outages("503")
def test_each_request_ends_in_time_and_the_hold_goes_on(outage: Outage, managers: list[LockManager]) -> None:
    holder, waiting, new = managers
    hold = holder.acquire(TABLE)
    with ThreadPoolExecutor(3) as pool:
        # Its time includes that until the outage.
        requests = [pool.submit(waiting.acquire, TABLE, timeout_seconds=2 * WAIT_SECONDS)]
        eventually(lambda: len(outage.queue()) == 2)
        outage.begin()
        began = time.monotonic()
        requests += [
            pool.submit(new.acquire, TABLE, timeout_seconds=WAIT_SECONDS),
            pool.submit(hold.intend, 1, txn=None, attempt="during the outage"),
        ]
        errors = [request.exception(60) for request in requests]
        assert time.monotonic() - began < 0.4 * SESSION_SECONDS + SLACK_SECONDS
    assert [type(error) for error in errors] == [outage.error] * 3
    if not outage.ends:
        return
    outage.end()
    eventually(lambda: confirms(hold))
    hold.intend(2, txn=None, attempt="after the outage")
    hold.intents.settle(["after the outage"])
    hold.release()
    with new.acquire(TABLE) as next_hold:
        assert next_hold.token > hold.token
        assert next_hold.intents.unfinished == ()


class Job:
    """The append job on a table of one version."""

    def __init__(self, outage: Outage, table: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.outage, self.table = outage, table
        self.metrics_file = source.with_name("job.prom")
        self._source, self._capsys = source, capsys
        self.files = self.existing_files()

    def existing_files(self) -> list[Path]:
        return sorted(path for path in self.table.rglob("*") if path.is_file())

    def run(self) -> tuple[int, str]:
        """Run the job; return its exit code and its standard error."""
        self._capsys.readouterr()
        options = ("--lock-url", self.outage.url, "--lock-timeout", "3", "--source", str(self._source))
        code = append_module.main(["--table", str(self.table), *options, "--metrics", str(self.metrics_file)])
        return code, self._capsys.readouterr().err

    def counted_failures(self) -> dict[str, float]:
        """Return the counted failures of the coordinator for the table, by error."""
        return {
            sample.labels["error"]: sample.value
            for family in text_string_to_metric_families(self.metrics_file.read_text())
            for sample in family.samples
            if sample.name == "sluice_coordinator_failures_total"
            and sample.labels["table"] == canonical_table_uri(self.table)
        }


@pytest.fixture
def job(
    outage: Outage,
    copy_of: Callable[..., Path],
    csv_file: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Job:
    # A commit waits for its confirmation for a part of this time.
    monkeypatch.setenv("SLUICE_SESSION_TIMEOUT_SECONDS", "3")
    return Job(outage, copy_of(CREATE), csv_file("rows.csv", "id", [(7,)]), capsys)


@outages("403")
def test_a_new_job_exits_with_3_and_writes_nothing(job: Job) -> None:
    job.outage.begin()
    code, error = job.run()
    assert code == 3, error
    (line,) = error.splitlines()
    assert line.startswith(f"append.py: {'ZooKeeper' if 'zookeeper' in job.outage.url else 'S3'} at ")
    assert job.counted_failures() == {job.outage.error.__name__: 1}
    assert job.existing_files() == job.files


def begin_at_the_commit(outage: Outage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the outage begin when the guard is asked about the commit, while the lock is held."""
    check = GUARD.check

    def begin_and_check(request: str) -> str:
        if json.loads(request)["kind"] == "commit":
            outage.begin()
        return check(request)

    monkeypatch.setattr(GUARD, "check", begin_and_check)


@outages("403")
def test_a_job_exits_with_4_if_its_commit_is_not_confirmed(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_at_the_commit(job.outage, monkeypatch)
    code, error = job.run()
    assert code == 4, error
    assert "not confirmed" in error
    assert job.counted_failures() == {job.outage.error.__name__: 1}
    assert job.existing_files() == job.files


@outages("403")
def test_negative_control_in_observe_mode_the_commit_passes(
    job: Job, monkeypatch: pytest.MonkeyPatch, without_guard: Callable[..., AbstractContextManager[None]]
) -> None:
    begin_at_the_commit(job.outage, monkeypatch)
    with without_guard("observe"):
        code, error = job.run()
    # Committed, but not confirmed.
    assert code == 7, error
    assert len(job.existing_files()) > len(job.files)
