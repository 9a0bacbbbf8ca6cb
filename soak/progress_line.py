"""Show the progress of a soak: in place on a terminal, else as a line every 10 s."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.status import Status

_PLAIN_SECONDS = 10.0


def progress_line(stderr_console: Console, status: Status) -> Callable[[str], None]:
    """Return a function that shows a line as the terminal's status, or every 10 s on standard error."""
    last_time = time.monotonic()

    def show(line: str) -> None:
        nonlocal last_time
        if stderr_console.is_terminal:
            status.update(line)
        elif time.monotonic() - last_time > _PLAIN_SECONDS:
            last_time = time.monotonic()
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    return show
