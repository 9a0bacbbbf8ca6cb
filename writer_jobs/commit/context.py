"""The context of a writer: its session, lock manager and table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from pyspark.sql import SparkSession

from lock_manager import LockManager
from writer_jobs.commit.execution import Execution
from writer_jobs.delta.table_log import DeltaTableLog


@dataclass(frozen=True, kw_only=True)
class WriterContext:
    """The context that all writes of one writer share.

    Attributes:
        spark: The session.
        manager: The lock manager.
        log: Log of the table.
        table: Canonical URI, under which the table is locked.
        is_cancelled: Returns whether :meth:`LockedDeltaWriter.cancel` was called.
        cancellable: Returns a context that makes :meth:`LockedDeltaWriter.cancel` cancel an execution.

    """

    spark: SparkSession
    manager: LockManager
    log: DeltaTableLog
    table: str
    is_cancelled: Callable[[], bool]
    cancellable: Callable[[Execution], AbstractContextManager[None]]
