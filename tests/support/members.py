"""An ensemble of real servers on this machine with the program's zoo.cfg, certificates and server command."""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
import subprocess
from pathlib import Path

from lock_manager.testing import embedded
from sluice.ensemble.members import Server, ask_server
from tests.support.ensemble_members import SYNC_SECONDS, is_in_sync
from tests.support.graph import INFRA, Graph
from tests.support.machine import Machine
from tests.support.waiting import eventually

PORT = 2281
# The tests use PySpark's jars. They contain ZooKeeper without this metrics provider.
_METRICS_SETTINGS = re.compile(r"^metricsProvider\..*\n", re.MULTILINE)


class Member:
    """A member of the ensemble, and the node in whose folder it runs."""

    def __init__(self, graph: Graph, node: int, root: Path) -> None:
        self.node = node
        self.address = graph.outputs["zookeeper_connection_string"].split(",")[node - 1].partition(":")[0]
        self.machine = Machine(graph, node, root)
        for folder in ("data", "log"):
            (root / "var/lib/zookeeper" / folder).mkdir(parents=True)
        (root / "etc/zookeeper").mkdir()
        # The bootstrap writes these files.
        (root / "var/lib/zookeeper/data/myid").write_text(f"{node}\n")
        (root / "var/lib/zookeeper/log/initialize").touch()
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._log = root / "server.log"

    def start(self) -> None:
        """Configure and start the server as the systemd unit does, with paths below the folder."""
        root = self.machine.root
        self._run("sluice-configure")
        config = root / "etc/zookeeper/zoo.cfg"
        text = re.sub(r"=(/etc/zookeeper|/var/lib/zookeeper)", rf"={root}\1", config.read_text())
        config.write_text(_METRICS_SETTINGS.sub("", text))
        unit = (INFRA / "node/zookeeper.service").read_text()
        command = shlex.split(re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0])
        replacements = {
            "/usr/bin/java": [embedded.find_java()],
            "$SLUICE_HEAP": embedded.small_jvm_options(),
            "/opt/zookeeper/lib/*": [":".join(map(str, embedded.find_server_jars()))],
            "/etc/zookeeper/zoo.cfg": [str(config)],
            # PySpark's jars contain another logging library.
            "-Dlogback.configurationFile=/etc/zookeeper/logback.xml": ["-Dorg.apache.logging.log4j.level=INFO"],
        }
        missing_words = set(replacements) - set(command)
        assert not missing_words, f"ExecStart of node/zookeeper.service does not contain {sorted(missing_words)}"
        java = [part for word in command for part in replacements.get(word, [word])]
        self._supervisor = embedded.start_supervised(java, self._log)

    def _run(self, script: str, **environment: str) -> None:
        process = self.machine.run(script, **environment)
        assert process.returncode == 0, process.stderr

    def secure_lock_root(self) -> None:
        """Create the lock root and set its ACL."""
        # zkCli parses its options with commons-cli.
        jars = [*embedded.find_server_jars(), *embedded.find_spark_jars().glob("commons-cli-*.jar")]
        self._run(
            "sluice-lock-root",
            SLUICE_JAVA=embedded.find_java(),
            SLUICE_CLASSPATH=":".join(map(str, jars)),
            # The script runs for two seconds, too short for the second compiler.
            JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        )

    def stop(self) -> None:
        """Stop the server and wait for its end."""
        supervisor, self._supervisor = self._supervisor, None
        if supervisor is not None:
            embedded.stop_supervised(supervisor)

    def lose_data(self) -> None:
        """Delete the data, as if the member of an old ensemble got blank volumes."""
        for folder in ("data/version-2", "log/version-2"):
            shutil.rmtree(self.machine.root / "var/lib/zookeeper" / folder)

    def tls(self, *, name: str = "node.pem") -> ssl.SSLContext:
        """Return the TLS context that the node's scripts use for connections to the ensemble."""
        folder = self.machine.root / "etc/zookeeper/tls"
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Other tests check the server's name.
        context.check_hostname = False
        context.load_verify_locations(folder / "members-ca.pem")
        context.load_cert_chain(folder / name)
        return context

    def state(self) -> Server:
        """Return the state of the server, as it reports it to the commands ``srvr`` and ``mntr``."""
        return ask_server(self.address, PORT, self.tls())

    @property
    def mode(self) -> str | None:
        """``leader`` or ``follower``; None while the member does not serve."""
        return self.state().mode

    @property
    def log(self) -> str:
        """The log of the server."""
        return self._log.read_text(errors="replace")


class Members:
    """All members of a stack, ordered by id. Their addresses belong to this machine."""

    def __init__(self, graph: Graph, root: Path) -> None:
        count = len(graph.all("Instance"))
        self.nodes = [Member(graph, node, root / f"node-{node}") for node in range(1, count + 1)]

    def start(self) -> None:
        """Start all members and wait until they are in sync."""
        for member in self.nodes:
            member.start()
        self.wait_for_all()

    def stop(self) -> None:
        """Stop all members."""
        for member in self.nodes:
            member.stop()

    def wait_for_all(self) -> None:
        """Wait until one member leads and all other members are in sync with it."""
        eventually(
            lambda: is_in_sync([member.state() for member in self.nodes]),
            SYNC_SECONDS,
            lambda: "\n".join(member.log[-2000:] for member in self.nodes),
        )

    @property
    def leader(self) -> Member:
        """The member that leads."""
        (leader,) = [member for member in self.nodes if member.mode == "leader"]
        return leader

    def secure_lock_root(self) -> None:
        """Create the lock root and set its ACL on each node, as the systemd unit does."""
        for member in self.nodes:
            member.secure_lock_root()

    def restart_one_by_one(self, graph: Graph, root: Path) -> None:
        """Apply the stack of a later `up`: restart one member after the other, each when all members are in sync."""
        for number, member in enumerate(self.nodes):
            member.stop()
            updated_machine = Machine(graph, member.node, root / f"restart-{number}")
            for file in (updated_machine.root / "aws").iterdir():
                (member.machine.root / "aws" / file.name).write_bytes(file.read_bytes())
            member.start()
            self.wait_for_all()
