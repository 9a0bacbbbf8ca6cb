"""Commands that write configuration: ``config from-stack``."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from sluice.commands.options import Commands, Verbose
from sluice.console import errors_as_sentences
from sluice.errors import StackOutputError
from sluice.interrupts import interruptible
from sluice.submit.stack_config import StackConfig, write_config

config = Commands(name="config", no_args_is_help=True, help="Write configuration files.")


class Role(StrEnum):
    """Who a job is to AWS and to ZooKeeper."""

    APPENDER = "appender"
    MAINTENANCE = "maintenance"
    OPERATOR = "operator"


# The group stays one when it has one command.
@config.callback()
def _config() -> None: ...


@config.command("from-stack")
@errors_as_sentences
def from_stack(
    file: Annotated[
        Path | None, typer.Argument(help="Outputs of the stack, - for standard input.  [dim]default: what is piped[/]")
    ] = None,
    *,
    role: Annotated[Role, typer.Option(help="Whose secret the jobs are to ask for.")] = Role.APPENDER,
    output: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to write them.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    verbose: Verbose = False,  # noqa: ARG001 (the decorator's)
) -> None:
    """Write spark-defaults.conf and sluice.env from the outputs of a stack.

    spark-defaults.conf leads every program that starts with it through the
    guarded log store; sluice.env tells it the ensemble, the lock root, the
    region and the ARN of its role's secret, as NAME=value lines for a shell,
    systemd or Docker. No secret is in either of them. Both are written, or none.

    [bold]pulumi stack output --json | sluice config from-stack[/]
    [bold]sluice config from-stack outputs.json --role maintenance --output conf[/]

    Exit codes: 0 written, 1 a file cannot be written, 2 bad arguments or
    outputs, or a file is there already, 130 Ctrl-C.
    """
    with interruptible():
        found = StackConfig.of_outputs(_text(file), role.value)
        defaults, environment = write_config(found, output, force=force)
    print(f"wrote {defaults} and {environment}")
    if found.secret_arn is None:
        print(f"the stack has no secret for the role {role.value}: docs/security.md says how jobs get credentials")
    print(
        f"(set -a; . {quote(_in_sight(environment))}; spark-submit --properties-file {quote(str(defaults))} "
        f"$(sluice submit-args) JOB.py s3a://{found.bucket}/TABLE)"
    )


def _text(file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        raise StackOutputError("give a file, or pipe into it: pulumi stack output --json | sluice config from-stack")
    try:
        # utf-8-sig: some shells begin what they redirect with a mark.
        return sys.stdin.read() if file is None or str(file) == "-" else file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise StackOutputError(f"{file or 'standard input'} cannot be read ({reason})") from error


def _in_sight(path: Path) -> str:
    """Return a path in which a shell's dot looks for no program of that name."""
    return str(path) if path.is_absolute() else f"./{path}"
