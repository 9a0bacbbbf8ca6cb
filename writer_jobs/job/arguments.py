"""What the command lines of all jobs share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from lock_manager import LockSettings, canonical_table_uri
from lock_manager.column_names import split_column_names
from lock_manager.metrics import Destination
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import ArgumentsError

#: A location, not the name of a table in a catalog.
NAME_WITH_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


class HelpShown(Exception):  # noqa: N818 (nothing went wrong)
    """``--help`` was asked for and answered."""


@dataclass(frozen=True, kw_only=True)
class JobArguments:
    """What every job is told.

    Attributes:
        zookeeper: host list of the ensemble; None: of the environment.
        table: location or name in a catalog.
        lock_timeout: seconds to wait for the lock; None: the default.
        report: URI of the JSON file for the outcome; None: no such file.
        metrics: where metrics go; None: nowhere.
        verbose: whether stack traces and Spark's log are shown.

    """

    zookeeper: str | None
    table: str
    lock_timeout: float | None
    report: str | None
    metrics: str | None
    verbose: bool

    @property
    def commits(self) -> int | None:
        """How many commits the job is to make; None: a stream, until it is stopped."""
        return 1

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says of the job from the start, beside the table; JSON values."""
        return {}

    @property
    def session_settings(self) -> Mapping[str, str]:
        """Settings of the session while the job runs."""
        return {}

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
        if NAME_WITH_SCHEME.match(self.table):
            canonical_table_uri(self.table)

    def check_local_sources(self, files: HadoopFiles) -> None:
        """Check that sources on the driver's disk exist; called before a session is started.

        Raises:
            SourceError: one does not exist, or has no files.
            StorageError: a file system refuses, or does not exist.

        """


class JobParser(argparse.ArgumentParser):
    """A parser that raises, and knows the options that all jobs have.

    Args:
        program: name of the job's file.
        description: first paragraph of ``--help``.
        epilog: its end.

    """

    def __init__(self, program: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=program,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_place(self, *, several: bool = False, required: bool = True) -> None:
        """Add which table is written, or which tables are, and under whose lock."""
        add = self.add_argument
        add("--zookeeper", metavar="HOSTS", help="host:port,host:port[/chroot] of the ensemble ($SLUICE_ZK_HOSTS)")
        more = "; may be repeated" if several else ""
        add(
            "--table", required=required, type=text, metavar="URI|NAME", action="append" if several else "store",
            help=f"location or CATALOG.SCHEMA.TABLE{more}",
        )  # fmt: skip

    def add_lock_timeout(self) -> None:
        """Add how long the lock is waited for."""
        self.add_argument(
            "--lock-timeout", type=float, metavar="S",
            help="seconds to wait for the lock, each time (300); 0: do not wait",
        )  # fmt: skip

    def add_report(self) -> None:
        """Add where the outcome and the metrics go."""
        add = self.add_argument
        add("--report", type=text, metavar="URI", help="JSON file to write the outcome to, also when the job fails")
        add(
            "--metrics", metavar="WHERE",
            help="Prometheus metrics: PORT or HOST:PORT to serve them at (127.0.0.1), or FILE.prom to write; needs "
            "prometheus-client on the driver",
        )  # fmt: skip

    def add_verbose(self) -> None:
        """Add what is shown on standard error."""
        self.add_argument("--verbose", action="store_true", help="Spark's log and stack traces on standard error")

    def parse(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Parse a command line, by default this process's.

        Raises:
            ArgumentsError: it cannot be parsed.
            HelpShown: it asked for help.

        """
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        """Raise, instead of ending the process.

        Raises:
            ArgumentsError: always.

        """
        raise ArgumentsError(f"{message} (--help explains)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002 (argparse's signature)
        """Raise, instead of ending the process.

        Raises:
            HelpShown: always; argparse calls it after ``--help`` alone.

        """
        raise HelpShown


def text(value: str) -> str:
    """Return a value that is not blank; a type for argparse."""
    if not value.strip():
        raise argparse.ArgumentTypeError("must not be empty")
    return value


def names(value: str) -> tuple[str, ...]:
    """Return the names of columns in a comma-separated list, with backticks as quotes; a type for argparse."""
    try:
        found = split_column_names(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not all(found) or len({name.lower() for name in found}) != len(found):
        raise argparse.ArgumentTypeError(f"{value!r} is no list of different column names, such as year,month")
    return found


def pair(value: str) -> tuple[str, str]:
    """Return key and value of ``KEY=VALUE``; a type for argparse."""
    key, equals, text = value.partition("=")
    if not equals or not key.strip():
        # Without what was given, which may be a secret.
        raise argparse.ArgumentTypeError("expected KEY=VALUE (yours is not shown: it may be a secret)")
    return key.strip(), text
