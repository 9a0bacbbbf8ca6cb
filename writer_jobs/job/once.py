"""Apply a load once. A load with a run id is applied once only; the id must not be reused for another load."""

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
_HEX_DIGITS = 15  # 60 bits: a txnVersion is a whole number of 64, and not negative


class LoadMark:
    """The transaction of a load with a name: its version is a hash of what the load is of.

    Args:
        log: of the table.
        program: whose name it is.
        run_id: the name.
        basis: what the load is of; JSON values.

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
        self.txn = (f"{program}/{run_id}", _transaction_version(basis))
        untimed = [source[:2] for source in basis.get("sources", ())]
        # Of a load that an earlier release made, which hashed no modification times.
        self._earlier_version = _transaction_version({**basis, "sources": untimed}) if untimed else NO_VERSION

    @classmethod
    def of(
        cls, context: JobContext[_A], program: str, writer: LockedDeltaWriter, basis: Mapping[str, Any]
    ) -> LoadMark | None:
        """Return the checked mark of a job's load; None if the load has no run id.

        Args:
            context: of the job.
            program: Name of the job.
            writer: of the table.
            basis: Sources and options of the load; JSON values.

        Raises:
            RunError: The table has another load of this name.

        """
        if context.arguments.run_id is None:
            return None
        mark = cls(writer.log, program, context.arguments.run_id, basis)
        mark.check()
        return mark

    def check(self) -> None:
        """Look up in the newest version of the table whether it has this load.

        Raises:
            RunError: The table has another load of this name.

        """
        application, version = self.txn
        head = self._log.head(application)
        last, self._newest = head.last_transaction, head.version
        if last != NO_VERSION and last == self._earlier_version:
            version = last
            self.txn = (application, version)
        if last not in (NO_VERSION, version):
            raise RunError(
                f"run {self._run_id!r} is in the table, and was of other sources, or had other arguments: choose "
                "another run id"
            )
        self.is_applied = last == version

    def version(self) -> int | None:
        """Return the version of the load's commit as of the last :meth:`check`.

        None if the log no longer has it, or an earlier release made it.
        """
        return self._log.run_versions(self.txn[0], newest=self._newest).get(1)


def _transaction_version(basis: Mapping[str, Any]) -> int:
    """Return the hash of the sources and options of a load."""
    text = json.dumps(basis, sort_keys=True)
    return int(hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS], 16)


def is_applied(context: JobContext[_A], mark: LoadMark | None, counters: Iterable[str] = ()) -> bool:
    """Return whether the table has this load already, and print its commit if so; called before the sources are read.

    Not for a load that writes something after its commit to the table.

    Args:
        context: of the job.
        mark: of the load.
        counters: Names of the counts in the job's line of a commit, which are null in this line.

    """
    if mark is None or not mark.is_applied:
        return False
    context.output.commit(1, None, **dict.fromkeys(counters), version=mark.version())
    return True


def apply_once(
    context: JobContext[_A],
    writer: LockedDeltaWriter,
    mark: LoadMark | None,
    apply: Callable[[Callable[[Hold], None]], BatchResult],
) -> None:
    """Apply one load, and say what became of it.

    Args:
        context: of the job.
        writer: of the table.
        mark: of the load.
        apply: Applies it with the transaction and the metadata of the mark; calls its argument under the lock.

    Raises:
        RunError: its name is of another load.
        SluiceError: what ``apply`` raises.

    """
    output, version = context.output, {}

    def holding(hold: Hold) -> None:
        if mark is not None:
            mark.check()
        output.holding(1, hold.token, hold.acquired_at)

    with failing_store_is_a_failed_write(writer.table), context.stop.deferred(writer.cancel):
        output.begun(1, time.time())
        result = apply(holding)
        if mark is not None and result.already_applied:
            mark.check()
            version = {"version": mark.version()}
        output.commit(1, result.commit, **result.counts, **version, already_committed=result.already_applied)
