"""Programs of others, unchanged: with two settings each of their commits queues for the lock (``SluicePlugin``).

The commands are those of docs/how-to/unchanged.md.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from arro3.core import Array, DataType, Table
from deltalake import DeltaTable, write_deltalake

from lock_manager import ZookeeperLockManager
from lock_manager.testing.embedded import free_ports
from sluice.local.jars import jars_folder
from tests.support.at_the_gate import commit_info
from tests.support.java_program import environment, write_spark_defaults
from tests.support.waiting import eventually

pytestmark = pytest.mark.spark

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "unchanged.md"
WAIT = 240
PORT = "10000"
SCRIPTS = Path(sys.executable).parent


def commands(word: str) -> list[str]:
    """Return the shell commands of the page that begin with a word."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return [match[0] for block in blocks for match in re.finditer(rf"^{word} (.*\\\n)*.*", block, re.MULTILINE)]


@dataclass
class Machine:
    """Runs the commands of the page in one folder, as a user does.

    Attributes:
        hosts: The ensemble.
        folder: The current folder.

    """

    hosts: str
    folder: Path

    def __post_init__(self) -> None:
        write_spark_defaults(self.folder)

    def start(self, command: str, **options: Any) -> subprocess.Popen[str]:
        """Start a command of the page with the test's ensemble."""
        return subprocess.Popen(
            ["bash", "-ec", f"exec {command.replace('127.0.0.1:2181', self.hosts)}"], cwd=self.folder, text=True,
            env={
                **environment(), "SPARK_CONF_DIR": str(self.folder),
                "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            },
            **options,
        )  # fmt: skip

    def run(self, command: str, program: str | None = None) -> tuple[int, str]:
        """Run a command, with this text as its input; return its exit code and its output."""
        process = self.start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate(program, timeout=WAIT)
        return process.returncode, output

    def create_table(self) -> None:
        """Create the table of the page with a writer that has no lock."""
        rows = Table.from_pydict({"id": Array([0], type=DataType.int64())})
        write_deltalake(str(self.folder / "lake" / "numbers"), rows)

    def holders(self, table: str) -> list[str | None]:
        """Return the job of each commit's hold; None for a commit without a lock."""
        path = self.folder / table
        versions = range(DeltaTable(str(path)).version() + 1)
        return [commit_info(path, version).get("sluice", {}).get("job") for version in versions]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, sorted."""
        rows: list[dict[str, Any]] = DeltaTable(str(self.folder / table)).to_pyarrow_table().to_pylist()
        return sorted(rows, key=json.dumps)


@pytest.fixture
def machine(zookeeper: Any, tmp_path: Path) -> Machine:
    return Machine(zookeeper.hosts, tmp_path)


SCRIPT = """
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.appName("nightly").getOrCreate()
spark.range(3).write.format("delta").mode("append").save(sys.argv[1])
sys.exit(3)
"""


@pytest.mark.parametrize("words", ["job.py", pytest.param("-m job", marks=pytest.mark.full)], ids=["script", "module"])
def test_a_python_program_runs_unchanged(machine: Machine, words: str) -> None:
    (machine.folder / "job.py").write_text(SCRIPT)
    command, _ = commands("sluice run")
    code, output = machine.run(command.replace("job.py", f"{words} lake/numbers"))
    assert code == 3, output
    assert machine.holders("lake/numbers") == ["nightly"]


OWN_LOCKS = """
from pyspark.sql import SparkSession
from writer_jobs import locked

def append(spark, row):
    spark.range(row, row + 1).write.format("delta").mode("append").save("lake/numbers")

for row in (0, 3):
    spark = SparkSession.builder.appName("nightly").getOrCreate()
    append(spark, row)
    with locked(spark, "lake/numbers"):
        append(spark, row + 1)
    append(spark, row + 2)
    spark.stop()
"""


@pytest.mark.full
def test_a_program_may_have_own_locks_and_several_sessions(machine: Machine) -> None:
    (machine.folder / "job.py").write_text(OWN_LOCKS)
    command, _ = commands("sluice run")
    code, output = machine.run(command)
    assert code == 0, output
    assert machine.rows("lake/numbers") == [{"id": number} for number in range(6)]
    assert machine.holders("lake/numbers") == 6 * ["nightly"]


@pytest.mark.parametrize(
    ("words", "message"),
    [("no.py", "there is no script no.py"), ("-m no_module", "there is no module no_module")],
)
def test_a_missing_program_is_one_sentence(machine: Machine, words: str, message: str) -> None:
    code, output = machine.run(f"sluice run --zookeeper 127.0.0.1:1 {words}")
    assert (code, message in output, "Traceback" in output) == (2, True, False)


@pytest.mark.full
def test_spark_sql_takes_its_agent_from_the_zip(machine: Machine) -> None:
    """An interpreter without Sluice runs the agent."""
    (command,) = commands("spark-sql")
    machine.create_table()
    interpreter = Path(sys.base_prefix) / "bin" / "python3"
    settings = f"--conf spark.sluice.python={interpreter} --conf spark.sql.catalogImplementation=in-memory"
    code, output = machine.run(command.replace(" -e ", f" {settings} -e "))
    assert code == 0, output
    assert machine.holders("lake/numbers") == [None, "SparkSQL::127.0.0.1"]


@pytest.mark.full
def test_the_scala_shell_queues(machine: Machine) -> None:
    (command,) = commands("spark-shell")
    code, output = machine.run(command, 'spark.range(3).write.format("delta").save("lake/numbers")\n')
    assert code == 0, output
    assert machine.holders("lake/numbers") == ["Spark shell"]


@contextmanager
def thrift_server(machine: Machine) -> Iterator[str]:
    """Run the Thrift server of the page; yield the command of its client."""
    (port,) = free_ports(1)
    (server,), (client,) = (
        [command.replace(PORT, str(port)) for command in commands(word)] for word in ("spark-submit", "beeline")
    )
    process = machine.start(server.removesuffix(" &"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield client
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(WAIT)


@pytest.mark.full
def test_sessions_of_a_thrift_server_queue(machine: Machine, manager: ZookeeperLockManager) -> None:
    with thrift_server(machine) as client:
        machine.create_table()
        eventually(lambda: machine.run(client)[0] == 0, within=WAIT, label="a server that answers")
        table = str(machine.folder / "lake" / "numbers")
        with manager.acquire(table):
            clients = [machine.start(client.replace("(4)", f"({row})")) for row in (1, 2)]
            eventually(lambda: len(manager.queue(table)) == 3, within=WAIT, label="two commits that wait")
        assert [process.wait(WAIT) for process in clients] == [0, 0]
    assert machine.rows("lake/numbers") == [{"id": number} for number in (0, 1, 2, 4)]
    assert machine.holders("lake/numbers") == [None, *3 * ["SparkSQL::127.0.0.1"]]


@pytest.mark.full
def test_an_error_names_the_setting_if_no_agent_starts(machine: Machine) -> None:
    (command,) = commands("spark-sql")
    code, output = machine.run(command.replace(" -e ", " --conf spark.sluice.python=/usr/bin/false -e "))
    assert code != 0
    assert "set spark.sluice.python to an interpreter" in output


MODEL = """
{{ config(materialized="incremental", incremental_strategy="merge", unique_key="id", file_format="delta",
          location_root=env_var("LAKE")) }}
select id, n + 1 as n from {% if is_incremental() %} {{ this }} {% else %} (select id, 0 as n from range(3)) {% endif %}
"""
PROJECT = "name: lake\nprofile: lake\nflags: {send_anonymous_usage_stats: false}\n"
PROFILES = "lake: {target: dev, outputs: {dev: {type: spark, method: session, schema: lake, host: none}}}\n"
DATA = Path(__file__).parents[1] / "data"


def create_environment(folder: Path, requirements: str) -> Path:
    """Create a virtual environment with the packages of a file in ``tests/data``; return its folder of programs."""
    uv, interpreter = SCRIPTS / "uv", folder / "bin" / "python"
    subprocess.run([uv, "venv", "--python", sys.executable, folder], check=True)
    subprocess.run([uv, "pip", "install", "--python", interpreter, "-r", DATA / requirements], check=True)
    return interpreter.parent


@pytest.mark.soak
def test_four_runs_of_a_dbt_project_each_increase_all_rows(machine: Machine) -> None:
    """Each process has a copy of a metastore with the table, because Derby serves one process only."""
    interpreter = create_environment(machine.folder / "dbt", "dbt.txt") / "python"
    (site,) = (machine.folder / "dbt").glob("lib/python*/site-packages")
    # The interpreter finds PySpark and Sluice in the environment of the tests, after its own packages.
    (site / "tests.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    first = machine.folder / "first"
    (first / "models").mkdir(parents=True)
    (first / "models" / "numbers.sql").write_text(MODEL)
    (first / "dbt_project.yml").write_text(PROJECT)
    (first / "profiles.yml").write_text(PROFILES)
    _, command = commands("sluice run")
    in_folder = f"env -C {{}} LAKE={machine.folder}/lake SLUICE_JARS={jars_folder()} {interpreter} -m {command}"
    code, output = machine.run(in_folder.format(first))
    assert code == 0, output
    folders = [Path(shutil.copytree(first, machine.folder / f"copy-{number}")) for number in range(4)]
    processes = [machine.start(in_folder.format(folder)) for folder in folders]
    assert [process.wait(WAIT) for process in processes] == 4 * [0]
    assert machine.rows("lake/numbers") == [{"id": number, "n": 5} for number in range(3)]
    assert None not in machine.holders("lake/numbers")


@pytest.mark.soak
def test_a_task_of_airflow_queues(machine: Machine) -> None:
    airflow = create_environment(machine.folder / "environment", "airflow.txt") / "airflow"
    (dag,) = [block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "airflow" in block]
    job, table = machine.folder / "job.py", machine.folder / "lake" / "numbers"
    job.write_text(SCRIPT.replace("sys.argv[1]", repr(str(table))).replace("sys.exit(3)", ""))
    dags = machine.folder / "airflow" / "dags"
    dags.mkdir(parents=True)
    (dags / "dag.py").write_text(dag.replace('"job.py"', repr(str(job))).replace("127.0.0.1:2181", machine.hosts))
    connection = '{"conn_type": "spark", "host": "local[2]"}'
    variables = f"AIRFLOW_HOME={dags.parent} AIRFLOW_CONN_SPARK_DEFAULT='{connection}'"
    for command in ("db migrate", "dags test lake"):
        code, output = machine.run(f"env {variables} AIRFLOW__CORE__LOAD_EXAMPLES=false {airflow} {command}")
        assert code == 0, output
    assert machine.holders("lake/numbers") == ["nightly"]
