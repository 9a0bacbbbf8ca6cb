"""The job ``upsert.py``: its command line and its work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame

from lock_manager import Hold
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import APPLIED, JobParser, build_arguments, column_names, nonblank
from writer_jobs.job.changes_arguments import ChangesJobArguments, add_changes, text_in_identity
from writer_jobs.job.inputs.file_arguments import add_source
from writer_jobs.job.inputs.file_stream import FileBatches
from writer_jobs.job.inputs.source_files import SourceFiles, find_sources
from writer_jobs.job.inputs.sources import SourceReader
from writer_jobs.job.loads import Load, run_stream
from writer_jobs.job.runner import Job, JobContext
from writer_jobs.job.stream_arguments import HELP as STREAMS_HELP
from writer_jobs.job.stream_arguments import StreamArguments, take_stream
from writer_jobs.merge.apply import apply_changes
from writer_jobs.merge.result import COUNTERS, ChangesResult
from writer_jobs.streaming.checkpoint import claim_checkpoint

#: Name of the job in its help and its messages.
PROGRAM = "upsert.py"

_DESCRIPTION = """\
Apply changes of another store to a Delta table under the table's ZooKeeper lock. The table then has the newest row of
each key, also if changes are late, repeated or out of order, and if several jobs write.
"""

_EPILOG = """\
examples:
  # updates and inserts; the newest row of each id wins, by its updated_at
  spark-submit $(sluice submit-args) writer_jobs/upsert.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers --source s3a://landing/2026-11-21/ --format json \\
      --keys id --sequence-by "timestamp(updated_at)"

  # with deletes, which an older change does not undo if it arrives later; op and position are not stored in the table
  spark-submit $(sluice submit-args) writer_jobs/upsert.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers --source /data/changes.parquet --keys country,id --partition-by country \\
      --sequence-by "struct(committed_at, position)" --apply-as-deletes "op = 'd'" \\
      --except-columns op,committed_at,position

  # every row that a customer ever had, with the start and the end of its validity
  spark-submit $(sluice submit-args) writer_jobs/upsert.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers_history --source s3a://landing/2026-11-21/ --format json \\
      --keys id --sequence-by "timestamp(updated_at)" --scd-type 2

  # a stream: every file that is added to the folder, checked every 10 seconds
  spark-submit $(sluice submit-args) writer_jobs/upsert.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers --source s3a://landing/customers/ --format json \\
      --keys id --sequence-by "timestamp(updated_at)" \\
      --trigger "10 seconds" --checkpoint s3a://lake/_streams/customers

rules:
  Of several changes to one key, the change with the largest sequence is applied; the sequence of the table's row counts
  as well. A delete has a place in that order, and TABLE_tombstones stores it for --tombstone-days. The sequence of the
  table's rows is the column that --sequence-by names, if the table has it, or else the column __SEQUENCE; with
  --scd-type 2 it is __START_AT.
  Two equal changes of one key with one sequence are a repetition. Different changes of one key with one sequence are
  refused if the result depends on their order, and so is a key or sequence that is null: nothing is written, and the
  sentence on standard error names the keys.
  The first run binds the table to its keys, sequence and SCD type (table property sluice.feed). Other values are
  refused later.
  A text column is refused as sequence, because text sorts differently from the times or numbers in it: give an
  expression, such as "timestamp(updated_at)".
  A partition column of text must not be '' or __HIVE_DEFAULT_PARTITION__, which Delta stores as null.
  With --scd-type 2 every change is stored: a row ends where the next change of its key begins, also if it is late.
  Columns that the changes lack do not change; they are null in new rows.

reading files:
  Files are read as append.py reads them, by the rules of docs/inputs.md: a value that is not exactly a value of its
  column's type fails the job. Columns of the table are read with its types, others with types that Spark infers, which
  reads csv and json files once more. All files are one batch, in any order.
  Nested fields are compared, added and widened as columns are. A JSON object replaces the whole value of its column: a
  nested field that it lacks becomes null. Types that could round or cut a value are refused.

locks:
  If all partition columns of the table are key columns, the job locks the partitions of the changes, so that feeds of
  different partitions run at the same time. Otherwise it locks the whole table, because a key does not determine the
  partition of its row. The lock is held while Delta merges; the files are read before the lock is requested.

runs:
  A job that was killed can be started again: a change that is applied twice is stored once. With --run-id ID a run that
  is in the table is skipped. If its files have another size or modification time by then, it is refused (exit code 2).

"""
_END = """\
  The source is one folder, or a glob in quotes. A file is read once, so it must be complete when it appears (rename it
  into place) and must not change. Remove it only after it is applied, or start the stream with --skip-missing. Each
  micro-batch is read as the files of one run are: a new column is added with the first file that has it. A file that
  cannot be parsed ends the stream: correct it, and start again. --max-files-per-batch limits a micro-batch, which by
  default has all files that exist.

standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}; "commit" has changes,
folded (the newest of each key; with --scd-type 2 each change once), inserted, updated, deleted, unchanged and
newest_sequence; for a stream also batch, missing_files and, if the sequence is a timestamp or a date, lag_s: the age of
its newest change in seconds. The report of a stream has the last commits, and totals.
"""


@dataclass(frozen=True, kw_only=True)
class UpsertArguments(ChangesJobArguments):
    """The arguments of ``upsert.py``; see its ``--help``."""

    keys: tuple[str, ...] = field(metadata=APPLIED | text_in_identity("keys"))
    sequence_by: str = field(metadata=APPLIED | text_in_identity("sequence-by"))
    apply_as_deletes: str | None = field(metadata=APPLIED)
    column_list: tuple[str, ...] | None = field(metadata=APPLIED)
    except_column_list: tuple[str, ...] | None = field(metadata=APPLIED)
    schema_evolution: bool = field(metadata=APPLIED)

    def check(self) -> None:
        """Check the arguments; see :meth:`JobArguments.check`."""
        super().check()
        if self.column_list is not None and self.except_column_list is not None:
            raise ArgumentsError("give --columns or --except-columns, not both")
        included_names = {name.lower() for name in (self.column_list if self.column_list is not None else self.keys)}
        excluded_names = {name.lower() for name in self.except_column_list or ()}
        if missing_keys := [name for name in self.keys if name.lower() not in included_names - excluded_names]:
            raise ArgumentsError(
                f"the table would lack the key columns {', '.join(missing_keys)}: name them in --columns, and not in "
                "--except-columns"
            )


def parse_arguments(argv: Sequence[str] | None = None) -> UpsertArguments:
    """Parse the command line; see :class:`JobParser`. :meth:`UpsertArguments.check` checks the values."""
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + STREAMS_HELP + _END)
    parser.add_table()
    add_source(parser)
    add = parser.add_argument
    add("--keys", required=True, type=column_names, metavar="COLS", help="columns that together identify a row")
    add(
        "--sequence-by",
        required=True,
        type=nonblank,
        metavar="SQL",
        help="SQL expression; the change of a key with the largest value wins",
    )
    add(
        "--apply-as-deletes",
        type=nonblank,
        metavar="SQL",
        help="SQL condition that is true for deletes; default: no change is a delete",
    )
    add(
        "--columns", dest="column_list", type=column_names, metavar="COLS",
        help="columns that the table gets; by default all",
    )  # fmt: skip
    add(
        "--except-columns", dest="except_column_list", type=column_names, metavar="COLS",
        help="columns that the table does not get",
    )  # fmt: skip
    add(
        "--schema-evolution", action="store_true",
        help="add columns that the table lacks, and widen its types where the changes need it; types of keys do not "
        "change",
    )  # fmt: skip
    add_changes(parser, "deletes")
    options = parser.parse_args(argv)
    options.stream = take_stream(options)
    return build_arguments(UpsertArguments, options)


def _upsert(context: JobContext[UpsertArguments]) -> None:
    arguments, writer = context.arguments, context.writer
    if arguments.stream is not None:
        _upsert_stream(context, arguments.stream)
        return
    sources = find_sources(HadoopFiles.of(context.spark), arguments.sources)
    load = Load(context, {**arguments.identity, "sources": sources.basis})
    if load.print_if_applied((*COUNTERS, "newest_sequence", "lag_s")):
        return
    changes = _read_changes(context, sources)

    def apply(
        txn: tuple[str, int] | None, metadata: Mapping[str, Any] | None, before_write: Callable[[Hold], None]
    ) -> ChangesResult:
        options = arguments.apply_options
        return apply_changes(writer, changes, **options, txn=txn, metadata=metadata, before_write=before_write)

    load.apply(apply)


def _upsert_stream(context: JobContext[UpsertArguments], stream: StreamArguments) -> None:
    arguments, writer = context.arguments, context.writer
    batches = FileBatches(context.spark, arguments.sources[0], stream)
    query_identity = {**arguments.identity, "table": writer.table, "source": batches.path}
    claim_checkpoint(HadoopFiles.of(context.spark), stream.checkpoint, query_identity)

    def apply(_: DataFrame, txn: tuple[str, int], before_write: Callable[[Hold], None]) -> ChangesResult:
        sources, missing_count = batches.files(txn[1])
        result = ChangesResult(table=writer.table)
        if sources is not None:
            changes, options = _read_changes(context, sources), arguments.apply_options
            result = apply_changes(writer, changes, **options, txn=txn, before_write=before_write)
        return replace(result, missing_files=missing_count)

    run_stream(context, batches.frame(arguments.max_files_per_batch), stream, apply, source=batches.path)


def _read_changes(context: JobContext[UpsertArguments], sources: SourceFiles) -> DataFrame:
    arguments, writer = context.arguments, context.writer
    reader = SourceReader(context.spark, sources, arguments.format, arguments.options, writer.table)
    return reader.read_changes(writer.log.state(), evolves=arguments.schema_evolution)


#: The job that ``spark-submit`` runs.
JOB = Job(PROGRAM, parse_arguments, _upsert)
