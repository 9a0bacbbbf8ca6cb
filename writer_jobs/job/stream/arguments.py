"""The command line of ``stream.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import APPLIED, JobParser, build_arguments, column_names, nonblank
from writer_jobs.job.inputs.file_arguments import (
    FileJobArguments,
    add_new_table,
    add_report_and_reader_options,
    add_source,
    add_topic,
    refuse_incomplete_topic,
)
from writer_jobs.job.stream_arguments import HELP as STREAMS_HELP
from writer_jobs.job.stream_arguments import StreamArguments, add_stream, take_stream
from writer_jobs.job.time_arguments import duration
from writer_jobs.streaming.query import AVAILABLE_NOW

#: Name of the job in its help and its messages.
PROGRAM = "stream.py"
_DESCRIPTION = """\
Write rows that arrive twice, out of order or late to a Delta table under the table's ZooKeeper lock, as a stream. The
table has each row once, in the partition of its event time. Rows that are too late are in a table of their own.
"""
_EPILOG = """\
examples:
  # every file that is added to the folder, checked every 10 seconds
  spark-submit $(sluice submit-args) writer_jobs/stream.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/departures --partition-by month --source s3a://landing/departures/ --format json \\
      --keys carrier,flight --event-time departed_at \\
      --trigger "10 seconds" --checkpoint s3a://lake/_streams/departures

  # all files that exist now; later versions of a row replace earlier ones; rows older than 30 days go to TABLE_late
  spark-submit $(sluice submit-args) writer_jobs/stream.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/departures --source s3a://landing/departures/ --format json \\
      --keys carrier,flight --event-time departed_at --sequence-by version \\
      --watermark-delay "1 hour" --allowed-lateness "30 days" \\
      --trigger available-now --checkpoint s3a://lake/_streams/departures

  # the rows that are appended to another table
  spark-submit $(sluice submit-args) writer_jobs/stream.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/departures --source-table s3a://lake/raw_departures \\
      --keys carrier,flight --event-time departed_at \\
      --trigger "1 minute" --checkpoint s3a://lake/_streams/departures

  # messages of a topic, whose values are JSON objects
  spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 $(sluice submit-args) \\
      writer_jobs/stream.py --zookeeper zk1:2181,zk2:2181,zk3:2181 --table s3a://lake/departures \\
      --kafka kafka1:9092 --topic departures --value-schema "flight string, departed_at timestamp, delay int" \\
      --option maxOffsetsPerTrigger=100000 --keys flight --event-time departed_at \\
      --trigger "10 seconds" --checkpoint s3a://lake/_streams/departures

rules:
  --keys, the event time and the table's partition columns identify a row: all versions of a row share these values.
  The first batch binds the table to keys, event time and sequence (table property sluice.feed). Other values are
  refused later.
  A row whose key is in the table is a repetition, and is counted. With --sequence-by a row with a larger sequence
  replaces the table's row. A row with a smaller sequence never replaces a newer row. A text column is refused as
  sequence: give an expression, such as "timestamp(updated_at)".
  The table itself is compared with the rows, so a repetition is found however late it is. Files whose statistics
  exclude a batch's rows are not read. So partition the table by a function of the event time, such as its month.
  The watermark is the newest event time of earlier batches, less --watermark-delay. Older rows are counted as late and
  written to the table. With --allowed-lateness, rows that trail the newest event time by more than that are written to
  TABLE_late, together with the newest event time, and are counted. A row that the table has is not written there.
  Text in the event time is read as a timestamp; without an offset, in the session's time zone.
  In a file, a null in a key or in the event time ends the stream: correct the file, and start again. A message or a row
  of --source-table with such a null becomes a dead letter.

locks:
  Files are read and rows are compared without the lock; the lock is held for the commit. In a partitioned
  table only the partitions of a batch are locked; the rows must have all partition columns. If another writer meanwhile
  adds rows that a batch may have, too, the batch is compared again.

"""
_END = """\
  With --source-table the job reads Delta's own source: a table whose rows are changed or removed needs --option
  skipChangeCommits=true. Messages that are not JSON of --value-schema are written to TABLE_dead_letters and counted.
  So are messages, and rows of a table, with a null in a key, or without an event time from 0001-01-03 to 9999-12-29
  (UTC). If the whole input of a run becomes dead letters, the exit code is 8.
  With --source-table or --kafka, --option applies to Delta's or Kafka's source: options such as maxBytesPerTrigger and
  maxOffsetsPerTrigger limit a batch.
  For files, the source is one folder, or a glob in quotes. A file is read once, so it must be complete when it appears
  (rename it into place) and must not change. Remove it only after it is applied, or start the stream with
  --skip-missing. --max-files-per-batch limits a micro-batch, which by default has all files that exist.

standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}; "commit" has batch,
arrived, repeated, late, too_late, inserted, updated, dead_letters, newest_event_time, watermark, and lag_s: the age of
the newest row in seconds. The report has the last commits, and totals.
"""


@dataclass(frozen=True, kw_only=True)
class StreamJobArguments(FileJobArguments):
    """The arguments of ``stream.py``; see its ``--help``."""

    source_table: str | None
    kafka: str | None
    topic: str | None
    value_schema: str | None
    keys: tuple[str, ...] = field(metadata=APPLIED)
    event_time: str = field(metadata=APPLIED)
    sequence_by: str | None = field(metadata=APPLIED)
    watermark_delay: timedelta = field(metadata=APPLIED)
    allowed_lateness: timedelta | None = field(metadata=APPLIED)
    schema_evolution: bool = field(metadata=APPLIED)
    stream: StreamArguments
    max_files_per_batch: int | None

    @property
    def commits(self) -> None:
        """None: a stream commits until it stops."""
        return

    @property
    def report_fields(self) -> dict[str, Any]:
        """Fields of the report that are known at the start of the job; JSON values."""
        return {**super().report_fields, "source_table": self.source_table, "topic": self.topic}

    def check(self) -> None:
        """Check the arguments; see :meth:`JobArguments.check`."""
        super().check()
        refuse_incomplete_topic(self.kafka, self.topic)
        if bool(self.sources) + (self.source_table is not None) + (self.kafka is not None) != 1:
            raise ArgumentsError("give one source: --source, --source-table, or --kafka and --topic")
        if not self.sources and self.format is not None:
            raise ArgumentsError("--format is for files: give it with --source")
        if self.kafka is not None and (self.value_schema is None or self.max_files_per_batch is not None):
            raise ArgumentsError("--kafka needs --value-schema, and does not take --max-files-per-batch")
        if self.source_table is not None and self.value_schema is not None:
            raise ArgumentsError("--value-schema applies to messages only: a table has columns")
        if len(self.sources) > 1:
            raise ArgumentsError("give one --source: a folder, or a glob in quotes")
        if self.allowed_lateness is not None and self.allowed_lateness < self.watermark_delay:
            raise ArgumentsError(
                "--allowed-lateness is less than --watermark-delay: a row that is not late cannot be too late"
            )


def parse_arguments(argv: Sequence[str] | None = None) -> StreamJobArguments:
    """Parse the command line; see :class:`JobParser`. :meth:`StreamJobArguments.check` checks the values."""
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + STREAMS_HELP + _END)
    parser.add_table()
    add_source(parser, required=False)
    add = parser.add_argument
    add("--source-table", type=nonblank, metavar="URI|NAME", help="Delta table whose appended rows are the input")
    add_topic(parser)
    add(
        "--value-schema", type=nonblank, metavar="DDL",
        help='columns of the JSON objects in messages, such as "flight string, departed_at timestamp"; the messages '
        "come from a topic, or from Parquet files with the columns of Kafka's source",
    )  # fmt: skip
    add(
        "--keys", required=True, type=column_names, metavar="COLS",
        help="columns that, with the event time, identify a row",
    )  # fmt: skip
    add(
        "--event-time", required=True, type=nonblank, metavar="COL",
        help="column with the time of the event, a timestamp or a date",
    )  # fmt: skip
    add(
        "--sequence-by", type=nonblank, metavar="SQL",
        help="SQL expression; the version of a row with the largest value wins",
    )  # fmt: skip
    add(
        "--watermark-delay", default=timedelta(0), type=duration, metavar="TIME",
        help='how far a row may trail the newest event time before it counts as late, such as "10 minutes" (0)',
    )  # fmt: skip
    add(
        "--allowed-lateness", type=duration, metavar="TIME",
        help="how far a row may trail the newest event time before it is too late for the table; by default no row is "
        "too late",
    )  # fmt: skip
    add_new_table(parser)
    add("--schema-evolution", action="store_true", help="add columns that the table lacks, and widen its types")
    add_stream(parser)
    add_report_and_reader_options(parser)
    parser.set_defaults(run_id=None)
    options = parser.parse_args(argv)
    options.stream = take_stream(options)
    if options.stream is None:
        raise ArgumentsError(f"give --trigger ({AVAILABLE_NOW}, or an interval) and --checkpoint")
    return build_arguments(StreamJobArguments, options)
