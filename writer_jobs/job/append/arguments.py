"""The command line of ``append.py``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from writer_jobs.job.arguments import JobParser, build_arguments, number
from writer_jobs.job.inputs.file_arguments import (
    FileJobArguments,
    add_new_table,
    add_report_and_reader_options,
    add_source,
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

  # a scheduler's job: if it is killed and started again with the same --run-id, the table has each row once
  spark-submit $(sluice submit-args) writer_jobs/append.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table sales.orders --source s3a://landing/2026-11-21/ --format json --commits 8 \\
      --run-id orders-2026-11-21 --report s3a://lake/_reports/orders-2026-11-21.json

reading files:
  Nothing is silently dropped or changed. A value that is not exactly a value of its column's type fails the job
  (mode=FAILFAST), and so does a column that the table lacks. --option, for example mode=PERMISSIVE, changes these
  rules. The page docs/inputs.md has a table of inputs and of such options. Lines of csv and json files are checked
  first, which reads the files once more.
  csv      By RFC 4180, in UTF-8 or --option encoding=…, with a header. Files with newlines in quotes are not divided
           among tasks. Malformed quotes fail the job; for another syntax give --option escape=… or quote=…. For an
           existing table the values are read with the table's types, and columns are matched by name. All columns of
           the table are required, except generated ones and those with a default. For a new table the types are
           inferred where they keep all values (007 stays text), which reads the files twice more.
  json     One object per line, without text after it. For an existing table the values are read with the table's
           types; missing fields are null. The job looks for fields in all files, which reads them once more. A nested
           field that the table lacks is refused, too.
  parquet  Columns of all files (mergeSchema=true). Types that are narrower than the table's are read with the table's
           types, also if the files have different types. Other differences from the table's types are refused.

several commits:
  With --commits N the rows are read once, stored in Spark's cache, and divided by a hash of their values. The job takes
  the lock N times, and other writers commit in between. A part without rows is committed, too. A job that fails keeps
  its commits; start it again with the same --run-id to make the others.

runs:
  With --run-id ID commit i carries txnAppId=ID, txnVersion=i. A record below _sluice/runs in the table's folder has the
  division of the rows. It stores salted hashes of the reader options, not their values. A run that is started again
  skips commits that are in the table, and makes the others. Other files, other contents (size, modification time),
  another --commits, format, reader option, session time zone or Spark version are refused. If the table drops
  old transactions (delta.setTransactionRetentionDuration), a run that was begun before and whose sources are older than
  that is refused, too.

standard output has one JSON object per line: {"event": "begun" | "holding" | "commit", ...}.
"""


@dataclass(frozen=True, kw_only=True)
class AppendArguments(FileJobArguments):
    """The arguments of ``append.py``; see its ``--help``."""

    commit_count: int
    lock: Literal["table", "partitions"]
    hold: Literal["commit", "write"]

    @property
    def commits(self) -> int:
        """The number of commits into which the rows are divided."""
        return self.commit_count


def parse_arguments(argv: Sequence[str] | None = None) -> AppendArguments:
    """Parse the command line; see :class:`JobParser`. :meth:`AppendArguments.check` checks the values."""
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG)
    parser.add_table()
    add_source(parser)
    add_new_table(parser)
    add = parser.add_argument
    add(
        "--commits", dest="commit_count", default=1, metavar="N",
        type=number(int, 1, _MOST_COMMITS, f"a whole number from 1 to {_MOST_COMMITS}"),
        help="number of commits to divide the rows into (1)",
    )  # fmt: skip
    add(
        "--lock", choices=("table", "partitions"), default="table",
        help="lock the whole table (the default), or the partitions of each commit's rows, which needs one more pass "
        "over the rows",
    )  # fmt: skip
    add(
        "--hold", choices=("commit", "write"), default="commit",
        help="hold the lock for the commit only, so that other writers work meanwhile (the default, where possible; "
        "see docs/gate.md), or for the whole write",
    )  # fmt: skip
    add("--run-id", metavar="ID", help="name of this load, unique in the table; makes it safe to start it again")
    add_report_and_reader_options(parser)
    return build_arguments(AppendArguments, parser.parse_args(argv))
