"""Says how far a soak is: in place on a terminal, in a line now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.status import Status

_PLAIN_SECONDS = 10.0


def progress_line(notes: Console, status: Status) -> Callable[[str], None]:
    """Return what shows a line: as the status of a terminal, or on standard error, every 10 s."""
    last = time.monotonic()

    def show(line: str) -> None:
        nonlocal last
        if notes.is_terminal:
            status.update(line)
        elif time.monotonic() - last > _PLAIN_SECONDS:
            last = time.monotonic()
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    return show
