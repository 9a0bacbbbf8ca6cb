"""Shows the progress of a load: a live board on a terminal, otherwise a line every ten seconds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sluice.audit.checks import count_text
from sluice.demo.records import Phase, Writer

_PLAIN_SECONDS = 10.0
# The text and the style of each phase.
_PHASE_STYLES = {
    Phase.STARTING: ("starting Spark", "dim"),
    # A commit usually writes its rows before it requests the lock, so this phase includes writing.
    Phase.BEGUN: ("writing, waiting", "yellow"),
    Phase.HOLDING: ("COMMITTING", "bold green"),
    Phase.WRITING: ("writing", "cyan"),
    Phase.BETWEEN: ("next commit", "dim"),
    Phase.DONE: ("done", "green"),
    Phase.FAILED: ("FAILED", "bold red"),
}


class Board:
    """The progress of a load, as text and as a table. The state of the writers changes while the board is shown.

    ``planned`` is the number of commits of each writer, and ``rows`` the number of rows to load.
    """

    def __init__(self, title: str, writers: Sequence[Writer], planned: Sequence[int], rows: int) -> None:
        self._title = title
        self._writers = writers
        self._planned = planned
        self._rows = rows
        self._started = time.monotonic()

    def line(self) -> str:
        """Return the progress as one line."""
        by_phase: dict[Phase, list[str]] = defaultdict(list)
        for writer in self._writers:
            by_phase[writer.phase].append(str(writer.number))
        phases = [f"{_PHASE_STYLES[phase][0]}: {', '.join(by_phase[phase])}" for phase in Phase if phase in by_phase]
        return f"{self._summary()}; {'; '.join(phases)}"

    def table(self) -> Table:
        """Return a table with the state of every writer."""
        table = Table(box=box.SIMPLE, title=self._title, title_justify="left", title_style="bold", pad_edge=False)
        table.add_column("writer", no_wrap=True)
        table.add_column("state", no_wrap=True, min_width=24)
        table.add_column("commits", no_wrap=True, min_width=26)
        table.add_column("rows", justify="right", no_wrap=True, min_width=8)
        for writer, planned in zip(self._writers, self._planned, strict=True):
            commits = len(writer.commits)
            bar = Table.grid(padding=(0, 1))
            bar.add_row(ProgressBar(total=planned, completed=commits, width=18), f"{commits}/{planned}")
            table.add_row(f"writer {writer.number}", self._phase_text(writer), bar, f"{writer.rows:,}")
        table.caption = self._summary()
        table.caption_justify = "left"
        return table

    def _phase_text(self, writer: Writer) -> Text:
        text, style = _PHASE_STYLES[writer.phase]
        if writer.is_running:
            text += f"  {max(0.0, time.time() - writer.since):.1f} s"
        if writer.retried_at:
            text += f"  ({count_text(len(writer.retried_at), 'conflict')})"
        return Text(text, style=style)

    def _summary(self) -> str:
        commits = sum(len(writer.commits) for writer in self._writers)
        rows = sum(writer.rows for writer in self._writers)
        return (
            f"{time.monotonic() - self._started:.0f} s: {commits} of {sum(self._planned)} commits, "
            f"{rows:,} of {self._rows:,} rows"
        )


@contextmanager
def show_board(board: Board, console: Console) -> Iterator[Callable[[], None]]:
    """Show the board during a block. Yield a function that updates it; call it often."""
    if console.is_terminal:
        with Live(board.table(), console=console, auto_refresh=False) as live:
            yield lambda: live.update(board.table(), refresh=True)
            live.update(board.table(), refresh=True)
        return
    printed_at = time.monotonic()

    def print_line() -> None:
        nonlocal printed_at
        if time.monotonic() - printed_at >= _PLAIN_SECONDS:
            printed_at = time.monotonic()
            console.print(board.line(), soft_wrap=True)

    yield print_line
    console.print(board.line(), soft_wrap=True)
