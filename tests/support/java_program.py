"""A Java program with a Spark driver whose commits queue by ``SluicePlugin``; it knows nothing of Sluice."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from lock_manager.testing.embedded import find_java
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from sluice.submit.distribution import conf_arguments, jar_arguments, plugin_settings, session_settings

ROOT = Path(__file__).parents[2]
WAIT = 240
SPARK_HOME = Path(pyspark.__file__).parent
#: Settings of a small driver on this machine.
SMALL_DRIVER = {
    **LOCAL_DRIVER, **FEW_ROWS, "spark.master": "local[2]", "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JVM, "spark.sql.shuffle.partitions": "2",
}  # fmt: skip


def environment() -> dict[str, str]:
    """Return the environment of a program that configures Sluice by Spark settings alone."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK_", "SLUICE_"))},
        "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip


def submit_words(hosts: str, settings: Mapping[str, str]) -> list[str]:
    """Return the arguments of a driver whose commits queue."""
    plugin = {**session_settings(), **plugin_settings(), "spark.sluice.zookeeper": hosts}
    conf = {**SMALL_DRIVER, **plugin, **settings}
    return [*jar_arguments(), *conf_arguments(conf)]


def write_spark_defaults(folder: Path, settings: Mapping[str, str] | None = None) -> None:
    """Write the settings of small drivers, and these, to a folder for ``SPARK_CONF_DIR``."""
    lines = [f"{name} {value}\n" for name, value in {**SMALL_DRIVER, **(settings or {})}.items()]
    (folder / "spark-defaults.conf").write_text("".join(lines))


def build_program(folder: Path) -> Path:
    """Compile ``SparkProgram.java``; return the jar."""
    tools = Path(find_java()).parent
    source = ROOT / "tests" / "support" / "SparkProgram.java"
    class_path = os.pathsep.join(str(jar) for jar in (SPARK_HOME / "jars").glob("*.jar"))
    subprocess.run([tools / "javac", "-cp", class_path, "-d", folder / "classes", source], check=True)
    jar = folder / "program.jar"
    subprocess.run([tools / "jar", "--create", "--file", jar, "-C", folder / "classes", "."], check=True)
    return jar


class JavaProgram:
    """A program in a process of its own, which executes one SQL statement after the other.

    Args:
        jar: The jar of :func:`build_program`.
        log: File for its standard error.
        arguments: Arguments of ``spark-submit``, see :func:`submit_words`.

    """

    def __init__(self, jar: Path, log: Path, arguments: Sequence[str]) -> None:
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [SPARK_HOME / "bin" / "spark-submit", "--class", "SparkProgram", *arguments, str(jar)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True, env=environment(),
            )  # fmt: skip
        if self.answer() != "ready":
            self.kill()
            lines = log.read_text().splitlines()
            raise RuntimeError(next((line for line in lines if line.startswith("Exception")), "\n".join(lines[-20:])))

    def answer(self) -> str:
        """Return the answer to a statement; empty if the program has ended, or was killed because it did not answer."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(WAIT, self.process.kill)
        watchdog.start()
        try:
            return self.process.stdout.readline().rstrip("\n")
        finally:
            watchdog.cancel()

    def begin(self, statement: str) -> None:
        """Send a statement without waiting for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(statement + "\n")
        self.process.stdin.flush()

    def sql(self, statement: str) -> str:
        """Execute a statement; return ``done`` with its rows, or its error."""
        self.begin(statement)
        return self.answer()

    def agent(self) -> int:
        """Return the process id of the agent."""
        command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(self.process.pid)]
        children = subprocess.run(command, check=False, capture_output=True, text=True).stdout.splitlines()
        # The driver may have another child for a moment.
        (agent,) = [int(child.split()[0]) for child in children if "agent" in child]
        return agent

    def kill(self) -> None:
        """End the program by SIGKILL."""
        self.process.kill()
        # Closes the pipes.
        self.process.communicate()


@contextmanager
def running_programs() -> Iterator[list[JavaProgram]]:
    """Yield a list; kill the programs in it at the end of the block."""
    programs: list[JavaProgram] = []
    try:
        yield programs
    finally:
        for program in programs:
            program.kill()
