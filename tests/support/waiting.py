"""Wait for a condition instead of a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_SECONDS = 0.01


def eventually(
    condition: Callable[[], object], within: float = 30.0, label: str | Callable[[], str] = "the condition"
) -> None:
    """Wait until a condition is true.

    Args:
        condition: Function that returns a true value when the condition holds.
        within: Seconds to wait.
        label: Noun phrase for the condition in the error message, or a function that returns it.

    Raises:
        AssertionError: The condition did not become true in time.

    """
    deadline = time.monotonic() + within
    while not condition():
        if time.monotonic() >= deadline:
            text = label if isinstance(label, str) else label()
            raise AssertionError(f"waited {within:g} s in vain for {text}")
        time.sleep(POLL_SECONDS)
