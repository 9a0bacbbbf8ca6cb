"""The command line of ``upsert.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import JobParser, names, text
from writer_jobs.job.changes_arguments import (
    ChangesJobArguments,
    add_how_changes_are_stored,
    add_rest,
    shared_by_changes_jobs,
)
from writer_jobs.job.exit_codes import HELP
from writer_jobs.job.inputs.file_arguments import add_source
from writer_jobs.job.stream_arguments import HELP as STREAMS

#: Name of the job in its help and its messages.
PROGRAM = "upsert.py"

_DESCRIPTION = """\
Apply changes of another store to a Delta table under the table's ZooKeeper lock, so that the table has the newest row
of each key: whatever is late, repeated or mixed up, and however many jobs write.
"""

_EPILOG = """\
examples:
  # updates and inserts; the newest row of each id wins, by its updated_at
  spark-submit $(sluice submit-args) writer_jobs/upsert.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers --source s3a://landing/2026-11-21/ --format json \\
      --keys id --sequence-by "timestamp(updated_at)"

  # with deletes, which stay deleted although an older change comes later; op and position are not for the table
  spark-submit $(sluice submit-args) writer_jobs/upsert.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers --source /data/changes.parquet --keys country,id --partition-by country \\
      --sequence-by "struct(committed_at, position)" --apply-as-deletes "op = 'd'" \\
      --except-columns op,committed_at,position

  # every row that a customer ever had, with the time from which and to which it was valid
  spark-submit $(sluice submit-args) writer_jobs/upsert.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers_history --source s3a://landing/2026-11-21/ --format json \\
      --keys id --sequence-by "timestamp(updated_at)" --scd-type 2

  # a stream: every file that comes into the folder, looked for every 10 seconds
  spark-submit $(sluice submit-args) writer_jobs/upsert.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/customers --source s3a://landing/customers/ --format json \\
      --keys id --sequence-by "timestamp(updated_at)" \\
      --trigger "10 seconds" --checkpoint s3a://lake/_streams/customers

rules:
  Of several changes to one key the one with the largest sequence counts, within the files and against the table. A
  delete counts in that order, and is remembered in TABLE_tombstones for --tombstone-days. Of the table's rows the
  sequence is the column that --sequence-by names, if the table gets it, or else its column __SEQUENCE.
  Two changes of one key with one sequence are a repetition if they say the same. If not, nothing is written, and the
  sentence on standard error names the keys; likewise for a key or a sequence that is null.
  The first run binds the table to its keys, sequence and SCD type (table property sluice.feed); others are refused.
  A text column is refused as sequence, because text has another order than the times or numbers in it: give an
  expression, such as "timestamp(updated_at)".
  A partition column of text cannot have '' or __HIVE_DEFAULT_PARTITION__, which Delta stores as null: refused.
  With --scd-type 2 every change counts: a row ends where the next change of its key begins, late ones included.
  Columns that the changes do not have stay as they are; rows that are new have null there.

how files are read:
  As append.py does, by the rules of docs/inputs.md: a value that is not exactly a value of its column's type fails the
  job. Columns of the table are read with its types, others with types that Spark infers, which reads csv and json files
  once more. All files are one batch, in any order.
  Nested fields are compared, added and widened as columns are. A JSON object replaces the whole value of its column: a
  nested field that it lacks is null. Types in which a value could be rounded or cut are refused.

locks:
  If all partition columns of the table are among the keys, the partitions that the changes touch are locked, so that
  feeds of different partitions run side by side; else the whole table: by other columns a key does not tell where its
  row is. The lock is held while Delta merges; files are read before it is asked for.

runs:
  A job that was killed can be started again: what is applied twice is there once. With --run-id ID a run that is in the
  table is skipped. If its files have another size or modification time by then, it is refused (2).

"""
_END = """\
  The source is one folder, or a glob in quotes. A file is read once, so it has to come whole (rename it into place) and
  must not change; remove it only when it is applied, or start the stream with --skip-missing. Each micro-batch is read
  as the files of one run are: a column comes with the first file that has it. A file that does not parse ends the
  stream: mend it, and start again. --max-files-per-batch bounds a micro-batch; by default it has all files that are
  there.

standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}; "commit" has changes,
folded (the newest of each key), inserted, updated, deleted, unchanged and newest_sequence; of a stream also batch,
missing_files and, if the sequence is a timestamp or a date, lag_s: how old its newest change is, in seconds. The report
of a stream has the last commits, and totals.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

"""


@dataclass(frozen=True, kw_only=True)
class UpsertArguments(ChangesJobArguments):
    """What ``upsert.py`` was asked to do; see its ``--help``."""

    keys: tuple[str, ...]
    sequence_by: str
    apply_as_deletes: str | None
    column_list: tuple[str, ...] | None
    except_column_list: tuple[str, ...] | None
    schema_evolution: bool

    @property
    def query(self) -> dict[str, str]:
        """What a stream's checkpoint is bound to, beside its table and its source; by the names of the options."""
        return {
            "keys": ",".join(self.keys),
            "sequence-by": self.sequence_by,
            "scd-type": str(self.stored_as_scd_type),
        }

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        super().check()
        if self.column_list is not None and self.except_column_list is not None:
            raise ArgumentsError("give --columns or --except-columns, not both")
        named = {name.lower() for name in (self.column_list if self.column_list is not None else self.keys)}
        without = {name.lower() for name in self.except_column_list or ()}
        if lost := [name for name in self.keys if name.lower() not in named or name.lower() in without]:
            raise ArgumentsError(f"the table needs its key columns: {', '.join(lost)}")


def parse_arguments(argv: Sequence[str] | None = None) -> UpsertArguments:
    """Parse the command line; :meth:`UpsertArguments.check` looks at the values.

    Raises:
        ArgumentsError: it cannot be parsed.
        HelpShown: it asked for help.

    """
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + STREAMS + _END + HELP)
    parser.add_place()
    add_source(parser)
    add = parser.add_argument
    add("--keys", required=True, type=names, metavar="COLS", help="columns that together name a row")
    add("--sequence-by", required=True, type=text, metavar="SQL", help="order of the changes of one key")
    add("--apply-as-deletes", type=text, metavar="SQL", help="which changes delete their row; by default none")
    add("--columns", type=names, metavar="COLS", help="columns that the table gets; by default all")
    add("--except-columns", type=names, metavar="COLS", help="columns that it does not get")
    add_how_changes_are_stored(parser)
    add(
        "--schema-evolution", action="store_true",
        help="add columns that the table lacks, and widen its types where the changes need it; not of keys",
    )  # fmt: skip
    add_rest(parser, "a delete is")
    found = parser.parse(argv)
    return UpsertArguments(
        keys=found.keys,
        sequence_by=found.sequence_by,
        apply_as_deletes=found.apply_as_deletes,
        column_list=found.columns,
        except_column_list=found.except_columns,
        schema_evolution=found.schema_evolution,
        **shared_by_changes_jobs(found),
    )
