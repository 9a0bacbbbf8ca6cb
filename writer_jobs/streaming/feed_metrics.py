"""The metric of a feed: how far a stream has followed its source."""

from __future__ import annotations

import math
import time

from lock_manager.measurements import SECONDS, Kind, Metric, record
from writer_jobs.streaming.query import AVAILABLE_NOW

_NEWEST = Metric(
    Kind.GAUGE,
    "sluice_feed_newest_timestamp_seconds",
    "Newest source time that a stream has applied.",
    ("source", "trigger"),
    SECONDS,
)

#: Every metric of this module.
FEED_METRICS = (_NEWEST,)


class FeedProgress:
    """Records the newest source time of a stream.

    It is a time and no lag: the lag, the time since then, also grows while the stream stands still.

    Args:
        table: Canonical URI of the table.
        source: Topic, folder or table that the stream reads.
        trigger: Trigger of the stream. Streams that end by themselves are labelled, because they are behind between two
            runs.

    """

    def __init__(self, table: str, source: str, trigger: str) -> None:
        self._labels = (table, source, trigger if trigger == AVAILABLE_NOW else "interval")
        self._newest_at = -math.inf

    def record(self, newest_at: float | None) -> None:
        """Record that a batch was applied; ``newest_at`` is its newest source time, None if it has none.

        A time in the future counts as now. Otherwise one wrong row would hide that the stream stands still.
        """
        if newest_at is None:
            return
        newest_at = min(newest_at, time.time())
        if newest_at > self._newest_at:
            self._newest_at = newest_at
            record(_NEWEST, newest_at, *self._labels)
