"""The outcome of a write: its commit in the table's log, or the error that explains why there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

from pyspark.errors import PySparkException

from lock_manager import Hold, LockLostError, SluiceError
from lock_manager.guard.guarded_block import GuardedBlock, is_definite
from lock_manager.intents import NO_VERSION
from writer_jobs.commit.driver_guard import REQUIRED, guard_mode
from writer_jobs.commit.execution import Execution
from writer_jobs.commit.guarded import recorded_puts
from writer_jobs.commit.operation import Operation
from writer_jobs.delta.jvm_errors import JVM_ERRORS, LOST_CONTACT, error_reason, is_caused_by
from writer_jobs.delta.partition_values import long_folder_reason
from writer_jobs.delta.session import LOG_STORE, LOG_STORE_SETTING
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.table_log import Commit
from writer_jobs.delta.type_differences import mismatch, type_differences
from writer_jobs.errors import CommitUnknownError, SchemaMismatchError, StorageError, TableError, WriteFailedError

log = logging.getLogger(__name__)

# Delta raises these, before it writes anything, for rows that do not fit the table.
# The last one is the name of DELTA_METADATA_MISMATCH in Delta 4.0.
_SCHEMA_CONDITIONS = (
    "DELTA_FAILED_TO_MERGE_FIELDS", "DELTA_METADATA_MISMATCH", "DELTA_SCHEMA", "_LEGACY_ERROR_TEMP_DELTA_0007",
)  # fmt: skip


class Outcome:
    """Finds the outcome of a write that ran under a hold; ``block`` is None if the guard does not guard the session."""

    def __init__(self, execution: Execution, hold: Hold, block: GuardedBlock | None) -> None:
        self._context = execution.context
        self._table = execution.context.table
        self._execution = execution
        self._hold = hold
        self._block = block

    def find_commit(
        self, version: int, failure: BaseException | None, error_of: Callable[[BaseException], SluiceError]
    ) -> Commit | None:
        """Find the commit of the write in the log.

        Args:
            version: Newest version of the table before the write.
            failure: Exception that ended the write; None if Delta reported success.
            error_of: Returns the error to raise for an exception of Spark after which nothing was committed.

        Returns:
            The commit, with the version ``NO_VERSION`` if nothing changed. None if the table had this transaction
            already.

        Raises:
            CommitUnknownError: The write may be in the table now or later.
            LockLostError: The hold was lost, and nothing was committed.
            SluiceError: The commit guard refused the commit.
            WriteFailedError: Nothing was committed.

        """
        txn, write_id = self._execution.operation.txn, self._execution.write_id
        try:
            is_guarded = guard_mode(self._context.spark) == REQUIRED
            commit, newest = self._context.log.find_commit(write_id, after=version, guarded=is_guarded)
            is_skipped = (
                commit is None
                and failure is None
                and txn is not None
                and self._context.log.head(txn[0]).last_transaction >= txn[1]
            )
        except (StorageError, TableError) as error:
            reason = error_reason(failure) if failure is not None else str(error)
            raise CommitUnknownError(table=self._table, reason=reason, commit_id=write_id) from failure or error
        if commit is not None:
            if failure is not None:
                log.warning(
                    "version %d of %s is committed, but Delta failed afterwards: %s",
                    commit.version,
                    self._table,
                    failure,
                )
            return commit
        if failure is not None:
            self._raise_error_of(failure, error_of)
        if is_skipped:
            return None
        if txn is None and (newest == version or self._has_no_put()):
            # Nothing changed, or a setting makes Delta skip empty commits (skipRecordingEmptyCommits).
            return Commit(NO_VERSION, 0)
        raise CommitUnknownError(
            table=self._table,
            reason=f"Delta reported success, but none of the versions {version + 1} to {newest} is this write, so "
            "another program writes this table without the lock",
            commit_id=write_id,
        )

    def _raise_error_of(self, failure: BaseException, error_of: Callable[[BaseException], SluiceError]) -> NoReturn:
        if self._may_still_be_put(failure):
            # The put may still be running, even if the JVM answers again and the log could be read.
            reason, write_id = error_reason(failure), self._execution.write_id
            raise CommitUnknownError(table=self._table, reason=reason, commit_id=write_id) from failure
        if isinstance(failure, SluiceError):
            # The commit guard's refusal.
            raise failure
        if self._hold.lost is not None:
            raise LockLostError(resource=self._table, hold_id=self._hold.hold_id, reason=self._hold.lost) from failure
        raise error_of(failure) from failure

    def may_be_stored(self, failure: BaseException) -> bool:
        """Return whether a failed write is in the table, or may be later. Delta may fail after a commit."""
        if self._may_still_be_put(failure):
            return True
        return any(put["outcome"] == "committed" for put in self._puts())

    def put_was_sent(self) -> bool:
        """Return whether a put of the newest attempt was sent and not refused by the store."""
        with suppress(*JVM_ERRORS):
            return any(put["outcome"] not in ("taken", "rejected") for put in self._puts())
        return False

    def _has_no_put(self) -> bool:
        return self._block is not None and not self._block.puts_of(self._execution.write_id)

    def _may_still_be_put(self, failure: BaseException) -> bool:
        """Return whether a failed write may be in the table later: only if a put of it was sent and got no answer."""
        if isinstance(failure, LOST_CONTACT):
            return True
        if self._block is None:
            # With the guard off, the log store may not be ours. Such a store raises a plain IOException if the outcome
            # is unknown.
            is_foreign_store = self._context.spark.sparkContext.getConf().get(LOG_STORE_SETTING, "") != LOG_STORE
            return isinstance(failure, CommitUnknownError) or (
                is_foreign_store and is_caused_by(failure, "java.io.IOException")
            )
        try:
            return not all(map(is_definite, self._puts()))
        except JVM_ERRORS:
            return True

    def _puts(self) -> list[dict[str, Any]]:
        """Return the puts of the newest attempt, with the outcomes that the log store recorded."""
        block = self._block
        return [] if block is None else recorded_puts(self._context.spark, block, self._execution.write_id)


def failed_write(execution: Execution, failure: BaseException) -> WriteFailedError:
    """Return the error of a write that failed without a commit."""
    table = execution.context.table
    with suppress(TableError, StorageError):
        reason = _misfit_reason(failure, execution.operation, execution.context.log.state())
        if reason is not None:
            return SchemaMismatchError(table=table, reason=reason)
    return WriteFailedError(table=table, reason=long_folder_reason(failure) or error_reason(failure))


def _misfit_reason(failure: BaseException, operation: Operation, state: TableState | None) -> str | None:
    """Return how the rows do not fit the table's schema; None if the write failed for another reason."""
    condition = failure.getCondition() if isinstance(failure, PySparkException) else None
    if condition is None or not condition.startswith(_SCHEMA_CONDITIONS):
        return None
    if state is None:
        return error_reason(failure)
    # Delta shows both whole schemas, over many lines, or one column of several.
    differences = type_differences(state.schema, operation.schema())
    return mismatch(field for field in differences if not field.is_accepted_by_append) or error_reason(failure)
