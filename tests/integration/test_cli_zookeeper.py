"""`sluice zookeeper` serves until Ctrl-C and ends its server, and refuses a port that another program uses."""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lock_manager import ZookeeperLockManager
from lock_manager.errors import LocalServerError
from lock_manager.testing.embedded import EmbeddedServer, server_configuration
from lock_manager.testing.server_security import ServerSecurity
from sluice.commands.app import app

ROOT = Path(__file__).parents[2]


class ForeignServer(socketserver.BaseRequestHandler):
    """Answers ``srvr`` and ``conf`` as a ZooKeeper server of another folder does."""

    def handle(self) -> None:
        word = self.request.recv(4)
        self.request.sendall(b"dataDir=/elsewhere/version-2\n" if word == b"conf" else b"Mode: standalone\n")


@pytest.fixture
def foreign_port() -> Iterator[int]:
    """The port of another program, which answers as a ZooKeeper server does."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), ForeignServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def command(*arguments: str, cwd: Path | None = None) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run the command; yield its process and the connection string that it prints."""
    words = [sys.executable, "-m", "sluice", "zookeeper", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=cwd
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_a_port_of_another_program_is_refused(foreign_port: int) -> None:
    result = CliRunner().invoke(app, ["zookeeper", "--port", str(foreign_port)])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"sluice: port {foreign_port} of 127.0.0.1 cannot be used")


def test_a_server_that_lost_its_port_does_not_serve(tmp_path: Path, foreign_port: int) -> None:
    """Another program takes the port after the check that it is free."""
    configuration = server_configuration(tmp_path / "data", 500, 60_000, "")
    configuration += ServerSecurity().configuration(foreign_port)
    server = EmbeddedServer(1, foreign_port, tmp_path, configuration)
    try:
        server.start()
        with pytest.raises(LocalServerError, match=r"ended at once: .*in use"):
            server.wait_until_serving(time.monotonic() + 30)
    finally:
        server.stop()


def test_the_command_ends_when_its_server_is_killed() -> None:
    with command() as (process, hosts):
        (supervisor,) = children(process.pid)
        (server,) = children(supervisor)
        os.kill(server, signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"sluice: server 1 ({hosts}) has ended" in errors


def test_the_command_serves_until_ctrl_c(tmp_path: Path, heed_ctrl_c: None) -> None:
    with command("--data", "./dätä", cwd=tmp_path) as (process, hosts):
        with ZookeeperLockManager(hosts, 20) as manager, manager.acquire("s3://lake/flights") as hold:
            hold.check()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "sluice: stopped by SIGINT; everything that was started has been ended"
    host, port = hosts.split(":")
    with socket.socket() as connection:
        assert connection.connect_ex((host, int(port))) != 0
    assert any((tmp_path / "dätä").rglob("version-2")), "the command deleted the server's data"
