"""Jobs on a YARN of one node, submitted with the arguments that ``sluice submit-args`` prints.

The drivers run with an interpreter that has neither PySpark nor Sluice: YARN gives them the files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sluice.audit.verify import verify_table
from sluice.submit.distribution import conf_arguments
from tests.support import cluster_mode_page as page
from tests.support.at_the_gate import commit_info
from tests.support.java_program import SPARK_HOME
from tests.support.releases import SPARK
from tests.support.rivals import RivalManager
from tests.support.yarn import WAIT, Application, Yarn, yarn_cluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(SPARK < (4, 2), reason="the tests pin the YARN of Spark 4.2's Hadoop"),
]

Row = tuple[int, str]
PYTHON = Path(sys.base_prefix) / "bin" / "python3"
WRITERS = 5
full, soak = (partial(pytest.param, marks=mark) for mark in (pytest.mark.full, pytest.mark.soak))
DO_NOT_WAIT = {"spark.yarn.submit.waitAppCompletion": "false"}


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yarn]:
    with yarn_cluster(tmp_path_factory.mktemp("yarn")) as cluster:
        yield cluster


def submit_args(*arguments: str) -> list[str]:
    """Return the words that ``sluice submit-args`` prints."""
    command = [sys.executable, "-m", "sluice", "submit-args", *arguments]
    return shlex.split(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def some_rows(first: int, end: int) -> list[Row]:
    return [(number, f"name {number}") for number in range(first, end)]


@dataclass
class Jobs:
    """Applications that write one table.

    Attributes:
        yarn: The cluster.
        hosts: The ensemble.
        folder: Folder of the table, the sources and the reports.
        rows_of: Reads a table.
        eventually: Waits for a condition.

    """

    yarn: Yarn
    hosts: str
    folder: Path
    rows_of: Callable[..., list[Row]]
    eventually: Callable[..., None]
    applications: list[Application] = field(default_factory=list)

    @property
    def table(self) -> Path:
        return self.folder / "table"

    @property
    def uri(self) -> str:
        return f"file:{self.table}"

    @property
    def rows(self) -> list[Row]:
        """All rows of the table, sorted by their number."""
        return sorted(self.rows_of(self.table, "id", "name"))

    def append(
        self,
        name: str,
        rows: list[Row],
        *arguments: str,
        deploy_mode: str = "cluster",
        conf: dict[str, str] | None = None,
    ) -> Application:
        """Submit ``append.py`` with a file of these rows and a report of this name.

        ``conf`` follows the arguments of ``sluice submit-args``.
        """
        *settings, script = submit_args("append")
        command = [
            *settings, *conf_arguments(conf or {}), script, "--zookeeper", self.hosts, "--table", str(self.table),
            "--source", str(self.source(name, rows)), "--report", str(self.folder / f"{name}.json"), *arguments,
        ]  # fmt: skip
        return self.submit(name, command, deploy_mode=deploy_mode)

    def source(self, name: str, rows: list[Row]) -> Path:
        """Write rows to a file."""
        file = self.folder / f"{name}.csv"
        file.write_text("id,name\n" + "".join(f"{number},{text}\n" for number, text in rows))
        return file

    def run(self, name: str, command: str) -> Application:
        """Run a command of the page with the test's ensemble, and check that it succeeds."""
        words: list[str] = []
        for part in re.split(r"\$\((.*?)\)", command.replace("\\\n", " ")):
            is_substitution = part.startswith("sluice submit-args")
            words += submit_args(*part.split()[2:]) if is_substitution else shlex.split(part)
        assert words[:5] == ["spark-submit", "--master", "yarn", "--deploy-mode", "cluster"]
        application = self.submit(name, [word.replace(page.JOB["--zookeeper"], self.hosts) for word in words[5:]])
        assert application.wait() == 0, application.output.read_text()
        return application

    def submit(self, name: str, arguments: list[str], *, deploy_mode: str = "cluster") -> Application:
        """Submit an application with these arguments of ``spark-submit``."""
        application = self.yarn.submit(
            SPARK_HOME, PYTHON, arguments, self.folder / f"{name}.txt", deploy_mode=deploy_mode
        )
        self.applications.append(application)
        return application

    def has_report(self, name: str) -> bool:
        """Return whether the report of a job is complete."""
        file = self.folder / f"{name}.json"
        return file.exists() and file.read_text().endswith("}\n")

    def report(self, name: str) -> dict[str, Any]:
        """Return the report of a job."""
        report: dict[str, Any] = json.loads((self.folder / f"{name}.json").read_text())
        return report

    def jvm(self, application: Application, container: str) -> int:
        """Wait for a container of an application, such as ``01_000002``; return the process id of its JVM."""
        pids: list[int] = []

        def runs() -> bool:
            assert application.process.poll() is None, application.output.read_text()
            names = self.yarn.containers(application.id) if application.id else []
            pids[:] = [pid for name in names if name.endswith(container) and (pid := self.yarn.java_pid(name))]
            return bool(pids)

        self.eventually(runs, within=WAIT, label=f"container {container}")
        return pids[0]

    def attempts(self, application: Application) -> int:
        """Return how often YARN ran the driver of an application."""
        assert application.id is not None
        return len([name for name in self.yarn.containers(application.id) if name.endswith("_000001")])

    def end(self) -> None:
        """End all applications that still run."""
        for application in self.applications:
            if application.process.poll() is None:
                if application.id is not None:
                    self.yarn.kill(application.id)
                application.process.kill()
                application.wait()


@pytest.fixture
def jobs(
    yarn: Yarn, zookeeper: Any, tmp_path: Path, rows_of: Callable[..., list[Row]], eventually: Callable[..., None]
) -> Iterator[Jobs]:
    jobs = Jobs(yarn, zookeeper.hosts, tmp_path, rows_of, eventually)
    yield jobs
    jobs.end()


@pytest.mark.full
def test_an_append_in_cluster_mode_needs_nothing_on_the_node(jobs: Jobs) -> None:
    for module in ("pyspark", "lock_manager", "writer_jobs", "kazoo", "delta"):
        importing = subprocess.run(
            [PYTHON, "-c", f"import {module}"], cwd=jobs.folder, capture_output=True, check=False
        )
        assert b"ModuleNotFoundError" in importing.stderr
    command = page.SUBMIT.replace(page.JOB["--table"], str(jobs.table)).replace(page.REPORT, f"{jobs.folder}/job.json")
    application = jobs.run("job", command.replace(page.JOB["--source"], str(jobs.source("job", some_rows(0, 10)))))
    report = jobs.report("job")
    assert (report["exit_code"], report["error"], report["application"]) == (0, None, application.id)
    assert jobs.rows == some_rows(0, 10)
    (commit,) = report["commits"]
    # The guard in the driver confirmed the hold.
    assert commit_info(jobs.table, 0)["sluice"]["hold"] == commit["hold_id"]
    assert "attempt" in commit_info(jobs.table, 0)["sluice"]
    assert verify_table(jobs.table).problems == ()


@pytest.mark.parametrize(
    ("deploy_mode", "conf", "arguments", "submit_code", "code", "message"),
    [
        full("cluster", {}, ["--commits", "0"], 1, 2, "'0' is not a whole number"),
        soak("cluster", DO_NOT_WAIT, ["--commits", "0"], 0, 2, "'0' is not a whole number"),
        soak("cluster", {}, ["--format", "json"], 1, 5, "which is not one JSON object"),
        soak("client", {}, ["--format", "json"], 5, 5, "which is not one JSON object"),
    ],
    ids=["bad argument", "without waiting", "refused write", "client mode"],
)
def test_the_report_has_the_exit_code_of_a_failed_job(
    jobs: Jobs, deploy_mode: str, conf: dict[str, str], arguments: list[str], submit_code: int, code: int, message: str
) -> None:
    application = jobs.append("job", some_rows(0, 1), *arguments, deploy_mode=deploy_mode, conf=conf)
    assert application.wait() == submit_code, application.output.read_text()
    jobs.eventually(lambda: jobs.has_report("job"), within=WAIT, label="the report")
    report = jobs.report("job")
    assert report["exit_code"] == code
    assert message in report["error"]
    assert report["finished_at"] is not None
    assert not jobs.table.exists()
    if deploy_mode == "cluster":
        assert jobs.attempts(application) == 1


@pytest.mark.parametrize(
    ("attempts", "arguments", "expected"),
    [
        full(1, (), "a part"),
        soak(2, ("--run-id", "r"), "all once"),
        # The negative control: an attempt that our arguments do not allow.
        full(2, (), "a part twice"),
    ],
    ids=["our arguments", "attempts of a run", "negative control"],
)
def test_a_killed_driver_adds_no_row_twice(
    jobs: Jobs, make_rival: Callable[..., RivalManager], attempts: int, arguments: tuple[str, ...], expected: str
) -> None:
    rival = make_rival(timeout_seconds=WAIT)
    conf = {} if attempts == 1 else {"spark.yarn.maxAppAttempts": str(attempts)}
    first = rival.acquire(jobs.uri)
    application = jobs.append("job", some_rows(0, 20), "--commits", "2", *arguments, conf=conf)
    jobs.eventually(lambda: len(rival.queue(jobs.uri)) == 2, within=WAIT, label="the job in the queue")
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(rival.acquire, jobs.uri)
        jobs.eventually(lambda: len(rival.queue(jobs.uri)) == 3, within=WAIT, label="the rival behind the job")
        first.release()
        hold = second.result()
    jobs.eventually(lambda: len(rival.queue(jobs.uri)) == 2, within=WAIT, label="the job's second request")
    part = jobs.rows
    os.kill(jobs.jvm(application, "01_000001"), signal.SIGKILL)
    jobs.eventually(lambda: len(rival.queue(jobs.uri)) == 1, within=WAIT, label="the end of the killed driver")
    hold.release()
    assert application.wait() == (1 if attempts == 1 else 0), application.output.read_text()
    assert 0 < len(part) < 20
    assert jobs.rows == sorted({
        "a part": part, "all once": some_rows(0, 20), "a part twice": part + some_rows(0, 20),
    }[expected])  # fmt: skip
    assert jobs.attempts(application) == attempts
    assert jobs.report("job")["exit_code"] == (None if attempts == 1 else 0)


@pytest.mark.soak
def test_a_killed_application_commits_nothing_and_frees_its_lock(
    jobs: Jobs, make_rival: Callable[..., RivalManager]
) -> None:
    rival = make_rival(timeout_seconds=WAIT)
    with rival.acquire(jobs.uri):
        killed = jobs.append("killed", some_rows(0, 10), "--hold", "write")
        jobs.eventually(lambda: len(rival.queue(jobs.uri)) == 2, within=WAIT, label="the job in the queue")
        # With its executor paused, the write does not end.
        os.kill(jobs.jvm(killed, "01_000002"), signal.SIGSTOP)
    next_job = jobs.append("next", some_rows(10, 20))
    jobs.eventually(lambda: len(rival.queue(jobs.uri)) == 2, within=WAIT, label="the next job in the queue")
    holder = rival.queue(jobs.uri)[0].hold_id
    assert killed.id is not None
    jobs.yarn.kill(killed.id)
    jobs.eventually(
        lambda: holder not in {contender.hold_id for contender in rival.queue(jobs.uri)},
        within=WAIT,
        label="the end of the hold",
    )
    assert killed.wait() == 1
    assert next_job.wait() == 0, next_job.output.read_text()
    assert jobs.rows == some_rows(10, 20)
    assert verify_table(jobs.table).problems == ()
    # YARN sends SIGTERM before it kills.
    assert jobs.report("killed")["exit_code"] in (None, 143)


@pytest.mark.soak
def test_five_writers_at_once_add_each_row_once(jobs: Jobs) -> None:
    applications = [
        jobs.append(f"job-{number}", some_rows(10 * number, 10 * number + 10), "--commits", "2")
        for number in range(WRITERS)
    ]
    for application in applications:
        assert application.wait() == 0, application.output.read_text()
    assert jobs.rows == some_rows(0, 10 * WRITERS)
    versions = [commit["version"] for n in range(WRITERS) for commit in jobs.report(f"job-{n}")["commits"]]
    assert sorted(versions) == list(range(2 * WRITERS))
    verification = verify_table(jobs.table, key=["id"])
    assert (verification.problems, verification.locked_commits) == ((), 2 * WRITERS)


PROGRAM = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("nightly").getOrCreate()
spark.range(3).write.format("delta").mode("append").save("{table}")
"""


@pytest.mark.soak
def test_an_unchanged_program_waits_for_the_lock_in_cluster_mode(jobs: Jobs) -> None:
    program = jobs.folder / "job.py"
    program.write_text(PROGRAM.format(table=jobs.table))
    python = f"spark.sluice.python={PYTHON}"
    jobs.run("job", page.UNCHANGED.replace("spark.sluice.python=python3", python).replace("job.py", str(program)))
    assert commit_info(jobs.table, 0)["sluice"]["job"] == "nightly"
