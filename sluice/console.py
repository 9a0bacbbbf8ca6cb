"""Output of commands: consoles, and errors as one sentence with an exit code."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer
from rich.console import Console

from lock_manager import SluiceError
from sluice.errors import LogAccessError
from sluice.interrupts import Interrupted

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Exit code of a command that failed, or that found something wrong.
FAILED = 1
_BAD_ARGUMENTS = 2
_PIPE_WIDTH = 200


def table_console(console: Console) -> Console:
    """Return a console that is wide enough for a table if standard output is a pipe."""
    return console if console.is_terminal else Console(file=console.file, highlight=False, width=_PIPE_WIDTH)


def errors_as_sentences(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Print a :class:`SluiceError` of a command as one sentence on standard error, and exit with its code."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except Interrupted as stop:
            sys.stderr.write(f"sluice: stopped by {stop}; everything that was started has been ended\n")
            raise typer.Exit(stop.exit_code) from None
        except SluiceError as error:
            if kwargs.get("verbose"):
                traceback.print_exc()
            sys.stderr.write(f"sluice: {error}\n")
            bad = isinstance(error, ValueError | LogAccessError)
            raise typer.Exit(_BAD_ARGUMENTS if bad else FAILED) from None

    return run
