"""Times in records that other programs may have written."""

from __future__ import annotations

_LATEST = 1e11
"""Latest time that is plausible, in seconds since the epoch: in the year 5138."""


def time_of(value: object) -> float | None:
    """Return a time in seconds since the epoch; None if the value is none: another type, not positive, or too large."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < _LATEST:
        return float(value)
    return None
