"""What a writer does under one lock: the life of a Delta transaction, against the real log store.

Acquire; settle unfinished intents; list and read the log; write data files; put the next version,
and the one after it if that is another's by then; look at what became of each attempt; release.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lock_manager import Hold, LockLostError
from lock_manager.guard.guarded_hold import GuardedHold, is_definite
from lock_manager.intents import NO_VERSION
from soak.controls import Protection, stamped
from soak.errors import JvmGoneError, StoreError, VersionTakenError, WriteError
from soak.steps import ACQUIRED, UNKNOWN, Turn
from soak.worker import StoreWorker

_MOST_VERSIONS = 50
_WAIT_SECONDS = 60
_ENGINE = "sluice-soak"


class Cycle:
    """One lock and one transaction.

    Args:
        worker: whose it is.
        table: URI.
        second: whether it is of the worker's second thread.

    """

    def __init__(self, worker: StoreWorker, table: str, *, second: bool = False) -> None:
        self._worker = worker
        self._table = table
        self._txn = uuid.uuid4().hex
        self._second = second
        self._unknown = False
        self._written: int | None = None
        self._ids: list[int] = []

    def run(self) -> None:
        """Do it.

        Raises:
            SluiceError: before anything was attempted.

        """
        worker = self._worker
        if not self._second:
            worker.held = {"table": self._table}
        self._point("asking")
        self._say("waiting")
        hold = worker.manager.acquire(self._table)
        self._say("holding", token=hold.token, waited=hold.waited_seconds, unfinished=len(hold.intents.unfinished))
        if not self._second:
            worker.held = {"table": self._table, "token": hold.token}
        hold.on_loss(lambda lost: self._say("lost", token=lost.token, reason=lost.lost))
        try:
            self._point("acquired")
            self._take_steps(ACQUIRED, hold)
            with self._block(hold) as bound:
                self._transact(bound)
                if self._second:
                    # The first thread is to write while this one holds.
                    worker.first_is_through.wait(_WAIT_SECONDS)
            if self._unknown:
                self._take_steps(UNKNOWN, hold)
        except StoreError as error:
            self._say("gave-up", error=error.reason, message=str(error), token=hold.token)
        finally:
            self._end(hold)

    @contextmanager
    def _block(self, hold: Hold) -> Iterator[GuardedHold]:
        """Let commits under the hold pass once what was left unfinished is settled, as a driver does."""
        bound = GuardedHold(hold, {"job": self._worker.options.name})
        self._worker.guard.add(bound)
        try:
            self._settle(bound)
            yield bound
        finally:
            self._worker.guard.remove(bound)
            # A JVM that is gone cannot say what became of its puts: then the intent stays.
            with suppress(JvmGoneError):
                if bound.settle(self._attempts(bound)):
                    self._worker.jvm.forget(hold.hold_id)

    # -- the transaction -----------------------------------------------------------------------------------------

    def _transact(self, bound: GuardedHold) -> None:
        worker, jvm, token = self._worker, self._worker.jvm, bound.hold.token
        newest = self._newest()
        if newest != NO_VERSION:
            jvm.read(self._table, newest)
        self._say("read", version=newest, token=token)
        self._point("read")
        ids = [next(worker.ids) for _ in range(worker.options.rows)]
        name = f"{self._txn}.parquet"
        size = jvm.write_data_file(self._table, name, ids)
        self._point("data")
        lines = [_commit_info(self._txn, "WRITE", newest), *(_table() if newest == NO_VERSION else ()),
                 _add(name, size, ids)]  # fmt: skip
        try:
            self._written = self._put(bound, newest + 1, lines, ids=ids)
        except WriteError as error:
            self._unknown = self._failed(bound, error) == "unknown"
            return
        except JvmGoneError as error:
            self._say("unknown", error=type(error).__name__, message=str(error), token=token, txn=self._txn)
            raise
        self._ids = ids
        self._say("stored", version=self._written, token=token, txn=self._txn)
        self._point("stored")

    def _put(self, bound: GuardedHold, version: int, lines: list[str], **more: Any) -> int:
        """Put the lines as this version, or as the next one that is free; return which."""
        for _ in range(_MOST_VERSIONS):
            self._say("attempting", version=version, token=bound.hold.token, txn=self._txn, **more)
            try:
                self._write(bound, version, lines)
            except VersionTakenError:
                self._say("taken", version=version, token=bound.hold.token, txn=self._txn)
                version = self._newest(version) + 1
            else:
                return version
        raise WriteError("failed", "TooManyVersions", "there was always somebody else")

    def _write(self, bound: GuardedHold, version: int, lines: list[str]) -> None:
        if self._worker.without is not Protection.CONDITION:
            self._worker.jvm.write(self._table, version, lines, block=bound.name)
            return
        # Delta's own store asks no guard: so it is asked here, and only the condition is missing.
        attempt = uuid.uuid4().hex
        asked = {
            "kind": "commit",
            "table": self._table,
            "version": version,
            "attempt": attempt,
            "txn": self._txn,
            "blocks": bound.name,
        }
        answer = self._worker.guard.check(json.dumps(asked))
        said = json.loads(answer)
        if "refused" in said:
            raise WriteError("refused", said["refused"], said["message"])
        self._worker.jvm.write(self._table, version, [stamped(lines[0], answer, attempt), *lines[1:]], block=bound.name)
        bound.allowed_puts.pop(attempt)
        bound.hold.intents.settle([attempt])

    def _failed(self, bound: GuardedHold, error: WriteError) -> str:
        attempts = self._attempts(bound)
        definite = all(map(is_definite, attempts))
        committed = any(attempt["outcome"] == "committed" for attempt in attempts)
        kind = "refused" if error.kind != "unknown" and definite and not committed else "unknown"
        self._say(kind, error=error.reason, message=str(error), token=bound.hold.token, txn=self._txn)
        return kind

    # -- before and after ----------------------------------------------------------------------------------------

    def _settle(self, bound: GuardedHold) -> None:
        """Fill the version that a block before this one may still be putting, as a driver does."""
        hold = bound.hold

        def fill(free: int, left_by: Collection[str]) -> int:
            own, self._txn = self._txn, uuid.uuid4().hex
            empty = bound.for_empty_commit(left_by)
            self._worker.guard.add(empty)
            try:
                version = self._put(empty, free, [_commit_info(self._txn, "FILL", free - 1)], ids=[])
                self._say("filled", version=version, token=hold.token, txn=self._txn)
            except WriteError as error:
                self._failed(bound, error)
                raise StoreError(error.reason, str(error)) from error
            finally:
                self._worker.guard.remove(empty)
                self._txn = own
            return version

        unanswered = bound.unanswered(self._attempts(bound)) if hold.intents.open else []
        bound.settle_unfinished(unanswered, self._newest, fill)

    def _take_steps(self, moment: str, hold: Hold) -> None:
        if not self._second:
            for step in self._worker.steps.at(moment, Turn(hold, lambda: self._look(hold))):
                self._say("step", token=hold.token, **step)

    def _look(self, hold: Hold) -> int:
        with self._block(hold):
            return self._newest()

    def _end(self, hold: Hold) -> None:
        token = hold.token
        self._point("releasing")
        try:
            hold.release()
        except LockLostError as error:
            self._say("released", token=token, lost=True)
            # What was stored under a hold that is gone counts if it is there, and nobody can take it away.
            if self._written is not None and self._is_ours(self._written):
                self._acknowledge(token)
            elif self._written is not None:
                self._say("unknown", error=type(error).__name__, message=str(error), token=token, txn=self._txn)
            return
        self._say("released", token=token, lost=False)
        if self._written is not None:
            self._acknowledge(token)

    def _acknowledge(self, token: int) -> None:
        self._say("acknowledged", version=self._written, token=token, txn=self._txn, ids=self._ids)

    def _is_ours(self, version: int) -> bool:
        with suppress(StoreError):
            return f'"txnId":"{self._txn}"' in self._worker.jvm.read(self._table, version)[0]
        return False

    def _attempts(self, bound: GuardedHold) -> list[dict[str, Any]]:
        return self._worker.jvm.attempts(bound.hold.hold_id)

    def _newest(self, first: int = 0) -> int:
        return max(self._worker.jvm.versions(self._table, first), default=NO_VERSION)

    def _say(self, event: str, **more: Any) -> None:
        self._worker.say(event, table=self._table, **({"thread": 2} if self._second else {}), **more)

    def _point(self, name: str) -> None:
        if not self._second:
            self._worker.point(name)


def _commit_info(txn: str, operation: str, read_version: int) -> str:
    info = {
        "timestamp": int(time.time() * 1000), "operation": operation, "operationParameters": {},
        **({"readVersion": read_version} if read_version != NO_VERSION else {}),
        "isolationLevel": "Serializable", "isBlindAppend": True, "engineInfo": _ENGINE, "txnId": txn,
    }  # fmt: skip
    return json.dumps({"commitInfo": info}, separators=(",", ":"))


def _table() -> list[str]:
    field = {"name": "id", "type": "long", "nullable": False, "metadata": {}}
    metadata = {
        "id": str(uuid.uuid4()), "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": [field]}), "partitionColumns": [],
        "configuration": {"delta.enableExpiredLogCleanup": "false"}, "createdTime": int(time.time() * 1000),
    }  # fmt: skip
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    return [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]


def _add(name: str, size: int, ids: list[int]) -> str:
    stats = {"numRecords": len(ids), "minValues": {"id": ids[0]}, "maxValues": {"id": ids[-1]}, "nullCount": {"id": 0}}
    add = {
        "path": name, "partitionValues": {}, "size": size, "modificationTime": int(time.time() * 1000),
        "dataChange": True, "stats": json.dumps(stats),
    }  # fmt: skip
    return json.dumps({"add": add})
