"""The embedded ZooKeeper's processes and configuration; a script stands in for Java."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lock_manager.errors import LocalServerError
from lock_manager.testing import embedded
from lock_manager.testing.embedded import EmbeddedServer, EmbeddedZooKeeper


@pytest.fixture
def ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedZooKeeper]:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\nexec sleep 600\n")
    java.chmod(0o755)
    monkeypatch.setattr(embedded, "find_java", lambda: str(java))
    monkeypatch.setattr(embedded, "find_server_jars", list)
    ensemble = EmbeddedZooKeeper(3)
    ensemble.servers = [EmbeddedServer(number, 1, tmp_path / str(number), "") for number in (1, 2, 3)]
    for server in ensemble.servers:
        server.start()
    yield ensemble
    ensemble.stop()


def test_each_server_that_ends_is_reported_once(ensemble: EmbeddedZooKeeper) -> None:
    first, second, third = ensemble.servers
    for server in (first, second):
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        # The read returns when the server has ended.
        assert server.output.read() == b"", "the supervisor wrote more than the pid"
    assert {ensemble.wait_for_end(), ensemble.wait_for_end()} == {first, second}
    first.start()
    third.kill()
    assert ensemble.wait_for_end() is third
    first.kill()
    assert ensemble.wait_for_end() is first
    with pytest.raises(LocalServerError, match="all servers have ended"):
        ensemble.wait_for_end()


def test_a_configuration_is_written_in_ascii(tmp_path: Path) -> None:
    """A Java properties file is read as Latin-1."""
    EmbeddedServer(1, 1, tmp_path, "dataDir=/d\u00e4t\u00e4/\U0001f427\n")
    content = (tmp_path / "zoo.cfg").read_bytes()
    assert content.startswith(b"dataDir=/d\\u00e4t\\u00e4/\\ud83d\\udc27\nclientPortListenBacklog=")
