"""Programs of others, unchanged: with two settings each of their commits queues for the lock (``SluicePlugin``)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from deltalake import DeltaTable

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import find_java
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from sluice.submit.distribution import conf_arguments, jar_arguments, plugin_settings, session_settings
from tests.support.at_the_gate import commit_info

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
START_SECONDS = 120


def environment() -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SLUICE_"))},
        "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip


def submit_words(hosts: str, **settings: str) -> list[str]:
    """Return the arguments of a driver whose commits queue."""
    conf = {
        **LOCAL_DRIVER, **FEW_ROWS, "spark.master": "local[2]", "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JVM, "spark.sql.shuffle.partitions": "2",
        **session_settings(), **plugin_settings(), "spark.sluice.zookeeper": hosts, **settings,
    }  # fmt: skip
    return [*jar_arguments(), *conf_arguments(conf)]


def children(pid: int) -> list[int]:
    """Return the child processes of a process."""
    listing = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], check=False, capture_output=True, text=True)
    return [int(word) for word in listing.stdout.split()]


class JavaProgram:
    """A Java program with its own driver, which executes one SQL statement after the other."""

    def __init__(self, classes: Path, log: Path, arguments: list[str]) -> None:
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-submit", "--class", "SparkProgram", *arguments, str(classes)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, env=environment(),
            )  # fmt: skip
        if self.answer() != "ready":
            self.kill()
            lines = log.read_text().splitlines()
            raise RuntimeError(next((line for line in lines if line.startswith("Exception")), "\n".join(lines[-20:])))

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().rstrip("\n")

    def begin(self, statement: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()

    def sql(self, statement: str) -> str:
        self.begin(statement)
        return self.answer()

    def agent(self) -> int:
        """Return the process id of the agent."""
        (agent,) = children(self.process.pid)
        return agent

    def kill(self) -> None:
        self.process.kill()
        # Closes the pipes.
        self.process.communicate()


@pytest.fixture(scope="module")
def program_jar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A jar with the program ``SparkProgram``."""
    folder = tmp_path_factory.mktemp("program")
    tools = Path(find_java()).parent
    source = ROOT / "tests" / "support" / "SparkProgram.java"
    class_path = os.pathsep.join(str(jar) for jar in (SPARK_HOME / "jars").glob("*.jar"))
    subprocess.run([tools / "javac", "-cp", class_path, "-d", folder / "classes", source], check=True)
    jar = folder / "program.jar"
    subprocess.run([tools / "jar", "--create", "--file", jar, "-C", folder / "classes", "."], check=True)
    return jar


@pytest.fixture
def start_program(zookeeper: Any, program_jar: Path, tmp_path: Path) -> Iterator[Callable[..., JavaProgram]]:
    programs: list[JavaProgram] = []

    def start(**settings: str) -> JavaProgram:
        log = tmp_path / f"program-{len(programs)}.log"
        programs.append(JavaProgram(program_jar, log, submit_words(zookeeper.hosts, **settings)))
        return programs[-1]

    yield start
    for program in programs:
        program.kill()


def holders(table: Path) -> list[str | None]:
    """Return the job of each commit's hold; None for a commit without a lock."""
    versions = range(DeltaTable(str(table)).version() + 1)
    return [commit_info(table, version).get("sluice", {}).get("job") for version in versions]


def test_a_java_program_queues_and_survives_the_death_of_its_agent(
    start_program: Callable[..., JavaProgram],
    manager: ZookeeperLockManager,
    tmp_path: Path,
    eventually: Callable[..., None],
) -> None:
    table = tmp_path / "table"
    program = start_program()
    assert program.sql(f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta") == "done []"
    insert = f"INSERT INTO delta.`{table}` VALUES "
    with manager.acquire(str(table)):
        program.begin(f"{insert} (1)")
        eventually(lambda: len(manager.queue(str(table))) == 2, within=60, label="a commit that waits")
        agent = program.agent()
        os.kill(agent, signal.SIGKILL)
        assert "the Python process" in program.answer()
    # The agent is started again, with another session.
    eventually(lambda: children(program.process.pid) not in ([], [agent]), within=60, label="another agent")
    eventually(lambda: program.sql(f"{insert} (2)").startswith("done"), within=60, label="a commit")
    assert holders(table)[:1] == ["program"]
    assert None not in holders(table)
    agent = program.agent()
    program.kill()
    eventually(lambda: not Path(f"/proc/{agent}").exists(), within=60, label="the end of the agent")
    with manager.acquire(str(table), timeout_seconds=30):
        pass
    assert DeltaTable(str(table)).to_pyarrow_table()["id"].to_pylist() == [2]


SCRIPT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("nightly").master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
spark.range(int(sys.argv[2])).write.format("delta").mode("append").save(sys.argv[1])
sys.exit(3)
"""


def sluice_run(*words: str | Path, hosts: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sluice", "run", "--zookeeper", hosts, *map(str, words)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=folder, env=environment(), timeout=START_SECONDS
    )


@pytest.mark.parametrize(
    "words", [["job.py"], pytest.param(["-m", "job"], marks=pytest.mark.full)], ids=["script", "module"]
)
def test_a_python_program_runs_unchanged(words: list[str], zookeeper: Any, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    table = tmp_path / "table"
    process = sluice_run(*words, table, "3", hosts=zookeeper.hosts, folder=tmp_path)
    assert process.returncode == 3, process.stderr[-2000:]
    assert holders(table) == ["nightly"]


@pytest.mark.parametrize(
    ("words", "message"),
    [(["no.py"], "there is no script no.py"), (["-m", "no_module"], "there is no module no_module")],
)
def test_a_missing_program_is_one_sentence(words: list[str], message: str, tmp_path: Path) -> None:
    process = sluice_run(*words, hosts="127.0.0.1:1", folder=tmp_path)
    assert (process.returncode, message in process.stderr, "Traceback" in process.stderr) == (2, True, False)


@pytest.mark.full
def test_spark_sql_queues(zookeeper: Any, tmp_path: Path) -> None:
    table = tmp_path / "table"
    statements = f"CREATE TABLE delta.`{table}` (id BIGINT) USING delta; INSERT INTO delta.`{table}` VALUES (1)"
    arguments = submit_words(zookeeper.hosts, **{"spark.sql.catalogImplementation": "in-memory"})
    process = subprocess.run(
        [SPARK_HOME / "bin" / "spark-sql", *arguments, "-e", statements],
        check=False, capture_output=True, text=True, cwd=tmp_path, env=environment(), timeout=2 * START_SECONDS,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    assert len(holders(table)) == 2
    assert None not in holders(table)


@pytest.mark.full
def test_an_agent_that_does_not_start_is_one_sentence(start_program: Callable[..., JavaProgram]) -> None:
    with pytest.raises(RuntimeError, match=r"set spark\.sluice\.python to an interpreter"):
        start_program(**{"spark.sluice.python": "/usr/bin/false"})
