"""The turn of a Spark driver through the gate: the product's writer, with the lock for the commit alone.

Events and points are those of :mod:`soak.store_cycle`, with these differences: rows are computed and written before
the lock is requested; ``stored`` and ``releasing`` are reached when the log store has reported the outcome of the
put, before the lock is released; ``acknowledged`` has the commit id, and no transaction if another writer committed the
operation; and ``gave-up`` has the rows of an operation that the writer reported as not committed. ``waiting`` has the
write id of an append that a holder may commit (``offer``), and ``grouped`` has the write ids that an intent names.
``read`` is ``inferred`` from a put if nothing else was read: the log store has found the version of the put free, under
the lock or at most 50 ms before (``RECHECK_NANOS`` in ``GuardedLogStore.java``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from lock_manager import Hold, LockLostError, LockManager, SluiceError, TableScope, canonical_table_uri
from lock_manager.coordinator import Offer
from lock_manager.intents import NO_VERSION
from soak.errors import JvmGoneError
from soak.operations import Operation
from soak.spark_cycle import SettlingLog, SparkCycle
from soak.steps import ACQUIRED, StepContext
from writer_jobs import CommitResult, CommitUnknownError, LockedDeltaWriter
from writer_jobs.errors import UnprovenCommitError


class GateCycle(SparkCycle):
    """One transaction with the lock for its commit; see :class:`soak.cycle.Cycle` for the arguments."""

    def run(self) -> None:
        """Write, acquire the lock, commit, and release the lock.

        Raises:
            JvmGoneError: The JVM has ended.
            SluiceError: The table's log cannot be read.

        """
        worker = self._worker
        self._hold_ids: list[str] = []
        self._recorded_stored = False
        self._has_read = False
        self._log = SettlingLog(worker, self._table, self._fill)
        self._operation = self._choose_operation()
        self._ids = list(self._operation.ids)
        manager = cast("LockManager", _ObservedManager(worker.manager, self._table, self._on_request, self._on_hold))
        writer = LockedDeltaWriter(worker.spark, manager, self._table)
        writer.log = self._log
        try:
            self._acknowledge(self._operation.run(worker.spark, writer, self._read))
        except JvmGoneError:
            raise
        except Exception as error:  # noqa: BLE001 (Spark's errors have no class in common)
            self._fail(error)
        finally:
            for hold_id in self._hold_ids:
                del worker.cycles[hold_id]

    def on_put_request(self, request: Mapping[str, Any]) -> None:
        """Record an attempt; before it, that the log store has found its version free, if no read is recorded."""
        if not self._is_filling and not self._has_read:
            self._record_read(int(request["version"]) - 1, inferred=True)
        super().on_put_request(request)

    def on_put_answer(self, answer: Mapping[str, Any]) -> None:
        """Record the members of a put."""
        members = [member["stamp"].get("commit_id") for member in answer.get("members", ())]
        if members:
            self._record("grouped", txn=self._attempts[-1].txn, members=members)

    def on_outcome(self, outcome: Mapping[str, Any]) -> None:
        """Record a stored put while the lock is held, in the thread that receives its outcome."""
        if outcome["outcome"] == "committed":
            self._record_stored(str(outcome["attempt"]))
            self._reach("stored")
            self._reach("releasing")

    def _choose_operation(self) -> Operation:
        worker = self._worker
        ids = worker.take_ids()
        if self._log.head().version == NO_VERSION:
            return Operation("append", ids)
        if worker.options.appends_only:
            return Operation("offered", ids)
        deletable = worker.deletable[self._table]
        operation = Operation.choose(
            ids, worker.options.name, deletable[0] if deletable else (), in_groups=worker.options.group_commits
        )
        if operation.deletes:
            # A batch is deleted only once, even if the outcome is unknown.
            deletable.popleft()
        return operation

    def _facts(self) -> dict[str, Any]:
        return self._operation.facts

    def _fill(self, commit: Callable[[], int]) -> int:
        try:
            return super()._fill(commit)
        finally:
            # The empty commit is recorded, and its attempt does not belong to this transaction.
            self._attempts.clear()

    def _on_request(self, offer: Offer | None) -> None:
        """Record a request for the lock, and that an earlier attempt through the gate was refused."""
        for attempt in self._attempts[-1:]:
            self._record("refused", error="NotStagedError", message="repeated with the lock", txn=attempt.txn)
        self._attempts.clear()
        self._record_wait(offer=offer.write_id if offer is not None else None)

    def _on_hold(self, hold: Hold) -> None:
        self._record_hold(hold)
        self._worker.cycles[hold.hold_id] = self
        self._hold_ids.append(hold.hold_id)
        self._has_read = False
        self._reach("acquired")
        self._take_steps(ACQUIRED, StepContext(hold, self._read_in_new_block, self._commit_in_two_threads))

    def _read(self, _: Hold) -> None:
        self._record_read(self._log.head().version)

    def _record_read(self, version: int, *, inferred: bool = False) -> None:
        """Record the newest version. No put of an earlier hold may add a version after that."""
        self._has_read = True
        self._record("read", version=version, inferred=inferred)
        self._reach("read")

    def _record_stored(self, name: str) -> None:
        stored = next((attempt for attempt in self._attempts if attempt.name == name), None)
        if stored is not None and not self._recorded_stored:
            self._recorded_stored = True
            self._record("stored", version=stored.version, txn=stored.txn)

    def _acknowledge(self, result: CommitResult | None) -> None:
        version, commit_id = (result.version, result.commit_id) if result is not None else (None, None)
        # If there is no attempt or no version, the verdict reports that the operation is not in the table.
        txn = self._attempts[-1].txn if self._attempts else None
        if self._attempts:
            # No outcome was reported if the lock was held from the beginning, or if the commit was found in the log.
            self._record_stored(self._attempts[-1].name)
        if self._hold_ids:
            self._record("released", lost=self._hold.lost is not None)
        self._record("acknowledged", version=version, txn=txn, commit_id=commit_id, **self._facts())
        if self._ids:
            self._worker.deletable[self._table].append(self._ids)

    def _fail(self, error: Exception) -> None:
        jvm_error: JvmGoneError | None = None
        try:
            self._worker.check_jvm(error)
        except JvmGoneError as gone_error:
            jvm_error = gone_error
        facts = {"error": type(jvm_error or error).__name__, "message": str(error)}
        is_unknown = jvm_error is not None or isinstance(error, CommitUnknownError | UnprovenCommitError)
        is_refused = isinstance(error, SluiceError) and not is_unknown
        if self._attempts:
            self._record("refused" if is_refused else "unknown", **facts, txn=self._attempts[-1].txn)
        elif isinstance(error, CommitUnknownError):
            # Another writer may have committed the operation, or may still commit it.
            self._record("unknown", **facts, txn=None)
        else:
            self._record("gave-up", **facts, ids=self._ids if is_refused else [])
        if self._hold_ids:
            self._record("released", lost=isinstance(error, LockLostError) or self._hold.lost is not None)
        if jvm_error is not None:
            raise jvm_error


class _ObservedManager:
    """A lock manager with callbacks.

    Args:
        manager: The lock manager.
        table: Location of the table whose requests are observed. The writer also requests the lock on its checkpoints.
        on_request: Called before each request with its offer, or None.
        on_hold: Called with each hold before the caller gets it. An error releases the hold.

    """

    def __init__(
        self,
        manager: LockManager,
        table: str,
        on_request: Callable[[Offer | None], None],
        on_hold: Callable[[Hold], None],
    ) -> None:
        self._manager = manager
        self._uri = canonical_table_uri(table)
        self._on_request = on_request
        self._on_hold = on_hold

    def acquire_all(self, scopes: Sequence[TableScope | str], **options: Any) -> Hold:
        uris = [scope.table.uri if isinstance(scope, TableScope) else scope for scope in scopes]
        if uris != [self._uri]:
            return self._manager.acquire_all(scopes, **options)
        self._on_request(options.get("offer"))
        hold = self._manager.acquire_all(scopes, **options)
        try:
            self._on_hold(hold)
        except BaseException:
            hold.release()
            raise
        return hold

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)
