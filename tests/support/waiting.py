"""Wait for a condition, or for the timeout of a request, instead of a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable

from lock_manager import LockTimeoutError
from lock_manager.errors import EnsembleUnavailableError

POLL_SECONDS = 0.01

REPETITIONS = 20
"""Requests with a short timeout, before a coordinator that answers none of them is an error."""


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


def lock_timeout(request: Callable[[], object]) -> LockTimeoutError:
    """Return the error of a request with a short timeout for a lock that another program holds.

    On a busy machine a coordinator may not answer within such a timeout, which is another error: the request is
    repeated.
    """
    for _ in range(REPETITIONS):
        try:
            result = request()
        except LockTimeoutError as error:
            return error
        except EnsembleUnavailableError:
            continue
        raise AssertionError(f"the request did not wait for the lock: {result}")
    raise AssertionError(f"the coordinator did not answer {REPETITIONS} requests in a row")
