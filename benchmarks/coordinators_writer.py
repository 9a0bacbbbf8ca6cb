"""A writer of ``coordinators.py``: it appends rows to a Delta table on S3, without Spark.

An append makes the requests that an append of a Spark driver makes through the gate: it puts a data file, acquires the
lock, lists the versions after the one that it knows, stores the intent to put the next one, puts it if it does not
exist, and releases the lock. Without a lock, an append whose version another writer has put begins again after a random
pause.

Standard input has lines of JSON. ``url`` is the URL of a coordinator, or empty for no lock:

    {"table": URI, "url": URL, "first_id": n}   open the table and connect; the answer is ``{"ready": n}``
    {"until": time, "appends": n}               the next line: append until both are reached; the answer has ``appends``
    {"hold": URI, "url": URL}                   acquire the lock of a table and keep it; the answer has ``acquired``
    {"end": 1}                                  end the writer

Times are seconds of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import random
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import boto3
import pyarrow as pa
from botocore.config import Config
from botocore.exceptions import ClientError
from pyarrow import parquet

from lock_manager import LockManager, commit_metadata, connect

#: Number of attempts of an append without a lock.
MAX_TRIES = 20

_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.05, 5.0
_LOCK_SECONDS = 600.0
#: A PUT that is repeated without an answer could find its own version.
_NO_RETRIES = Config(retries={"total_max_attempts": 1})
_TAKEN = (409, 412)


class TakenError(Exception):
    """Another writer has put the version."""


class Appender:
    """A writer's appends to one table.

    Args:
        table: URI of the table.
        manager: Manager of the table's lock; None for no lock.
        first_id: Id of the first row.

    """

    def __init__(self, table: str, manager: LockManager | None, first_id: int) -> None:
        self._uri = table
        self._bucket, _, self._folder = table.removeprefix("s3://").partition("/")
        self._manager = manager
        self._ids = itertools.count(first_id)
        self._s3 = boto3.client("s3", config=_NO_RETRIES)
        self._newest = 0

    def append(self) -> dict[str, Any]:
        """Append one row; return its id, the number of attempts, and times. An append that is given up has no end."""
        began, row_id = time.monotonic(), next(self._ids)
        for attempt in range(1, MAX_TRIES + 1):
            add = self._put_data_file(row_id)
            try:
                times = self._commit(add)
            except TakenError:
                time.sleep(random.uniform(0, min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * 2**attempt)))  # noqa: S311
            else:
                return {"id": row_id, "attempts": attempt, "began": began, "ended": time.monotonic(), **times}
        return {"id": row_id, "attempts": MAX_TRIES, "began": began}

    def _put_data_file(self, row_id: int) -> dict[str, Any]:
        """Put a data file of one row, and return its ``add`` action."""
        buffer = io.BytesIO()
        parquet.write_table(pa.table({"id": pa.array([row_id], pa.int64())}), buffer)
        name = f"{uuid.uuid4()}.parquet"
        self._s3.put_object(Bucket=self._bucket, Key=f"{self._folder}/{name}", Body=buffer.getvalue())
        return {
            "path": name,
            "partitionValues": {},
            "size": len(buffer.getvalue()),
            "modificationTime": int(time.time() * 1000),
            "dataChange": True,
        }

    def _commit(self, add: Mapping[str, Any]) -> dict[str, float]:
        """Put the next version, with the lock if there is one; return the times of the hold."""
        if self._manager is None:
            self._put_version(self._find_newest() + 1, add, {})
            return {}
        requested = time.monotonic()
        with self._manager.acquire(self._uri) as hold:
            acquired = time.monotonic()
            version = self._find_newest() + 1
            hold.intend(version, txn=None, attempt=add["path"])
            self._put_version(version, add, commit_metadata(hold))
            hold.intents.settle([add["path"]])
            released = time.monotonic()
        return {"requested": requested, "acquired": acquired, "released": released}

    def _find_newest(self) -> int:
        """Return the newest version. It makes one request for up to 1,000 versions of other writers."""
        response = self._s3.list_objects_v2(
            Bucket=self._bucket, Prefix=f"{self._folder}/_delta_log/", StartAfter=self._version_key(self._newest)
        )
        keys = [item["Key"] for item in response.get("Contents", ())]
        self._newest = max([self._newest, *(int(key.rpartition("/")[2].removesuffix(".json")) for key in keys)])
        return self._newest

    def _put_version(self, version: int, add: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
        info = {"timestamp": int(time.time() * 1000), "operation": "WRITE", "isBlindAppend": True, **metadata}
        body = "".join(f"{json.dumps(action)}\n" for action in ({"commitInfo": info}, {"add": add}))
        try:
            self._s3.put_object(
                Bucket=self._bucket, Key=self._version_key(version), Body=body.encode(), IfNoneMatch="*"
            )
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] in _TAKEN:
                raise TakenError from None
            raise
        self._newest = version

    def _version_key(self, version: int) -> str:
        return f"{self._folder}/_delta_log/{version:020}.json"


class Writer:
    """The lock managers and the holds of this process."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._managers: dict[str, LockManager] = {}

    def appender(self, table: str, url: str, first_id: int) -> Appender:
        return Appender(table, self._manager(url) if url else None, first_id)

    def hold(self, table: str, url: str) -> float:
        """Acquire the lock of a table until the writer ends; return the time of the acquisition."""
        self._stack.enter_context(self._manager(url).acquire(table))
        return time.monotonic()

    def _manager(self, url: str) -> LockManager:
        """Return the connected lock manager of a coordinator."""
        if url not in self._managers:
            self._managers[url] = self._stack.enter_context(connect(url, timeout_seconds=_LOCK_SECONDS))
            self._managers[url].connect()
        return self._managers[url]


def send(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    with ExitStack() as stack:
        writer = Writer(stack)
        send({"started": os.getpid()})
        for line in sys.stdin:
            order = json.loads(line)
            if "end" in order:
                break
            if "hold" in order:
                send({"acquired": writer.hold(order["hold"], order["url"])})
                continue
            appender = writer.appender(order["table"], order["url"], order["first_id"])
            send({"ready": order["first_id"]})
            limits = json.loads(sys.stdin.readline())
            appends: list[dict[str, Any]] = []
            while len(appends) < limits["appends"] or time.monotonic() < limits["until"]:
                appends.append(appender.append())
            send({"appends": appends})


if __name__ == "__main__":
    main()
