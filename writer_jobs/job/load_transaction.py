"""Apply a load once. A load with a run id is one transaction; the id must not be reused for another load."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from lock_manager import Hold
from lock_manager.intents import NO_VERSION
from lock_manager.table_records.commit_stamp import run_note
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import RunError
from writer_jobs.job.inputs.file_arguments import FileJobArguments
from writer_jobs.job.runner import JobContext, failing_store_is_a_failed_write
from writer_jobs.streaming.query import BatchResult
from writer_jobs.writer import LockedDeltaWriter

_A = TypeVar("_A", bound=FileJobArguments)
_HEX_DIGITS = 15  # 60 bits: a txnVersion is a non-negative integer of 64 bits


class LoadTransaction:
    """The transaction of a load with a run id. Its version is a hash of the load's sources and options.

    Args:
        log: Log of the table.
        program: Name of the job.
        run_id: Id of the run.
        basis: Sources and options of the load; JSON values.

    Attributes:
        txn: ``(txnAppId, txnVersion)``.
        metadata: Metadata of the commit; :meth:`version` searches for it.
        is_applied: Whether the table had this load at the last :meth:`check`.

    """

    def __init__(self, log: DeltaTableLog, program: str, run_id: str, basis: Mapping[str, Any]) -> None:
        self._log = log
        self._run_id = run_id
        self._newest = NO_VERSION
        self.is_applied = False
        self.metadata = run_note(f"{program}/{run_id}", 1, 1)
        self.txn = (f"{program}/{run_id}", _hash(basis))
        # An earlier release hashed no modification times.
        sources = [source[:2] for source in basis.get("sources", ())]
        self._earlier_version = _hash({**basis, "sources": sources}) if sources else NO_VERSION

    @classmethod
    def of(
        cls, context: JobContext[_A], program: str, writer: LockedDeltaWriter, basis: Mapping[str, Any]
    ) -> LoadTransaction | None:
        """Return the checked transaction of a job's load; None if the load has no run id.

        Args:
            context: Context of the job.
            program: Name of the job.
            writer: Writer of the table.
            basis: Sources and options of the load; JSON values.

        Raises:
            RunError: The table has another load with this run id.

        """
        if context.arguments.run_id is None:
            return None
        transaction = cls(writer.log, program, context.arguments.run_id, basis)
        transaction.check()
        return transaction

    def check(self) -> None:
        """Look up whether the newest version of the table has this load.

        Raises:
            RunError: The table has another load with this run id.

        """
        application, version = self.txn
        head = self._log.head(application)
        last_version, self._newest = head.last_transaction, head.version
        if last_version != NO_VERSION and last_version == self._earlier_version:
            version = last_version
            self.txn = (application, version)
        if last_version not in (NO_VERSION, version):
            raise RunError(
                f"run {self._run_id!r} is in the table, with other sources or other arguments: choose another run id"
            )
        self.is_applied = last_version == version

    def version(self) -> int | None:
        """Return the table version of the load's commit as of the last :meth:`check`.

        None if the log no longer has the commit, or if an earlier release made it.
        """
        return self._log.run_versions(self.txn[0], newest=self._newest).get(1)


def _hash(basis: Mapping[str, Any]) -> int:
    """Return the hash of a load's sources and options."""
    text = json.dumps(basis, sort_keys=True)
    return int(hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS], 16)


def is_applied(context: JobContext[_A], transaction: LoadTransaction | None, counters: Iterable[str] = ()) -> bool:
    """Return whether the table already has a load, and print the load's commit if so.

    Called before the sources are read. A load that writes something after its commit to the table must not use it.

    Args:
        context: Context of the job.
        transaction: Transaction of the load; None for a load without a run id.
        counters: Names of the counts in the job's ``commit`` line, which are null in this line.

    """
    if transaction is None or not transaction.is_applied:
        return False
    context.output.commit(1, None, **dict.fromkeys(counters), version=transaction.version())
    return True


def apply_once(
    context: JobContext[_A],
    writer: LockedDeltaWriter,
    transaction: LoadTransaction | None,
    apply: Callable[[tuple[str, int] | None, Mapping[str, Any] | None, Callable[[Hold], None]], BatchResult],
) -> None:
    """Apply one load and print its result.

    Args:
        context: Context of the job.
        writer: Writer of the table.
        transaction: Transaction of the load; None for a load without a run id.
        apply: Applies the load with the ``txn`` and the metadata of the transaction, None for a load without a run id.
            Calls its third argument under the lock.

    Raises:
        RunError: The table has another load with this run id.
        SluiceError: An error of ``apply``.

    """
    output, version = context.output, {}
    txn, metadata = (None, None) if transaction is None else (transaction.txn, transaction.metadata)

    def holding(hold: Hold) -> None:
        if transaction is not None:
            transaction.check()
        output.holding(1, hold.token, hold.acquired_at)

    with failing_store_is_a_failed_write(writer.table), context.stop.deferred(writer.cancel):
        output.begun(1, time.time())
        result = apply(txn, metadata, holding)
        if transaction is not None and result.already_applied:
            transaction.check()
            version = {"version": transaction.version()}
        output.commit(1, result.commit, **result.counts, **version, already_committed=result.already_applied)
