"""The work of ``overwrite.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lock_manager import Hold
from writer_jobs.commit.held_write import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.errors import ArgumentsError, WriteConflictError
from writer_jobs.job.append.load import refuse_other_partitioning
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.once import LoadMark, apply_once, is_applied
from writer_jobs.job.overwrite.arguments import PROGRAM, OverwriteArguments, parse_arguments
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.writer import LockedDeltaWriter


@dataclass(frozen=True)
class _Overwritten:
    """What became of the load, as a job says it."""

    commit: CommitResult
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def already_applied(self) -> bool:
        """Whether the table had it."""
        return self.commit.already_committed


def _overwrite(context: JobContext[OverwriteArguments]) -> None:
    arguments, spark = context.arguments, context.spark
    writer = LockedDeltaWriter(spark, context.manager, arguments.table)
    context.report(table=writer.table)
    sources = find_sources(HadoopFiles.of(spark), arguments.sources)
    mark = LoadMark.of(context, PROGRAM, writer, {**arguments.query, "sources": sources.basis})
    if is_applied(context, mark):
        return
    reader = SourceReader(spark, sources, arguments.format or sources.format, arguments.options, writer.table)
    state = writer.log.state()
    if not arguments.overwrite_schema:
        refuse_other_partitioning(writer.table, state, arguments.partition_by)
    schema = reader.schema(None if arguments.overwrite_schema else state)
    partition_by: tuple[str, ...] = ()
    if state is None or arguments.overwrite_schema:
        partition_by = arguments.partition_columns(writer.table, state, schema)
    rows = reader.read(schema)
    if arguments.replace_where is not None:
        _refuse_bad_predicate(spark, arguments.replace_where, schema if state is None else state.schema)
    some = arguments.replace_where is not None or arguments.dynamic
    keeps_its_own = state is not None and arguments.overwrite_schema and not arguments.partition_by

    def overwrite(holding: Callable[[Hold], None]) -> _Overwritten:
        def before_write(hold: Hold) -> None:
            holding(hold)
            # The write names the columns of before the lock: it would undo what another writer did since.
            now = writer.log.state() if keeps_its_own else None
            if now is not None and state is not None and now.partition_columns != state.partition_columns:
                raise WriteConflictError(
                    table=writer.table,
                    reason="another writer changed its partition columns meanwhile: start the job again",
                )

        return _Overwritten(
            writer.overwrite(
                rows,
                replace_where=arguments.replace_where,
                dynamic=arguments.dynamic,
                partition_by=partition_by,
                options={"overwriteSchema": "true"} if arguments.overwrite_schema and state is not None else {},
                txn=None if mark is None else mark.txn,
                lock="partitions" if some else "table",
                lock_during=arguments.hold,
                lock_timeout_seconds=arguments.lock_timeout,
                metadata=None if mark is None else mark.metadata,
                before_write=before_write,
            )
        )

    apply_once(context, writer, mark, overwrite)


def _refuse_bad_predicate(spark: SparkSession, predicate: str, schema: StructType) -> None:
    """Make sure that a predicate can be asked of a table, before any row is written for nothing.

    Raises:
        ArgumentsError: it is no SQL, or names what is no column.

    """
    try:
        spark.createDataFrame([], schema).where(predicate)
    except (*JVM_ERRORS, PySparkException) as error:
        raise ArgumentsError(f"--replace-where {predicate!r}: {one_sentence(error)}") from error


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _overwrite)
