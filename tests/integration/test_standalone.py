"""The append job on a Spark standalone cluster, submitted by a Python that has only PySpark."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import py4j
import pyspark
import pytest

from sluice.local.jars import LOG_STORE_JAR
from sluice.local.spark import PLAIN_JVM
from sluice.submit.distribution import build_zip, submit_arguments
from writer_jobs import append as append_module

pytestmark = pytest.mark.spark


@pytest.fixture
def bare_python(tmp_path: Path) -> Path:
    """The Python of a virtual environment with PySpark and py4j."""
    folder = tmp_path / "bare"
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for package in (pyspark, py4j):
        origin = Path(str(package.__file__)).parent
        (packages / origin.name).symlink_to(origin)
    return folder / "bin" / "python"


@pytest.fixture
def environment(bare_python: Path) -> dict[str, str]:
    """The environment of a login on a machine of the cluster."""
    login_variables = {
        name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "JAVA_HOME", "LANG")
    }
    (spark_home,) = bare_python.parent.parent.glob("lib/python*/site-packages/pyspark")
    return {
        **login_variables,
        "SPARK_HOME": str(spark_home),
        "PYSPARK_PYTHON": str(bare_python),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_JAVA_OPTS": PLAIN_JVM,
        "SPARK_DAEMON_MEMORY": "256m",
    }


@pytest.fixture
def cluster(environment: dict[str, str], tmp_path: Path, eventually: Callable[..., None]) -> Iterator[str]:
    """A master and a worker on free ports of the loopback interface; yield the master's URL."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        command = [str(Path(environment["SPARK_HOME"]) / "bin" / "spark-class"), *arguments]
        with log.open("wb") as output:
            processes.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=tmp_path))
        return log

    def first_match(log: Path, pattern: str) -> str | None:
        match = re.search(pattern, log.read_text())
        return match[0] if match else None

    loopback = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    try:
        master = start("master", "org.apache.spark.deploy.master.Master", *loopback)
        eventually(lambda: first_match(master, r"spark://127\.0\.0\.1:\d+"), within=60, label="the master")
        url = str(first_match(master, r"spark://127\.0\.0\.1:\d+"))
        worker = start(
            "worker", "org.apache.spark.deploy.worker.Worker", *loopback, "--cores", "1", "--memory", "1g",
            "--work-dir", str(tmp_path / "work"), url,
        )  # fmt: skip
        eventually(lambda: first_match(worker, "Successfully registered with master"), within=60, label="the worker")
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(30)


def can_import(python: Path, module: str, folder: Path) -> bool:
    """Return whether a Python imports a module when it runs in a folder."""
    command = [str(python), "-c", f"import {module}"]
    process = subprocess.run(command, cwd=folder, env={"PATH": os.environ["PATH"]}, stderr=subprocess.PIPE, check=False)
    assert process.returncode == 0 or b"ModuleNotFoundError" in process.stderr
    return process.returncode == 0


PLATFORMS = Path(__file__).parents[2] / "docs" / "platforms.md"


def with_own_delta(folder: Path, jars: list[Path]) -> list[str]:
    """Prepare the files of the section "A cluster with Delta" in docs/platforms.md; return its arguments.

    The class path of the cluster is in the file ``conf/spark-defaults.conf``.
    """
    text = PLATFORMS.read_text(encoding="utf-8")
    (settings,) = re.findall(r"```properties\n(.*?)```", text, re.DOTALL)
    (command,) = re.findall(r"## A cluster with Delta\n.*?```sh\n(.*?)```", text, re.DOTALL)
    (folder / "sluice.conf").write_text(settings, encoding="utf-8")
    class_path = os.pathsep.join(str(path) for path in jars if path != LOG_STORE_JAR)
    defaults = [f"spark.{process}.extraClassPath {class_path}\n" for process in ("driver", "executor")]
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text("".join(defaults), encoding="utf-8")
    shutil.copy(LOG_STORE_JAR, folder)
    build_zip(folder / "sluice.zip")
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    assert program == "spark-submit"
    return arguments[: arguments.index("append.py")]


@pytest.mark.full
@pytest.mark.parametrize("delta", ["by the job", "of the cluster"])
def test_submit_arguments_bring_all_that_a_cluster_needs(
    cluster: str,
    bare_python: Path,
    environment: dict[str, str],
    jars: list[Path],
    zookeeper: Any,
    csv_file: Callable[..., Path],
    tmp_path: Path,
    rows_of: Callable[..., Any],
    *,
    delta: str,
) -> None:
    assert can_import(bare_python, "pyspark", tmp_path)
    for module in ("lock_manager", "writer_jobs", "kazoo", "delta"):
        assert not can_import(bare_python, module, tmp_path)

    # This copy of the job's file has no packages next to it.
    job = tmp_path / "job" / "append.py"
    job.parent.mkdir()
    shutil.copy(str(append_module.__file__), job)
    rows = [(number, f"name {number}") for number in range(100)]
    table = tmp_path / "table"
    command_line = shlex.join([
        f"{environment['SPARK_HOME']}/bin/spark-submit", "--master", cluster,
        *(submit_arguments() if delta == "by the job" else with_own_delta(tmp_path, jars)),
        "--driver-memory", "1g", "--executor-memory", "512m",
        "--conf", f"spark.driver.extraJavaOptions={PLAIN_JVM}",
        "--conf", f"spark.executor.extraJavaOptions={PLAIN_JVM}",
        "--conf", "spark.driver.host=127.0.0.1",
        str(job), "--zookeeper", zookeeper.hosts, "--table", str(table),
        "--source", str(csv_file("s.csv", "id,name", rows)), "--commits", "2", "--run-id", "on a cluster",
    ])  # fmt: skip
    process = subprocess.run(
        ["/bin/sh", "-c", command_line],
        cwd=tmp_path,
        env={**environment, "SPARK_CONF_DIR": str(tmp_path / "conf")},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )

    assert process.returncode == 0, process.stderr
    commits = [event for event in map(json.loads, process.stdout.splitlines()) if event["event"] == "commit"]
    assert [event["version"] for event in commits] == [0, 1]
    assert sum(event["rows"] for event in commits) == 100
    assert rows_of(table, "id", "name") == sorted(rows, key=repr)
    # The worker executed the tasks, not the driver.
    assert list((tmp_path / "work").glob("app-*/0/stderr"))
