"""A YARN of one node for tests, from Maven's jars and PySpark's, and applications in its cluster mode."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from lock_manager.testing.embedded import find_java, find_spark_jars
from sluice.local.spark import FEW_ROWS, PLAIN_JVM
from sluice.submit.distribution import conf_arguments
from tests.support.locked_jars import locked_jars
from tests.support.waiting import eventually

SUPPORT = Path(__file__).parent
WAIT = 420
_SCHEDULERS = "org.apache.hadoop.yarn.server.resourcemanager.scheduler"
_ANY_PORT = "127.0.0.1:0"
#: Settings of the servers. With port 0 each takes a free port.
_SETTINGS = {
    **{
        f"yarn.{name}": _ANY_PORT
        for name in (
            "resourcemanager.address", "resourcemanager.scheduler.address", "resourcemanager.resource-tracker.address",
            "resourcemanager.admin.address", "resourcemanager.webapp.address", "nodemanager.address",
            "nodemanager.localizer.address", "nodemanager.webapp.address", "nodemanager.collector-service.address",
        )
    },
    **dict.fromkeys(
        ("yarn.resourcemanager.hostname", "yarn.resourcemanager.bind-host", "yarn.nodemanager.hostname"), "127.0.0.1"
    ),
    # The default scheduler runs one driver at a time on a small cluster.
    "yarn.resourcemanager.scheduler.class": f"{_SCHEDULERS}.fifo.FifoScheduler",
    "yarn.scheduler.minimum-allocation-mb": "128",
    # What containers may request; they use less.
    "yarn.nodemanager.resource.memory-mb": "16384",
    "yarn.nodemanager.resource.cpu-vcores": "32",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "99",
}  # fmt: skip
_ADDRESSES = re.compile(
    r"<property><name>yarn\.resourcemanager\.(?:(?:scheduler|resource-tracker|admin|webapp)\.)?address</name>.*?</property>"
)
#: Settings of small applications whose processes listen on the loopback interface.
_SMALL_APPLICATION = {
    **FEW_ROWS,
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.instances": "1",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
    **dict.fromkeys(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), PLAIN_JVM),
    **dict.fromkeys(("spark.yarn.appMasterEnv.SPARK_LOCAL_IP", "spark.executorEnv.SPARK_LOCAL_IP"), "127.0.0.1"),
    "spark.yarn.scheduler.heartbeat.interval-ms": "500",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "1s",
}


def _configuration(properties: Sequence[str]) -> str:
    return f"<configuration>{''.join(properties)}</configuration>"


@dataclass(frozen=True)
class Application:
    """An application that ``spark-submit`` submits and waits for.

    Attributes:
        process: ``spark-submit``.
        output: File with its output.

    """

    process: subprocess.Popen[bytes]
    output: Path

    @property
    def id(self) -> str | None:
        """Id of the application; None before YARN has it."""
        match = re.search(r"Submitted application (application_\d+_\d+)", self.output.read_text())
        return match and match[1]

    def wait(self) -> int:
        """Return the exit code of ``spark-submit``."""
        return self.process.wait(WAIT)


@dataclass(frozen=True)
class Yarn:
    """A running YARN.

    Attributes:
        folder: Folder of its data.

    """

    folder: Path

    @property
    def configuration(self) -> Path:
        """Folder with the settings of clients, for ``HADOOP_CONF_DIR``."""
        return self.folder / "client"

    def submit(
        self, spark_home: Path, python: Path, arguments: Sequence[str], output: Path, *, deploy_mode: str = "cluster"
    ) -> Application:
        """Start ``spark-submit`` with these arguments, in an environment with PySpark and without Sluice."""
        settings = {
            "spark.yarn.stagingDir": f"file:{self.folder / 'staging'}",
            # The node has Spark, so its jars are not distributed.
            "spark.yarn.jars": f"local:{spark_home}/jars/*",
            **_SMALL_APPLICATION,
        }
        command = [str(spark_home / "bin" / "spark-submit"), "--master", "yarn", "--deploy-mode", deploy_mode]
        login_variables = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [*command, *conf_arguments(settings), *arguments], stdout=stream, stderr=stream, cwd=output.parent,
                env={
                    **login_variables, "SPARK_HOME": str(spark_home), "PYSPARK_PYTHON": str(python),
                    "HADOOP_CONF_DIR": str(self.configuration), "SPARK_LOCAL_IP": "127.0.0.1",
                },
            )  # fmt: skip
        return Application(process, output)

    def kill(self, application: str) -> None:
        """Run ``yarn application -kill``."""
        class_path = os.pathsep.join([str(self.configuration), f"{find_spark_jars()}/*"])
        program = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
        command = [
            find_java(),
            "-XX:TieredStopAtLevel=1",
            "-cp",
            class_path,
            program,
            "application",
            "-kill",
            application,
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=WAIT)

    def containers(self, application: str) -> list[str]:
        """Return the names of an application's containers, the drivers' first."""
        return sorted(path.name for path in (self.folder / "logs" / application).glob("container_*"))

    def log(self, application: str, container: int = 0, stream: str = "stderr") -> str:
        """Return the output of a container."""
        name = self.containers(application)[container]
        return (self.folder / "logs" / application / name / stream).read_text()

    def java_pid(self, container: str) -> int | None:
        """Return the id of a container's JVM; None if it does not run."""
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().split(b"\0")
                is_jvm = words[0].endswith(b"/java") and (folder / "cwd").resolve().name == container
            except OSError:
                continue
            if is_jvm:
                return int(folder.name)
        return None


@contextmanager
def yarn_cluster(folder: Path) -> Iterator[Yarn]:
    """Run a ResourceManager and a NodeManager on free ports of the loopback interface, with their data in a folder."""
    server, client = folder / "server", folder / "client"
    server.mkdir()
    client.mkdir()
    settings = {
        **_SETTINGS,
        "hadoop.tmp.dir": str(folder / "tmp"),
        "yarn.nodemanager.local-dirs": str(folder / "local"),
        "yarn.nodemanager.log-dirs": str(folder / "logs"),
    }
    properties = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    ]
    (server / "yarn-site.xml").write_text(_configuration(properties))
    class_path = os.pathsep.join([str(server), *map(str, locked_jars("hadoop")), f"{find_spark_jars()}/*"])
    java = Path(find_java()).resolve()
    command = [str(java), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", class_path, str(SUPPORT / "YarnServer.java")]
    all_settings, log = folder / "settings.xml", folder / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(all_settings)], stdin=subprocess.PIPE, stdout=output, stderr=output, cwd=folder,
            # Containers take Java from here.
            env={**os.environ, "JAVA_HOME": str(java.parents[1])},
        )  # fmt: skip
    try:
        eventually(lambda: all_settings.exists() or process.poll() is not None, within=WAIT, label="YARN's servers")
        assert process.poll() is None, log.read_text()[-4000:]
        addresses = _ADDRESSES.findall(all_settings.read_text())
        (client / "yarn-site.xml").write_text(_configuration(addresses))
        yield Yarn(folder)
    finally:
        # The servers end, and end their containers first.
        process.communicate(timeout=WAIT)
