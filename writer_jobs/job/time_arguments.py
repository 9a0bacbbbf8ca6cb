"""Types for argparse: timestamps and durations."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta

_DURATION = re.compile(r"(\d+) (second|minute|hour|day|week)s?")


def timestamp(argument: str) -> datetime:
    """Parse a timestamp such as ``2013-02-01`` or ``2013-02-01T06:00:00+01:00``; without an offset it is in UTC."""
    try:
        moment = datetime.fromisoformat(argument)
    except ValueError as error:
        message = f"{argument!r} is not a time such as 2013-02-01 or 2013-02-01T06:00:00Z"
        raise argparse.ArgumentTypeError(message) from error
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def timestamp_or_duration(argument: str) -> datetime:
    """Parse a timestamp, or a duration from now such as ``30 days``."""
    try:
        return datetime.now(UTC) + duration(argument) if _DURATION.fullmatch(argument) else timestamp(argument)
    except (argparse.ArgumentTypeError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f'{argument!r} is not a time such as "30 days" or 2013-02-01') from error


def duration(argument: str) -> timedelta:
    """Parse a duration such as ``10 minutes``."""
    match = _DURATION.fullmatch(argument)
    if match is None:
        message = f'{argument!r} is not a duration such as "10 minutes", "2 hours" or "30 days"'
        raise argparse.ArgumentTypeError(message)
    try:
        return timedelta(**{f"{match[2]}s": int(match[1])})
    except OverflowError as error:
        raise argparse.ArgumentTypeError(f"{argument!r} is too long") from error
