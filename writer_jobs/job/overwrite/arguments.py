"""Command line of ``overwrite.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql.types import StructType

from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import ArgumentsError, SourceError
from writer_jobs.job.arguments import JobParser, text
from writer_jobs.job.exit_codes import HELP
from writer_jobs.job.inputs.file_arguments import (
    FileJobArguments,
    add_new_table,
    add_reader_options,
    add_source,
    shared_by_file_jobs,
)

#: Name of the job in its help and its messages.
PROGRAM = "overwrite.py"
_DESCRIPTION = """\
Put the rows of files in the place of a Delta table's rows, in one commit under the table's ZooKeeper lock: all of them,
those that a predicate names, or those of the partitions that the new rows are in.
"""
_EPILOG = """\
examples:
  # the whole table; readers see the old rows or the new ones, and nothing in between
  spark-submit $(sluice submit-args) writer_jobs/overwrite.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/airports --source s3a://landing/airports.csv

  # one day again; only its partition is locked, and a row of another day is refused
  spark-submit $(sluice submit-args) writer_jobs/overwrite.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --source s3a://landing/2013-01-31/ --format json \\
      --replace-where "day = '2013-01-31'" --run-id flights-2013-01-31

  # the partitions that the rows are in, whichever these are; others stay
  spark-submit $(sluice submit-args) writer_jobs/overwrite.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --source s3a://landing/corrected/ --format parquet --dynamic

rules:
  Files are read as append.py reads them: for an existing table with its types, its columns matched by name, and nothing
  is dropped in silence. With --overwrite-schema the table gets the columns and types of the files instead. The table
  keeps its partition columns, or gets those of --partition-by. If the files lack a partition column of the table, and
  there is no --partition-by, the job fails before it writes anything.
  A row that --replace-where does not match fails the job.
  If the files have no rows, the job deletes all rows that it would replace. With --dynamic it changes nothing.
  With --dynamic a partition that none of the rows is in stays as it is; a table without partitions is replaced as a
  whole.

locks:
  The whole table is locked if all of it is replaced, else the partitions that have rows to be replaced or get new ones
  (more than 64 are the table). The lock is held over the whole write, or with --hold commit for the commit alone. Then
  the write is done again if others add rows meanwhile to what it replaces. --hold commit is refused with
  --replace-where: the job finds the partitions in the table, and looks again under the lock. --hold commit changes
  nothing with --overwrite-schema, or if there is no table yet.

runs:
  With --run-id ID a load that is in the table is not made again, whatever was written after it. The name is of that
  load: other files (size, modification time), or another --replace-where, are refused.

standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}; "commit" has version and
rows.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

"""


@dataclass(frozen=True, kw_only=True)
class OverwriteArguments(FileJobArguments):
    """What ``overwrite.py`` was asked to do; see its ``--help``."""

    replace_where: str | None
    dynamic: bool
    overwrite_schema: bool
    hold: Literal["commit", "write"]

    @property
    def query(self) -> dict[str, Any]:
        """What a named load is of, beside its files."""
        return {"replace-where": self.replace_where, "dynamic": self.dynamic, "overwrite-schema": self.overwrite_schema}

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        super().check()
        if self.replace_where is not None and self.dynamic:
            raise ArgumentsError("give --replace-where or --dynamic, not both: one says already what is replaced")
        if self.overwrite_schema and (self.replace_where is not None or self.dynamic):
            raise ArgumentsError(
                "--overwrite-schema is of the whole table: give it without --replace-where and --dynamic"
            )
        if self.hold == "commit" and self.replace_where is not None:
            raise ArgumentsError(
                "--hold commit cannot be given with --replace-where: the job finds the partitions to lock in the table "
                "and looks again under the lock, so the lock is held over the whole write: leave --hold out, or "
                "replace whole partitions with --dynamic"
            )

    def partition_columns(self, table: str, state: TableState | None, schema: StructType) -> tuple[str, ...]:
        """Return the partition columns of a table that gets the columns of the files: those asked for, or its own.

        Delta makes the table unpartitioned if a write with ``overwriteSchema`` names none.

        Args:
            table: canonical URI, for the message.
            state: of the table; None if there is none.
            schema: of the files, whose spelling is returned.

        Raises:
            SourceError: the files lack a column that was asked for.
            ArgumentsError: they lack one of the table's own, and none was asked for.

        """
        own = state.partition_columns if state is not None else ()
        spelled = {name.lower(): name for name in schema.names}
        wanted = self.partition_by or own
        missing = ", ".join(name for name in wanted if name.lower() not in spelled)
        if missing and self.partition_by:
            raise SourceError(f"the source has no column {missing} to partition by")
        if missing:
            raise ArgumentsError(
                f"{table} is partitioned by {','.join(own)}, and the files have no column {missing}: name with "
                "--partition-by the partition columns that the table gets"
            )
        return tuple(spelled[name.lower()] for name in wanted)


def parse_arguments(argv: Sequence[str] | None = None) -> OverwriteArguments:
    """Parse the command line; :meth:`OverwriteArguments.check` looks at the values.

    Raises:
        ArgumentsError: it cannot be parsed.
        HelpShown: it asked for help.

    """
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + HELP)
    parser.add_place()
    add_source(parser)
    add = parser.add_argument
    add(
        "--replace-where", type=text, metavar="SQL",
        help="replace the rows that match SQL; all rows of the files must match, too",
    )  # fmt: skip
    add("--dynamic", action="store_true", help="replace the partitions that the rows are in")
    add("--overwrite-schema", action="store_true", help="give the table the columns and types of the files")
    add_new_table(parser, "; with --overwrite-schema also other columns, which an existing table then gets")
    add(
        "--hold", choices=("commit", "write"), default="write",
        help="how long to hold the lock: over the whole write (the default), or for the commit alone (docs/gate.md); "
        "commit is refused with --replace-where",
    )  # fmt: skip
    parser.add_lock_timeout()
    add("--run-id", metavar="ID", help="name of this load, unique in the table; makes it safe to start again")
    parser.add_report()
    add_reader_options(parser)
    parser.add_verbose()
    found = parser.parse(argv)
    return OverwriteArguments(
        replace_where=found.replace_where,
        dynamic=found.dynamic,
        overwrite_schema=found.overwrite_schema,
        hold=found.hold,
        **shared_by_file_jobs(found),
    )
