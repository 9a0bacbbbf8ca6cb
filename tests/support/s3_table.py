"""A table on an S3 with faults, as it is in the end: what a reader that is not Spark's finds, and what was put."""

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
    """Start the process that reads tables, once: its imports cost a second. It ends with this one."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    reader = subprocess.Popen(
        [sys.executable, str(_READER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(reader.communicate)
    return reader


def read(table: str) -> dict[str, Any]:
    """Read the table in another process: ids, and what ``sluice verify`` finds."""
    reader = _reader()
    assert reader.stdin is not None
    assert reader.stdout is not None
    # Another test file has another S3.
    options = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    patience = threading.Timer(WAIT, reader.kill)
    patience.start()
    try:
        reader.stdin.write(json.dumps({"table": table, "options": options}) + "\n")
        reader.stdin.flush()
        found: dict[str, Any] = json.loads(reader.stdout.readline())
    finally:
        patience.cancel()
    assert "error" not in found, found
    return found


def rows(table: str) -> list[int]:
    """Read the table, and make sure that nothing is wrong with it."""
    found = read(table)
    assert found["problems"] == []
    ids: list[int] = found["ids"]
    return ids


def copy(s3: FaultyS3, original: str, to: str) -> None:
    """Copy a table that nobody writes to, as if it had been made there: its log names its place."""
    store = boto3.client("s3", endpoint_url=s3.endpoint)
    (bucket, before), (other, after) = (uri.removeprefix("s3a://").split("/", 1) for uri in (original, to))
    for found in store.list_objects_v2(Bucket=bucket, Prefix=before)["Contents"]:
        content = store.get_object(Bucket=bucket, Key=found["Key"])["Body"].read()
        key = found["Key"].replace(before, after)
        store.put_object(Bucket=other, Key=key, Body=content.replace(before.encode(), after.encode()))


def stored(s3: FaultyS3, table: str) -> dict[int, int]:
    """Count the stored PUTs of each version."""
    folder = table.removeprefix("s3a://") + "/"
    counts: dict[int, int] = {}
    for put in s3.gate.puts:
        if put.key.startswith(folder) and put.status == 200:
            counts[put.version] = counts.get(put.version, 0) + 1
    return counts
