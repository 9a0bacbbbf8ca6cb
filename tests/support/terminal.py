"""A terminal whose output the test reads."""

from __future__ import annotations

import os
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


class Terminal:
    """A pseudo-terminal.

    Attributes:
        stream: Writes to the terminal; programs see a terminal.
        path: Device of the terminal.

    """

    def __init__(self, terminal: int, stream: TextIO) -> None:
        self.stream = stream
        self.path = Path(os.ttyname(stream.fileno()))
        self._terminal = terminal
        self._output = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Stop the output of the terminal, as Ctrl-S does."""
        termios.tcflow(self.stream, termios.TCOOFF)

    def resume(self) -> None:
        termios.tcflow(self.stream, termios.TCOON)

    @property
    def text(self) -> str:
        """All that was written to the terminal so far."""
        return self._output.decode()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:  # all writers have closed the terminal
                return
            self._output += data


@contextmanager
def open_terminal() -> Iterator[Terminal]:
    """Open a terminal of 400 columns for a block."""
    terminal, child = os.openpty()
    termios.tcsetwinsize(child, (40, 400))
    with os.fdopen(child, "w") as stream:
        opened = Terminal(terminal, stream)
        try:
            yield opened
        finally:
            opened.resume()
    opened._reader.join(10)
    os.close(terminal)
