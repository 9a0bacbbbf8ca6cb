"""Which image a ZooKeeper in a container is made from, and a port that somebody else took first.

The engine here is one that answers and does nothing: no test needs Docker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

import pytest

from soak import containers
from soak.containers import OWN_IMAGE, PUBLIC_IMAGE, ContainerZooKeeper, best_image
from soak.errors import ContainerError
from tests import conftest

TAKEN = "Bind for 127.0.0.1:20001 failed: port is already allocated"


class Engine(BaseHTTPRequestHandler):
    """Knows its images, and pulls the public one if it can reach a registry."""

    images: frozenset[str] = frozenset()
    reaches_registry = False
    pulls = 0

    def say(self, content: object, status: int = 200) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        what = self.path.partition("?")[0]
        if what.endswith("/images/json"):
            self.say([{"Id": f"sha256:{name}", "RepoTags": [name]} for name in self.images if self.asks_for(name)])
        elif "/images/" in what:
            self.say({"Id": "sha256:1", "RepoTags": [], "Size": 1})
        else:
            self.say({"ApiVersion": "1.45", "MinAPIVersion": "1.24", "Version": "28"})

    def asks_for(self, name: str) -> bool:
        return f'"{name}"' in unquote(self.path)

    def do_POST(self) -> None:
        type(self).pulls += 1
        if self.reaches_registry:
            self.say({"status": "Downloaded"})
        else:
            self.say({"message": "dial tcp: lookup registry: no such host"}, 500)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., type[Engine]]]:
    servers = []

    def start(*images: str, reaches_registry: bool = False) -> type[Engine]:
        kind = type("Handler", (Engine,), {"images": frozenset(images), "reaches_registry": reaches_registry})
        server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
        thread = Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.server_port}")
        conftest.docker_says.cache_clear()
        return kind

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()
    conftest.docker_says.cache_clear()


def test_an_image_that_the_engine_has_is_taken_without_a_registry(engine: Callable[..., type[Engine]]) -> None:
    kind = engine(OWN_IMAGE, PUBLIC_IMAGE)
    assert best_image() == OWN_IMAGE
    kind.images = frozenset([PUBLIC_IMAGE])
    assert best_image() == PUBLIC_IMAGE
    assert kind.pulls == 0


def test_the_public_image_is_taken_only_if_it_can_be_pulled(engine: Callable[..., type[Engine]]) -> None:
    kind = engine()
    assert best_image() is None
    kind.reaches_registry = True
    assert best_image() == PUBLIC_IMAGE
    assert kind.pulls == 2


def test_pytest_s_header_names_the_image_or_says_why_there_is_none(
    engine: Callable[..., type[Engine]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine()
    assert conftest.pytest_report_header()[0] == "zookeeper: embedded server (no image: make zookeeper-image)"
    engine(OWN_IMAGE)
    assert conftest.pytest_report_header()[0] == f"zookeeper: container {OWN_IMAGE}"
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    conftest.docker_says.cache_clear()
    assert conftest.pytest_report_header()[0] == "zookeeper: embedded server (no Docker engine answers)"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Let a ZooKeeper's starts end as told; return what was refused."""

    def run(*outcomes: str) -> list[str]:
        left = list(outcomes)
        refused: list[str] = []

        class Server:
            def start(self) -> None:
                if message := left.pop(0):
                    refused.append(message)
                    raise ContainerError(f"Docker refused: {message}")

            def wait_until_serving(self, deadline: float) -> None:
                pass

        def create(self: ContainerZooKeeper, *_: Any) -> None:
            self.servers.append(Server())  # type: ignore[arg-type]

        monkeypatch.setattr(containers, "docker_engine", nullcontext)
        monkeypatch.setattr(containers, "_reaper_process", lambda _: nullcontext())
        monkeypatch.setattr(ContainerZooKeeper, "_create", create)
        with ContainerZooKeeper("any") as running:
            assert len(running.servers) == 1
        return refused

    return run


def test_a_port_that_was_taken_meanwhile_is_not_the_end(starts: Callable[..., list[str]]) -> None:
    in_use = "failed to bind host port for 127.0.0.1:20001: address already in use"
    assert starts("") == []
    assert starts(TAKEN, in_use, "") == [TAKEN, in_use]
    with pytest.raises(ContainerError, match="port is already allocated"):
        starts(*[TAKEN] * 9)


def test_another_refusal_is_not_repeated(starts: Callable[..., list[str]]) -> None:
    with pytest.raises(ContainerError, match="no space left"):
        starts("no space left on device", "")
