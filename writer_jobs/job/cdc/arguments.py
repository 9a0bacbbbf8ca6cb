"""The command line of ``cdc.py``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import ArgumentsError, SourceError
from writer_jobs.feeds.dead_letters import DeadLetterLimit
from writer_jobs.job.arguments import JobParser, names, text
from writer_jobs.job.changes_arguments import (
    ChangesJobArguments,
    add_how_changes_are_stored,
    add_rest,
    shared_by_changes_jobs,
)
from writer_jobs.job.exit_codes import HELP
from writer_jobs.job.inputs.file_arguments import add_source, add_topic, is_local, refuse_half_a_topic
from writer_jobs.job.stream_arguments import HELP as STREAMS

#: Name of the job in its help and its messages.
PROGRAM = "cdc.py"
#: What the messages can be.
DECODERS = ("hbase", "hbase-proxy", "debezium")
#: What files of messages can be.
CDC_FORMATS = ("json", "parquet")

_DESCRIPTION = """\
Apply the change data of another store to a Delta table under the table's ZooKeeper lock, so that the table equals it:
cells of HBase, or the events of Debezium. Whatever comes late, twice or in another order, and however many jobs write.
"""

_EPILOG = """\
examples:
  # cells of HBase, one JSON object a line; the mapping file says what becomes which column
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
  hbase        a cell a line, or a row of Parquet: row, family, qualifier, timestamp (ms), type (Put, Delete,
               DeleteColumn, DeleteFamily, DeleteFamilyVersion, or their codes), value, and maybe sequence, which tells
               of two cells of one timestamp which was written later.
  hbase-proxy  HBaseKafkaEvent of Apache HBase's Kafka proxy: Avro in a topic, or Parquet with its columns.
  debezium     envelopes of Debezium as JSON, with schemas or without: before, after, op, source. In files one a line,
               or {"key": ..., "value": ...}.
  Parquet with the columns of Kafka's source (key, value, topic, partition, offset) is taken for a topic.

rules:
  hbase: the table has what HBase would show: of each column the newest value that no delete hides. All cells are
  remembered in TABLE_cells for --tombstone-days at least. A qualifier that is new becomes a new column.
  debezium: the newest event of each key counts, by its place in the database's log; deletes are remembered in
  TABLE_tombstones. New columns and wider types come with the events.
  The first run binds the table to its keys, order and SCD type (table property sluice.feed); others are refused.
  What cannot be decoded goes to TABLE_dead_letters with the reason, and is counted; the rest is applied. If nothing of
  the input is applied, the exit code is 8. It is 0 if all events were of other source tables and the table is bound to
  --source-table, or to the table in the mapping (table property sluice.feed).

locks:
  If all partition columns of the table are key columns, the partitions that a batch touches are locked, else the table.

runs:
  A job that was killed can be started again: what is applied twice is there once. With --run-id ID a run that is in the
  table is skipped, but its input is read again, to write dead letters that a killed run left out. If its files have
  another size or modification time by then, it is refused (2).

"""
_END = """
standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}; "commit" has changes
(cells, or events), folded, keys, inserted, updated, deleted, unchanged, dead_letters, filtered, newest_sequence and
lag_s: how old the newest change is, in seconds.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

"""


@dataclass(frozen=True, kw_only=True)
class CdcArguments(ChangesJobArguments):
    """What ``cdc.py`` was asked to do; see its ``--help``."""

    decoder: str
    mapping: str | None
    kafka: str | None
    topic: str | None
    keys: tuple[str, ...] | None
    sequence_by: str | None
    source_tables: tuple[str, ...]
    max_dead_letters: DeadLetterLimit | None

    @property
    def query(self) -> dict[str, str]:
        """What must not change as long as a checkpoint is used."""
        return {
            "decoder": self.decoder,
            "keys": ",".join(self.keys or ()),
            "sequence-by": self.sequence_by or "",
            # Absent where none is named, as in checkpoints of earlier releases.
            **({"source-tables": ",".join(sorted(self.source_tables))} if self.source_tables else {}),
            "scd-type": str(self.stored_as_scd_type),
        }

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says of the load from the start."""
        return {**super().facts, "decoder": self.decoder, "topic": self.topic}

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        super().check()
        refuse_half_a_topic(self.kafka, self.topic)
        if bool(self.sources) == (self.kafka is not None):
            raise ArgumentsError("give --source, or --kafka and --topic")
        if self.kafka is not None and (self.format is not None or self.max_files_per_batch is not None):
            raise ArgumentsError("--format and --max-files-per-batch are for files, not for --kafka")
        of_cells = self.decoder != "debezium"
        if of_cells != (self.mapping is not None):
            raise ArgumentsError("--mapping is needed for cells of HBase, and for nothing else")
        if of_cells and (self.keys or self.sequence_by or self.source_tables or self.stored_as_scd_type != 1):
            raise ArgumentsError(
                "--keys, --sequence-by, --source-table and --scd-type are for --decoder debezium: cells have their "
                "order, and the mapping has the keys"
            )

    def check_local_sources(self, files: HadoopFiles) -> None:
        """Check that sources and the mapping exist if they are on the driver's disk.

        Raises:
            SourceError: One does not exist.
            StorageError: A file system refuses, or does not exist.

        """
        super().check_local_sources(files)
        if self.mapping is not None and is_local(files, self.mapping) and files.status(self.mapping) is None:
            raise SourceError(f"mapping {self.mapping} does not exist")


def parse_arguments(argv: Sequence[str] | None = None) -> CdcArguments:
    """Parse the command line; :meth:`CdcArguments.check` looks at the values.

    Raises:
        ArgumentsError: it cannot be parsed.
        HelpShown: it asked for help.

    """
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + STREAMS + _END + HELP)
    parser.add_place()
    add = parser.add_argument
    add("--decoder", required=True, choices=DECODERS, help="what the messages are")
    add("--mapping", type=text, metavar="FILE", help="JSON file: row key, columns and types, for cells of HBase")
    add_source(parser, formats=CDC_FORMATS, required=False)
    add_topic(parser)
    add("--keys", type=names, metavar="COLS", help="columns that name a row; by default the fields of messages' keys")
    add("--sequence-by", type=text, metavar="SQL", help="order of events, over source, op, ts_ms, transaction, origin")
    add(
        "--source-table", action="append", type=text, default=[], metavar="NAME",
        help="table whose events are applied, such as shop.public.orders or orders; others are left out and counted; "
        "repeat it for the leaf partitions of a table. A name of several tables is refused. Without it events of "
        "several tables are refused",
    )  # fmt: skip
    add(
        "--max-dead-letters", type=_limit, metavar="N|N%",
        help="most messages of a batch that may be dead letters, as a number or in percent; with more the batch is "
        "refused, and none of it is written",
    )  # fmt: skip
    add_how_changes_are_stored(parser)
    add_rest(parser, "cells, or deletes, are")
    found = parser.parse(argv)
    return CdcArguments(
        decoder=found.decoder,
        mapping=found.mapping,
        kafka=found.kafka,
        topic=found.topic,
        keys=found.keys,
        sequence_by=found.sequence_by,
        source_tables=tuple(dict.fromkeys(found.source_table)),
        max_dead_letters=found.max_dead_letters,
        **shared_by_changes_jobs(found),
    )


def _limit(value: str) -> DeadLetterLimit:
    try:
        return DeadLetterLimit.parsed(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
