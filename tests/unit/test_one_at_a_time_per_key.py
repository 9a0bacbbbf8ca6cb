"""The embedded S3 handles one request at a time per key. Requests for different keys run concurrently."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from sluice.local._s3_server import OneAtATimePerKey

WAIT_SECONDS = 10.0


class Backend:
    """A WSGI application that holds requests for ``/lake/slow`` until the test lets them proceed."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.proceed = threading.Semaphore(0)
        self.running = 0
        self.maximum_running = 0

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/lake/slow":
            self.running += 1
            self.maximum_running = max(self.maximum_running, self.running)
            self.entered.release()
            assert self.proceed.acquire(timeout=WAIT_SECONDS)
            self.running -= 1
        elif environ["PATH_INFO"] == "/lake/broken":
            raise RuntimeError("broken")
        start_response("200 OK", [])
        return [environ["PATH_INFO"].encode()]


def call(middleware: OneAtATimePerKey, path: str) -> bytes:
    return b"".join(middleware({"PATH_INFO": path, "REQUEST_METHOD": "PUT"}, lambda *_: None))


def test_requests_for_one_key_run_one_after_the_other() -> None:
    backend = Backend()
    middleware = OneAtATimePerKey(backend)
    with ThreadPoolExecutor(3) as pool:
        slow_requests: list[Future[bytes]] = [pool.submit(call, middleware, "/lake/slow") for _ in range(3)]
        assert backend.entered.acquire(timeout=WAIT_SECONDS)
        # One request runs and two wait for it. Meanwhile requests for another key, the bucket and the service succeed.
        for path in ("/lake/other", "/lake", "/lake/", "/"):
            assert call(middleware, path) == path.encode()
        for _ in slow_requests:
            backend.proceed.release()
        assert [request.result(WAIT_SECONDS) for request in slow_requests] == [b"/lake/slow"] * 3
    assert backend.maximum_running == 1


def test_negative_control_without_middleware_requests_run_concurrently() -> None:
    backend = Backend()
    with ThreadPoolExecutor(3) as pool:
        slow_requests = [
            pool.submit(lambda: list(backend({"PATH_INFO": "/lake/slow"}, lambda *_: None))) for _ in range(3)
        ]
        for _ in slow_requests:
            assert backend.entered.acquire(timeout=WAIT_SECONDS)
        for _ in slow_requests:
            backend.proceed.release()
    assert backend.maximum_running == 3


def test_a_failed_request_releases_its_key() -> None:
    middleware = OneAtATimePerKey(Backend())
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            call(middleware, "/lake/broken")
    assert not middleware._locks
