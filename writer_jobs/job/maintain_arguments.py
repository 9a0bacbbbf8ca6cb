"""Command line of ``maintain.py``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lock_manager import canonical_table_uri
from lock_manager.partitions import MOST_PARTITIONS
from writer_jobs.errors import ArgumentsError
from writer_jobs.job.arguments import NAME_WITH_SCHEME, JobArguments, JobParser, names, text
from writer_jobs.job.exit_codes import HELP
from writer_jobs.job.stream_arguments import positive
from writer_jobs.maintenance.plan import PARALLEL, PARTITIONS_PER_COMMIT
from writer_jobs.maintenance.policy import Action

#: Name of the job in its help and its messages.
PROGRAM = "maintain.py"
_DESCRIPTION = """\
Look after Delta tables: measure how healthy each is, and do what its findings say, what is worth most first. Each
commit has a short lock of its own, on the partition that it is about, and writers who wait go first.
"""
_EPILOG = """\
examples:
  # how healthy a table is: as JSON, and as a page for a browser; nothing is changed
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --report s3a://lake/health/flights.json --page s3a://lake/health/flights.html

  # all tables of a database, what is worth most first, half an hour for all of them: the line for a scheduler
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --catalog lake --auto --budget 1800

  # these two things only, wherever they change anything
  spark-submit $(sluice submit-args) writer_jobs/maintain.py --zookeeper zk1:2181,zk2:2181,zk3:2181 \\
      --table s3a://lake/flights --compact --vacuum

actions:
  --compact     put small files together, partition by partition
  --zorder      put the rows in Z-order by COLUMNS, partition by partition
  --cluster     have Delta cluster a table that was made with CLUSTER BY
  --purge       rewrite files without the rows that are deleted in them
  --vacuum      remove files that no version needs which may be read again, no pin and no stream; and orphans, which no
                version has ever named, once they are older than any write that may be on its way
  --checkpoint  write a checkpoint of the newest version
  --clean-log   remove version files that are older than the log's retention, and that no newer version needs
  --auto does what the findings say and the table's policy allows. Without any of these the tables are only measured.

policy, as table properties (ALTER TABLE t SET TBLPROPERTIES ('sluice.maintenance.targetFileSize' = '256 MiB')):
  sluice.maintenance.auto             what --auto may do: a list of actions, or off (all)
  sluice.maintenance.targetFileSize   of a file after compaction; below half of it one is small (128 MiB)
  sluice.maintenance.minSmallFiles    as many must go away for --auto to compact a partition (4)
  sluice.maintenance.zorderBy         columns to order by (none)
  sluice.maintenance.unorderedShare   share of new bytes at which --auto orders a partition again (0.2)
  sluice.maintenance.deletedRowShare  share of deleted rows at which --auto rewrites files (0.05)
  sluice.maintenance.streams          checkpoint folders of streams that read the table: what they need is kept

rules:
  Each partition is compacted in a commit of its own. A table with many small partitions, that is looked after for the
  first time, is faster with --partitions-per-commit 16: each commit makes Delta list all files of the table again.
  A compaction that loses its race against a writer is left, and tried again behind the others, twice; no writer waits
  for it. Killed at any point the job leaves a correct table. Of two that look after one table at the same time the
  second one waits for --lock-timeout, and then leaves that table.
  What fails is noted, the rest is done, and the other tables are looked after; the exit code is that of the first
  failure. Of a budget each table gets an equal part of what is left.

standard output has one JSON object per line: {"event": "measured" | "finding" | "done" | "table", ...}.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

"""


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
        if self.partitions_per_commit > MOST_PARTITIONS:
            raise ArgumentsError(
                f"--partitions-per-commit {self.partitions_per_commit}: give {MOST_PARTITIONS} at most, "
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
    add("--auto", action="store_true", help="do what the findings say and the policy allows, what is worth most first")
    for action in Action:
        if action is Action.ZORDER:
            add("--zorder", type=names, default=(), metavar="COLUMNS", help="put rows in Z-order by these columns")
        else:
            add(
                f"--{action}", dest="actions", action="append_const", const=action, default=[],
                help="see below",
            )  # fmt: skip
    add(
        "--budget", type=_seconds, metavar="S",
        help="seconds for all tables: nothing is begun after that, and what runs is brought to its end",
    )  # fmt: skip
    add(
        "--parallel", type=positive, default=PARALLEL, metavar="N",
        help=f"partitions of a table that are worked on at the same time ({PARALLEL})",
    )  # fmt: skip
    add(
        "--partitions-per-commit", type=positive, default=PARTITIONS_PER_COMMIT, metavar="N",
        help="--compact and --purge rewrite up to N partitions in one commit, while together they have less to rewrite "
        f"than one file of the target size ({PARTITIONS_PER_COMMIT}; {MOST_PARTITIONS} at most)",
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
