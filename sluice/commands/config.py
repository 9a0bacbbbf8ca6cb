"""The command ``config from-stack``, which writes configuration files."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from sluice.commands.options import Commands
from sluice.errors import BadInputError
from sluice.interrupts import interruptible
from sluice.submit.stack_config import StackConfig, write_config

config = Commands(name="config", no_args_is_help=True, help="Write configuration files.")


class Role(StrEnum):
    """The role of a job. It selects the secret for ZooKeeper."""

    APPENDER = "appender"
    MAINTENANCE = "maintenance"
    OPERATOR = "operator"


# Without a callback typer would replace a group that has only one command by that command.
@config.callback()
def _config() -> None: ...


@config.command("from-stack")
def from_stack(
    file: Annotated[
        Path | None, typer.Argument(help="Outputs of the stack; - for standard input.  [dim]default: standard input[/]")
    ] = None,
    *,
    role: Annotated[Role, typer.Option(help="The role whose secret the jobs use.")] = Role.APPENDER,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Target folder.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write spark-defaults.conf and sluice.env from the outputs of a stack.

    spark-defaults.conf sets the guarded log store for every program that uses
    it. sluice.env names the region and the coordinator: the lock URL, or the
    ensemble, its lock root and the ARN of the role's secret. Its lines have the
    form NAME=value, for a shell, systemd or Docker. Neither file contains a
    secret. If one file cannot be written, neither is.

    [bold]pulumi stack output --json | sluice config from-stack[/]
    [bold]sluice config from-stack outputs.json --role maintenance --output conf[/]

    Exit codes: 0 written, 1 a file cannot be written, 2 bad arguments or
    outputs, or a file exists already, 130 Ctrl-C.
    """
    with interruptible():
        stack = StackConfig.of_outputs(_read_outputs(file), role.value)
        defaults, environment = write_config(stack, output, force=force)
    print(f"wrote {defaults} and {environment}")
    if stack.lacks_secret:
        print(f"the stack has no secret for the role {role.value}; see docs/security.md for credentials of jobs")
    # A shell's "." searches $PATH for a name without a slash.
    environment_path = environment if environment.is_absolute() else f"./{environment}"
    print(
        f"(set -a; . {quote(str(environment_path))}; spark-submit --properties-file {quote(str(defaults))} "
        f"$(sluice submit-args) JOB.py s3a://{stack.bucket}/TABLE)"
    )


def _read_outputs(file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        raise BadInputError("no outputs; give a file, or pipe: pulumi stack output --json | sluice config from-stack")
    try:
        # utf-8-sig: some shells write a byte order mark when they redirect.
        return sys.stdin.read() if file is None or str(file) == "-" else file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise BadInputError(f"{file or 'standard input'} cannot be read ({reason})") from error
