"""Bring the rows of source files into one table, in a number of commits, each once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lock_manager import Hold
from lock_manager.table_records.commit_stamp import run_note
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import RunError, SourceError, TableError, WriteFailedError
from writer_jobs.job.append.arguments import AppendArguments
from writer_jobs.job.append.runs import Run, RunRecords, begun_run, check_same_basis, split_basis
from writer_jobs.job.append.split import SplitRows
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.output import JobOutput
from writer_jobs.writer import LockedDeltaWriter


class _PlanOutdatedError(Exception):
    """What was planned without the lock does not fit the table any more: plan again."""


@dataclass(frozen=True)
class _Plan:
    """How the rows are read and divided, and how much of it is in the table already.

    Attributes:
        state: the table for which it was made, None if there was none.
        done: commits of this run that are in the table.
        versions: by number, the versions of those commits that the log still has.
        run: to be recorded with the first commit; None without a run id.
        schema: of the rows.

    """

    state: TableState | None
    done: int
    run: Run | None
    schema: StructType
    versions: Mapping[int, int] = field(default_factory=dict)


class AppendLoad:
    """The rows of the source files, on their way into one table.

    Args:
        spark: the session.
        writer: of the table.
        arguments: what was asked for.
        output: gets every step.
        uninterrupted: context in which an append runs to its end; given a function that hurries the end.

    Raises:
        SourceError: there are no such files, or their format is not clear.

    """

    def __init__(
        self,
        spark: SparkSession,
        writer: LockedDeltaWriter,
        arguments: AppendArguments,
        output: JobOutput,
        uninterrupted: Callable[[Callable[[], None]], AbstractContextManager[None]],
    ) -> None:
        self._spark = spark
        self._writer = writer
        self._arguments = arguments
        self._output = output
        self._uninterrupted = uninterrupted
        self._files = HadoopFiles.of(spark)
        self._sources = find_sources(self._files, arguments.sources)
        file_format = arguments.format or self._sources.format
        self._format = file_format
        self._reader = SourceReader(spark, self._sources, file_format, arguments.options, writer.table)
        self._reported = 0

    def run(self) -> None:
        """Make the commits that are not in the table yet.

        Raises:
            SluiceError: see :meth:`LockedDeltaWriter.append`; besides, a source, a run or a partitioning that does not
                fit the table. Commits that were made before stay.

        """
        while self._reported < self._arguments.commits:
            plan = self._plan()
            for commit in range(self._reported + 1, plan.done + 1):
                self._output.commit(commit, None, version=plan.versions.get(commit))
                self._reported = commit
            if plan.done < self._arguments.commits:
                with suppress(_PlanOutdatedError):
                    self._make_commits(plan)

    def _plan(self) -> _Plan:
        arguments, log = self._arguments, self._writer.log
        state = log.state()
        refuse_other_partitioning(self._writer.table, state, self._arguments.partition_by)
        run_id = arguments.run_id
        if run_id is None:
            return _Plan(state, 0, None, self._schema(state))
        records, options = self._records(run_id), self._reader.options
        basis = split_basis(self._spark, sources=self._sources, file_format=self._format, commits=arguments.commits)
        head = log.head(run_id)
        done = max(0, head.last_transaction)
        if done == 0:
            before = records.all()
            if state and state.forgets_transactions and before:
                raise RunError(
                    f"run {run_id!r} was begun before, and how far it came cannot be known, because the table forgets "
                    "transactions (delta.setTransactionRetentionDuration): look into its history, then choose another "
                    "run id"
                )
            schema = self._schema(state)
            # An attempt that ended before its first commit left its record. It counts if nothing has changed since.
            same = (run for run in before if run.text and run.schema == schema and not run.changes(basis, options))
            run = next(same, None) or Run.begin(run_id, basis, options, schema)
            return _Plan(state, 0, run, schema)
        run, newest = begun_run(records, log, run_id, head)
        check_same_basis(run, basis, options, done)
        # By the recorded schema: the table's may have changed since, and with it the split.
        return _Plan(state, done, run, run.schema, log.run_versions(run_id, newest=newest))

    def _records(self, run_id: str) -> RunRecords:
        return RunRecords(self._files, self._writer.location, run_id)

    def _schema(self, state: TableState | None) -> StructType:
        schema = self._reader.schema(state)
        names = {name.lower() for name in schema.names}
        missing = [name for name in self._arguments.partition_by if name.lower() not in names]
        if state is None and missing:
            raise SourceError(f"the source has no column {', '.join(missing)} to partition by")
        return schema

    def _make_commits(self, plan: _Plan) -> None:
        commits = self._arguments.commits
        split: SplitRows | None = None
        try:
            rows = self._reader.read(plan.schema)
            if commits > 1:
                # Read before the lock is asked for.
                columns = plan.state.partition_columns if plan.state else self._arguments.partition_by
                split = SplitRows(rows, commits, columns)
                split.count()
        except JVM_ERRORS as error:
            raise WriteFailedError(table=self._writer.table, reason=one_sentence(error)) from error
        try:
            for commit in range(plan.done + 1, commits + 1):
                # Before each: what falls out of Spark's cache is read from the files again.
                self._check_sources_unchanged()
                part = rows if split is None else split.part(commit - 1)
                self._make_commit(commit, part, plan, first=commit == plan.done + 1)
        finally:
            if split is not None:
                with suppress(*JVM_ERRORS):
                    split.close()

    def _check_sources_unchanged(self) -> None:
        """Make sure that a run's record is of the files that were read, not of what they were before."""
        if self._arguments.run_id is not None and find_sources(self._files, self._arguments.sources) != self._sources:
            raise SourceError("the source files changed while they were loaded: start again when they are complete")

    def _make_commit(self, commit: int, df: DataFrame, plan: _Plan, *, first: bool) -> None:
        arguments = self._arguments

        def before_write(hold: Hold) -> None:
            self._output.holding(commit, hold.token, hold.acquired_at)
            if first:
                self._settle(plan)

        run = plan.run
        begins = first and run is not None and plan.done == 0
        with self._uninterrupted(self._writer.cancel):
            self._output.begun(commit, time.time())
            result = self._writer.append(
                df,
                partition_by=() if plan.state else arguments.partition_by,
                txn=(run.run_id, commit) if run is not None else None,
                # Who begins a run makes sure under it that nobody else has begun another one of that name.
                lock="table" if begins else arguments.lock,
                lock_during=arguments.hold,
                metadata={} if run is None else self._note(run, commit),
                before_write=before_write,
            )
            if begins and result.already_committed:
                # Another process has begun this run: plan again, to compare its split with ours.
                raise _PlanOutdatedError
            self._output.commit(commit, result)
            self._reported = commit

    def _note(self, run: Run, commit: int) -> dict[str, Any]:
        basis = {} if run.digest is None else {"basis": run.digest}
        return run_note(run.run_id, commit, self._arguments.commits, **basis)

    def _settle(self, plan: _Plan) -> None:
        """Under the lock, before the first commit: see that the plan still fits the table, and record the run."""
        state = self._writer.log.state() if plan.state is None else plan.state
        if state is not None and plan.state is None:
            # Another writer made the table while this one planned to.
            refuse_other_partitioning(self._writer.table, state, self._arguments.partition_by)
            if not _fits(plan.schema, state.schema):
                raise _PlanOutdatedError
        if plan.run is not None and plan.done == 0:
            if self._writer.log.head(plan.run.run_id).last_transaction > 0:
                # Another process has begun this very run.
                raise _PlanOutdatedError
            self._records(plan.run.run_id).save(plan.run)


def refuse_other_partitioning(table: str, state: TableState | None, asked: Sequence[str]) -> None:
    """Make sure that a table, if it is there, is partitioned as it was asked for, if anything was.

    Args:
        table: canonical URI, for the message.
        state: of the table; None if there is none.
        asked: partition columns; none: any will do.

    Raises:
        TableError: it is partitioned in another way.

    """
    if state and asked and [name.lower() for name in asked] != [name.lower() for name in state.partition_columns]:
        actual = f"by {','.join(state.partition_columns)}" if state.partition_columns else "not"
        raise TableError(f"{table} is partitioned {actual}, and not by {','.join(asked)}")


def _fits(planned: StructType, actual: StructType) -> bool:
    """Tell whether rows that were planned for a new table have the names and types of one that exists by now."""

    def types(schema: StructType) -> dict[str, str]:
        return {field.name.lower(): field.dataType.simpleString() for field in schema}

    return types(planned) == types(actual)
