"""Times on a command line: moments, and how long something takes; types for argparse."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta

_SPAN = re.compile(r"(\d+) (second|minute|hour|day|week)s?")


def moment(value: str) -> datetime:
    """Return a moment such as ``2013-02-01`` or ``2013-02-01T06:00:00+01:00``; without an offset, in UTC."""
    try:
        found = datetime.fromisoformat(value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{value!r} is no time such as 2013-02-01 or 2013-02-01T06:00:00Z") from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def moment_or_span(value: str) -> datetime:
    """Return a moment, or how long from now as one, such as ``30 days``."""
    try:
        return datetime.now(UTC) + span(value) if _SPAN.fullmatch(value) else moment(value)
    except (argparse.ArgumentTypeError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f'{value!r} is no time such as "30 days" or 2013-02-01') from error


def span(value: str) -> timedelta:
    """Return how long something takes, such as ``10 minutes``."""
    found = _SPAN.fullmatch(value)
    if found is None:
        raise argparse.ArgumentTypeError(f'{value!r} is no time such as "10 minutes", "2 hours" or "30 days"')
    try:
        return timedelta(**{f"{found[2]}s": int(found[1])})
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"{value!r} is too long") from error
