"""One deadline over everything that a request takes, on the monotonic clock."""

from __future__ import annotations

import time


class Deadline:
    """A point in monotonic time up to which something may take."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    def remaining(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._start + self.seconds - time.monotonic())

    def elapsed(self) -> float:
        """Seconds since it was set."""
        return time.monotonic() - self._start
