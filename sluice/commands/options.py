"""Options that several commands share."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from lock_manager import LockSettings
from lock_manager.settings import names_ensemble

if TYPE_CHECKING:
    from collections.abc import Callable


class _Flags:
    """Shows no type beside a flag: typer prints ``<bool>``, as if the flag took a value."""

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
    """A group of commands whose ``--help`` shows flags as flags."""

    def __init__(self, **options: Any) -> None:
        super().__init__(cls=_Group, **options)

    def command(self, name: str | None = None, **options: Any) -> Callable[..., Any]:
        """Add a command."""
        return super().command(name, cls=_Command, **options)


#: What a command without an ensemble tells its user to do.
ZOOKEEPER_HINT = "give --zookeeper host:port,…"

#: The option that all commands have.
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the stack trace of an error.")]
#: The option of commands that read a table.
StorageOption = Annotated[
    list[str] | None,
    typer.Option(metavar="KEY=VALUE", help="As deltalake takes it; may be repeated.  [dim]default: AWS_* variables[/]"),
]


def _located(table: str) -> str:
    """Return a table as Spark takes it: a name without a slash is of the catalog to Spark, and a folder to a user."""
    return f"./{table}" if not {"/", ":"} & set(table) and Path(table).is_dir() else table


#: The table of commands that start a small Spark.
SparkTable = Annotated[str, typer.Argument(help="s3a://…, file:… or a path, as Spark writes it.", callback=_located)]
#: Likewise, several.
SparkTables = Annotated[
    list[str],
    typer.Argument(
        help="s3a://…, file:… or a path, as Spark writes it; several.",
        callback=lambda tables: [_located(table) for table in tables],
    ),
]
#: The options of commands that start a small Spark.
SparkConfOption = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="Of Spark, such as an S3A endpoint; may be repeated."),
]
#: Likewise.
LockTimeoutOption = Annotated[
    float | None, typer.Option(min=0.0, metavar="SECONDS", help="To wait for the lock.  [dim]default: 300[/]")
]
#: The options of commands that ask an ensemble.
ZooKeeperOption = Annotated[
    str | None, typer.Option(metavar="HOSTS", help="host:port,…  [dim]default: $SLUICE_ZK_HOSTS[/]")
]
#: Likewise.
LockRootOption = Annotated[
    str | None,
    typer.Option(
        metavar="ZNODE",
        help="Below which tables are locked.  [dim]default: $SLUICE_LOCK_ROOT or /locks/delta_tables[/]",
    ),
]


def key_and_value(option: str, hint: str = "--storage-option") -> tuple[str, str]:
    """Split KEY=VALUE; ``hint`` is the option that the complaint names."""
    name, equals, value = option.partition("=")
    if not equals or not name.strip():
        # Without what was given, which may be a secret.
        raise typer.BadParameter("expected KEY=VALUE (yours is not shown: it may be a secret)", param_hint=hint)
    return name.strip(), value


def conf_of(options: list[str] | None) -> dict[str, str]:
    """Return what was given with ``--conf``."""
    return dict(key_and_value(option, "--conf") for option in options or ())


def is_ensemble_given(zookeeper: str | None) -> bool:
    """Whether the option or the environment names an ensemble."""
    return zookeeper is not None or names_ensemble(os.environ)


def lock_settings(
    zookeeper: str | None, lock_root: str | None = None, timeout_seconds: float | None = None
) -> LockSettings:
    """Return the settings of the environment, with what options say instead.

    Raises:
        SettingsError: see :meth:`LockSettings.from_env`.

    """
    # What goes wrong is told in a sentence; kazoo warns of every attempt to connect.
    logging.getLogger("kazoo").addHandler(logging.NullHandler())
    given: dict[str, Any] = {"zk_hosts": zookeeper, "lock_root": lock_root, "timeout_seconds": timeout_seconds}
    given = {name: value for name, value in given.items() if value is not None}
    return LockSettings.from_env(hosts_hint=ZOOKEEPER_HINT, **given)
