"""The command line of ``cdc.py``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import ArgumentsError, SourceError
from writer_jobs.feeds.dead_letters import DeadLetterLimit
from writer_jobs.feeds.debezium.decoded_batch import ON_TRUNCATE, OnTruncate
from writer_jobs.feeds.debezium.infinity import INFINITY_MODES, Infinity
from writer_jobs.feeds.debezium.schema_registry import CREDENTIALS, SchemaRegistry
from writer_jobs.feeds.debezium.undecodable import UNAVAILABLE
from writer_jobs.job.arguments import APPLIED, JobParser, build_arguments, column_names, in_identity, nonblank
from writer_jobs.job.changes_arguments import ChangesJobArguments, add_changes, text_in_identity
from writer_jobs.job.inputs.file_arguments import add_source, add_topic, is_local, refuse_incomplete_topic
from writer_jobs.job.stream_arguments import HELP as STREAMS_HELP
from writer_jobs.job.stream_arguments import take_stream

#: Name of the job in its help and its messages.
PROGRAM = "cdc.py"

_DESCRIPTION = """\
Apply the change data of another store (cells of HBase, or events of Debezium) to a Delta table under the table's
ZooKeeper lock. The table then equals the store, also if changes are late, repeated or out of order, and if several jobs
write.
"""

_EPILOG = """\
examples:
  # cells of HBase, one JSON object per line; the mapping file names the table's columns
  spark-submit $(sluice submit-args) writer_jobs/cdc.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers --decoder hbase --mapping customers.json --source s3a://landing/cells/ --format json

  # the topic of Apache HBase's Kafka proxy, until it is stopped
  spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 $(sluice submit-args) writer_jobs/cdc.py \\
      --zookeeper zk1:2181,zk2:2181,zk3:2181 --table s3a://lake/customers --decoder hbase-proxy \\
      --mapping customers.json --kafka kafka1:9092,kafka2:9092 --topic cells \\
      --trigger "10 seconds" --checkpoint s3a://lake/_streams/customers

  # Debezium's events of one table, with every row that a key ever had
  spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 $(sluice submit-args) writer_jobs/cdc.py \\
      --zookeeper zk1:2181,zk2:2181,zk3:2181 --table s3a://lake/orders_history --decoder debezium --scd-type 2 \\
      --kafka kafka1:9092 --topic shop.public.orders --trigger available-now --checkpoint s3a://lake/_streams/orders

decoders:
  hbase        a cell in each line, or in each row of Parquet: row, family, qualifier, timestamp (ms), type (Put,
               Delete, DeleteColumn, DeleteFamily, DeleteFamilyVersion, or their codes), value, and optionally sequence,
               the order in which cells of one timestamp were written.
  hbase-proxy  HBaseKafkaEvent of Apache HBase's Kafka proxy: Avro in a topic, or Parquet with its columns.
  debezium     envelopes of Debezium as JSON, with schemas or without: before, after, op, source. Files have one in each
               line, or {"key": ..., "value": ...}. A topic may have Avro with a --schema-registry.
  debezium-flat
               rows that Debezium's transform ExtractNewRecordState has flattened, with __deleted and other metadata.
  Parquet with the columns of Kafka's source (key, value, topic, partition, offset) is read as a topic.

rules:
  hbase: the table has the values that HBase shows: the newest value of each column that no delete hides. TABLE_cells
  stores cells; deletes and replaced values stay for --tombstone-days at least. A new qualifier becomes a new column.
  debezium: the newest event of each key is applied, by its position in the database's log. TABLE_tombstones stores
  deletes. New columns and wider types are added with the events.
  The first run binds the table to its keys, order and SCD type (table property sluice.feed). Other values are refused
  later.
  Messages that cannot be decoded are written to TABLE_dead_letters with the reason, and counted; the other messages are
  applied. If nothing of the input is applied, the exit code is 8. It is 0 if all events were of other source tables and
  the table is bound to --source-table, or to the table in the mapping (table property sluice.feed).

locks:
  If all partition columns of the table are key columns, the partitions of a batch are locked, else the table.

runs:
  A job that was killed can be started again: a change that is applied twice is stored once. With --run-id ID a run that
  is in the table is skipped, but its input is read again, to write dead letters that a killed run did not write. If its
  files have another size or modification time by then, it is refused (exit code 2).

"""
_END = """
standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}; "commit" has changes
(cells, or events), folded (each cell once, or the newest event of each key; with --scd-type 2 each event once), keys,
inserted, updated, deleted, unchanged, dead_letters, filtered, incomplete (rows with a null because no event had the
value), newest_sequence and lag_s: the age of the newest change in seconds.
"""


_EVENTS = "debezium"
_INFINITY: Infinity = "dead-letter"
_ON_TRUNCATE: OnTruncate = "refuse"
#: Decoder of flattened events.
FLAT = "debezium-flat"


@dataclass(frozen=True, kw_only=True)
class CdcArguments(ChangesJobArguments):
    """The arguments of ``cdc.py``; see its ``--help``."""

    decoder: str = field(metadata=in_identity("decoder"))
    mapping: str | None
    kafka: str | None
    topic: str | None
    schema_registry: SchemaRegistry | None = field(metadata=APPLIED)
    keys: tuple[str, ...] | None = field(metadata=APPLIED | text_in_identity("keys"))
    sequence_by: str | None = field(metadata=APPLIED | text_in_identity("sequence-by"))
    source_tables: tuple[str, ...] = field(
        # Earlier releases recorded no source tables.
        metadata=APPLIED | in_identity("source-tables", lambda tables: ",".join(sorted(tables)), if_empty=False)
    )
    unavailable_value: str = field(
        # Earlier releases recorded none.
        metadata=APPLIED
        | in_identity("unavailable-value", lambda value: "" if value == UNAVAILABLE else value, if_empty=False)
    )
    infinity: Infinity = field(metadata=APPLIED)
    local_times: bool = field(metadata=APPLIED)
    on_truncate: OnTruncate = field(metadata=APPLIED)
    max_dead_letters: DeadLetterLimit | None = field(metadata=APPLIED)

    @property
    def report_fields(self) -> dict[str, Any]:
        """Fields of the report that are known at the start of the job; JSON values."""
        return {**super().report_fields, "decoder": self.decoder, "topic": self.topic}

    def check(self) -> None:
        """Check the arguments; see :meth:`JobArguments.check`."""
        super().check()
        refuse_incomplete_topic(self.kafka, self.topic)
        if bool(self.sources) == (self.kafka is not None):
            raise ArgumentsError("give one source: --source, or --kafka and --topic")
        if self.kafka is not None and (self.format is not None or self.max_files_per_batch is not None):
            raise ArgumentsError("--format and --max-files-per-batch are for files, not for --kafka")
        has_cells = self.decoder not in (_EVENTS, FLAT)
        if has_cells != (self.mapping is not None):
            raise ArgumentsError("--mapping is required for cells of HBase, and refused for other messages")
        of_events = (
            self.keys
            or self.schema_registry
            or self.sequence_by
            or self.source_tables
            or self.unavailable_value != UNAVAILABLE
            or self.infinity != _INFINITY
            or self.local_times
            or self.on_truncate != _ON_TRUNCATE
        )
        if has_cells and (of_events or self.stored_as_scd_type != 1):
            raise ArgumentsError(
                "--schema-registry, --keys, --sequence-by, --source-table, --unavailable-value, --infinity, "
                "--local-times, --on-truncate and --scd-type are for Debezium's events: cells have an order, and the "
                "mapping has the keys"
            )

    def check_local_sources(self, files: HadoopFiles) -> None:
        """Check that sources, and the mapping, exist; see :meth:`JobArguments.check_local_sources`."""
        super().check_local_sources(files)
        if self.mapping is not None and is_local(files, self.mapping) and files.status(self.mapping) is None:
            raise SourceError(f"mapping {self.mapping} does not exist")


def parse_arguments(argv: Sequence[str] | None = None) -> CdcArguments:
    """Parse the command line; see :class:`JobParser`. :meth:`CdcArguments.check` checks the values."""
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + STREAMS_HELP + _END)
    parser.add_table()
    add = parser.add_argument
    add(
        "--decoder", required=True, choices=("hbase", "hbase-proxy", _EVENTS, FLAT),
        help="decoder of the messages; debezium-flat: events that the transform ExtractNewRecordState has flattened",
    )  # fmt: skip
    add("--mapping", type=nonblank, metavar="FILE", help="JSON file: row key, columns and types, for cells of HBase")
    add_source(parser, formats=("json", "parquet"), required=False)
    add_topic(parser)
    add(
        "--schema-registry", type=_schema_registry, metavar="URL",
        help="schema registry of messages in Avro with Confluent's header; user:password is read from the environment "
        f"variable {CREDENTIALS}",
    )  # fmt: skip
    add(
        "--keys", type=column_names, metavar="COLS",
        help="columns that identify a row; by default the fields of the messages' keys",
    )  # fmt: skip
    add(
        "--sequence-by", type=nonblank, metavar="SQL",
        help="SQL expression over source, op, ts_ms, ts_us, ts_ns, transaction, origin, and columns of the row such as "
        "row.updated_at (null in a delete); the event of a key with the largest value wins; by default the position in "
        "the database's log",
    )  # fmt: skip
    add(
        "--source-table", dest="source_tables", action="append", type=nonblank, default=[], metavar="NAME",
        help="table whose events are applied, such as shop.public.orders or orders; events of other tables are counted "
        "only; repeat the option for the leaf partitions of a table. A name that several tables have is refused. "
        "Without the option, events of several tables are refused",
    )  # fmt: skip
    add(
        "--unavailable-value", type=nonblank, default=UNAVAILABLE, metavar="TEXT",
        help="the connector's unavailable.value.placeholder; an update that has it instead of a value keeps the "
        "column's value; with --scd-type 2, and where the value is not that of the row, it is a dead letter (default: "
        "%(default)s)",
    )  # fmt: skip
    add(
        "--infinity", choices=INFINITY_MODES, default=_INFINITY,
        help="what PostgreSQL's infinity in a date or a time becomes: a dead letter; the largest time of the year "
        "9999, and for -infinity the smallest of the year 1; or null (default: %(default)s)",
    )  # fmt: skip
    add(
        "--local-times", action="store_true",
        help="new columns with times without a zone, such as PostgreSQL's timestamp and MySQL's DATETIME, are "
        "timestamp_ntz; by default timestamp, as if the times were in UTC. Needs the messages' schemas",
    )  # fmt: skip
    add(
        "--on-truncate", choices=ON_TRUNCATE, default=_ON_TRUNCATE,
        help="effect of a truncate of the source table: refuse the batch; delete the rows before it, in the order of "
        "the changes; or ignore it and keep them (default: %(default)s)",
    )  # fmt: skip
    add(
        "--max-dead-letters", type=_dead_letter_limit, metavar="N|N%",
        help="largest number, or percentage, of dead letters in a batch; a batch with more is refused, and none of it "
        "is written",
    )  # fmt: skip
    add_changes(parser, "cells or deletes")
    options = parser.parse_args(argv)
    options.source_tables = tuple(dict.fromkeys(options.source_tables))
    options.stream = take_stream(options)
    return build_arguments(CdcArguments, options)


def _schema_registry(argument: str) -> SchemaRegistry:
    """Return the registry at an address, with the credentials of the environment."""
    try:
        return SchemaRegistry(argument, os.environ.get(CREDENTIALS))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _dead_letter_limit(argument: str) -> DeadLetterLimit:
    try:
        return DeadLetterLimit.parse(argument)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
