"""Command line of ``stream.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import JobParser, names, text
from writer_jobs.job.exit_codes import HELP
from writer_jobs.job.inputs.file_arguments import (
    FileJobArguments,
    add_new_table,
    add_reader_options,
    add_source,
    add_topic,
    refuse_half_a_topic,
    shared_by_file_jobs,
)
from writer_jobs.job.moments import span
from writer_jobs.job.stream_arguments import HELP as STREAMS
from writer_jobs.job.stream_arguments import StreamArguments, add_stream, positive, stream_of
from writer_jobs.late_rows.options import RowOptions
from writer_jobs.streaming.query import AVAILABLE_NOW

#: Name of the job in its help and its messages.
PROGRAM = "stream.py"
_DESCRIPTION = """\
Bring rows that arrive twice, out of order and late into a Delta table under the table's ZooKeeper lock, as a stream:
each is there once, in the partition of its event time, and what comes too late is in a table of its own.
"""
_EPILOG = """\
examples:
  # every file that comes into the folder, looked for every 10 seconds
  spark-submit $(sluice submit-args) writer_jobs/stream.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/departures --partition-by month --source s3a://landing/departures/ --format json \\
      --keys carrier,flight --event-time departed_at \\
      --trigger "10 seconds" --checkpoint s3a://lake/_streams/departures

  # what is there now; later versions of a row replace earlier ones; rows of more than 30 days ago are set aside
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
  A row is known by --keys, the event time, and the table's partition columns: all versions of it have these in common.
  The first batch binds the table to keys, event time and sequence (table property sluice.feed); others are refused.
  A row whose key the table has is a repetition, and is counted. With --sequence-by it is not if its sequence is larger:
  then it replaces the other one. A row with a smaller sequence never replaces a newer one, however late it comes. A
  text column is refused as sequence: give an expression, such as "timestamp(updated_at)".
  The table itself is what is remembered: nothing is forgotten, however late a repetition comes. Files whose statistics
  cannot hold a batch's keys are not read. So name the event time's partition column, and partition by it.
  The watermark is the newest event time of the batches before, less --watermark-delay. Older rows count as late, and
  go into the table all the same. With --allowed-lateness, rows that are older than the newest event time by more go to
  TABLE_late instead, with that event time, and are counted; repetitions of rows in the table do not.
  Text in the event time is read as a timestamp; without an offset, of the session's time zone.
  In a file, a null in a key, or in the event time, ends the stream: mend the file, and start again. In a message, or in
  a row of --source-table, it makes it a dead letter.

locks:
  Files are read and rows are compared without the lock; it is held for the commit. Of a table whose partition columns
  all come with the rows, only the partitions of a batch are locked. If another writer adds rows meanwhile that a batch
  might have, too, the batch is compared again.

"""
_END = """\
  With --source-table Delta's own source is read: a table whose rows are changed or removed needs --option
  skipChangeCommits=true. Messages that are no JSON of --value-schema go to TABLE_dead_letters, and are counted; so do
  messages, and rows of a table, with a null in a key, or without an event time of the years 1 to 9999. If that leaves
  nothing of the input until the stream ends, the exit code is 8.
  --option is of Delta's source, or of Kafka's: maxBytesPerTrigger, maxOffsetsPerTrigger and the like bound a batch.
  Of files, the source is one folder, or a glob in quotes. A file is read once, so it has to come whole (rename it into
  place) and must not change; remove it only when it is applied, or start the stream with --skip-missing.
  --max-files-per-batch bounds a micro-batch; by default it has all files that are there.

standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}; "commit" has batch,
arrived, repeated, late, too_late, inserted, updated, dead_letters, newest_event_time, watermark, and lag_s: how old the
newest row is, in seconds. The report has the last commits, and totals.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

"""


@dataclass(frozen=True, kw_only=True)
class StreamJobArguments(FileJobArguments):
    """What ``stream.py`` was asked to do; see its ``--help``."""

    source_table: str | None
    kafka: str | None
    topic: str | None
    value_schema: str | None
    keys: tuple[str, ...]
    event_time: str
    sequence_by: str | None
    watermark_delay: timedelta
    allowed_lateness: timedelta | None
    schema_evolution: bool
    stream: StreamArguments
    max_files_per_batch: int | None

    @property
    def commits(self) -> None:
        """Those of a stream until it ends."""
        return

    @property
    def how(self) -> RowOptions:
        """What is the same for each batch; arguments of :func:`writer_jobs.apply_rows`."""
        return {
            "keys": self.keys,
            "event_time": self.event_time,
            "sequence_by": self.sequence_by,
            "watermark_delay": self.watermark_delay,
            "allowed_lateness": self.allowed_lateness,
            "schema_evolution": self.schema_evolution,
            "partition_by": self.partition_by,
        }

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says of the stream from the start."""
        return {**super().facts, "source_table": self.source_table, "topic": self.topic}

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        super().check()
        refuse_half_a_topic(self.kafka, self.topic)
        if bool(self.sources) + (self.source_table is not None) + (self.kafka is not None) != 1:
            raise ArgumentsError("give one source: --source, --source-table, or --kafka and --topic")
        if not self.sources and self.format is not None:
            raise ArgumentsError("--format is of files: give it with --source")
        if self.kafka is not None and (self.value_schema is None or self.max_files_per_batch is not None):
            raise ArgumentsError("--kafka needs --value-schema, and has no --max-files-per-batch")
        if self.source_table is not None and self.value_schema is not None:
            raise ArgumentsError("--value-schema is of messages: a table has columns")
        if len(self.sources) > 1:
            raise ArgumentsError("--source is one folder or one glob in quotes")
        if self.allowed_lateness is not None and self.allowed_lateness < self.watermark_delay:
            raise ArgumentsError(
                "--allowed-lateness is less than --watermark-delay: nothing is too late that is not late"
            )


def parse_arguments(argv: Sequence[str] | None = None) -> StreamJobArguments:
    """Parse the command line; :meth:`StreamJobArguments.check` looks at the values.

    Raises:
        ArgumentsError: it cannot be parsed.
        HelpShown: it asked for help.

    """
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + STREAMS + _END + HELP)
    parser.add_place()
    add_source(parser, required=False)
    add = parser.add_argument
    add("--source-table", type=text, metavar="URI|NAME", help="a Delta table: the rows that are appended to it")
    add_topic(parser)
    add(
        "--value-schema", type=text, metavar="DDL",
        help='columns of messages whose values are JSON, such as "flight string, departed_at timestamp": of a topic, '
        "or of Parquet files with the columns of Kafka's source",
    )  # fmt: skip
    add("--keys", required=True, type=names, metavar="COLS", help="columns that, with the event time, name a row")
    add("--event-time", required=True, type=text, metavar="COL", help="when a row happened: a timestamp or a date")
    add("--sequence-by", type=text, metavar="SQL", help="the version of a row with the largest value of this is stored")
    add(
        "--watermark-delay", default=timedelta(0), type=span, metavar="TIME",
        help='how far a row may trail the newest event time before it counts as late, such as "10 minutes" (0)',
    )  # fmt: skip
    add(
        "--allowed-lateness", type=span, metavar="TIME",
        help="how much older it may be to come into the table; by default any",
    )  # fmt: skip
    add_new_table(parser)
    add("--schema-evolution", action="store_true", help="add columns that the table lacks, and widen its types")
    parser.add_lock_timeout()
    add_stream(parser)
    add("--max-files-per-batch", type=positive, metavar="N", help="most files of a micro-batch")
    parser.add_report()
    add_reader_options(parser)
    parser.add_verbose()
    parser.set_defaults(run_id=None)
    found = parser.parse(argv)
    stream = stream_of(found)
    if stream is None:
        raise ArgumentsError(f"give --trigger ({AVAILABLE_NOW}, or an interval) and --checkpoint")
    return StreamJobArguments(
        source_table=found.source_table,
        kafka=found.kafka,
        topic=found.topic,
        value_schema=found.value_schema,
        keys=found.keys,
        event_time=found.event_time,
        sequence_by=found.sequence_by,
        watermark_delay=found.watermark_delay,
        allowed_lateness=found.allowed_lateness,
        schema_evolution=found.schema_evolution,
        stream=stream,
        max_files_per_batch=found.max_files_per_batch,
        **shared_by_file_jobs(found),
    )
