"""The work of ``append.py``: append rows of source files in one or several commits, each of them once."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from lock_manager import Hold
from lock_manager.table_records.commit_stamp import run_note
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import RunError, SourceError, TableError, WriteFailedError
from writer_jobs.job.append.arguments import PROGRAM, AppendArguments, parse_arguments
from writer_jobs.job.append.runs import Run, RunRecords, begun_run, check_same_basis, split_basis
from writer_jobs.job.append.split import SplitRows
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.runner import Job, JobContext, storage_errors_as_failed_writes


class _PlanOutdatedError(Exception):
    """The table changed before the job got the lock, so the job plans again."""


@dataclass(frozen=True)
class _Plan:
    """The plan of a load.

    Attributes:
        state: State of the table; None: it does not exist.
        committed_count: Number of the run's commits in the table.
        run: The run, recorded before its first commit; None without a run id.
        schema: Names and types to read the files with.
        versions: Table versions of the run's commits, by commit number, as far as the log still has them.

    """

    state: TableState | None
    committed_count: int
    run: Run | None
    schema: StructType
    versions: Mapping[int, int] = field(default_factory=dict)


class AppendLoad:
    """A load of source files into one table.

    Raises:
        SourceError: The source files do not exist, or their format is not clear.

    """

    def __init__(self, context: JobContext[AppendArguments]) -> None:
        self._spark, self._writer, self._arguments = context.spark, context.writer, context.arguments
        self._output, self._stop = context.output, context.stop
        self._files = HadoopFiles.of(context.spark)
        self._sources = find_sources(self._files, self._arguments.sources)
        self._reader = SourceReader(
            self._spark, self._sources, self._arguments.format, self._arguments.options, self._writer.table
        )
        self._last_reported = 0

    def run(self) -> None:
        """Make the commits that are not in the table.

        Raises:
            SluiceError: See :meth:`LockedDeltaWriter.append`; also for a source, a run or a partitioning that does not
                fit the table. Earlier commits stay in the table.

        """
        while self._last_reported < self._arguments.commits:
            plan = self._plan()
            for commit in range(self._last_reported + 1, plan.committed_count + 1):
                self._output.commit(commit, None, version=plan.versions.get(commit))
                self._last_reported = commit
            if plan.committed_count < self._arguments.commits:
                with suppress(_PlanOutdatedError):
                    self._make_commits(plan)

    def _plan(self) -> _Plan:
        arguments, log = self._arguments, self._writer.log
        snapshot = log.snapshot()
        state = snapshot.state
        refuse_other_partitioning(self._writer.table, state, arguments.partition_by)
        run_id = arguments.run_id
        if run_id is None:
            return _Plan(state, 0, None, self._schema(state))
        records, options = self._records(run_id), self._reader.options
        basis = split_basis(
            self._spark, sources=self._sources, file_format=self._reader.format, commits=arguments.commits
        )
        head = log.head(run_id)
        committed_count = max(0, head.last_transaction)
        if committed_count == 0:
            earlier_runs = records.all()
            if any(snapshot.may_have_dropped(run_id, run.sources_modified) for run in earlier_runs):
                raise RunError(
                    f"run {run_id!r} was begun before, and its progress is unknown, because the table drops old "
                    "transactions (delta.setTransactionRetentionDuration), and the sources of the run are not younger "
                    "than that: look into the table's history, then choose another run id"
                )
            schema = self._schema(state)
            # An attempt that ended before its first commit left a record. The record is used if nothing has changed.
            unchanged_runs = (
                run
                for run in earlier_runs
                if run.text and run.schema == schema and not run.changed_inputs(basis, options)
            )
            run = next(unchanged_runs, None) or Run.begin(run_id, basis, options, schema)
            return _Plan(state, 0, run, schema)
        run, newest = begun_run(records, log, run_id, head)
        check_same_basis(run, basis, options, committed_count)
        # The recorded schema determines the split; the table's schema may have changed.
        return _Plan(state, committed_count, run, run.schema, log.run_versions(run_id, newest=newest))

    def _records(self, run_id: str) -> RunRecords:
        return RunRecords(self._files, self._writer.location, run_id)

    def _schema(self, state: TableState | None) -> StructType:
        schema = self._reader.schema(state)
        names = {name.lower() for name in schema.names}
        missing_columns = [name for name in self._arguments.partition_by if name.lower() not in names]
        if state is None and missing_columns:
            raise SourceError(f"the source has no column {', '.join(missing_columns)} to partition by")
        return schema

    def _make_commits(self, plan: _Plan) -> None:
        commits = self._arguments.commits
        split: SplitRows | None = None
        try:
            rows = self._reader.read(plan.schema)
            if commits > 1:
                # The rows are read before the lock is requested.
                columns = plan.state.partition_columns if plan.state else self._arguments.partition_by
                split = SplitRows(rows, commits, columns)
                split.count()
        except JVM_ERRORS as error:
            raise WriteFailedError(table=self._writer.table, reason=error_reason(error)) from error
        try:
            for commit in range(plan.committed_count + 1, commits + 1):
                # Checked for each commit: if the cache evicts rows, Spark reads them from the files again.
                self._check_sources_unchanged()
                part = rows if split is None else split.part(commit - 1)
                self._make_commit(commit, part, plan, is_first=commit == plan.committed_count + 1)
        finally:
            if split is not None:
                with suppress(*JVM_ERRORS):
                    split.close()

    def _check_sources_unchanged(self) -> None:
        """Make sure that the files of a run's record are the files that are read."""
        if self._arguments.run_id is not None and find_sources(self._files, self._arguments.sources) != self._sources:
            raise SourceError("the source files changed while they were loaded: start again when they are complete")

    def _make_commit(self, commit: int, df: DataFrame, plan: _Plan, *, is_first: bool) -> None:
        arguments = self._arguments

        def before_write(hold: Hold) -> None:
            self._output.holding(commit, hold.token, hold.acquired_at)
            if is_first:
                self._confirm_plan(plan)

        run = plan.run
        begins_run = is_first and run is not None and plan.committed_count == 0
        with self._stop.deferred(self._writer.cancel):
            self._output.begun(commit, time.time())
            result = self._writer.append(
                df,
                partition_by=() if plan.state else arguments.partition_by,
                txn=(run.run_id, commit) if run is not None else None,
                # Under the table's lock no other process begins a run with this id.
                lock="table" if begins_run else arguments.lock,
                lock_during=arguments.hold,
                metadata={} if run is None else self._commit_metadata(run, commit),
                before_write=before_write,
            )
            if begins_run and result.already_committed:
                # Another process has begun this run. A new plan compares its split with this one.
                raise _PlanOutdatedError
            self._output.commit(commit, result)
            self._last_reported = commit

    def _commit_metadata(self, run: Run, commit: int) -> dict[str, Any]:
        basis = {} if run.digest is None else {"basis": run.digest}
        return run_note(run.run_id, commit, self._arguments.commits, **basis)

    def _confirm_plan(self, plan: _Plan) -> None:
        """Check that the plan still fits the table, and record the run. Called under the lock before the first commit.

        Raises:
            _PlanOutdatedError: The plan does not fit the table any more.
            TableError: Another writer created the table with other partition columns.

        """
        state = self._writer.log.state() if plan.state is None else plan.state
        if state is not None and plan.state is None:
            refuse_other_partitioning(self._writer.table, state, self._arguments.partition_by)
            if not _has_same_columns(plan.schema, state.schema):
                raise _PlanOutdatedError
        if plan.run is not None and plan.committed_count == 0:
            if self._writer.log.head(plan.run.run_id).last_transaction > 0:
                # Another process has begun this run.
                raise _PlanOutdatedError
            self._records(plan.run.run_id).save(plan.run)


def refuse_other_partitioning(table: str, state: TableState | None, partition_by: Sequence[str]) -> None:
    """Make sure that an existing table has the partition columns ``partition_by``; if that is empty, accept any table.

    Raises:
        TableError: The table has other partition columns.

    """
    if not state or not partition_by:
        return
    if [name.lower() for name in partition_by] != [name.lower() for name in state.partition_columns]:
        columns = ",".join(state.partition_columns)
        partitioning = f"partitioned by {columns}" if columns else "not partitioned"
        raise TableError(
            f"{table} is {partitioning}, but --partition-by is {','.join(partition_by)}: leave --partition-by out"
        )


def _has_same_columns(planned_schema: StructType, actual_schema: StructType) -> bool:
    """Return whether the schema planned for a new table has the names and types of the existing table."""

    def types(schema: StructType) -> dict[str, str]:
        return {field.name.lower(): field.dataType.simpleString() for field in schema}

    return types(planned_schema) == types(actual_schema)


def _append(context: JobContext[AppendArguments]) -> None:
    load = AppendLoad(context)
    with storage_errors_as_failed_writes(context.writer.table):
        load.run()


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _append)
