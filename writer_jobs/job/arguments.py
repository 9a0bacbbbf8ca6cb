"""Command line arguments that all jobs share.

An option has two declarations with one name. ``add_argument`` states how it is written on the command line. A field of
the job's dataclass states its type; the field's metadata states whether the option is recorded in a run's identity
(:func:`in_identity`), and whether it is passed on to the function that applies the job's rows (:data:`APPLIED`).
"""

from __future__ import annotations

import argparse
import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeVar

from lock_manager import LockSettings, canonical_table_uri
from lock_manager.column_names import split_column_names
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import ArgumentsError
from writer_jobs.job.exit_codes import HELP as EXIT_CODES_HELP
from writer_jobs.job.metrics import check_destination

#: The scheme of a URI. A location begins with a scheme, the name of a table in a catalog does not.
URI_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HELP_END = f"""\
If the job fails, standard error has one sentence; with --verbose also the stack trace.
The job reads SLUICE_* variables from the environment, such as SLUICE_ZK_HOSTS, SLUICE_LOCK_URL and SLUICE_ZK_SECRET.
With OPENLINEAGE_* variables, such as OPENLINEAGE_URL, it sends lineage events (docs/how-to/lineage.md).

{EXIT_CODES_HELP}"""
_IDENTITY, _APPLIED = "identity", "applied"
#: Metadata of a field that is also a parameter of the function that applies the job's rows.
APPLIED = {_APPLIED: True}


def in_identity(
    name: str, to_json: Callable[[Any], Any] = lambda value: value, *, if_empty: bool = True
) -> dict[str, Any]:
    """Return the metadata of a field that is recorded in a run's identity under this name.

    ``to_json`` converts the field's value to a JSON value. If ``if_empty`` is false, an empty one is not recorded.
    """
    return {_IDENTITY: (name, to_json, if_empty)}


class HelpShown(Exception):  # noqa: N818 (not an error)
    """The parser printed the help."""


@dataclass(frozen=True, kw_only=True)
class JobArguments:
    """The arguments of every job. ``--help`` describes each; None means that the option was not given."""

    zookeeper: str | None
    lock_url: str | None
    table: str
    lock_timeout: float | None
    report: str | None
    metrics: str | None
    verbose: bool

    @property
    def commits(self) -> int | None:
        """The number of commits; None: it is not known in advance, as for a stream."""
        return 1

    @property
    def report_fields(self) -> dict[str, Any]:
        """Fields of the report that are known at the start of the job; JSON values."""
        return {}

    @property
    def identity(self) -> dict[str, Any]:
        """The options that identify a run, as JSON values by name; inherited options come last."""
        class_annotations = inspect.get_annotations(type(self))
        identity = {}
        for option in sorted(fields(self), key=lambda option: option.name not in class_annotations):
            if _IDENTITY in option.metadata:
                name, to_json, if_empty = option.metadata[_IDENTITY]
                value = to_json(getattr(self, option.name))
                if value or if_empty:
                    identity[name] = value
        return identity

    @property
    def apply_options(self) -> dict[str, Any]:
        """Arguments of the function that applies the job's rows: the fields with :data:`APPLIED`."""
        return {option.name: getattr(self, option.name) for option in fields(self) if _APPLIED in option.metadata}

    @property
    def session_settings(self) -> Mapping[str, str]:
        """Settings of the Spark session while the job runs."""
        return {}

    def lock_settings(self) -> LockSettings:
        """Return the lock's settings. The command line takes precedence over the environment.

        Raises:
            SettingsError: The host list is malformed, or a value is out of range.

        """
        options: dict[str, Any] = {
            "zk_hosts": self.zookeeper,
            "lock_url": self.lock_url,
            "timeout_seconds": self.lock_timeout,
        }
        options = {name: value for name, value in options.items() if value is not None}
        return LockSettings.from_env(hosts_hint="give --zookeeper host:port,…", **options)

    def check(self) -> None:
        """Check the arguments without a request to another system.

        Raises:
            SluiceError: An argument is invalid. The message is one sentence.

        """
        self.lock_settings()
        if self.metrics is not None:
            check_destination(self.metrics)
        check_location(self.table)

    def check_local_sources(self, files: HadoopFiles) -> None:
        """Check that sources on the driver's disk exist, before the session starts.

        This class has no sources and checks nothing; jobs with sources override it.

        Raises:
            SourceError: A source does not exist, or the sources of a job that is not a stream have no files.
            StorageError: A file system refuses access or does not exist.

        """


def check_location(table: str) -> None:
    """Make sure that the location of a table has a canonical URI; accept the name of a table in a catalog.

    Raises:
        ResourceError: The location has no canonical URI.

    """
    if URI_SCHEME.match(table):
        canonical_table_uri(table)


_Arguments = TypeVar("_Arguments", bound=JobArguments)


def build_arguments(arguments_class: type[_Arguments], options: argparse.Namespace) -> _Arguments:
    """Return the arguments of a job. Each option's ``dest`` is the name of a field; a list becomes a tuple.

    Raises:
        TypeError: An option has no field, or a field has no option.

    """
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(options).items()
    }
    return arguments_class(**values)


class JobParser(argparse.ArgumentParser):
    """A parser with methods for the options of all jobs.

    It does not end the process: ``parse_args`` raises ArgumentsError for an invalid command line, and HelpShown after
    ``--help``. The exit codes are the end of the help.
    """

    def __init__(self, program: str, description: str, epilog: str) -> None:
        super().__init__(
            prog=program,
            description=description,
            epilog=epilog + _HELP_END,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_table(self, *, several: bool = False, required: bool = True) -> None:
        """Add the options for the ensemble, the table or several tables, and the time to wait for the lock."""
        add = self.add_argument
        add(
            "--zookeeper", metavar="HOSTS",
            help="host:port,host:port[/chroot] of the ensemble; default: $SLUICE_ZK_HOSTS",
        )  # fmt: skip
        add(
            "--lock-url", metavar="URL",
            help="instead of --zookeeper: s3-lease://BUCKET/PREFIX for locks in objects on S3; optimistic:// for none; "
            "zookeeper://HOSTS?fallback=optimistic for writes that go on without ZooKeeper; default: $SLUICE_LOCK_URL",
        )  # fmt: skip
        if several:
            add(
                "--table", dest="tables", required=required, type=nonblank, metavar="URI|NAME", action="append",
                default=[], help="location or CATALOG.SCHEMA.TABLE; may be repeated",
            )  # fmt: skip
        else:
            add("--table", required=True, type=nonblank, metavar="URI|NAME", help="location or CATALOG.SCHEMA.TABLE")
        add(
            "--lock-timeout", type=float, metavar="S",
            help="seconds to wait for each lock; 0: do not wait "
            f"(default: $SLUICE_TIMEOUT_SECONDS or {LockSettings.timeout_seconds:g})",
        )  # fmt: skip

    def add_report(self) -> None:
        """Add the options for the report, the metrics, and diagnostics on standard error."""
        add = self.add_argument
        add("--report", type=nonblank, metavar="URI", help="JSON file that gets the outcome, also if the job fails")
        add(
            "--metrics", metavar="WHERE",
            help="export metrics: PORT or HOST:PORT to serve them to Prometheus (default HOST: 127.0.0.1), FILE.prom "
            "to write them, or opentelemetry for the exporter that OTEL_* variables set; needs prometheus-client or "
            "opentelemetry-distro on the driver",
        )  # fmt: skip
        add("--verbose", action="store_true", help="Spark's log and stack traces on standard error")

    def error(self, message: str) -> NoReturn:
        """Raise an ArgumentsError instead of ending the process."""
        raise ArgumentsError(f"{message} (see --help)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:  # noqa: ARG002 (argparse's signature)
        """Raise HelpShown instead of ending the process; argparse calls this method after ``--help`` only."""
        raise HelpShown


def report_uri(argv: Sequence[str] | None) -> str | None:
    """Return the value of ``--report`` on a command line that may be invalid; None if there is none.

    ``argv`` is the command line; None: that of this process.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--report", type=nonblank)
    try:
        uri: str | None = parser.parse_known_args(argv)[0].report
    except argparse.ArgumentError:
        return None
    return uri


_Number = TypeVar("_Number", int, float)


def number(number_type: type[_Number], least: float, most: float, description: str) -> Callable[[str], _Number]:
    """Return a type for argparse: a number from ``least`` to ``most``. A whole number has decimal digits only.

    ``description`` completes the message ``'x' is not …``.
    """

    def parse(argument: str) -> _Number:
        with suppress(ValueError):
            value = number_type(argument)
            if least <= value <= most and (number_type is float or argument.isdecimal()):
                return value
        raise argparse.ArgumentTypeError(f"{argument!r} is not {description}")

    return parse


#: A type for argparse: a whole number of at least 1.
positive_integer = number(int, 1, math.inf, "a whole number of at least 1")


def nonblank(argument: str) -> str:
    """Return a text that is not blank; a type for argparse."""
    if not argument.strip():
        raise argparse.ArgumentTypeError("must not be blank")
    return argument


def column_names(argument: str) -> tuple[str, ...]:
    """Parse a comma-separated list of column names, with backticks as quotes; a type for argparse."""
    try:
        names = split_column_names(argument)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not all(names) or len({name.lower() for name in names}) != len(names):
        raise argparse.ArgumentTypeError(f"{argument!r} is not a list of distinct column names, such as year,month")
    return names


def key_and_value(argument: str) -> tuple[str, str]:
    """Parse ``KEY=VALUE``; a type for argparse."""
    key, equals, value = argument.partition("=")
    if not equals or not key.strip():
        # The message does not repeat the argument, which can be a secret.
        raise argparse.ArgumentTypeError("expected KEY=VALUE (the argument is not shown, because it may be a secret)")
    return key.strip(), value
