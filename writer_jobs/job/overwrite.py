"""The job ``overwrite.py``: its command line and its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lock_manager import Hold
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import ArgumentsError, SourceError, WriteConflictError
from writer_jobs.job.append.load import refuse_other_partitioning
from writer_jobs.job.arguments import JobParser, build_arguments, in_identity, nonblank
from writer_jobs.job.inputs.file_arguments import (
    FileJobArguments,
    add_new_table,
    add_report_and_reader_options,
    add_source,
)
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.loads import Load
from writer_jobs.job.runner import Job, JobContext

#: Name of the job in its help and its messages.
PROGRAM = "overwrite.py"
_DESCRIPTION = """\
Replace rows of a Delta table by the rows of files, in one commit under the table's ZooKeeper lock: all rows, the rows
that match a predicate, or the rows in the partitions of the new rows.
"""
_EPILOG = """\
examples:
  # the whole table; readers see the old rows or the new rows, and nothing in between
  spark-submit $(sluice submit-args) writer_jobs/overwrite.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/airports --source s3a://landing/airports.csv

  # load one day again; only its partition is locked, and a row of another day is refused
  spark-submit $(sluice submit-args) writer_jobs/overwrite.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --source s3a://landing/2013-01-31/ --format json \\
      --replace-where "day = '2013-01-31'" --run-id flights-2013-01-31

  # replace the partitions of the new rows; the other partitions stay
  spark-submit $(sluice submit-args) writer_jobs/overwrite.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --source s3a://landing/corrected/ --format parquet --dynamic

rules:
  Files are read as append.py reads them: for an existing table with its types, with columns matched by name, and
  without silently dropping anything. With --overwrite-schema the table gets the columns and types of the files instead.
  With --overwrite-schema the table keeps its partition columns, or gets those of --partition-by. If the files lack one
  of these columns, the job fails before it writes anything. Without --overwrite-schema, a --partition-by that differs
  from the table's partition columns is refused.
  A row that does not match --replace-where fails the job.
  If the files have no rows, the job deletes all rows that it would replace.
  With --dynamic a partition without new rows does not change. A table without partitions is replaced as a whole.

locks:
  The whole table is locked if all of it is replaced. Otherwise the partitions with replaced or new rows are locked; if
  there are more than 64 of them, the whole table is locked. The lock is held for the whole write, or with --hold commit
  for the commit only. With --hold commit the job repeats the write if another writer meanwhile adds rows that it would
  replace. --hold commit is refused with --replace-where, because the job looks up the partitions of the replaced rows
  in the table, and does so again under the lock. --hold commit has no effect if --overwrite-schema replaces the schema
  of an existing table.

runs:
  With --run-id ID a load that is in the table is not repeated, also if other writers have committed since. The id
  belongs to that load: other files (size, modification time), or another --replace-where, --dynamic or
  --overwrite-schema, are refused.

standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}; "commit" has version and
rows.
"""


@dataclass(frozen=True, kw_only=True)
class OverwriteArguments(FileJobArguments):
    """The arguments of ``overwrite.py``; see its ``--help``."""

    replace_where: str | None = field(metadata=in_identity("replace-where"))
    dynamic: bool = field(metadata=in_identity("dynamic"))
    overwrite_schema: bool = field(metadata=in_identity("overwrite-schema"))
    hold: Literal["commit", "write"]

    def check(self) -> None:
        """Check the arguments; see :meth:`JobArguments.check`."""
        super().check()
        if self.replace_where is not None and self.dynamic:
            raise ArgumentsError("give --replace-where or --dynamic, not both: each of them names the replaced rows")
        if self.overwrite_schema and (self.replace_where is not None or self.dynamic):
            raise ArgumentsError(
                "--overwrite-schema replaces the whole table: give it without --replace-where and --dynamic"
            )
        if self.hold == "commit" and self.replace_where is not None:
            raise ArgumentsError(
                "--hold commit cannot be given with --replace-where, because the job looks up the partitions of the "
                "replaced rows again under the lock: leave --hold out, or replace whole partitions with --dynamic"
            )

    def partition_columns(self, table: str, state: TableState | None, schema: StructType) -> tuple[str, ...]:
        """Return the partition columns for a write that creates the table or replaces its schema by that of the files.

        They are those of ``--partition-by``, or else those of the existing table. Delta makes the table unpartitioned
        if a write with ``overwriteSchema`` names no partition columns. The names are spelled as in the schema of the
        files.

        Raises:
            SourceError: The files lack a column of ``--partition-by``.
            ArgumentsError: The files lack a partition column of the table, and ``--partition-by`` is not given.

        """
        table_columns = state.partition_columns if state is not None else ()
        spelling = {name.lower(): name for name in schema.names}
        columns = self.partition_by or table_columns
        missing_columns = ", ".join(name for name in columns if name.lower() not in spelling)
        if missing_columns and self.partition_by:
            raise SourceError(f"the source has no column {missing_columns} to partition by")
        if missing_columns:
            raise ArgumentsError(
                f"{table} is partitioned by {','.join(table_columns)}, and the files have no column {missing_columns}: "
                "give the table's new partition columns with --partition-by"
            )
        return tuple(spelling[name.lower()] for name in columns)


def parse_arguments(argv: Sequence[str] | None = None) -> OverwriteArguments:
    """Parse the command line; see :class:`JobParser`. :meth:`OverwriteArguments.check` checks the values."""
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG)
    parser.add_table()
    add_source(parser)
    add = parser.add_argument
    add(
        "--replace-where", type=nonblank, metavar="SQL",
        help="replace the rows for which this condition is true; it must be true for all rows of the files, too",
    )  # fmt: skip
    add("--dynamic", action="store_true", help="replace the partitions of the new rows")
    add("--overwrite-schema", action="store_true", help="give the table the columns and types of the files")
    add_new_table(parser, "; with --overwrite-schema they may differ")
    add(
        "--hold", choices=("commit", "write"), default="write",
        help="hold the lock for the whole write (the default), or for the commit only (docs/gate.md); commit is "
        "refused with --replace-where",
    )  # fmt: skip
    add("--run-id", metavar="ID", help="name of this load, unique in the table; makes it safe to start it again")
    add_report_and_reader_options(parser)
    return build_arguments(OverwriteArguments, parser.parse_args(argv))


class _OverwriteResult(NamedTuple):
    """The result of the load."""

    commit: CommitResult
    already_applied: bool
    counts: dict[str, Any]


def _overwrite(context: JobContext[OverwriteArguments]) -> None:
    arguments, spark, writer = context.arguments, context.spark, context.writer
    sources = find_sources(HadoopFiles.of(spark), arguments.sources)
    load = Load(context, {**arguments.identity, "sources": sources.basis})
    if load.print_if_applied():
        return
    reader = SourceReader(spark, sources, arguments.format, arguments.options, writer.table)
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
        txn: tuple[str, int] | None, metadata: Mapping[str, Any] | None, before_write: Callable[[Hold], None]
    ) -> _OverwriteResult:
        def check_partition_columns(hold: Hold) -> None:
            before_write(hold)
            # The write sets the partition columns that the table had before the lock, so it would undo a later change.
            new_state = writer.log.state() if keeps_partition_columns else None
            if new_state is not None and state is not None and new_state.partition_columns != state.partition_columns:
                raise WriteConflictError(
                    table=writer.table,
                    reason="another writer has changed the table's partition columns: start the job again",
                )

        commit = writer.overwrite(
            rows,
            replace_where=arguments.replace_where,
            dynamic=arguments.dynamic,
            partition_by=partition_by,
            options={"overwriteSchema": "true"} if arguments.overwrite_schema and state is not None else {},
            txn=txn,
            lock="partitions" if replaces_partitions else "table",
            lock_during=arguments.hold,
            metadata=metadata,
            before_write=check_partition_columns,
        )
        return _OverwriteResult(commit, commit.already_committed, {})

    load.apply(overwrite)


def _refuse_bad_predicate(spark: SparkSession, predicate: str, schema: StructType) -> None:
    """Make sure that a predicate is valid for a table, before any row is written.

    Raises:
        ArgumentsError: The predicate is not SQL, or names a column that does not exist.

    """
    try:
        spark.createDataFrame([], schema).where(predicate)
    except SPARK_ERRORS as error:
        raise ArgumentsError(f"--replace-where {predicate!r} is not valid: {error_reason(error)}") from error


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _overwrite)
