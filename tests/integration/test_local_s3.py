"""The embedded S3: a conditional PUT has exactly one winner; start, stop and errors of the server."""

from __future__ import annotations

import http.client
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from moto.s3.models import S3Backend

from sluice.errors import LocalS3Error
from sluice.local._s3_server import OneAtATimePerKey, WsgiApplication, make_s3_server, moto_application
from sluice.local.s3 import LocalS3
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
RIVALS = 8
# moto checks no signature, but distinguishes anonymous requests for objects from those of an account.
AUTHORIZATION = "AWS4-HMAC-SHA256 Credential=any/20260101/us-east-1/s3/aws4_request, Signature=any"


def request(endpoint: str, method: str, path: str, body: bytes = b"", *, condition: bool = False) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(urlsplit(endpoint).netloc, timeout=30)
    try:
        headers = {"Authorization": AUTHORIZATION} | ({"If-None-Match": "*"} if condition else {})
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def race(
    endpoint: str, keys: int = 1, bucket: str = "lake", statuses: frozenset[int] = frozenset({200, 412})
) -> list[tuple[list[str], str]]:
    """Let RIVALS threads PUT each key if it does not exist; return the winners and the stored content of each key."""
    results = []
    with ThreadPoolExecutor(RIVALS) as pool:
        for number in range(keys):
            path = f"/{bucket}/_delta_log/{number:020}.json"
            start = threading.Barrier(RIVALS)

            def put(name: str, path: str = path, start: threading.Barrier = start) -> int:
                start.wait(30)
                return request(endpoint, "PUT", path, name.encode(), condition=True)[0]

            names = [f"rival {index} of {path}" for index in range(RIVALS)]
            answers = dict(zip(names, pool.map(put, names), strict=True))
            assert set(answers.values()) <= statuses
            stored_content = request(endpoint, "GET", path)[1].decode()
            results.append(([name for name, status in answers.items() if status == 200], stored_content))
    return results


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    with LocalS3() as server:
        server.create_bucket("lake")
        yield server


def test_a_conditional_put_has_one_winner_whose_content_stays(s3: LocalS3) -> None:
    results = race(s3.endpoint, keys=40)
    assert [winners for winners, _ in results] == [[stored_content] for _, stored_content in results]


@contextmanager
def moto_in_this_process(middleware: Callable[[WsgiApplication], WsgiApplication]) -> Iterator[str]:
    server = make_s3_server(middleware(moto_application()))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def widen_window(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Hold the first PUT of a key between moto's check and its write until a rival arrives, at most for ``seconds``."""
    put_object_of_moto = S3Backend.put_object
    first_puts: dict[str, threading.Event] = {}
    lock = threading.Lock()

    def put_object(self: Any, bucket_name: str, key_name: str, *args: Any, **kwargs: Any) -> Any:
        with lock:
            rival_arrived = first_puts.get(key_name)
            if is_first := rival_arrived is None:
                rival_arrived = first_puts[key_name] = threading.Event()
        if is_first:
            rival_arrived.wait(seconds)
        else:
            rival_arrived.set()
        return put_object_of_moto(self, bucket_name, key_name, *args, **kwargs)

    monkeypatch.setattr(S3Backend, "put_object", put_object)


def test_negative_control_without_middleware_several_puts_win(monkeypatch: pytest.MonkeyPatch) -> None:
    widen_window(monkeypatch, seconds=60)
    with moto_in_this_process(lambda application: application) as endpoint:
        request(endpoint, "PUT", "/direct")
        # Without the middleware a request may also fail while moto changes its records. Its key may have one winner.
        results = race(endpoint, bucket="direct", keys=10, statuses=frozenset({200, 412, 500}))
    assert any(len(winners) > 1 for winners, _ in results)


def test_with_middleware_a_wider_window_has_one_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    # The middleware delays rivals, so none arrives.
    widen_window(monkeypatch, seconds=1)
    with moto_in_this_process(OneAtATimePerKey) as endpoint:
        request(endpoint, "PUT", "/serial")
        ((winners, stored_content),) = race(endpoint, bucket="serial")
    assert winners == [stored_content]


def test_the_server_ends_when_its_parent_is_killed() -> None:
    program = (
        "import sys\nfrom sluice.local.s3 import LocalS3\ns3 = LocalS3().start()\n"
        "print(s3.endpoint, flush=True)\nsys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as parent:
        assert parent.stdout is not None
        endpoint = parent.stdout.readline().strip()
        assert request(endpoint, "GET", "/")[0] == 200
        parent.send_signal(signal.SIGKILL)

    def is_gone() -> bool:
        try:
            request(endpoint, "GET", "/")
        except (ConnectionError, http.client.HTTPException):
            # The connection is refused, or ends during a response.
            return True
        return False

    eventually(is_gone, 10)


def test_a_restarted_server_is_empty() -> None:
    server = LocalS3()
    with pytest.raises(LocalS3Error, match="not running"):
        _ = server.endpoint
    for _ in range(2):
        with server:
            server.create_bucket("lake")
            server.create_bucket("lake")
            assert request(server.endpoint, "GET", "/lake/key")[0] == 404
            assert request(server.endpoint, "PUT", "/lake/key", b"value", condition=True)[0] == 200
            assert request(server.endpoint, "GET", "/lake/key") == (200, b"value")
            with pytest.raises(LocalS3Error, match="already"):
                server.start()
    assert server.pid is None
    server.stop()


def test_the_error_of_a_failed_start_names_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moto.py").write_text("raise ModuleNotFoundError(\"No module named 'moto'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = LocalS3(log=tmp_path / "s3.log")
    with pytest.raises(LocalS3Error, match=r"No module named 'moto'.*pip install '\.\[cli\]'"):
        server.start()
    assert server.pid is None
    assert "Traceback" in (tmp_path / "s3.log").read_text()


def test_an_invalid_bucket_name_is_refused(s3: LocalS3) -> None:
    with pytest.raises(LocalS3Error, match="InvalidBucketName"):
        s3.create_bucket("L")
