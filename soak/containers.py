"""ZooKeeper servers in Docker containers, with the methods of the embedded servers that faults use.

Each server is a container with the configuration of an embedded server. Three servers are an ensemble on a separate
network. Clients connect through ports of Docker's host. A separate process removes the containers and the network when
this process ends, even if it is killed. So testcontainers' reaper, which needs an image of its own, is not used.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lock_manager.testing.embedded import ask_server, free_ports, likely_cause, server_configuration
from soak.errors import ContainerError

if TYPE_CHECKING:
    from testcontainers.core.docker_client import DockerClient

#: Release of ZooKeeper in both images.
VERSION = "3.9.5"
#: The image on Docker Hub.
PUBLIC_IMAGE = f"zookeeper:{VERSION}"
#: The image that ``make zookeeper-image`` builds.
OWN_IMAGE = f"sluice-zookeeper:{VERSION}"
#: Label of containers and networks. Its value is the run to which they belong.
LABEL = "io.deltasluice.run"
_REAPER = Path(__file__).with_name("_container_reaper.py")
_CLIENT_PORT = 2181
_STOP_SECONDS = 5
_REMOVE_SECONDS = 60.0
_POLL_SECONDS = 0.1
_START_ATTEMPTS = 3
_PORT_TAKEN = re.compile("port is already allocated|address already in use")
_THIS_MACHINE = ("localhost", "127.0.0.1")


def best_image() -> str | None:
    """Return the image that was built on this machine, else the public one, which is pulled if the engine lacks it.

    Returns:
        Name of the image; None if the engine has neither and cannot pull the public one.

    Raises:
        ContainerError: See :func:`docker_engine`.

    """
    with docker_engine() as engine:
        from docker.errors import DockerException  # noqa: PLC0415

        images = engine.client.images
        for image in (OWN_IMAGE, PUBLIC_IMAGE):
            if images.list(image):
                return image
        try:
            images.pull(PUBLIC_IMAGE)
        except (DockerException, OSError):  # OSError: the engine did not answer in time
            return None
        return PUBLIC_IMAGE


@contextmanager
def docker_engine() -> Iterator[DockerClient]:
    """Connect to the engine that testcontainers finds: by ``DOCKER_HOST``, Docker's context or Docker's socket.

    Raises:
        ContainerError: No engine answers, the engine refuses a request, or the package testcontainers is missing.

    """
    try:
        from testcontainers.core.docker_client import DockerClient  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ContainerError("containers need testcontainers: pip install '.[dev]' in a clone of Sluice") from error
    from docker.errors import DockerException  # noqa: PLC0415

    try:
        engine = DockerClient()
    except DockerException as error:
        raise ContainerError("no Docker engine answers: start one, or point DOCKER_HOST at its socket") from error
    try:
        engine.client.ping()
        yield engine
    except DockerException as error:
        raise ContainerError(f"Docker refused: {getattr(error, 'explanation', None) or error}") from error
    finally:
        engine.client.close()


class ContainerServer:
    """One server in a container.

    Args:
        container: Container object of the docker package.
        network: Network object of the docker package, which the peers share.
        address: Host and port for clients.

    """

    def __init__(self, container: Any, network: Any, address: tuple[str, int]) -> None:
        self._container = container
        self._network = network
        self._address = address

    @property
    def address(self) -> str:
        """``host:port`` for clients."""
        host, port = self._address
        return f"{host}:{port}"

    def command(self, word: bytes) -> bytes:
        """Send a four-letter word; see :func:`lock_manager.testing.embedded.ask_server`."""
        return ask_server(self._address, word)

    def start(self) -> None:
        """Start the server with its data."""
        self._container.start()

    def stop(self) -> None:
        """End the server (SIGTERM), and wait until it has ended."""
        self._container.stop(timeout=_STOP_SECONDS)

    def kill(self) -> None:
        """Kill the server (SIGKILL)."""
        self._container.kill()

    def pause(self) -> None:
        """Pause all processes of the container."""
        self._container.pause()

    def resume(self) -> None:
        """Continue all processes of the container."""
        self._container.unpause()

    def cut(self) -> None:
        """Disconnect the server from peers and clients; it keeps running."""
        self._network.disconnect(self._container)

    def mend(self) -> None:
        """Connect the server again."""
        self._network.connect(self._container)

    def wait_until_serving(self, deadline: float) -> None:
        """Wait until the server has a quorum and answers clients.

        Args:
            deadline: Monotonic time, in seconds.

        Raises:
            ContainerError: The container has ended, or the deadline has passed.

        """
        while b"Mode: " not in self.command(b"srvr"):
            self._container.reload()
            if self._container.status == "exited" or time.monotonic() > deadline:
                log = self._container.logs().decode(errors="replace")
                raise ContainerError(f"the ZooKeeper in the container does not serve: {likely_cause(log)}")
            time.sleep(_POLL_SECONDS)


class ContainerZooKeeper:
    """One ZooKeeper server or an ensemble of three, in containers that are removed when this process ends.

    ``with ContainerZooKeeper("zookeeper:3.9.5") as zookeeper: ZookeeperLockManager(zookeeper.hosts)``

    Args:
        image: Name of the image, which is pulled if the engine does not have it.
        servers: Number of servers, 1 or 3.
        tick_ms: ZooKeeper's tick, in milliseconds.
        max_session_timeout_ms: Longest session timeout that the servers grant, in milliseconds.

    Attributes:
        image: Name of the image.
        servers: Running servers.

    """

    def __init__(
        self, image: str, servers: int = 1, *, tick_ms: int = 500, max_session_timeout_ms: int = 60_000
    ) -> None:
        self.image = image
        self.servers: list[ContainerServer] = []
        self._count = servers
        self._tick_ms = tick_ms
        self._max_session_timeout_ms = max_session_timeout_ms
        self._stack = ExitStack()

    @property
    def hosts(self) -> str:
        """Connection string: ``host:port``, comma-separated."""
        return ",".join(server.address for server in self.servers)

    def start(self, timeout_seconds: float = 60.0) -> Self:
        """Start the servers and wait until all serve.

        Raises:
            ContainerError: The servers are already running, no engine answers, there is no image, or a server does not
                serve in time.

        """
        if self.servers:
            raise ContainerError("this ZooKeeper is already running")
        deadline = time.monotonic() + timeout_seconds
        for attempt in range(1, _START_ATTEMPTS + 1):
            try:
                self._start_once(deadline)
            except ContainerError as error:
                # Another program may have taken a port since it was chosen.
                if attempt == _START_ATTEMPTS or not _PORT_TAKEN.search(str(error)):
                    raise
            else:
                break
        return self

    def _start_once(self, deadline: float) -> None:
        with ExitStack() as stack:
            # The engine's context is entered first, so it converts the errors of all later calls.
            engine = stack.enter_context(docker_engine())
            run = f"sluice-{uuid.uuid4().hex[:12]}"
            stack.enter_context(_reaper_process(run))
            stack.callback(self.servers.clear)
            self._create(engine, run)
            for server in self.servers:
                server.start()
            for server in self.servers:
                server.wait_until_serving(deadline)
            self._stack = stack.pop_all()

    def stop(self) -> None:
        """Remove the containers, their data and their network."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _create(self, engine: DockerClient, run: str) -> None:
        from testcontainers.core.transferable import build_transfer_tar  # noqa: PLC0415

        # The port is on the machine of the engine. On this machine it accepts only local connections.
        is_local = engine.host() in _THIS_MACHINE
        host, bind_address = ("127.0.0.1", "127.0.0.1") if is_local else (engine.host(), "0.0.0.0")  # noqa: S104
        network = engine.client_networks_create(run, {"labels": {LABEL: run}})
        # On a user-defined network Docker resolves the names of containers.
        names = [f"{run}-{number}" for number in range(1, self._count + 1)]
        members = "".join(f"server.{number}={name}:2888:3888\n" for number, name in enumerate(names, 1))
        # A container's address may change when it is connected again, hence quorumListenOnAllIPs.
        configuration = (
            server_configuration(
                "/data", self._tick_ms, self._max_session_timeout_ms, members if self._count > 1 else ""
            )
            + f"clientPort={_CLIENT_PORT}\nquorumListenOnAllIPs=true\n"
        )
        for number, (name, port) in enumerate(zip(names, free_ports(self._count), strict=True), 1):
            # A chosen port stays the same when the container starts again.
            ports = {f"{_CLIENT_PORT}/tcp": (bind_address, port)}
            container = engine.create(self.image, name=name, network=run, labels={LABEL: run}, ports=ports)
            for content, path in ((configuration, "/conf/zoo.cfg"), (f"{number}\n", "/data/myid")):
                container.put_archive("/", build_transfer_tar(content.encode(), path))
            self.servers.append(ContainerServer(container, network, (host, port)))


@contextmanager
def _reaper_process(run: str) -> Iterator[None]:
    """Run the process that removes all resources with this run's label when the block or this process ends."""
    # In a new session, so that a Ctrl-C at the terminal does not reach it.
    reaper = subprocess.Popen([sys.executable, "-P", _REAPER, f"{LABEL}={run}"], stdin=subprocess.PIPE,
                              start_new_session=True)  # fmt: skip
    try:
        yield
    finally:
        if reaper.stdin is not None:
            reaper.stdin.close()
        reaper.wait(_REMOVE_SECONDS)
