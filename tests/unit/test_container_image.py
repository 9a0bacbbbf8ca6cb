"""The image of a ZooKeeper container, and the choice of its port.

A stand-in replaces the Docker engine: no test needs Docker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

from soak import containers
from soak.containers import OWN_IMAGE, PUBLIC_IMAGE, ContainerZooKeeper, best_image
from soak.errors import ContainerError
from tests import conftest

PORT_IN_USE = "Bind for 127.0.0.1:20001 failed: port is already allocated"


class Engine(BaseHTTPRequestHandler):
    """A stand-in for the Docker engine: it lists its images, and pulls the public image if it can reach a registry."""

    images: frozenset[str] = frozenset()
    reaches_registry = False
    pulls = 0

    def answer(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path.endswith("/images/json"):
            names = [name for name in self.images if f'"{name}"' in unquote(self.path)]
            self.answer([{"Id": f"sha256:{name}", "RepoTags": [name]} for name in names])
        elif "/images/" in path:
            self.answer({"Id": "sha256:1", "RepoTags": [], "Size": 1})
        else:
            self.answer({"ApiVersion": "1.45", "MinAPIVersion": "1.24", "Version": "28"})

    def do_POST(self) -> None:
        type(self).pulls += 1
        if self.reaches_registry:
            self.answer({"status": "Downloaded"})
        else:
            self.answer({"message": "dial tcp: lookup registry: no such host"}, 500)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Engine]]:
    """Start an engine without images."""
    handler = type("Handler", (Engine,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
    conftest.find_docker_image.cache_clear()
    yield handler
    server.shutdown()
    thread.join()
    server.server_close()
    conftest.find_docker_image.cache_clear()


def test_an_image_of_the_engine_needs_no_registry(engine: type[Engine]) -> None:
    engine.images = frozenset([OWN_IMAGE, PUBLIC_IMAGE])
    assert best_image() == OWN_IMAGE
    engine.images = frozenset([PUBLIC_IMAGE])
    assert best_image() == PUBLIC_IMAGE
    assert engine.pulls == 0


def test_the_public_image_is_used_only_if_it_can_be_pulled(engine: type[Engine]) -> None:
    assert best_image() is None
    engine.reaches_registry = True
    assert best_image() == PUBLIC_IMAGE
    assert engine.pulls == 2


def test_the_header_of_pytest_names_the_image_or_a_reason(
    engine: type[Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def header() -> str:
        conftest.find_docker_image.cache_clear()
        return conftest.pytest_report_header()[0]

    assert header() == "zookeeper: embedded server (no image: make zookeeper-image)"
    engine.images = frozenset([OWN_IMAGE])
    assert header() == f"zookeeper: container {OWN_IMAGE}"
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    assert header() == "zookeeper: embedded server (no Docker engine answers)"


@dataclass
class ScriptedServer:
    """A server whose starts fail with these errors, in order. A start with an empty error succeeds."""

    errors: list[str]

    def start(self) -> None:
        if error := self.errors.pop(0):
            raise ContainerError(f"Docker refused: {error}")

    def wait_until_serving(self, deadline: float) -> None:
        pass


def start_container(monkeypatch: pytest.MonkeyPatch, *errors: str) -> list[str]:
    """Start a ZooKeeper whose starts fail with these errors, in order; return the errors that remain."""
    server: Any = ScriptedServer(list(errors))
    monkeypatch.setattr(containers, "docker_engine", nullcontext)
    monkeypatch.setattr(containers, "_reaper_process", lambda _: nullcontext())
    monkeypatch.setattr(ContainerZooKeeper, "_create", lambda self, *_: self.servers.append(server))
    with ContainerZooKeeper("any") as ensemble:
        assert len(ensemble.servers) == 1
    return server.errors  # type: ignore[no-any-return]


def test_a_port_that_is_in_use_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    address_in_use = "failed to bind host port for 127.0.0.1:20001: address already in use"
    assert start_container(monkeypatch, "", "no second start") == ["no second start"]
    assert start_container(monkeypatch, PORT_IN_USE, address_in_use, "") == []
    with pytest.raises(ContainerError, match="port is already allocated"):
        start_container(monkeypatch, *[PORT_IN_USE] * 9)


def test_a_start_is_not_repeated_after_another_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ContainerError, match="no space left"):
        start_container(monkeypatch, "no space left on device", "")
