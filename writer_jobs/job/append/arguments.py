"""The command line of ``append.py``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from writer_jobs.job.arguments import JobParser
from writer_jobs.job.exit_codes import HELP
from writer_jobs.job.inputs.file_arguments import (
    FileJobArguments,
    add_new_table,
    add_reader_options,
    add_source,
    shared_by_file_jobs,
)

#: Name of the job in its help and its messages.
PROGRAM = "append.py"
_MOST_COMMITS = 10_000

_DESCRIPTION = """\
Append files to a Delta table under the table's ZooKeeper lock: one writer at a time, first come first served, no
commit lost. Run it with spark-submit; `sluice submit-args` prints the --jars and --py-files that it needs.
"""

_EPILOG = """\
examples:
  # one commit; the table is created if there is nothing at its location
  spark-submit $(sluice submit-args) writer_jobs/append.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --partition-by month --source /data/flights-2013-*.csv.gz

  # a scheduler's job: killed at any point and started again with the same --run-id, the table is that of one run
  spark-submit $(sluice submit-args) writer_jobs/append.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table sales.orders --source s3a://landing/2026-11-21/ --format json --commits 8 \\
      --run-id orders-2026-11-21 --report s3a://lake/_reports/orders-2026-11-21.json

how files are read:
  Nothing is dropped or changed in silence. A value that is not exactly a value of its column's type fails the job
  (mode=FAILFAST), and so does a column that the table does not have; mode=PERMISSIVE and the like are yours to give
  with --option. The page docs/inputs.md has a table of inputs, and of options that change these rules. Lines of csv
  and json files are checked first, which reads them once more.
  csv      By RFC 4180, in UTF-8 or --option encoding=…, with a header. Files with newlines in quotes are not divided
           among tasks. Malformed quotes fail the job; for another syntax give --option escape=… or quote=…. Into an
           existing table the values are read with the table's types, columns matched by name, each of the table's
           columns required (but generated ones and those with a default). For a new table the types are inferred where
           they keep all values (007 stays text), which reads the files twice more.
  json     One object per line, and nothing behind it. Into an existing table: the table's types; missing fields are
           null. Fields are looked for in all of the files, which reads them twice. A nested field that the table lacks
           is refused, too.
  parquet  Columns of all files (mergeSchema=true). Types that are narrower than the table's are read with the
           table's, also if the files differ in them. Any other difference to the table's types is refused.

several commits:
  With --commits N the rows are read once, kept in Spark's cache, and divided by a hash of what is in them; the lock is
  taken N times, and others get their turn in between. A part without rows is committed too. A job that fails keeps
  the commits that it has made: with --run-id it can be started again to make the others.

runs:
  With --run-id ID commit i carries txnAppId=ID, txnVersion=i, and a record below _sluice/runs in the table's folder
  says how the rows were divided (of reader options: salted hashes, no values). Started again, commits that are in the
  table are skipped, the rest is done. Other files, other contents (size, modification time), another --commits, format,
  reader option, session time zone or Spark version are refused. A table that forgets transactions
  (delta.setTransactionRetentionDuration) may have forgotten what a run did: then the run is refused too.

standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

"""


@dataclass(frozen=True, kw_only=True)
class AppendArguments(FileJobArguments):
    """What ``append.py`` was asked to do; see its ``--help``."""

    divide_into: int
    lock: Literal["table", "partitions"]
    hold: Literal["commit", "write"]

    @property
    def commits(self) -> int:
        """How many commits the rows are divided into."""
        return self.divide_into


def parse_arguments(argv: Sequence[str] | None = None) -> AppendArguments:
    """Parse the command line; :meth:`AppendArguments.check` looks at the values.

    Raises:
        ArgumentsError: it cannot be parsed.
        HelpShown: it asked for help.

    """
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + HELP)
    parser.add_place()
    add_source(parser)
    add_new_table(parser)
    add = parser.add_argument
    add("--commits", default=1, type=_count, metavar="N", help="number of commits to divide the rows into (1)")
    add(
        "--lock", choices=("table", "partitions"), default="table",
        help="what to lock: all of the table (the default), or the partitions that each commit's rows are in, which "
        "takes one more pass over them",
    )  # fmt: skip
    add(
        "--hold", choices=("commit", "write"), default="commit",
        help="how long to hold the lock: for the commit alone, so that others work meanwhile (the default, where "
        "that is possible; see docs/gate.md), or over the whole write",
    )  # fmt: skip
    parser.add_lock_timeout()
    add("--run-id", metavar="ID", help="name of this load, unique in the table; makes it safe to start again")
    parser.add_report()
    add_reader_options(parser)
    parser.add_verbose()
    found = parser.parse(argv)
    return AppendArguments(divide_into=found.commits, lock=found.lock, hold=found.hold, **shared_by_file_jobs(found))


def _count(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= _MOST_COMMITS:
        raise argparse.ArgumentTypeError(f"{value!r} is no number from 1 to {_MOST_COMMITS}")
    return int(value)
