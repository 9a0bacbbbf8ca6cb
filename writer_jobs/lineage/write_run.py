"""The run of one operation of a writer: its events when it begins and when it ends."""

from __future__ import annotations

import re
import time
from types import TracebackType
from typing import Any, Self

from lock_manager.table_records.commit_stamp import lineage_note
from writer_jobs.commit.execution import WriterContext
from writer_jobs.commit.lock_target import job_note
from writer_jobs.commit.operation import Operation
from writer_jobs.commit.result import CommitResult
from writer_jobs.errors import UnprovenCommitError
from writer_jobs.lineage.dataset_names import location_name
from writer_jobs.lineage.job_run import parent_of_writes
from writer_jobs.lineage.log_once import errors_logged
from writer_jobs.lineage.plan_sources import sources_of
from writer_jobs.lineage.records import OutputRecord, RunName, RunRecord, SourceRecord, State, message_of, state_of
from writer_jobs.lineage.sender import PROCESS_SENDER

# Delta's metrics for each field of OpenLineage's statistics. The first group with a metric in the commit counts. In
# numOutputRows a MERGE also counts the rows that it copied.
_ROWS = (("numTargetRowsInserted", "numTargetRowsUpdated"), ("numUpdatedRows",), ("numOutputRows",))
_STATISTICS = {
    "rowCount": _ROWS,
    "size": (("numOutputBytes",), ("numAddedBytes",), ("numTargetBytesAdded",)),
    "fileCount": (("numFiles",), ("numAddedFiles",), ("numTargetFilesAdded",)),
}
_SEPARATORS = re.compile(r"[^\w.-]+")


class WriteRun:
    """A context manager: one operation, as a run of OpenLineage. It does nothing if no transport is configured.

    Args:
        context: Context of the writer.
        operation: Name of the operation, such as ``merge``.

    Attributes:
        note: Metadata that the commit records, so that the run can be found in the log.
        result: Result of the operation, to be set within the block.

    """

    def __init__(self, context: WriterContext, operation: str) -> None:
        self.note: dict[str, Any] = {}
        self.result: CommitResult | None = None
        self._context, self._operation_name = context, operation
        self._begun_at = time.time()
        self._operation: Operation | None = None
        self._sources: list[SourceRecord] = []
        self._unknown_count = 0
        self._run: RunName | None = None
        self._sender = PROCESS_SENDER.get()
        if self._sender is None:
            return
        with errors_logged():
            self._parent = parent_of_writes(context.spark)
            self._output = location_name(context.table)
            table = _SEPARATORS.sub("_", "" if self._output is None else self._output.name).strip("_")
            job = job_note(context.spark, context.manager)["job"]
            self._run = RunName.new(f"{job}.{operation}.{table}")
            self.note = lineage_note(self._run.run_id)

    def __enter__(self) -> Self:
        return self

    def start(self, operation: Operation) -> None:
        """Send the event of the beginning, with the sources of the operation; later calls change nothing."""
        if self._run is None or self._operation is not None:
            return
        self._operation = operation
        with errors_logged():
            self._sources, self._unknown_count = sources_of(self._context.spark, operation.reads)
        self._send("START", at=self._begun_at)

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self._run is None:
            return
        if self._operation is None:
            self._send("START", at=self._begun_at)
        # A running write that is cancelled raises the error of its Spark jobs.
        is_cancelled = error is not None and self._context.is_cancelled()
        self._send("ABORT" if is_cancelled else "COMPLETE" if error is None else state_of(error), error)

    def _send(self, state: State, error: BaseException | None = None, *, at: float | None = None) -> None:
        with errors_logged():
            if self._run is None or self._sender is None:
                return
            self._sender.put(
                RunRecord(
                    state=state,
                    run=self._run,
                    parent=self._parent,
                    job_type=self._operation_name.upper(),
                    at=time.time() if at is None else at,
                    sources=tuple(self._sources),
                    outputs=self._outputs(error),
                    error=None if error is None else message_of(error),
                    write=self._facet(error),
                )
            )

    def _outputs(self, error: BaseException | None) -> tuple[OutputRecord, ...]:
        if self._output is None:
            return ()
        symlink, result = self._context.symlink, self.result
        if isinstance(error, UnprovenCommitError):
            return (OutputRecord(self._output, symlink, error.version),)
        if result is None or result.version is None:
            return (OutputRecord(self._output, symlink),)
        columns: list[tuple[str, str]] = []
        statistics: dict[str, int] = {}
        with errors_logged():
            state = self._context.log.known_snapshot().state
            columns = [] if state is None else [(field.name, field.dataType.simpleString()) for field in state.schema]
        with errors_logged():
            statistics = _statistics(result)
        return (OutputRecord(self._output, symlink, result.version, tuple(columns), statistics),)

    def _facet(self, error: BaseException | None) -> dict[str, Any]:
        """Return the fields of the facet ``sluice_write``."""
        facet: dict[str, Any] = {
            "table": self._context.table,
            "operation": self._operation_name,
            "unknownSources": self._unknown_count,
        }
        if self._operation is not None and (txn := self._operation.txn) is not None:
            facet["transaction"] = {"appId": txn[0], "version": txn[1]}
        if isinstance(error, UnprovenCommitError):
            facet |= {"commitId": error.commit_id, "holdId": error.hold_id}
        if (result := self.result) is not None:
            facet |= {
                "alreadyCommitted": result.already_committed,
                "commitId": result.commit_id,
                "holdId": result.hold_id,
                "token": result.token,
                "metrics": dict(result.metrics),
            }
        return facet


def _statistics(result: CommitResult) -> dict[str, int]:
    statistics = {}
    for name, alternatives in _STATISTICS.items():
        for metrics in alternatives:
            values = [int(result.metrics[metric]) for metric in metrics if metric in result.metrics]
            if values:
                statistics[name] = sum(values)
                break
    return statistics
