"""The command line of ``append.py``."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from lock_manager import LockSettings, SettingsError, canonical_table_uri
from lock_manager.metrics import Destination
from writer_jobs.job.runs import FILE_SYSTEM_OPTIONS, check_run_id
from writer_jobs.job.sources import FORMATS

PROGRAM = "append.py"
MOST_COMMITS = 10_000

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
  Nothing is dropped in silence. A value that does not parse fails the job (mode=FAILFAST), and so does a column that
  the table does not have; mode=PERMISSIVE and the like are yours to give with --option.
  csv      Has a header. Into an existing table the values are read with the table's types, columns matched by name,
           each of the table's columns required (but generated ones and those with a default). For a new table the
           types are inferred, which reads the files twice.
  json     One object per line. Into an existing table: the table's types; missing fields are null. Fields are looked
           for in all of the files, which reads them twice.
  parquet  Columns of all files (mergeSchema=true); Delta casts where that loses nothing.

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

standard output has one JSON object per line: {"event": "waiting" | "holding" | "commit", ...}.
standard error has one sentence if the job fails; the stack trace with --verbose.
The environment may set SLUICE_ZK_HOSTS, SLUICE_SESSION_TIMEOUT_SECONDS and SLUICE_LOCK_ROOT.

exit codes:
  0    done
  1    an error that this program did not expect
  2    bad arguments: no such source, malformed host list, no Delta table, a run id that fits other sources
  3    lock not acquired in time, or ZooKeeper does not answer
  4    lock lost
  5    write failed: rows that do not fit the table, malformed records, a failing store
  6    unknown: a commit was put and got no answer; with --run-id, start the job again
  130  stopped by Ctrl-C; 143: by SIGTERM. A commit that had begun was completed or cancelled.
  Cluster managers do not relay these faithfully: --report writes them down. Only with UnprovenCommitError (4) and
  "not known" (6) may the table have got rows of a failed commit; in all other cases it has none.
"""

_NAME_WITH_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class ArgumentsError(SettingsError):
    """The command line does not make sense."""


class HelpShown(Exception):  # noqa: N818 (nothing went wrong)
    """``--help`` was asked for and answered."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """What ``append.py`` was asked to do."""

    zookeeper: str | None
    table: str
    sources: tuple[str, ...]
    format: str | None
    # Not shown: whoever passes a secret as an option has it nowhere but where Spark needs it.
    options: Mapping[str, str] = field(repr=False)
    partition_by: tuple[str, ...]
    commits: int
    lock: Literal["table", "partitions"]
    hold: Literal["commit", "write"]
    lock_timeout: float | None
    run_id: str | None
    report: str | None
    metrics: str | None
    verbose: bool

    def lock_settings(self) -> LockSettings:
        """Return the lock's settings: the command line before the environment.

        Raises:
            SettingsError: a malformed host list, or a value outside its range.

        """
        given: dict[str, Any] = {"zk_hosts": self.zookeeper, "timeout_seconds": self.lock_timeout}
        given = {name: value for name, value in given.items() if value is not None}
        return LockSettings.from_env(hosts_hint="give --zookeeper host:port,…", **given)

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        self.lock_settings()
        if self.metrics is not None:
            Destination.parse(self.metrics)
        if _NAME_WITH_SCHEME.match(self.table):
            canonical_table_uri(self.table)
        if self.run_id is not None:
            check_run_id(self.run_id)
        for name in self.options:
            if name.lower().startswith(FILE_SYSTEM_OPTIONS):
                raise ArgumentsError(
                    f"--option {name}: settings of a file system, credentials above all, are no reader options: give "
                    f"them to the session, by an instance role, in spark-defaults.conf, or with --conf "
                    f"spark.hadoop.{name}=…"
                )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ArgumentsError(f"{message} (--help explains)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002 (argparse's signature)
        raise HelpShown


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Parse the command line; :meth:`Arguments.check` looks at the values.

    Raises:
        ArgumentsError: it cannot be parsed.
        HelpShown: it asked for help.

    """
    parser = _Parser(
        prog=PROGRAM,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--zookeeper", metavar="HOSTS", help="host:port,host:port[/chroot] of the ensemble ($SLUICE_ZK_HOSTS)")
    add("--table", required=True, type=_text, metavar="URI|NAME", help="location or CATALOG.SCHEMA.TABLE")
    add(
        "--source", required=True, nargs="+", action="extend", type=_text, metavar="FILES",
        help="files, folders, globs; paths or URIs that Spark can read. A file that is named twice is read once",
    )  # fmt: skip
    add("--format", choices=FORMATS, help="of the files; by default what their names tell")
    add(
        "--partition-by", default=(), type=_names, metavar="COLS",
        help="partition columns of a new table, separated by commas; an existing table's own, or nothing",
    )  # fmt: skip
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
    add("--lock-timeout", type=float, metavar="S", help="seconds to wait for the lock, each time (300); 0: do not wait")
    add("--run-id", metavar="ID", help="name of this load, unique in the table; makes it safe to start again")
    add("--report", type=_text, metavar="URI", help="JSON file to write the outcome to, also when the job fails")
    add(
        "--metrics", metavar="WHERE",
        help="Prometheus metrics: PORT or HOST:PORT to serve them at (127.0.0.1), or FILE.prom to write; needs "
        "prometheus-client on the driver",
    )  # fmt: skip
    add(
        "--option", action="append", default=[], type=_pair, metavar="KEY=VALUE",
        help="option of Spark's reader, such as sep=; or timestampFormat=yyyyMMdd; may be repeated. No credentials: "
        "fs.* is refused, and belongs to the session (--conf spark.hadoop.fs…)",
    )  # fmt: skip
    add("--null-value", metavar="TEXT", help="what stands for null in CSV files: --option nullValue=TEXT")
    add("--verbose", action="store_true", help="Spark's log and stack traces on standard error")
    found = parser.parse_args(argv)
    options = dict(found.option)
    if found.null_value is not None:
        options["nullValue"] = found.null_value
    return Arguments(
        zookeeper=found.zookeeper,
        table=found.table,
        sources=tuple(found.source),
        format=found.format,
        options=options,
        partition_by=found.partition_by,
        commits=found.commits,
        lock=found.lock,
        hold=found.hold,
        lock_timeout=found.lock_timeout,
        run_id=found.run_id,
        report=found.report,
        metrics=found.metrics,
        verbose=found.verbose,
    )


def _text(value: str) -> str:
    if not value.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return value


def _names(value: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in value.split(","))
    if not all(names) or len({name.lower() for name in names}) != len(names):
        raise argparse.ArgumentTypeError(f"{value!r} is no list of different column names, such as year,month")
    return names


def _count(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= MOST_COMMITS:
        raise argparse.ArgumentTypeError(f"{value!r} is no number from 1 to {MOST_COMMITS}")
    return int(value)


def _pair(value: str) -> tuple[str, str]:
    key, equals, text = value.partition("=")
    if not equals or not key.strip():
        # Without what was given, which may be a secret.
        raise argparse.ArgumentTypeError("expected KEY=VALUE (yours is not shown: it may be a secret)")
    return key.strip(), text
