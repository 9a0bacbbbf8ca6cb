"""Command line of ``maintain.py``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lock_manager import canonical_table_uri
from lock_manager.partitions import MAX_PARTITIONS
from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import NAME_WITH_SCHEME, JobArguments, JobParser, names, text
from writer_jobs.job.exit_codes import HELP
from writer_jobs.job.stream_arguments import positive
from writer_jobs.maintenance.executor import HOLD_AT_MOST_SECONDS
from writer_jobs.maintenance.plan import PARALLEL, PARTITIONS_PER_COMMIT
from writer_jobs.maintenance.policy import Action

#: Name of the job in its help and its messages.
PROGRAM = "maintain.py"
_DESCRIPTION = """\
Look after Delta tables: measure how healthy each one is, and do what its findings say. The most valuable work comes
first. Each commit has a short lock of its own, on its partition alone. Waiting writers go before it.
"""
_EPILOG = """\
examples:
  # how healthy a table is, as JSON and as a page for a browser; this changes nothing
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --report s3a://lake/health/flights.json --page s3a://lake/health/flights.html

  # all tables of a database, the most valuable work first, half an hour for all of them: the line for a scheduler
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --catalog lake --auto --budget 1800

  # these two things only, wherever they change anything
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --compact --vacuum

policy, as table properties (ALTER TABLE t SET TBLPROPERTIES ('sluice.maintenance.targetFileSize' = '256 MiB')):
  sluice.maintenance.auto             actions that --auto may do, or off (all of them)
  sluice.maintenance.targetFileSize   of a file after compaction; below half of it one is small (128 MiB)
  sluice.maintenance.minSmallFiles    --auto compacts a partition that then has so many files fewer (4)
  sluice.maintenance.zorderBy         columns to order by (none)
  sluice.maintenance.unorderedShare   --auto orders a partition again with this share of new bytes (0.2)
  sluice.maintenance.deletedRowShare  --auto rewrites files with this share of deleted rows (0.05)
  sluice.maintenance.forgetAfterDays  of TABLE_tombstones, TABLE_cells: set by feeds, the longest --tombstone-days
  sluice.maintenance.expiredRowShare  --auto rewrites those tables with this share of expired rows (0.2)
  sluice.maintenance.streams          checkpoint folders of streams that read the table: their files stay

rules:
  TABLE_tombstones and TABLE_cells, which upsert.py and cdc.py make, are looked after with their table.
  Without --auto and without an action the job only measures.
  Name each stream that reads a table in sluice.maintenance.streams: --vacuum and --clean-log know of no other stream.
  Each partition is compacted in a commit of its own. A table with many small partitions, that is looked after for the
  first time, is faster with --partitions-per-commit 16: each commit makes Delta list all files of the table again.
  A compaction works without the lock, and loses its race if a writer changes the same files. Then it comes again, after
  the other work. The third time it holds the lock of its partition, for --hold-at-most seconds. Only then writers wait.
  The job may be killed at any point: the table stays correct. If another maintain.py works on the table, the job waits
  for --lock-timeout, and then leaves that table.
  If something fails, the job does the rest, and goes on with the other tables. The exit code is that of the first
  failure.
  With --budget and several tables the job looks at all of them first, for half of the budget at most. It begins with
  the table where it gains most.

standard output has one JSON object per line:
  {"event": "measured" | "finding" | "done" | "table" | "failed" | "skipped", ...}.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

"""


_ACTIONS = {
    Action.COMPACT: "put small files together, partition by partition",
    Action.ZORDER: "put the rows in Z-order by these columns, partition by partition",
    Action.CLUSTER: "have Delta cluster a table that was made with CLUSTER BY",
    Action.PURGE: "rewrite files without the deleted rows that are still in them",
    Action.VACUUM: "remove files that no readable version, no pin and no named stream needs; also remove orphans: "
    "files that no version has named, and that are too old for a running write",
    Action.CHECKPOINT: "write a checkpoint of the newest version",
    Action.FORGET: "delete tombstones and cells that TABLE_tombstones and TABLE_cells have remembered for long enough",
    Action.CLEAN_LOG: "remove version files that are older than the log's retention, and that no newer version needs",
}


@dataclass(frozen=True, kw_only=True)
class MaintainArguments(JobArguments):
    """What ``maintain.py`` was asked to do; see its ``--help``."""

    tables: tuple[str, ...]
    catalog: str | None
    listed_in: str | None
    auto: bool
    actions: frozenset[Action]
    zorder_by: tuple[str, ...]
    budget: float | None
    parallel: int
    partitions_per_commit: int
    hold_at_most: float
    page: str | None

    @property
    def commits(self) -> int | None:
        """Unknown."""
        return None

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says from the start."""
        return {"auto": self.auto, "actions": sorted(self.actions), "budget": self.budget, "tables": []}

    @property
    def wanted(self) -> frozenset[Action] | None:
        """What is to be done to each table; None: what its findings say."""
        return None if self.auto else self.actions

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        super().check()
        if not (self.tables or self.catalog or self.listed_in):
            raise ArgumentsError("name the tables: give --table, --tables-in or --catalog (--help explains)")
        for table in self.tables:
            if NAME_WITH_SCHEME.match(table):
                canonical_table_uri(table)
        if self.auto and self.actions:
            raise ArgumentsError("give --auto or actions by name, not both: --auto decides what is done")
        if self.partitions_per_commit > MAX_PARTITIONS:
            raise ArgumentsError(
                f"--partitions-per-commit {self.partitions_per_commit}: give {MAX_PARTITIONS} at most, "
                "because more partitions than that are locked as the whole table"
            )
        if self.budget is not None and not self.auto and not self.actions:
            raise ArgumentsError("--budget is for --auto or actions: to measure takes the time that it takes")


def parse_arguments(argv: Sequence[str] | None = None) -> MaintainArguments:
    """Parse the command line; :meth:`MaintainArguments.check` looks at the values.

    Raises:
        ArgumentsError: it cannot be parsed.
        HelpShown: it asked for help.

    """
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG + HELP)
    parser.add_place(several=True, required=False)
    add = parser.add_argument
    add("--tables-in", type=text, metavar="URI", help="file with a table on each line; # begins a comment")
    add("--catalog", type=text, metavar="DATABASE", help="all Delta tables of this database of the catalog")
    add("--auto", action="store_true", help="do what the findings say and the policy allows, the most valuable first")
    for action in Action:
        if action is Action.ZORDER:
            add("--zorder", type=names, default=(), metavar="COLUMNS", help=_ACTIONS[action])
        else:
            add(
                f"--{action}", dest="actions", action="append_const", const=action, default=[],
                help=_ACTIONS[action],
            )  # fmt: skip
    add(
        "--budget", type=_seconds, metavar="S",
        help="seconds for the whole run: after that the job starts no new work, and finishes what it has started",
    )  # fmt: skip
    add(
        "--parallel", type=positive, default=PARALLEL, metavar="N",
        help=f"work on so many partitions of a table at the same time ({PARALLEL})",
    )  # fmt: skip
    add(
        "--partitions-per-commit", type=positive, default=PARTITIONS_PER_COMMIT, metavar="N",
        help="--compact and --purge rewrite up to N partitions in one commit, while together they have less to rewrite "
        f"than one file of the target size ({PARTITIONS_PER_COMMIT}; {MAX_PARTITIONS} at most)",
    )  # fmt: skip
    add(
        "--hold-at-most", type=_seconds, default=HOLD_AT_MOST_SECONDS, metavar="S",
        help="if a partition has lost its race twice, rewrite it with its lock held, for S seconds at most "
        f"({HOLD_AT_MOST_SECONDS:g}; 0: never)",
    )  # fmt: skip
    parser.add_lock_timeout()
    parser.add_report()
    add("--page", type=text, metavar="URI", help="HTML file for the health of the tables, with pictures")
    parser.add_verbose()
    found = parser.parse(argv)
    actions = frozenset([*found.actions, *([Action.ZORDER] if found.zorder else [])])
    tables = tuple(dict.fromkeys(found.table or ()))
    return MaintainArguments(
        zookeeper=found.zookeeper,
        table=next(iter(filter(None, (*tables, found.tables_in, found.catalog))), ""),
        lock_timeout=found.lock_timeout,
        report=found.report,
        metrics=found.metrics,
        verbose=found.verbose,
        tables=tables,
        catalog=found.catalog,
        listed_in=found.tables_in,
        auto=found.auto,
        actions=actions,
        zorder_by=found.zorder,
        budget=found.budget,
        parallel=found.parallel,
        partitions_per_commit=found.partitions_per_commit,
        hold_at_most=found.hold_at_most,
        page=found.page,
    )


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{value!r} is no number of seconds")
    return seconds
