"""Wait for a condition, never for seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_SECONDS = 0.01


def eventually(
    condition: Callable[[], object], within: float = 30.0, what: str | Callable[[], str] = "the condition"
) -> None:
    """Wait until a condition is true.

    Args:
        condition: asked again and again.
        within: seconds.
        what: it says, for the message if it does not come true; or returns it.

    Raises:
        AssertionError: it did not come true in time.

    """
    deadline = time.monotonic() + within
    while not condition():
        assert time.monotonic() < deadline, (
            f"{what if isinstance(what, str) else what()} did not come true within {within:g} s"
        )
        time.sleep(LOOK_SECONDS)
