"""Options and arguments that several commands share."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from lock_manager import LockSettings
from lock_manager.errors import SettingsError
from lock_manager.settings import names_coordinator
from sluice.console import errors_as_sentences


class _Flags:
    """Hides the type of a flag in ``--help``. Typer prints ``<bool>``, as if the flag took a value."""

    def get_params(self, context: Any) -> list[Any]:
        params: list[Any] = super().get_params(context)  # type: ignore[misc]
        for param in params:
            if getattr(param, "is_bool_flag", False):
                param.metavar = ""
        return params


class _Command(_Flags, TyperCommand):
    pass


class _Group(_Flags, TyperGroup):
    pass


class Commands(typer.Typer):
    """A group of commands. Each prints an error as one sentence, and has the option ``--verbose``.

    ``--help`` shows no type next to a flag.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Add a command."""
        add = super().command(name, cls=_Command, **options)
        return lambda command: add(errors_as_sentences(_with_verbose(command)))


def _with_verbose(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option ``--verbose`` to a command. :func:`errors_as_sentences` reads it."""

    @functools.wraps(command)
    def run(*args: Any, verbose: bool, **kwargs: Any) -> None:  # noqa: ARG001 (read by the decorator)
        command(*args, **kwargs)

    option = typer.Option("--verbose", help="Show the stack trace of an error.")
    parameter = Parameter("verbose", Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, option])
    signature = inspect.signature(command, eval_str=True)
    vars(run)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), parameter])
    return run


#: The option ``--json``.
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
#: The option ``--storage-option`` of commands that read a table without Spark.
StorageOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="An option of deltalake; may be repeated.  [dim]default: AWS_* variables[/]"
    ),
]


def _spark_location(table: str) -> str:
    """Put ``./`` before a name without a slash if it is a folder here: Spark would look it up in the catalog."""
    return f"./{table}" if not {"/", ":"} & set(table) and Path(table).is_dir() else table


#: The table of a command that starts a small Spark.
SparkTable = Annotated[
    str, typer.Argument(help="s3a://…, file:… or a path, as Spark writes it.", callback=_spark_location)
]
#: The tables of a command that starts a small Spark.
SparkTables = Annotated[
    list[str],
    typer.Argument(
        help="One or more of s3a://…, file:… or a path, as Spark writes it.",
        callback=lambda tables: [_spark_location(table) for table in tables],
    ),
]
#: The option ``--conf`` of commands that start a small Spark.
SparkConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting, such as an S3A endpoint; may be repeated."),
]
#: The option ``--lock-timeout`` of commands that take a table's lock.
LockTimeoutOption = Annotated[
    float | None,
    typer.Option(
        min=0.0, metavar="SECONDS", help="Time to wait for the lock.  [dim]default: $SLUICE_TIMEOUT_SECONDS or 300[/]"
    ),
]
#: The option ``--zookeeper`` of commands that use an ensemble.
ZooKeeperOption = Annotated[
    str | None, typer.Option(metavar="HOSTS", help="host:port,…  [dim]default: $SLUICE_ZK_HOSTS[/]")
]
#: The option ``--lock-url`` of commands that use a coordinator.
LockUrlOption = Annotated[
    str | None,
    typer.Option(
        "--lock-url",
        metavar="URL",
        help="Instead of --zookeeper: s3-lease://BUCKET/PREFIX; optimistic:// for no locks; or "
        "zookeeper://HOSTS?fallback=optimistic.  [dim]default: $SLUICE_LOCK_URL[/]",
    ),
]
#: The option ``--lock-root`` of commands that look at locks.
LockRootOption = Annotated[
    str | None,
    typer.Option(
        metavar="ZNODE",
        help="The parent of all locks.  [dim]default: $SLUICE_LOCK_ROOT or /locks/delta_tables[/]",
    ),
]


def parse_pairs(arguments: list[str] | None, option: str = "--storage-option") -> dict[str, str]:
    """Return the KEY=VALUE arguments of an option as a dictionary; an empty one if the option was not used.

    Raises:
        BadParameter: An argument is not KEY=VALUE. The message does not contain the argument.

    """
    pairs = {}
    for argument in arguments or ():
        key, equals, value = argument.partition("=")
        if not equals or not key.strip():
            raise typer.BadParameter(
                "expected KEY=VALUE (the argument is not shown, because it may be a secret)", param_hint=option
            )
        pairs[key.strip()] = value
    return pairs


def is_coordinator_given(zookeeper: str | None, lock_url: str | None) -> bool:
    """Return whether the options or the environment name a coordinator."""
    return zookeeper is not None or lock_url is not None or names_coordinator(os.environ)


def zookeeper_settings(zookeeper: str | None, lock_root: str | None = None) -> LockSettings:
    """Return the settings of a command that is about ZooKeeper; see :func:`lock_settings`.

    Raises:
        SettingsError: Only another coordinator is configured, or a setting is malformed.

    """
    settings = lock_settings(zookeeper, lock_root)
    if settings.lock_url:
        raise SettingsError(f"this command examines ZooKeeper, but {settings.lock_url} needs none: give --zookeeper")
    return settings


def lock_settings(
    zookeeper: str | None,
    lock_root: str | None = None,
    timeout_seconds: float | None = None,
    *,
    lock_url: str | None = None,
) -> LockSettings:
    """Return the settings of the environment, overridden by the options that are not None.

    Raises:
        SettingsError: See :meth:`LockSettings.from_env`.

    """
    # kazoo logs a warning for each attempt to connect. The command reports the failure itself.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    options: dict[str, Any] = {
        "zk_hosts": zookeeper,
        "lock_url": lock_url,
        "lock_root": lock_root,
        "timeout_seconds": timeout_seconds,
    }
    options = {name: value for name, value in options.items() if value is not None}
    return LockSettings.from_env(hosts_hint="give --zookeeper host:port,…", **options)
