"""The embedded S3 is tested first: a conditional PUT must have exactly one winner."""

from __future__ import annotations

import http.client
import logging
import os
import signal
import subprocess
import sys
import threading
import time
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

logger = logging.getLogger(__name__)
ROOT = Path(__file__).parents[2]
RIVALS = 8
# moto checks no signature, but tells anonymous requests for objects from those of an account
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
    endpoint: str, keys: int, bucket: str = "lake", answers_of: frozenset[int] = frozenset({200, 412})
) -> list[tuple[list[str], str]]:
    """Let RIVALS threads PUT each key if it is new; return who won and what is stored, per key."""
    results = []
    with ThreadPoolExecutor(RIVALS) as pool:
        for number in range(keys):
            path = f"/{bucket}/_delta_log/{number:020}.json"
            start = threading.Barrier(RIVALS)

            def rival(name: str, path: str = path, start: threading.Barrier = start) -> tuple[str, int]:
                start.wait(30)
                return name, request(endpoint, "PUT", path, name.encode(), condition=True)[0]

            answers = list(pool.map(rival, [f"rival {index} of {path}" for index in range(RIVALS)]))
            assert {status for _, status in answers} <= answers_of
            stored = request(endpoint, "GET", path)[1].decode()
            results.append(([name for name, status in answers if status == 200], stored))
    return results


@pytest.fixture(scope="module")
def s3() -> Iterator[LocalS3]:
    with LocalS3() as server:
        server.create_bucket("lake")
        yield server


def test_a_conditional_put_has_exactly_one_winner_whose_content_stays(s3: LocalS3) -> None:
    results = race(s3.endpoint, keys=40)
    assert [won for won, _ in results] == [[stored] for _, stored in results]


@contextmanager
def moto_in_this_process(gate: Callable[[WsgiApplication], WsgiApplication]) -> Iterator[str]:
    server = make_s3_server(gate(moto_application()))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def widen_window(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Hold the first PUT between moto's check and its act until a rival is there too, or for so long."""
    act = S3Backend.put_object
    first = threading.Lock()
    rival = threading.Event()

    def put_object(self: Any, *args: Any, **kwargs: Any) -> Any:
        if first.acquire(blocking=False):
            rival.wait(seconds)
        else:
            rival.set()
        return act(self, *args, **kwargs)

    monkeypatch.setattr(S3Backend, "put_object", put_object)


def test_negative_control_without_the_gate_the_same_race_has_several_winners(monkeypatch: pytest.MonkeyPatch) -> None:
    widen_window(monkeypatch, seconds=60)
    with moto_in_this_process(lambda application: application) as endpoint:
        request(endpoint, "PUT", "/ungated")
        # Without the gate a request may also find moto's own records half changed, and fail.
        ((won, _),) = race(endpoint, keys=1, bucket="ungated", answers_of=frozenset({200, 412, 500}))
    assert len(won) > 1


def test_with_the_gate_even_the_widened_window_has_one_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    # No rival will come: the gate keeps it out.
    widen_window(monkeypatch, seconds=1)
    with moto_in_this_process(OneAtATimePerKey) as endpoint:
        request(endpoint, "PUT", "/gated")
        ((won, stored),) = race(endpoint, keys=1, bucket="gated")
    assert won == [stored]


def test_it_stops_when_its_parent_is_killed() -> None:
    program = (
        "import sys\nfrom sluice.local.s3 import LocalS3\ns3 = LocalS3().start()\n"
        "print(s3.endpoint, flush=True)\nsys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        endpoint = parent.stdout.readline().strip()
        assert request(endpoint, "GET", "/")[0] == 200
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            request(endpoint, "GET", "/")
        except (ConnectionError, http.client.HTTPException):
            # Refused, or ended in the middle of an answer.
            return
        time.sleep(0.02)
    pytest.fail("the server outlived its parent by 10 s")


def test_stop_forgets_everything_and_start_begins_anew() -> None:
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


def test_a_start_that_fails_says_why_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moto.py").write_text("raise ModuleNotFoundError(\"No module named 'moto'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    server = LocalS3(log=tmp_path / "s3.log")
    with pytest.raises(LocalS3Error, match=r"No module named 'moto'.*pip install '\.\[cli\]'"):
        server.start()
    assert server.pid is None
    assert "Traceback" in (tmp_path / "s3.log").read_text()


def test_a_bucket_name_that_s3_refuses_is_refused(s3: LocalS3) -> None:
    with pytest.raises(LocalS3Error, match="InvalidBucketName"):
        s3.create_bucket("L")
