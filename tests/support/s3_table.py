"""Read and copy tables on an S3 with faults, and count the stored PUTs of their versions."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
import sys
import threading
from typing import Any

import boto3

from soak.s3_faults import FaultyS3
from tests.support.driver_process import ROOT, WAIT

_READER = ROOT / "tests" / "support" / "read_table.py"


@functools.cache
def _reader() -> subprocess.Popen[str]:
    """Start the process that reads tables. It runs until this process ends, because its imports take a second."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    reader = subprocess.Popen(
        [sys.executable, str(_READER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(reader.communicate)
    return reader


def read(table: str) -> dict[str, Any]:
    """Read a table in another process; return its ids and the findings of ``sluice verify``."""
    reader = _reader()
    assert reader.stdin is not None
    assert reader.stdout is not None
    # Test files may have different S3s, so each request names the current one.
    options = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    watchdog = threading.Timer(WAIT, reader.kill)
    watchdog.start()
    try:
        reader.stdin.write(json.dumps({"table": table, "options": options}) + "\n")
        reader.stdin.flush()
        answer: dict[str, Any] = json.loads(reader.stdout.readline())
    finally:
        watchdog.cancel()
    assert "error" not in answer, answer
    return answer


def rows(table: str) -> list[int]:
    """Return the ids of a table; fail if ``sluice verify`` finds a problem."""
    answer = read(table)
    assert answer["problems"] == []
    ids: list[int] = answer["ids"]
    return ids


def tokens(s3: FaultyS3, table: str) -> list[int]:
    """Return the fencing token of each version; fail if a version was committed without the lock."""
    store = boto3.client("s3", endpoint_url=s3.endpoint)
    bucket, path = table.removeprefix("s3a://").split("/", 1)
    listing = store.list_objects_v2(Bucket=bucket, Prefix=f"{path}/_delta_log/")["Contents"]
    versions = sorted(entry["Key"] for entry in listing if entry["Key"].endswith(".json"))
    lines = [store.get_object(Bucket=bucket, Key=key)["Body"].read().splitlines()[0] for key in versions]
    return [json.loads(line)["commitInfo"]["sluice"]["nodes"][0]["token"] for line in lines]


def copy(s3: FaultyS3, original: str, to: str) -> None:
    """Copy a table that has no writers, and replace the location in the log of the copy."""
    store = boto3.client("s3", endpoint_url=s3.endpoint)
    (bucket, path), (new_bucket, new_path) = (uri.removeprefix("s3a://").split("/", 1) for uri in (original, to))
    for entry in store.list_objects_v2(Bucket=bucket, Prefix=path)["Contents"]:
        content = store.get_object(Bucket=bucket, Key=entry["Key"])["Body"].read()
        key = entry["Key"].replace(path, new_path)
        store.put_object(Bucket=new_bucket, Key=key, Body=content.replace(path.encode(), new_path.encode()))


def count_stored_puts(s3: FaultyS3, table: str) -> dict[int, int]:
    """Count the stored PUTs of each version."""
    folder = table.removeprefix("s3a://") + "/"
    counts: dict[int, int] = {}
    for put in s3.gate.puts:
        if put.key.startswith(folder) and put.status == 200:
            counts[put.version] = counts.get(put.version, 0) + 1
    return counts
