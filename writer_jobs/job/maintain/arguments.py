"""The command line of ``maintain.py``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lock_manager.partitions import MAX_PARTITIONS
from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import (
    JobArguments,
    JobParser,
    build_arguments,
    check_location,
    column_names,
    nonblank,
    number,
    positive_integer,
)
from writer_jobs.maintenance.executor import HOLD_AT_MOST_SECONDS
from writer_jobs.maintenance.plan import PARALLEL, PARTITIONS_PER_COMMIT
from writer_jobs.maintenance.policy import Action

#: Name of the job in its help and its messages.
PROGRAM = "maintain.py"
_DESCRIPTION = """\
Maintain Delta tables: measure the health of each table, and do the work that its findings name, the most valuable work
first. Each commit holds a short lock of its own, on its partition only. Waiting writers take precedence.
"""
_EPILOG = """\
examples:
  # the health of a table, as JSON and as a page for a browser; this changes nothing
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --report s3a://lake/health/flights.json --page s3a://lake/health/flights.html

  # all tables of a database, the most valuable work first, half an hour for all of them: the line for a scheduler
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --catalog lake --auto --budget 1800

  # these two actions only, where they have an effect
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --compact --vacuum

policy, as table properties (ALTER TABLE t SET TBLPROPERTIES ('sluice.maintenance.targetFileSize' = '256 MiB')), with
the defaults in parentheses:
  sluice.maintenance.auto             actions that --auto may do; off: no action (all actions)
  sluice.maintenance.targetFileSize   size of a file after compaction; a file below half of it is small (128 MiB)
  sluice.maintenance.minSmallFiles    --auto compacts a partition if that saves at least this many files (4)
  sluice.maintenance.zorderBy         columns to order by (none)
  sluice.maintenance.unorderedShare   --auto orders a partition again if at least this share of its bytes is new (0.2)
  sluice.maintenance.deletedRowShare  --auto purges a partition if at least this share of its rows is deleted (0.05)
  sluice.maintenance.forgetAfterDays  set by feeds on TABLE_tombstones, TABLE_cells: the longest --tombstone-days
  sluice.maintenance.singleVersionFamilies
                                      set by feeds on TABLE_cells: HBase families with one version; do not change it
  sluice.maintenance.expiredRowShare  --auto rewrites these two tables if at least this share of their rows is expired
                                      (0.2)
  sluice.maintenance.streams          checkpoint folders of streams that read the table; maintenance keeps the files
                                      that these streams need (none)

rules:
  TABLE_tombstones and TABLE_cells, which upsert.py and cdc.py create, are maintained with their table.
  Without --auto and without an action the job only measures.
  Name each stream that reads a table in sluice.maintenance.streams: --vacuum and --clean-log protect no other streams.
  Each partition is compacted in a commit of its own. For a table with many small partitions, the first run is faster
  with --partitions-per-commit 16: after each commit Delta lists all files of the table again.
  A compaction works without the lock, and fails if a writer changes the same files. Then the job repeats it after the
  other work. The third time it holds the lock of its partition, for --hold-at-most seconds. Only then writers wait.
  The job may be killed at any point: the table stays correct. If another maintain.py works on the table, the job waits
  for --lock-timeout, and then gives up this table.
  After a failure the job continues with the other work and the other tables. The exit code is that of the first
  failure.
  With --budget and several tables the job first measures all of them, for half of the budget at most. It begins with
  the table whose maintenance is worth most.

standard output has one JSON object per line:
  {"event": "measured" | "finding" | "done" | "table" | "failed" | "skipped", ...}.
"""


_ACTION_HELP = {
    Action.COMPACT: "compact small files, partition by partition",
    Action.ZORDER: "put the rows in Z-order by these columns, partition by partition",
    Action.CLUSTER: "let Delta cluster a table that was created with CLUSTER BY",
    Action.PURGE: "rewrite files without the deleted rows that are still in them",
    Action.VACUUM: "remove files that no readable version, no pin and no named stream needs; also remove orphans: "
    "files that no version has named, and that are too old for a running write",
    Action.CHECKPOINT: "write a checkpoint of the newest version",
    Action.FORGET: "delete expired tombstones and cells from TABLE_tombstones and TABLE_cells",
    Action.CLEAN_LOG: "remove version files that are older than the log's retention, and that no newer version needs",
}


@dataclass(frozen=True, kw_only=True)
class MaintainArguments(JobArguments):
    """The arguments of ``maintain.py``; see its ``--help``."""

    tables: tuple[str, ...]
    catalog: str | None
    tables_file: str | None
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
        """None: the number of commits depends on the findings."""
        return None

    @property
    def report_fields(self) -> dict[str, Any]:
        """Fields of the report that are known at the start of the job; JSON values."""
        return {"auto": self.auto, "actions": sorted(self.actions), "budget": self.budget, "tables": []}

    @property
    def requested_actions(self) -> frozenset[Action] | None:
        """The actions on each table; None: the actions that the table's findings name."""
        return None if self.auto else self.actions

    def check(self) -> None:
        """Check the arguments; see :meth:`JobArguments.check`."""
        super().check()
        if not (self.tables or self.catalog or self.tables_file):
            raise ArgumentsError("name the tables: give --table, --tables-in or --catalog (see --help)")
        for table in self.tables:
            check_location(table)
        if self.auto and self.actions:
            raise ArgumentsError("give --auto or actions by name, not both: --auto chooses the actions")
        if self.partitions_per_commit > MAX_PARTITIONS:
            raise ArgumentsError(
                f"--partitions-per-commit {self.partitions_per_commit}: give {MAX_PARTITIONS} at most, "
                "because more partitions than that are locked as the whole table"
            )
        if self.budget is not None and not self.auto and not self.actions:
            raise ArgumentsError("give --budget with --auto or with actions: it does not limit a measurement")


def parse_arguments(argv: Sequence[str] | None = None) -> MaintainArguments:
    """Parse the command line; see :class:`JobParser`. :meth:`MaintainArguments.check` checks the values."""
    parser = JobParser(PROGRAM, _DESCRIPTION, _EPILOG)
    parser.add_table(several=True, required=False)
    add, seconds_type = parser.add_argument, number(float, 0, sys.float_info.max, "a number of seconds")
    add(
        "--tables-in", dest="tables_file", type=nonblank, metavar="URI",
        help="file that lists one table on each line; # begins a comment",
    )  # fmt: skip
    add("--catalog", type=nonblank, metavar="DATABASE", help="all Delta tables of this database of the catalog")
    add(
        "--auto", action="store_true",
        help="do the actions that the findings name and the policy allows, the most valuable first",
    )  # fmt: skip
    for action in Action:
        if action is Action.ZORDER:
            add(
                "--zorder", dest="zorder_by", type=column_names, default=(), metavar="COLUMNS",
                help=_ACTION_HELP[action],
            )  # fmt: skip
        else:
            add(
                f"--{action}", dest="actions", action="append_const", const=action, default=[],
                help=_ACTION_HELP[action],
            )  # fmt: skip
    add(
        "--budget", type=seconds_type, metavar="S",
        help="seconds for the whole run: after that the job starts no new work, and finishes the work that it has "
        "started",
    )  # fmt: skip
    add(
        "--parallel", type=positive_integer, default=PARALLEL, metavar="N",
        help=f"work on N partitions of a table at the same time ({PARALLEL})",
    )  # fmt: skip
    add(
        "--partitions-per-commit", type=positive_integer, default=PARTITIONS_PER_COMMIT, metavar="N",
        help="--compact and --purge rewrite up to N partitions in one commit, as long as together they have less to "
        f"rewrite than one file of the target size ({PARTITIONS_PER_COMMIT}; {MAX_PARTITIONS} at most)",
    )  # fmt: skip
    add(
        "--hold-at-most", type=seconds_type, default=HOLD_AT_MOST_SECONDS, metavar="S",
        help="if a compaction of a partition has failed twice because of writers, repeat it under the partition's "
        f"lock, for S seconds at most ({HOLD_AT_MOST_SECONDS:g}; 0: never)",
    )  # fmt: skip
    parser.add_report()
    add("--page", type=nonblank, metavar="URI", help="HTML file for the health of the tables, with pictures")
    options = parser.parse_args(argv)
    options.actions = frozenset([*options.actions, *([Action.ZORDER] if options.zorder_by else [])])
    options.tables = tuple(dict.fromkeys(options.tables))
    options.table = next(iter(filter(None, (*options.tables, options.tables_file, options.catalog))), "")
    return build_arguments(MaintainArguments, options)
