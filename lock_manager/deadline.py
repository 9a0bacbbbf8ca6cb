"""One deadline over all steps of a request, on the monotonic clock."""

from __future__ import annotations

import time


class Deadline:
    """A deadline some seconds after its creation."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    def remaining(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self._start + self.seconds - time.monotonic())

    def elapsed(self) -> float:
        """Return the seconds since it was created."""
        return time.monotonic() - self._start
