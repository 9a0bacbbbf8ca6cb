"""The gate in front of the embedded S3: one request at a time per key; different keys do not wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from sluice.local._s3_server import OneAtATimePerKey

WAIT_SECONDS = 10.0


class Backend:
    """A WSGI application in which requests for ``/lake/slow`` stay until they are let out."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.let_out = threading.Semaphore(0)
        self.inside = 0
        self.most_inside = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/lake/slow":
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            self.entered.release()
            assert self.let_out.acquire(timeout=WAIT_SECONDS)
            self.inside -= 1
        elif environ["PATH_INFO"] == "/lake/broken":
            raise RuntimeError("broken")
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]


def call(gate: OneAtATimePerKey, path: str) -> bytes:
    return b"".join(gate({"PATH_INFO": path, "REQUEST_METHOD": "PUT"}, lambda *_: None))


def test_requests_for_one_key_take_turns_and_others_pass() -> None:
    backend = Backend()
    gate = OneAtATimePerKey(backend)
    with ThreadPoolExecutor(3) as pool:
        slow: list[Future[bytes]] = [pool.submit(call, gate, "/lake/slow") for _ in range(3)]
        assert backend.entered.acquire(timeout=WAIT_SECONDS)
        # One is inside and two wait for it: another key, a listing and the service itself are served.
        for path in ("/lake/other", "/lake", "/lake/", "/"):
            assert call(gate, path) == path.encode()
        for _ in slow:
            backend.let_out.release()
        assert [each.result(WAIT_SECONDS) for each in slow] == [b"/lake/slow"] * 3
    assert backend.most_inside == 1


def test_negative_control_without_the_gate_they_do_not_take_turns() -> None:
    backend = Backend()
    with ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(lambda: list(backend({"PATH_INFO": "/lake/slow"}, lambda *_: None))) for _ in range(3)]
        for _ in slow:
            assert backend.entered.acquire(timeout=WAIT_SECONDS)
        for _ in slow:
            backend.let_out.release()
    assert backend.most_inside == 3


def test_a_request_that_fails_gives_its_turn_back_and_nothing_is_kept() -> None:
    gate = OneAtATimePerKey(Backend())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            call(gate, "/lake/broken")
    assert not gate._locks
