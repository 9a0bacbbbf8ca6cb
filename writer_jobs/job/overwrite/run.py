"""The function of ``overwrite.py``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lock_manager import Hold
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.errors import ArgumentsError, WriteConflictError
from writer_jobs.job.append.load import refuse_other_partitioning
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.load_transaction import LoadTransaction, apply_once, is_applied
from writer_jobs.job.overwrite.arguments import PROGRAM, OverwriteArguments, parse_arguments
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.writer import LockedDeltaWriter


@dataclass(frozen=True)
class _OverwriteResult:
    """The result of the load."""

    commit: CommitResult
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def already_applied(self) -> bool:
        """Whether the table already had the load."""
        return self.commit.already_committed


def _overwrite(context: JobContext[OverwriteArguments]) -> None:
    arguments, spark = context.arguments, context.spark
    writer = LockedDeltaWriter(spark, context.manager, arguments.table)
    context.report(table=writer.table)
    sources = find_sources(HadoopFiles.of(spark), arguments.sources)
    transaction = LoadTransaction.of(context, PROGRAM, writer, {**arguments.identity, "sources": sources.basis})
    if is_applied(context, transaction):
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
    replaces_partitions = arguments.replace_where is not None or arguments.dynamic
    keeps_partition_columns = state is not None and arguments.overwrite_schema and not arguments.partition_by

    def overwrite(
        txn: tuple[str, int] | None, metadata: Mapping[str, Any] | None, holding: Callable[[Hold], None]
    ) -> _OverwriteResult:
        def before_write(hold: Hold) -> None:
            holding(hold)
            # The write has the partition columns from before the lock. It would undo a change of them.
            new_state = writer.log.state() if keeps_partition_columns else None
            if new_state is not None and state is not None and new_state.partition_columns != state.partition_columns:
                raise WriteConflictError(
                    table=writer.table,
                    reason="another writer has changed its partition columns: start the job again",
                )

        return _OverwriteResult(
            writer.overwrite(
                rows,
                replace_where=arguments.replace_where,
                dynamic=arguments.dynamic,
                partition_by=partition_by,
                options={"overwriteSchema": "true"} if arguments.overwrite_schema and state is not None else {},
                txn=txn,
                lock="partitions" if replaces_partitions else "table",
                lock_during=arguments.hold,
                lock_timeout_seconds=arguments.lock_timeout,
                metadata=metadata,
                before_write=before_write,
            )
        )

    apply_once(context, writer, transaction, overwrite)


def _refuse_bad_predicate(spark: SparkSession, predicate: str, schema: StructType) -> None:
    """Make sure that a predicate is valid for a table, before any row is written.

    Raises:
        ArgumentsError: The predicate is not SQL, or names a column that does not exist.

    """
    try:
        spark.createDataFrame([], schema).where(predicate)
    except (*JVM_ERRORS, PySparkException) as error:
        raise ArgumentsError(f"--replace-where {predicate!r}: {error_reason(error)}") from error


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _overwrite)
