"""An ensemble of real servers on this machine, of what the program renders: zoo.cfg, certificates, the command."""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
import subprocess
from pathlib import Path

from lock_manager.testing.embedded import (
    find_java,
    find_server_jars,
    find_spark_jars,
    small_jvm_options,
    start_supervised,
    stop_supervised,
)
from sluice.ensemble.members import Server, ask_server
from tests.support.graph import INFRA, Graph
from tests.support.machine import Machine
from tests.support.waiting import eventually

PORT = 2281
PATIENCE = 90.0
# PySpark's jars are a complete ZooKeeper but for the metrics provider, and log with another library.
_NOT_HERE = re.compile(r"^metricsProvider\..*\n", re.MULTILINE)


class Member:
    """One member, in a folder of its own.

    Attributes:
        address: on which it listens.
        machine: on which it would be.

    """

    def __init__(self, graph: Graph, node: int, root: Path) -> None:
        self.node = node
        self.address = graph.outputs["zookeeper_connection_string"].split(",")[node - 1].partition(":")[0]
        self.machine = Machine(graph, node, root)
        for folder in ("data", "log"):
            (root / "var/lib/zookeeper" / folder).mkdir(parents=True)
        (root / "etc/zookeeper").mkdir()
        # As the bootstrap does.
        (root / "var/lib/zookeeper/data/myid").write_text(f"{node}\n")
        (root / "var/lib/zookeeper/log/initialize").touch()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._log = root / "server.log"

    def start(self) -> None:
        """Do what the unit does: fetch, and start the server, with paths below the folder."""
        root = self.machine.root
        configured = self.machine.run("sluice-configure")
        assert configured.returncode == 0, configured.stderr
        config = root / "etc/zookeeper/zoo.cfg"
        moved = re.sub(r"=(/etc/zookeeper|/var/lib/zookeeper)", rf"={root}\1", config.read_text())
        config.write_text(_NOT_HERE.sub("", moved))
        unit = (INFRA / "node/zookeeper.service").read_text()
        command = shlex.split(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0])
        instead = {
            "/usr/bin/java": [find_java()],
            "$SLUICE_HEAP": small_jvm_options(),
            "/opt/zookeeper/lib/*": [":".join(map(str, find_server_jars()))],
            "/etc/zookeeper/zoo.cfg": [str(config)],
            "-Dlogback.configurationFile=/etc/zookeeper/logback.xml": ["-Dorg.apache.logging.log4j.level=INFO"],
        }
        assert set(instead) <= set(command), f"{sorted(set(instead) - set(command))} not in the unit"
        java = [part for each in command for part in instead.get(each, [each])]
        self._supervisor = start_supervised(java, self._log)

    def restrict(self) -> None:
        """Make the lock root, and say who may use it."""
        classpath = ":".join(map(str, _client_jars()))
        done = self.machine.run(
            "sluice-lock-root",
            SLUICE_JAVA=find_java(),
            SLUICE_CLASSPATH=classpath,
            # It runs for two seconds: less than the second compiler needs.
            JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """End it and wait."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            stop_supervised(supervisor)

    def lose_data(self) -> None:
        """Have volumes that are blank, in an ensemble that is not new."""
        for kept in ("data/version-2", "log/version-2"):
            shutil.rmtree(self.machine.root / "var/lib/zookeeper" / kept)

    def tls(self, *, name: str = "node.pem") -> ssl.SSLContext:
        """Return how its own scripts speak to the ensemble."""
        folder = self.machine.root / "etc/zookeeper/tls"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The server's name is looked at where that is tested.
        context.check_hostname = False
        context.load_verify_locations(folder / "members-ca.pem")
        context.load_cert_chain(folder / name)
        return context

    def asked(self) -> Server:
        """Return what it says of itself."""
        return ask_server(self.address, PORT, self.tls())

    @property
    def mode(self) -> str | None:
        """Leader or follower, None while it does not serve."""
        return self.asked().mode

    @property
    def log(self) -> str:
        """What it has written."""
        return self._log.read_text(errors="replace")


class Members:
    """All members of a graph.

    Args:
        graph: whose members' addresses are of this machine.
        root: folder for them.

    """

    def __init__(self, graph: Graph, root: Path) -> None:
        count = len(graph.all("Instance"))
        self.each = [Member(graph, node, root / f"node-{node}") for node in range(1, count + 1)]

    def start(self) -> None:
        """Start all, and wait for a quorum that all are in."""
        for member in self.each:
            member.start()
        self.wait_for_all()

    def stop(self) -> None:
        """End all."""
        for member in self.each:
            member.stop()

    def wait_for_all(self) -> None:
        """Wait until one leads, the others follow, and are in step."""
        eventually(self._are_whole, PATIENCE, lambda: "\n".join(member.log[-2000:] for member in self.each))

    def _are_whole(self) -> bool:
        said = [member.asked() for member in self.each]
        if sorted(str(each.mode) for each in said) != ["follower"] * (len(said) - 1) + ["leader"]:
            return False
        return {each.synced_followers for each in said} == {None, len(said) - 1}

    @property
    def leader(self) -> Member:
        """Who leads."""
        [found] = [member for member in self.each if member.mode == "leader"]
        return found

    def restrict(self) -> None:
        """Have each node make the lock root and say who may use it, as its unit does."""
        for member in self.each:
            member.restrict()

    def restart_one_by_one(self, graph: Graph, root: Path) -> None:
        """Take what another `up` has made of the stack: each member in turn, the next when all are in step."""
        for number, member in enumerate(self.each):
            member.stop()
            known = Machine(graph, member.node, root / f"again-{number}")
            for answer in (known.root / "aws").iterdir():
                (member.machine.root / "aws" / answer.name).write_bytes(answer.read_bytes())
            member.start()
            self.wait_for_all()


def _client_jars() -> list[Path]:
    # zkCli has its options from here.
    return [*find_server_jars(), *find_spark_jars().glob("commons-cli-*.jar")]
