"""An embedded ZooKeeper for tests, demos and first experiments: real servers from the jars of PySpark.

It needs neither Docker nor a download, because PySpark 4.2 contains a complete ZooKeeper 3.9. It is one server, or an
ensemble of three, on 127.0.0.1 and free ports. The servers end with the process that started them, also when it is
killed. It is not for production: all members share one machine.
"""

from __future__ import annotations

import importlib.util
import json
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
from typing import IO, Self

from lock_manager.errors import LocalServerError
from lock_manager.testing.class_archives import ZOOKEEPER, archive_options
from lock_manager.testing.server_security import ServerSecurity
from lock_manager.zookeeper.connection import ask_four_letter_word

#: Script that runs a command and ends it when its parent ends.
SUPERVISOR = Path(__file__).with_name("_supervise.py")
# The jars that a server needs among PySpark's 300. With all of them on its class path it starts slower.
_SERVER_JARS = (
    "zookeeper-*", "netty-*", "slf4j-api-*", "log4j-*", "metrics-core-*", "snappy-java-*", "commons-*",
    "jackson-*", "audience-annotations-*",
)  # fmt: skip
_ENSEMBLE_SIZE = 3
_START_ATTEMPTS = 3
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.001
# Below the ports that Linux (from 32768) and other systems (from 49152) assign to connections.
_PORTS = range(10_240, 32_768)
_MIN_LISTEN_BACKLOG = 2**16


def find_java() -> str:
    """Return the ``java`` of ``$JAVA_HOME`` or, if that is not set, of ``$PATH``.

    Raises:
        LocalServerError: There is no ``java``.

    """
    home = os.environ.get("JAVA_HOME")
    candidate = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if candidate is None:
        problem = f"JAVA_HOME={home} has no bin/java" if home else "no java on PATH"
        raise LocalServerError(f"{problem}: install a JDK 17 or set JAVA_HOME")
    return candidate


def find_spark_jars() -> Path:
    """Return PySpark's folder of jars, ``$SPARK_HOME/jars`` or the installed package's, without importing PySpark.

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
    """Return the jars of PySpark that a ZooKeeper server needs.

    Raises:
        LocalServerError: PySpark is not installed.

    """
    folder = find_spark_jars()
    return sorted({jar for pattern in _SERVER_JARS for jar in folder.glob(pattern + ".jar")})


def server_configuration(data: str | os.PathLike[str], tick_ms: int, max_session_timeout_ms: int, members: str) -> str:
    """Return the lines of ``zoo.cfg`` that embedded servers and those in containers share.

    ``members`` contains the ``server.N=`` lines of an ensemble; empty for one server. :class:`EmbeddedZooKeeper`
    explains the times.
    """
    return (
        f"tickTime={tick_ms}\ninitLimit=20\nsyncLimit=10\ndataDir={os.fspath(data)}\nmaxClientCnxns=0\n"
        f"maxSessionTimeout={max_session_timeout_ms}\nadmin.enableServer=false\n4lw.commands.whitelist=*\n{members}"
    )


def escape_properties(text: str) -> str:
    """Return text for a Java properties file, which is Latin-1, with an escape for each non-ASCII character."""
    # JSON and Java escape characters alike, those beyond 16 bits as two surrogates.
    return re.sub(r"[^\x00-\x7f]", lambda match: json.dumps(match[0])[1:-1], text)


def ask_server(address: tuple[str, int], word: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """Send a four-letter word (``srvr``, ``mntr``, ``cons`` …) and return the response; empty if there is none."""
    with suppress(OSError):
        return ask_four_letter_word(address, word, tls)
    return b""


def small_jvm_options() -> list[str]:
    """Return the options of a server's JVM, for a small heap and a fast start."""
    return ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *archive_options(ZOOKEEPER)]


def start_supervised(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server that ends with this process, even if this process is killed; see :func:`stop_supervised`.

    The server's output is appended to ``log``. The first line on the returned supervisor's standard output is the
    server's pid.
    """
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(SUPERVISOR), "--output-to-stderr", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            # A Ctrl-C at the terminal reaches only the parent, which then stops the servers in order.
            start_new_session=True,
        )


def stop_supervised(supervisor: subprocess.Popen[bytes]) -> None:
    """End the server of a supervisor and wait for its end."""
    for pipe in (supervisor.stdin, supervisor.stdout):
        if pipe is not None:
            pipe.close()
    supervisor.wait()


def likely_cause(log: str) -> str:
    """Return the line of a server's log that most likely explains why it does not serve."""
    lines = log.strip().splitlines()
    # Log4j also logs the end of the JVM as an error.
    exceptions, errors = ([line for line in lines if word in line] for word in ("Exception", "ERROR"))
    return (exceptions or errors or lines or ["its log is empty"])[-1]


class EmbeddedServer:
    """One ZooKeeper server process that tests can pause, kill and restart.

    Attributes:
        server_id: 1, 2 or 3.
        client_port: Port for clients on 127.0.0.1.
        folder: Folder with configuration, data and log (``server.log``).
        pid: Process id of the Java process; None before :meth:`start` and after :meth:`stop`.
        end_reported: Whether :meth:`EmbeddedZooKeeper.wait_for_end` has returned this server since its last start.

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
        # The response to `conf` contains this random number, so it identifies the server. The kernel lowers the
        # backlog to its own limit.
        self._listen_backlog = _MIN_LISTEN_BACKLOG + secrets.randbelow(2**30)
        configuration += f"clientPortListenBacklog={self._listen_backlog}\n"
        (folder / "data").mkdir(parents=True, exist_ok=True)
        (folder / "data" / "myid").write_text(f"{server_id}\n", encoding="ascii")
        (folder / "zoo.cfg").write_text(escape_properties(configuration), encoding="ascii")
        self._java_options = security.java_options(folder) if security else []
        self._tls = security.probe_context() if security else None
        self._main_class = (
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
        """Pipe from the supervisor, which closes when the server ends."""
        assert self._supervisor is not None  # noqa: S101 (the caller has started the server)
        assert self._supervisor.stdout is not None  # noqa: S101 (it was started with a pipe)
        return self._supervisor.stdout

    def start(self) -> None:
        """Start the process; :meth:`wait_until_serving` waits until it serves."""
        if self._supervisor is not None:
            raise LocalServerError(f"server {self.server_id} was started already (pid {self.pid}): stop it first")
        classpath = os.pathsep.join(map(str, find_server_jars()))
        command = [find_java(), *small_jvm_options(), "-Dorg.apache.logging.log4j.level=INFO", *self._java_options]
        command += ["-cp", classpath, self._main_class, str(self.folder / "zoo.cfg")]
        self._supervisor = start_supervised(command, self.folder / "server.log")
        self.end_reported = False
        self.pid = int(self.output.readline() or 0) or None

    def wait_until_serving(self, deadline: float) -> None:
        """Wait, until a time of ``time.monotonic``, for the server to serve clients as a member of a quorum.

        Raises:
            LocalServerError: The server ended, or did not serve before the deadline.

        """
        while True:
            if self.has_ended():
                raise LocalServerError(f"the embedded ZooKeeper ended at once: {self.likely_cause()}")
            # Another program may serve at the port.
            identity = f"clientPortListenBacklog={self._listen_backlog}".encode()
            is_this_server = identity in self.command(b"conf").splitlines()
            if is_this_server and b"Mode: " in self.command(b"srvr"):
                return
            if time.monotonic() > deadline:
                raise LocalServerError(f"the embedded ZooKeeper does not serve: {self.likely_cause()}")
            time.sleep(0.02)

    def has_ended(self) -> bool:
        """Return whether the process does not run: it was never started, was stopped, or ended by itself."""
        return self._supervisor is None or self._supervisor.poll() is not None

    def likely_cause(self) -> str:
        """Return the line of the server's log that most likely explains its end."""
        return likely_cause(self._log())

    def command(self, word: bytes) -> bytes:
        """Send a four-letter word to the server; see :func:`ask_server`."""
        return ask_server(("127.0.0.1", self.client_port), word, self._tls)

    def pause(self) -> None:
        """Pause the process (SIGSTOP); return when all of its threads have stopped."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused process (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill the process (SIGKILL); :meth:`start` starts it again with its data."""
        self._signal(signal.SIGKILL)
        self.stop()

    def stop(self) -> None:
        """End the process and wait for its end. Do nothing if it does not run."""
        supervisor, self._supervisor, self.pid = self._supervisor, None, None
        if supervisor is not None:
            stop_supervised(supervisor)

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is None:
            raise LocalServerError(f"server {self.server_id} does not run: start it first")
        send_signal(self.pid, number)

    def port_was_taken(self) -> bool:
        """Return whether another program used one of the server's ports."""
        return "BindException" in self._log()

    def _log(self) -> str:
        return (self.folder / "server.log").read_text(encoding="utf-8", errors="replace")


class EmbeddedZooKeeper:
    """One ZooKeeper server or an ensemble of three, which ends with this process.

    ``with EmbeddedZooKeeper() as zookeeper: ZookeeperLockManager(zookeeper.hosts)``

    Args:
        servers: 1 or 3.
        data_dir: Folder for the data; by default a temporary folder, which :meth:`stop` deletes.
        port: Client port of the first server; the other servers use the next ports. By default free ports.
        tick_ms: Unit of ZooKeeper's timeouts, in milliseconds.
        max_session_timeout_ms: Longest session timeout that a server grants, in milliseconds. ZooKeeper's own default
            is 20 ticks.
        security: Requirements for clients; none by default.

    Raises:
        LocalServerError: Java or PySpark is missing, or a server did not start. :meth:`start` raises it.
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
        if servers not in (1, _ENSEMBLE_SIZE):
            raise ValueError(f"servers={servers!r}: must be 1 or {_ENSEMBLE_SIZE}")
        self._count = servers
        self._data_dir = Path(data_dir) if data_dir is not None else None
        self._port = port
        self._tick_ms = tick_ms
        self._max_session_timeout_ms = max_session_timeout_ms
        self._security = security
        self._temporary_folder: tempfile.TemporaryDirectory[str] | None = None
        self.servers: list[EmbeddedServer] = []

    @property
    def hosts(self) -> str:
        """Connection string: ``host:port``, comma-separated."""
        return ",".join(server.address for server in self.servers)

    def start(self, timeout_seconds: float = 60.0) -> Self:
        """Start all servers and wait until they serve."""
        if self.servers:
            raise LocalServerError("the embedded ZooKeeper was started already: stop it first")
        deadline = time.monotonic() + timeout_seconds
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._start_once(deadline)
            except BaseException as error:
                # Another program may have taken a port that was free a moment ago.
                port_was_taken = isinstance(error, LocalServerError) and any(
                    server.port_was_taken() for server in self.servers
                )
                self.stop()
                if not port_was_taken or self._port is not None or attempt == _START_ATTEMPTS:
                    raise
            else:
                break
        return self

    def wait_for_end(self) -> EmbeddedServer:
        """Wait until a server's process has ended; return that server once for each start.

        Raises:
            LocalServerError: All servers have ended, and all were returned.

        """
        servers = [server for server in self.servers if not server.end_reported]
        if not servers:
            raise LocalServerError("all servers have ended: stop the ensemble, and start it again")
        ended_server = next((server for server in servers if server.pid is None), None)
        if ended_server is None:
            # The pipe from the supervisor closes with it, and a closed pipe is readable at once.
            pipes = {server.output: server for server in servers}
            (pipe, *_), _, _ = select.select(list(pipes), [], [])
            ended_server = pipes[pipe]
        ended_server.stop()
        ended_server.end_reported = True
        return ended_server

    def stop(self) -> None:
        """End all servers; delete the data unless a folder was given."""
        for server in self.servers:
            server.stop()
        self.servers = []
        if self._temporary_folder is not None:
            self._temporary_folder.cleanup()
            self._temporary_folder = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _start_once(self, deadline: float) -> None:
        base = self._data_dir
        if base is None:
            self._temporary_folder = tempfile.TemporaryDirectory(prefix="sluice-zookeeper-")
            base = Path(self._temporary_folder.name)
        ports = free_ports(3 * self._count)
        client_ports, peer_ports, election_ports = ports[::3], ports[1::3], ports[2::3]
        if self._port is not None:
            client_ports = list(range(self._port, self._port + self._count))
            for port in client_ports:
                _check_port_is_free(port)
        members = ""
        if self._count > 1:
            for number, (peer, election) in enumerate(zip(peer_ports, election_ports, strict=True), 1):
                members += f"server.{number}=127.0.0.1:{peer}:{election}\n"
        for number, port in enumerate(client_ports, 1):
            folder = base / f"server-{number}"
            configuration = server_configuration(
                folder / "data", self._tick_ms, self._max_session_timeout_ms, members
            ) + (self._security or ServerSecurity()).configuration(port)
            self.servers.append(EmbeddedServer(number, port, folder, configuration, self._security))
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait_until_serving(deadline)


def send_signal(pid: int, number: signal.Signals) -> None:
    """Send a signal if the process exists; with SIGSTOP, return when all of its threads have stopped.

    One thread handles the signal when it gets a processor, and stops the others. They may run until then. The
    function waits for at most 10 s, and not at all without ``/proc``.
    """
    with suppress(ProcessLookupError):
        os.kill(pid, number)
        deadline = time.monotonic() + _STOP_SECONDS
        while number is signal.SIGSTOP and not _is_stopped(pid) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)


def _is_stopped(pid: int) -> bool:
    # The state follows the name, which is in parentheses: stopped, traced, or ended.
    states = []
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(ProcessLookupError, FileNotFoundError):
            states.append(task.read_text().rpartition(")")[2].split()[0])
    return all(state in "TtZX" for state in states)


def _check_port_is_free(port: int) -> None:
    with socket.socket() as probe:
        # Java sets this option, too, so it can use a port whose connections have just ended.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise LocalServerError(
                f"port {port} of 127.0.0.1 cannot be used ({error.strerror}): end the program that uses it, or choose "
                "another port"
            ) from error


def free_ports(count: int) -> list[int]:
    """Return unused ports, outside the range from which the system assigns ports to connections."""
    ports: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise LocalServerError(f"no {count} ports between {_PORTS.start} and {_PORTS.stop} are free")
