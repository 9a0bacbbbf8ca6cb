"""A Delta table that Debezium's messages are applied to."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter
from writer_jobs.feeds.debezium.apply import apply_events
from writer_jobs.merge.result import ChangesResult

Message = tuple[bytes | None, bytes | None, str]
"""Key, value and origin."""


def frame(spark: SparkSession, messages: Iterable[Message]) -> DataFrame:
    return spark.createDataFrame(list(messages), "key binary, value binary, origin string")


class EventsTable:
    """A table that messages are applied to; the first changes create it."""

    def __init__(self, spark: SparkSession, manager: ZookeeperLockManager, location: Path) -> None:
        self.spark, self.location = spark, str(location)
        self.writer = LockedDeltaWriter(spark, manager, self.location)

    def apply(self, *messages: Message, **options: Any) -> ChangesResult:
        return apply_events(self.writer, frame(self.spark, messages), **options)

    def stored_rows(self) -> list[Row]:
        """Return the rows of the table, with all columns."""
        return self.spark.read.format("delta").load(self.location).collect()
