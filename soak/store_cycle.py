"""The turn of a writer without Spark: a Delta transaction against the real log store.

The writer acquires the lock, settles unfinished intents, lists and reads the log, writes a data file, puts the next
version (or a later one, if other writers are faster), checks the outcome of each attempt, and releases the lock.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from lock_manager import Hold, LockLostError
from lock_manager.guard.guarded_block import GuardedBlock, is_definite
from lock_manager.intents import NO_VERSION
from soak.controls import Protection, add_stamp
from soak.cycle import Cycle
from soak.engines import STORE
from soak.errors import JvmGoneError, StoreError, VersionTakenError, WriteError
from soak.steps import ACQUIRED, UNKNOWN, StepContext
from soak.worker import StoreWorker

_MAX_VERSIONS = 50


class StoreCycle(Cycle[StoreWorker]):
    """One hold of the lock and one transaction, against the log store alone; see :class:`Cycle` for the arguments."""

    def __init__(self, worker: StoreWorker, table: str, *, second: bool = False) -> None:
        super().__init__(worker, table, second=second)
        self._txn = uuid.uuid4().hex
        self._is_unknown = False
        self._written: int | None = None
        self._ids: list[int] = []

    def run(self) -> None:
        """Acquire the lock, commit, and release the lock.

        Raises:
            SluiceError: The lock was not acquired.
            JvmGoneError: The JVM has ended.

        """
        hold = self._acquire()
        try:
            self._reach("acquired")
            self._take_steps(ACQUIRED, self._step_context(hold))
            with self._block(hold) as block:
                self._transact(block)
                self._wait_for_first_thread()
            if self._is_unknown:
                self._take_steps(UNKNOWN, self._step_context(hold))
        except StoreError as error:
            self._record("gave-up", error=error.reason, message=str(error))
        finally:
            self._end(hold)

    @contextmanager
    def _block(self, hold: Hold) -> Iterator[GuardedBlock]:
        """Settle unfinished intents, and allow commits under the hold, as a driver does."""
        block = GuardedBlock(hold, {"job": self._worker.options.name})
        self._worker.guard.add(block)
        try:
            self._settle(block)
            yield block
        finally:
            self._worker.guard.remove(block)
            # A JVM that has ended cannot report the outcomes of its puts. Then the intent stays.
            with suppress(JvmGoneError):
                if block.settle(self._attempts(block)):
                    self._worker.jvm.forget(hold.hold_id)

    # -- the transaction -----------------------------------------------------------------------------------------

    def _transact(self, block: GuardedBlock) -> None:
        worker, jvm = self._worker, self._worker.jvm
        newest = self._newest()
        if newest != NO_VERSION:
            jvm.read(self._table, newest)
        self._record("read", version=newest)
        self._reach("read")
        ids = [next(worker.ids) for _ in range(worker.options.rows)]
        name = f"{self._txn}.parquet"
        size = jvm.write_data_file(self._table, name, ids)
        self._reach("data")
        lines = [_commit_info(self._txn, "WRITE", newest), *(_new_table() if newest == NO_VERSION else ()),
                 _add(name, size, ids)]  # fmt: skip
        try:
            self._written = self._put(block, newest + 1, lines, ids=ids)
        except WriteError as error:
            self._is_unknown = self._record_failure(block, error) == "unknown"
            return
        except JvmGoneError as error:
            self._record("unknown", error=type(error).__name__, message=str(error), txn=self._txn)
            raise
        self._ids = ids
        self._record("stored", version=self._written, txn=self._txn)
        self._reach("stored")

    def _put(self, block: GuardedBlock, version: int, lines: list[str], **fields: Any) -> int:
        """Put the lines as this version, or as the next free one; return the version."""
        for _ in range(_MAX_VERSIONS):
            self._record("attempting", version=version, txn=self._txn, **fields)
            try:
                self._write(block, version, lines)
            except VersionTakenError:
                self._record("taken", version=version, txn=self._txn)
                version = self._newest(version) + 1
            else:
                return version
        raise WriteError("failed", "TooManyVersions", f"other writers took {_MAX_VERSIONS} versions in a row")

    def _write(self, block: GuardedBlock, version: int, lines: list[str]) -> None:
        if self._worker.without is not Protection.CONDITION:
            self._worker.jvm.write(self._table, version, lines, block=block.name)
            return
        # Delta's own store does not ask the guard. This control asks it here, so that only the condition is missing.
        attempt = uuid.uuid4().hex
        request = {
            "kind": "commit",
            "table": self._table,
            "version": version,
            "attempt": attempt,
            "txn": self._txn,
            "blocks": block.name,
        }
        response = self._worker.guard.check(json.dumps(request))
        answer = json.loads(response)
        if "refused" in answer:
            raise WriteError("refused", answer["refused"], answer["message"])
        stamped_lines = [add_stamp(lines[0], response, attempt), *lines[1:]]
        self._worker.jvm.write(self._table, version, stamped_lines, block=block.name)
        block.allowed_puts.pop(attempt)
        block.hold.intents.settle([attempt])

    def _record_failure(self, block: GuardedBlock, error: WriteError) -> str:
        """Record a failed transaction; return ``refused``, or ``unknown`` if its commit may be in the table."""
        attempts = self._attempts(block)
        committed = any(attempt["outcome"] == "committed" for attempt in attempts)
        is_refused = error.kind != "unknown" and all(map(is_definite, attempts)) and not committed
        kind = "refused" if is_refused else "unknown"
        self._record(kind, error=error.reason, message=str(error), txn=self._txn)
        return kind

    # -- before and after ----------------------------------------------------------------------------------------

    def _settle(self, block: GuardedBlock) -> None:
        """Fill the version that an earlier block may still put, as a driver does."""
        hold = block.hold

        def fill(free_version: int, holds: Collection[str]) -> int:
            transaction, self._txn = self._txn, uuid.uuid4().hex
            empty = block.for_empty_commit(holds)
            self._worker.guard.add(empty)
            try:
                lines = [_commit_info(self._txn, "FILL", free_version - 1)]
                version = self._put(empty, free_version, lines, ids=[])
                self._record("filled", version=version, txn=self._txn)
            except WriteError as error:
                self._record_failure(block, error)
                raise StoreError(error.reason, str(error)) from error
            finally:
                self._worker.guard.remove(empty)
                self._txn = transaction
            return version

        unanswered = block.unanswered_intents(self._attempts(block)) if hold.intents.open else []
        block.settle_unfinished(unanswered, self._newest, fill)

    def _step_context(self, hold: Hold) -> StepContext:
        def read_in_new_block() -> int:
            with self._block(hold):
                return self._newest()

        return StepContext(hold, read_in_new_block)

    def _end(self, hold: Hold) -> None:
        self._reach("releasing")
        lost: LockLostError | None = None
        try:
            hold.release()
        except LockLostError as error:
            lost = error
        self._record("released", lost=lost is not None)
        if self._written is None:
            return
        # A stored version of a lost hold counts if it is in the table: no other writer can remove it.
        if lost is None or self._is_in_table(self._written):
            self._record("acknowledged", version=self._written, txn=self._txn, ids=self._ids)
        else:
            self._record("unknown", error=type(lost).__name__, message=str(lost), txn=self._txn)

    def _is_in_table(self, version: int) -> bool:
        with suppress(StoreError):
            return f'"txnId":"{self._txn}"' in self._worker.jvm.read(self._table, version)[0]
        return False

    def _attempts(self, block: GuardedBlock) -> list[dict[str, Any]]:
        return self._worker.jvm.attempts(block.hold.hold_id)

    def _newest(self, first: int = 0) -> int:
        return max(self._worker.jvm.versions(self._table, first), default=NO_VERSION)


def _commit_info(txn: str, operation: str, read_version: int) -> str:
    info = {
        "timestamp": int(time.time() * 1000), "operation": operation, "operationParameters": {},
        **({"readVersion": read_version} if read_version != NO_VERSION else {}),
        "isolationLevel": "Serializable", "isBlindAppend": True, "engineInfo": STORE.engine_info, "txnId": txn,
    }  # fmt: skip
    return json.dumps({"commitInfo": info}, separators=(",", ":"))


def _new_table() -> list[str]:
    """Return the protocol and metadata actions of the first version."""
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
