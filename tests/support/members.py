"""An ensemble of real servers on this machine, of what the program renders: zoo.cfg, certificates, the command."""

from __future__ import annotations

import re
import shlex
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lock_manager.local
from lock_manager.local import ask_server, find_java, find_server_jars
from tests.support.graph import INFRA, Graph
from tests.support.machine import Machine

PORT = 2281
_SUPERVISOR = Path(lock_manager.local.__file__).with_name("_supervise.py")
_PATIENCE = 90.0
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
        self._process: subprocess.Popen[bytes] | None = None
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
            "$SLUICE_HEAP": ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"],
            "/opt/zookeeper/lib/*": [":".join(map(str, find_server_jars()))],
            "/etc/zookeeper/zoo.cfg": [str(config)],
            "-Dlogback.configurationFile=/etc/zookeeper/logback.xml": ["-Dorg.apache.logging.log4j.level=INFO"],
        }
        assert set(instead) <= set(command), f"{sorted(set(instead) - set(command))} not in the unit"
        java = [part for each in command for part in instead.get(each, [each])]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_SUPERVISOR), "--output-to-stderr", *java],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True,
            )  # fmt: skip

    def restrict(self) -> None:
        """Make the lock root, and say who may use it."""
        classpath = ":".join(map(str, _client_jars()))
        done = self.machine.run("sluice-lock-root", SLUICE_JAVA=find_java(), SLUICE_CLASSPATH=classpath)
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """End it and wait."""
        process, self._process = self._process, None
        if process is not None:
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
            process.wait()

    def tls(self, *, name: str = "node.pem") -> ssl.SSLContext:
        """Return how its own scripts speak to the ensemble."""
        folder = self.machine.root / "etc/zookeeper/tls"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The server's name is looked at where that is tested.
        context.check_hostname = False
        context.load_verify_locations(folder / "members-ca.pem")
        context.load_cert_chain(folder / name)
        return context

    def word(self, word: bytes) -> dict[str, str]:
        """Return what it answers to a four-letter word, by name; empty if it does not serve."""
        text = ask_server((self.address, PORT), word, self.tls()).decode()
        return dict(re.findall(r"^([\w ]+?)[:\t]\s*(.*)$", text, re.MULTILINE))

    @property
    def mode(self) -> str | None:
        """Leader or follower, None while it does not serve."""
        return self.word(b"srvr").get("Mode")

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
        until(self._are_whole, lambda: "\n".join(member.log[-2000:] for member in self.each))

    def _are_whole(self) -> bool:
        modes = sorted(str(member.mode) for member in self.each)
        if modes != ["follower"] * (len(self.each) - 1) + ["leader"]:
            return False
        return self.leader.word(b"mntr").get("zk_synced_followers") == str(len(self.each) - 1)

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
    return [*find_server_jars(), *lock_manager.local.find_spark_jars().glob("commons-cli-*.jar")]


def until(met: Callable[[], Any], told: Callable[[], str] = lambda: "") -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + _PATIENCE
    while not met():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)
