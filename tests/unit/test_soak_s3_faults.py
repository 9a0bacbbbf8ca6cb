"""The gate in front of the soak's S3: each fault strikes one writer as described, and PUTs of versions are recorded."""

from __future__ import annotations

import hashlib
import http.client
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest

from lock_manager.s3_lease.state import Queue
from soak.s3_faults import RIVAL, TWO_THREADS_SUFFIX, FaultyS3, S3Fault

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

WAIT_SECONDS = 30.0
# moto does not check the signature. But without a signature the objects would belong to another account.
AUTHORIZATION = (
    "AWS4-HMAC-SHA256 Credential=sluice/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=none"
)


@pytest.fixture(scope="module")
def s3() -> Iterator[FaultyS3]:
    with FaultyS3() as server:
        server.create_bucket("lake")
        yield server


def path_of(table: str, version: int) -> str:
    return f"/lake/{table}/_delta_log/{version:020}.json"


def call(
    s3: FaultyS3, method: str, path: str, body: str = "", writer: str = "writer-1", *, etag: str = ""
) -> tuple[int, str]:
    """Send a request; return its status and content. A PUT creates an object, or replaces the one with this ETag."""
    condition = {"If-Match": f'"{etag}"'} if etag else {"If-None-Match": "*"}
    connection = http.client.HTTPConnection(urlsplit(s3.endpoint).netloc, timeout=WAIT_SECONDS)
    headers = {
        "User-Agent": f"{writer}, Hadoop 3.5.0",
        "Authorization": AUTHORIZATION,
        **(condition if method == "PUT" else {}),
    }
    try:
        connection.request(method, path, body.encode(), headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def commit(txn: str) -> str:
    return f'{{"commitInfo":{{"txnId":"{txn}"}}}}\n'


def test_without_a_fault_requests_pass_and_puts_are_recorded(s3: FaultyS3) -> None:
    assert call(s3, "PUT", path_of("plain", 0), commit("a"))[0] == 200
    assert call(s3, "PUT", path_of("plain", 0), commit("b"), "writer-2")[0] == 412
    assert call(s3, "PUT", "/lake/plain/data.parquet", "x")[0] == 200
    assert call(s3, "GET", path_of("plain", 0)) == (200, commit("a"))
    puts = [put for put in s3.gate.puts if "/plain/" in put.key]
    assert [(put.writer, put.txn, put.status, bool(put.digest)) for put in puts] == [
        ("writer-1", "a", 200, True),
        ("writer-2", "b", 412, False),
    ]


@pytest.mark.parametrize("status", [403, 409, 500, 503])
@pytest.mark.parametrize("stored", [False, True])
def test_a_put_with_an_error_is_stored_or_not(s3: FaultyS3, status: int, stored: bool) -> None:  # noqa: FBT001
    path = path_of(f"error-{status}-{stored}", 0)
    s3.gate.arm("writer-1", S3Fault(status=status, stored=stored))
    assert call(s3, "PUT", path, commit("a"))[0] == status
    assert call(s3, "GET", path)[0] == (200 if stored else 404)
    assert call(s3, "PUT", path, commit("a"))[0] == (412 if stored else 200)


def test_faults_do_not_strike_tables_of_the_two_threads_step(s3: FaultyS3) -> None:
    s3.gate.arm("writer-1", S3Fault(status=403))
    assert call(s3, "PUT", path_of(f"spared{TWO_THREADS_SUFFIX}/writer-1/0-0", 0), commit("a"))[0] == 200
    assert call(s3, "PUT", path_of("spared", 0), commit("b"))[0] == 403


def test_a_put_with_a_lost_response_is_stored_or_not(s3: FaultyS3) -> None:
    s3.gate.arm("writer-1", S3Fault(lost=True, stored=True))
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        call(s3, "PUT", path_of("lost", 0), commit("a"))
    assert call(s3, "GET", path_of("lost", 0)) == (200, commit("a"))
    s3.gate.arm("writer-1", S3Fault(lost=True))
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        call(s3, "PUT", path_of("lost", 1), commit("a"))
    assert call(s3, "GET", path_of("lost", 1))[0] == 404


def test_a_fault_strikes_one_writer_and_the_given_number_of_puts(s3: FaultyS3) -> None:
    s3.gate.arm("writer-1", S3Fault(status=503, times=2))
    assert call(s3, "PUT", path_of("times", 0), commit("b"), "writer-2")[0] == 200
    assert [call(s3, "PUT", path_of("times", 1), commit("a"))[0] for _ in range(3)] == [503, 503, 200]
    s3.gate.arm("writer-1", S3Fault(status=503))
    s3.gate.disarm("writer-1")
    assert call(s3, "PUT", path_of("times", 2), commit("a"))[0] == 200


QUEUE = "/lake/locks/tables/0123.json"


def test_a_fault_strikes_its_keys_and_methods_only(s3: FaultyS3) -> None:
    arrivals: list[tuple[str, int | None]] = []
    s3.gate.on_arrival(lambda writer, version, _: arrivals.append((writer, version)))
    fault = s3.gate.arm("writer-1", S3Fault(status=503, keys=re.compile(QUEUE), methods=frozenset({"GET"})))
    later = s3.gate.arm("writer-1", S3Fault(status=403))
    assert call(s3, "PUT", QUEUE, "x")[0] == 200
    assert call(s3, "PUT", path_of("keys", 0), commit("a"))[0] == 403
    assert call(s3, "GET", QUEUE, writer="writer-2") == (200, "x")
    assert not fault.arrived.is_set()
    assert call(s3, "GET", QUEUE)[0] == 503
    assert call(s3, "GET", QUEUE) == (200, "x")
    assert fault.ended.is_set()
    assert later.ended.is_set()
    assert arrivals == [("writer-1", 0), ("writer-1", None)]


def test_one_of_several_faults_is_disarmed(s3: FaultyS3) -> None:
    disarmed, armed = (s3.gate.arm("writer-1", S3Fault(status=status)) for status in (403, 409))
    s3.gate.disarm("writer-1", disarmed)
    assert [call(s3, "PUT", path_of("disarmed", 0), commit("a"))[0] for _ in range(2)] == [409, 200]
    assert not disarmed.arrived.is_set()
    assert armed.ended.is_set()


def test_another_client_changes_the_queue_first(s3: FaultyS3) -> None:
    queue, path = Queue(uri="s3://lake/table", next_token=7), "/lake/locks/tables/4567.json"
    data = queue.data()
    etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
    assert call(s3, "PUT", path, data.decode())[0] == 200
    s3.gate.arm("writer-1", S3Fault(rival=True, keys=re.compile(path)))
    assert call(s3, "PUT", path, "late", etag=etag)[0] == 412
    changed = call(s3, "GET", path)[1].encode()
    assert changed != data
    assert Queue.parse(changed) == queue


def test_a_rival_without_the_lock_stores_the_version_first(s3: FaultyS3) -> None:
    s3.gate.arm("writer-1", S3Fault(rival=True))
    assert call(s3, "PUT", path_of("rival", 0), commit("a"))[0] == 412
    assert RIVAL in call(s3, "GET", path_of("rival", 0))[1]


def test_a_held_put_fails_if_the_version_was_stored_meanwhile(s3: FaultyS3) -> None:
    arrivals: list[tuple[str, int | None]] = []
    s3.gate.on_arrival(lambda writer, version, _: arrivals.append((writer, version)))
    fault = s3.gate.arm("writer-1", S3Fault(held=True))
    with ThreadPoolExecutor(1) as pool:
        held_put: Any = pool.submit(call, s3, "PUT", path_of("held", 3), commit("a"))
        assert fault.arrived.wait(WAIT_SECONDS)
        assert arrivals == [("writer-1", 3)]
        assert call(s3, "PUT", path_of("held", 3), commit("b"), "writer-2")[0] == 200
        fault.release.set()
        assert held_put.result(WAIT_SECONDS)[0] == 412
    assert call(s3, "GET", path_of("held", 3)) == (200, commit("b"))


def test_a_held_put_is_stored_even_if_its_sender_is_gone(s3: FaultyS3) -> None:
    fault = s3.gate.arm("writer-1", S3Fault(held=True))
    connection = http.client.HTTPConnection(urlsplit(s3.endpoint).netloc, timeout=WAIT_SECONDS)
    connection.request(
        "PUT", path_of("gone", 0), commit("a"), {"User-Agent": "writer-1", "Authorization": AUTHORIZATION}
    )
    assert fault.arrived.wait(WAIT_SECONDS)
    connection.close()
    fault.release.set()
    assert fault.ended.wait(WAIT_SECONDS)
    assert call(s3, "GET", path_of("gone", 0)) == (200, commit("a"))


def test_rival_puts_of_one_version_have_one_winner(s3: FaultyS3) -> None:
    for version in range(20):
        start = threading.Barrier(4)

        def rival(number: int, version: int = version, start: threading.Barrier = start) -> int:
            start.wait(WAIT_SECONDS)
            return call(s3, "PUT", path_of("race", version), commit(str(number)), f"writer-{number}")[0]

        with ThreadPoolExecutor(4) as pool:
            assert sorted(pool.map(rival, range(4))) == [200, 412, 412, 412]
    stored_puts = [put for put in s3.gate.puts if "/race/" in put.key and put.digest]
    assert len(stored_puts) == len({put.key for put in stored_puts}) == 20


def test_the_next_s3_of_a_process_is_empty(s3: FaultyS3) -> None:
    del s3  # This server already runs in the process. Each new server removes the objects of all earlier ones.
    with FaultyS3() as first_server:
        first_server.create_bucket("lake")
        assert call(first_server, "PUT", path_of("left", 0), commit("a"))[0] == 200
    with FaultyS3() as next_server:
        next_server.create_bucket("lake")
        assert call(next_server, "GET", path_of("left", 0))[0] == 404
