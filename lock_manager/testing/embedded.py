"""An embedded ZooKeeper for tests, demos and a first try: real servers, from the jars that PySpark ships.

No Docker and no download: PySpark 4.2 carries a complete ZooKeeper 3.9. One server, or an ensemble of three, on
127.0.0.1 and free ports. They end with the process that started them, however it ends. Not for production: all
members share one machine.
"""

from __future__ import annotations

import importlib.util
import os
import random
import re
import secrets
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from lock_manager.errors import LocalServerError
from lock_manager.testing.class_archives import ZOOKEEPER, archive_options
from lock_manager.testing.server_security import ServerSecurity
from lock_manager.zookeeper.connection import ask_word

#: Script that runs a command for as long as its parent lives.
SUPERVISOR = Path(__file__).with_name("_supervise.py")
# What a server needs of PySpark's 300 jars; with all of them on its path it starts slower.
_SERVER_JARS = (
    "zookeeper-*", "netty-*", "slf4j-api-*", "log4j-*", "metrics-core-*", "snappy-java-*", "commons-*",
    "jackson-*", "audience-annotations-*",
)  # fmt: skip
_ENSEMBLE = 3
_START_ATTEMPTS = 3
_STOP_SECONDS = 10.0
_LOOK_SECONDS = 0.001
# Below what Linux (32768) and others (49152) give to connections.
_PORTS = range(10_240, 32_768)
_LEAST_LISTEN_BACKLOG = 2**16


def find_java() -> str:
    """Return the ``java`` to run: of ``$JAVA_HOME``, else the one on ``$PATH``.

    Raises:
        LocalServerError: there is none.

    """
    home = os.environ.get("JAVA_HOME")
    candidate = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if candidate is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java on PATH"
        raise LocalServerError(f"{where}: install a JDK 17 or set JAVA_HOME")
    return candidate


def find_spark_jars() -> Path:
    """Return PySpark's folder of jars (``$SPARK_HOME/jars``, else the installed package's) without importing it.

    Raises:
        LocalServerError: PySpark is not installed.

    """
    home = os.environ.get("SPARK_HOME")
    spec = None if home else importlib.util.find_spec("pyspark")
    base = Path(home) if home else Path(spec.origin).parent if spec and spec.origin else None
    if base is None or not any((base / "jars").glob("zookeeper-*.jar")):
        raise LocalServerError(
            "PySpark with its jars was not found: pip install '.[spark]' in a clone of Sluice, or set SPARK_HOME"
        )
    return base / "jars"


def find_server_jars() -> list[Path]:
    """Return those of PySpark's jars that a ZooKeeper server needs.

    Raises:
        LocalServerError: PySpark is not installed.

    """
    folder = find_spark_jars()
    return sorted({jar for pattern in _SERVER_JARS for jar in folder.glob(pattern + ".jar")})


def server_configuration(data: str | os.PathLike[str], tick_ms: int, max_session_timeout_ms: int, members: str) -> str:
    """Return the lines of ``zoo.cfg`` that all of our servers share.

    Args:
        data: the server's folder for its data.
        tick_ms: the unit of ZooKeeper's time-outs, in milliseconds.
        max_session_timeout_ms: the longest session that it grants.
        members: the ``server.N=`` lines of an ensemble, empty for one server.

    """
    return (
        f"tickTime={tick_ms}\ninitLimit=20\nsyncLimit=10\ndataDir={os.fspath(data)}\nmaxClientCnxns=0\n"
        f"maxSessionTimeout={max_session_timeout_ms}\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{members}"
    )


def escape_properties(text: str) -> str:
    """Return text for a Java properties file, which is Latin-1, with an escape for each character beyond ASCII."""
    return re.sub(r"[^\x00-\x7f]", lambda match: _escape(match[0]), text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def ask_server(address: tuple[str, int], word: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send a four-letter word (``srvr``, ``mntr``, ``cons`` …) and return the answer, empty if there is none."""
    with suppress(OSError):
        return ask_word(address, word, tls)
    return b""


def small_java() -> list[str]:
    """Return the options of a server's JVM: small, and soon there."""
    return ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *archive_options(ZOOKEEPER)]


def start_supervised(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server that ends with this process, however it ends; :func:`stop_supervised` ends it before.

    Args:
        command: of the server.
        log: file to which its output is added.

    Returns:
        Its supervisor, whose first line on standard output is the server's pid.

    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), "--output-to-stderr", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            # A Ctrl-C at the terminal is for the parent, which then stops the servers in its own order.
            start_new_session=True,
        )


def stop_supervised(supervisor: subprocess.Popen[bytes]) -> None:
    """End the server of a supervisor, and wait for it."""
    for pipe in (supervisor.stdin, supervisor.stdout):
        if pipe is not None:
            pipe.close()
    supervisor.wait()


def last_words(log: str) -> str:
    """Return the line of a server's log that says best why it does not serve."""
    lines = log.strip().splitlines()
    # Log4j's own line about the end of the JVM is an error, too.
    exceptions, errors = ([line for line in lines if word in line] for word in ("Exception", "ERROR"))
    return (exceptions or errors or lines or ["it said nothing"])[-1]


class EmbeddedServer:
    """One ZooKeeper server process, and what a test wants to do to it.

    Attributes:
        server_id: 1, 2 or 3.
        client_port: on 127.0.0.1.
        folder: its configuration, data and log (``server.log``).
        pid: of the Java process while it runs, else None.
        end_reported: Whether :meth:`EmbeddedZooKeeper.wait_for_end` has returned this server since it was started.

    """

    def __init__(
        self, server_id: int, client_port: int, folder: Path, configuration: str, security: ServerSecurity | None = None
    ) -> None:
        self.server_id = server_id
        self.client_port = client_port
        self.folder = folder
        self.pid: int | None = None
        self.end_reported = False
        self._supervisor: subprocess.Popen[bytes] | None = None
        # The answer to `conf` contains it, so it identifies this server. The kernel lowers it to its own limit.
        self._listen_backlog = _LEAST_LISTEN_BACKLOG + secrets.randbelow(2**30)
        configuration += f"clientPortListenBacklog={self._listen_backlog}\n"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "myid").write_text(f"{server_id}\n", encoding="ascii")
        (folder / "zoo.cfg").write_text(escape_properties(configuration), encoding="ascii")
        self._java_options = security.java_options(folder) if security else []
        self._tls = security.probe() if security else None
        self._main = (
            "org.apache.zookeeper.server.quorum.QuorumPeerMain"
            if "server.1=" in configuration
            else "org.apache.zookeeper.server.ZooKeeperServerMain"
        )

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self.client_port}"

    @property
    def output(self) -> IO[bytes]:
        """Pipe from the supervisor, which closes when the process ends."""
        assert self._supervisor is not None  # noqa: S101 (the caller has started it)
        assert self._supervisor.stdout is not None  # noqa: S101 (a pipe was asked for)
        return self._supervisor.stdout

    def start(self) -> None:
        """Start the process; :meth:`wait_until_serving` tells when it serves."""
        if self._supervisor is not None:
            raise LocalServerError(f"server {self.server_id} is running already (pid {self.pid})")
        classpath = os.pathsep.join(map(str, find_server_jars()))
        command = [
            find_java(),
            *small_java(),
            "-Dorg.apache.logging.log4j.level=INFO",
            *self._java_options,
            "-cp",
            classpath,
            self._main,
            str(self.folder / "zoo.cfg"),
        ]
        self._supervisor = start_supervised(command, self.folder / "server.log")
        self.end_reported = False
        self.pid = int(self.output.readline() or 0) or None

    def wait_until_serving(self, deadline: float) -> None:
        """Wait until it answers clients with a quorum behind it.

        Args:
            deadline: on the clock of ``time.monotonic``.

        Raises:
            LocalServerError: it ended, or did not serve before the deadline.

        """
        while True:
            if self.has_ended():
                raise LocalServerError(f"the embedded ZooKeeper ended at once: {self.last_words()}")
            if self._owns_port() and b"Mode: " in self.command(b"srvr"):
                return
            if time.monotonic() > deadline:
                raise LocalServerError(f"the embedded ZooKeeper does not serve: {self.last_words()}")
            time.sleep(0.02)

    def _owns_port(self) -> bool:
        """Whether this server answers at the port, not another program."""
        return f"clientPortListenBacklog={self._listen_backlog}".encode() in self.command(b"conf").splitlines()

    def has_ended(self) -> bool:
        """Whether the process does not run: never started, stopped, or ended by itself."""
        return self._supervisor is None or self._supervisor.poll() is not None

    def last_words(self) -> str:
        """Return the last error in the server's log."""
        return last_words(self._log())

    def command(self, word: bytes) -> bytes:
        """Ask it a four-letter word; see :func:`ask_server`."""
        return ask_server(("127.0.0.1", self.client_port), word, self._tls)

    def pause(self) -> None:
        """Stop the process where it stands (SIGSTOP); returns when all of its threads do."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """End the process at once (SIGKILL); :meth:`start` brings it back with its data."""
        self._signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End the process and wait for it. Does nothing if it does not run."""
        supervisor, self._supervisor, self.pid = self._supervisor, None, None
        if supervisor is not None:
            stop_supervised(supervisor)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            raise LocalServerError(f"server {self.server_id} does not run")
        send_signal(self.pid, number)

    def port_was_taken(self) -> bool:
        """Tell whether it has met somebody else at one of its ports."""
        return "BindException" in self._log()

    def _log(self) -> str:
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")


class EmbeddedZooKeeper:
    """One ZooKeeper server or an ensemble of three, ended with this process.

    ``with EmbeddedZooKeeper() as zookeeper: ZookeeperLockManager(zookeeper.hosts)``

    Args:
        servers: 1 or 3.
        data_dir: where data is kept; a temporary folder, deleted by :meth:`stop`, when not given.
        port: of the first server's clients, the next ones follow; free ports when not given.
        tick_ms: the unit of ZooKeeper's time-outs, in milliseconds.
        max_session_timeout_ms: the longest session that it grants; ZooKeeper's own default is 20 ticks.
        security: what its clients have to show; nothing when not given.

    Raises:
        LocalServerError: from :meth:`start`: no Java, no PySpark, or the server did not come up.
        ValueError: ``servers`` is neither 1 nor 3.

    """

    def __init__(
        self,
        servers: int = 1,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        port: int | None = None,
        tick_ms: int = 500,
        max_session_timeout_ms: int = 60_000,
        security: ServerSecurity | None = None,
    ) -> None:
        if servers not in (1, _ENSEMBLE):
            raise ValueError(f"servers={servers!r}: an embedded ensemble has 1 or {_ENSEMBLE}")
        self._count = servers
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._port = port
        self._tick_ms = tick_ms
        self._max_session_timeout_ms = max_session_timeout_ms
        self._security = security
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self.servers: list[EmbeddedServer] = []

    @property
    def hosts(self) -> str:
        """Connection string: ``host:port``, comma-separated."""
        return ",".join(server.address for server in self.servers)

    def start(self, timeout_seconds: float = 60.0) -> Self:
        """Start and wait until all serve."""
        if self.servers:
            raise LocalServerError("the embedded ZooKeeper is running already")
        deadline = time.monotonic() + timeout_seconds
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._start_once(deadline)
            except BaseException as error:
                # A port that was free a moment ago may be taken by now.
                taken = isinstance(error, LocalServerError) and any(each.port_was_taken() for each in self.servers)
                self.stop()
                if not taken or self._port is not None or attempt == _START_ATTEMPTS:
                    raise
            else:
                break
        return self

    def wait_for_end(self) -> EmbeddedServer:
        """Wait until a server's process has ended, and return that server, once for each start.

        Raises:
            LocalServerError: All servers have ended, and all were returned.

        """
        servers = [server for server in self.servers if not server.end_reported]
        if not servers:
            raise LocalServerError("all servers have ended")
        ended = next((server for server in servers if server.pid is None), None)
        if ended is None:
            # The pipe from the supervisor closes with it, and a closed pipe is readable at once.
            pipes = {server.output: server for server in servers}
            (pipe, *_), _, _ = select.select(list(pipes), [], [])
            ended = pipes[pipe]
        ended.stop()
        ended.end_reported = True
        return ended

    def stop(self) -> None:
        """End all servers; the data goes with them unless a folder was given."""
        for server in self.servers:
            server.stop()
        self.servers = []
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_once(self, deadline: float) -> None:
        if self._data_dir is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="sluice-zookeeper-")
        base = self._data_dir or Path(self._temporary.name if self._temporary else "")
        ports = free_ports(3 * self._count)
        if self._port is not None:
            ports[: self._count] = range(self._port, self._port + self._count)
            for port in ports[: self._count]:
                _refuse_taken(port)
        members = "".join(
            f"server.{index + 1}=127.0.0.1:{ports[self._count + 2 * index]}:{ports[self._count + 2 * index + 1]}\n"
            for index in range(self._count if self._count > 1 else 0)
        )
        for index in range(self._count):
            folder = base / f"server-{index + 1}"
            configuration = server_configuration(
                folder / "data", self._tick_ms, self._max_session_timeout_ms, members
            ) + (self._security or ServerSecurity()).configuration(ports[index])
            self.servers.append(EmbeddedServer(index + 1, ports[index], folder, configuration, self._security))
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_until_serving(deadline)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal, if the process is there; with SIGSTOP, return when all of its threads stand still.

    One thread takes the signal, when it gets a processor, and stops the others: until then they may act. (Where there
    is no ``/proc`` it returns at once.)
    """
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        deadline = time.monotonic() + _STOP_SECONDS
        while number is signal.SIGSTOP and not _stands_still(pid) and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def _stands_still(pid: int) -> bool:
    # The state follows the name, which is in parentheses: stopped, or over already.
    states = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(ProcessLookupError, FileNotFoundError):
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return all(state in "TtZX" for state in states)


def _refuse_taken(port: int) -> None:
    with socket.socket() as probe:
        # As Java does: a port whose connections have just ended is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise LocalServerError(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): end the program that has it, or choose "
                "another port"
            ) from error


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, outside of those from which connections get theirs at any moment."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise LocalServerError(f"no {count} ports between {_PORTS.start} and {_PORTS.stop} are free")
