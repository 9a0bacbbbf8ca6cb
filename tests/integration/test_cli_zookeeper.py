"""`sluice zookeeper`: serves until Ctrl-C, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lock_manager import ZookeeperLockManager
from lock_manager.errors import LocalServerError
from lock_manager.testing.embedded import EmbeddedServer, server_configuration
from lock_manager.testing.server_security import ServerSecurity
from sluice.commands.app import app

ROOT = Path(__file__).parents[2]


def test_a_port_of_another_program_is_refused() -> None:
    """The other program answers as a ZooKeeper does."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), AnotherZooKeeper) as rival:
        threading.Thread(target=rival.serve_forever, daemon=True).start()
        port = rival.server_address[1]
        answer = CliRunner().invoke(app, ["zookeeper", "--port", str(port)])
        assert (answer.exit_code, answer.stdout) == (1, "")
        assert answer.stderr.startswith(f"sluice: port {port} of 127.0.0.1 cannot be used")
        rival.shutdown()


def test_a_server_that_lost_its_port_serves_nobody(tmp_path: Path) -> None:
    """Another program takes the port after it was found free, and answers in this server's place."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), AnotherZooKeeper) as rival:
        threading.Thread(target=rival.serve_forever, daemon=True).start()
        port = rival.server_address[1]
        configuration = server_configuration(tmp_path / "data", 500, 60_000, "")
        configuration += ServerSecurity().configuration(port)
        server = EmbeddedServer(1, port, tmp_path, configuration)
        try:
            server.start()
            with pytest.raises(LocalServerError, match=r"ended at once: .*in use"):
                server.wait_until_serving(time.monotonic() + 30)
        finally:
            server.stop()
            rival.shutdown()


def test_a_server_that_is_killed_ends_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sluice", "zookeeper"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        hosts = process.stdout.readline().strip()
        (supervisor,) = children(process.pid)
        (server,) = children(supervisor)
        os.kill(server, signal.SIGKILL)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert f"sluice: server 1 ({hosts}) has ended" in errors


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


class AnotherZooKeeper(socketserver.BaseRequestHandler):
    """Answers ``srvr`` and ``conf`` as the server of another folder does."""

    def handle(self) -> None:
        word = self.request.recv(4)
        self.request.sendall(b"dataDir=/elsewhere/version-2\n" if word == b"conf" else b"Mode: standalone\n")


def test_it_serves_a_lock_manager_until_it_is_interrupted(tmp_path: Path, heed_ctrl_c: None) -> None:
    command = [sys.executable, "-m", "sluice", "zookeeper", "--data", "./dätä"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        hosts = process.stdout.readline().strip()
        with ZookeeperLockManager(hosts, 20) as manager, manager.acquire("s3://lake/flights") as hold:
            hold.check()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "sluice: stopped by SIGINT; everything that was started has been ended"
    host, port = hosts.split(":")
    with socket.socket() as connection:
        assert connection.connect_ex((host, int(port))) != 0
    assert any((tmp_path / "dätä").rglob("version-2")), "the data was kept"
