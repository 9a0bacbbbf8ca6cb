"""Output of the commands: consoles, tables for people, and errors as one sentence with an exit code."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Collection, Iterable
from typing import Any, ParamSpec, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lock_manager import SluiceError
from sluice.errors import LogAccessError
from sluice.interrupts import Interrupted

_P = ParamSpec("_P")
_R = TypeVar("_R")

#: Exit code of a command that failed, or that found a problem.
FAILED = 1


def plain_console(**options: Any) -> Console:
    """Return a console that prints text as it is: names of jobs and tables may contain ``[``."""
    return Console(highlight=False, markup=False, **options)


def table_console(console: Console) -> Console:
    """Return the console if it is a terminal, otherwise one with the same output that is wide enough for a table."""
    return console if console.is_terminal else plain_console(file=console.file, width=200)


def make_table(
    columns: Iterable[str], *, right: Collection[str] = (), no_wrap: Collection[str] = (), **options: Any
) -> Table:
    """Return an empty table for people.

    Cells of the columns in ``right`` are aligned right, and those of the columns in ``no_wrap`` stay on one line.
    """
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, **options)
    for name in columns:
        table.add_column(name, justify="right" if name in right else "left", no_wrap=name in no_wrap, overflow="fold")
    return table


def print_figures(title: str, figures: Iterable[tuple[str, str]], console: Console) -> None:
    """Print a title, and below it a line for each figure: its name and its value."""
    table = make_table(("name", "value"), right=("value",), show_header=False, title=Text(title))
    for figure in figures:
        table.add_row(*map(Text, figure))
    console.print(table)


def print_problems(problems: Iterable[str], console: Console, *, label: str = "problem") -> None:
    """Print each problem on a line of its own, after a red label."""
    for problem in problems:
        console.print(Text.assemble((f"{label}: ", "bold red"), problem), soft_wrap=True)


def errors_as_sentences(command: Callable[_P, _R]) -> Callable[_P, _R]:
    """Print a :class:`SluiceError` of a command as one sentence on standard error, and exit with its code."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return command(*args, **kwargs)
        except Interrupted as interrupted:
            sys.stderr.write(f"sluice: stopped by {interrupted}; everything that was started has been ended\n")
            raise typer.Exit(interrupted.exit_code) from None
        except SluiceError as error:
            if kwargs.get("verbose"):
                traceback.print_exc()
            sys.stderr.write(f"sluice: {error}\n")
            is_bad_input = isinstance(error, ValueError | LogAccessError)
            raise typer.Exit(2 if is_bad_input else FAILED) from None

    return run
