"""The socket of the commit guard, with any folder for temporary files."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest

from lock_manager.guard.guard_server import GuardServer


class EchoGuard:
    """Answers with the question."""

    def check(self, request: str) -> str:
        return request


@pytest.mark.parametrize("length", [10, 100])
def test_the_guard_answers_whatever_the_folder_for_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """A container of a cluster can have a longer path than a socket may have."""
    folder = tmp_path / (length * "x")
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    server = GuardServer(EchoGuard())
    try:
        with socket.socket(socket.AF_UNIX) as client, client.makefile("rw") as lines:
            client.connect(server.path)
            lines.write("a question\n")
            lines.flush()
            assert lines.readline() == "a question\n"
    finally:
        server.close()
    assert not Path(server.path).parent.exists()
    assert list(folder.iterdir()) == []


def test_negative_control_a_socket_cannot_have_a_long_path(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, pytest.raises(OSError, match="too long"):
        server.bind(str(tmp_path / (100 * "x") / "guard"))
