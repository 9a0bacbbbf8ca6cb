"""Write the checkpoints that commits made due: after the lock is released, by one writer at a time.

A write returns when the checkpoint is written. In a :class:`CheckpointThread` the next write does not wait for it.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Self

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lock_manager import LockManager, LockTimeoutError, SluiceError, canonical_table_uri, tracing
from lock_manager.nesting import REGISTRY
from writer_jobs.delta.java_classes import java_class, log_store
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason

log = logging.getLogger(__name__)

#: Delta's pointer to a table's newest checkpoint. A writer of a checkpoint holds the lock on this name.
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"


class CheckpointThread:
    """A thread that writes the checkpoints of writes in other threads; the end of the block waits for all of them.

    Used by streams: a batch that waits for a checkpoint delays all later batches.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "sluice-checkpoints")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the writes of the current thread in this block leave their checkpoints to the checkpoint thread."""
        token = _THREAD.set(self)
        try:
            yield
        finally:
            _THREAD.reset(token)

    def write(self, spark: SparkSession, write: Callable[[], None]) -> None:
        """Call a function in the checkpoint thread, or in this thread after the end of the block."""

        def run() -> None:
            with suppress(*JVM_ERRORS):
                # Delta takes the settings of its stores from the active session.
                sessions = java_class(spark._jvm, "org.apache.spark.sql.classic.SparkSession")  # noqa: SLF001
                sessions.setActiveSession(spark._jsparkSession)  # noqa: SLF001
            write()

        try:
            self._executor.submit(run)
        except RuntimeError:
            # After an interrupt the block may end before the writes of other threads.
            write()


_THREAD: ContextVar[CheckpointThread | None] = ContextVar("sluice_checkpoint_thread", default=None)


def write_due_checkpoints(spark: SparkSession, manager: LockManager) -> None:
    """Write the checkpoints that commits of this driver made due, except for tables that this thread still locks.

    One writer at a time writes a table's checkpoint. If another writer is writing it, this call skips the table: that
    writer's checkpoint, or the next one that is due, serves as well. A failure here is not a failure of the write that
    was committed before. It is logged, and the next write tries again.

    In a block of :meth:`CheckpointThread.used`, this call returns before they are written.
    """
    checkpoints = log_store(spark, "Checkpoints")
    try:
        tables = json.loads(checkpoints.due())
    except (Py4JError, *JVM_ERRORS):
        # The driver has no guarded log store, which is allowed with the guard off, or its JVM is gone.
        return
    locked = {table for hold in REGISTRY.of(threading.current_thread()) for table in hold.scope} if tables else set()
    for table in tables:
        uri = canonical_table_uri(table)
        if uri not in locked and (due := checkpoints.take(table)) is not None:
            write = partial(_write, checkpoints, table, uri, due, manager, tracing.current())
            if (thread := _THREAD.get()) is None:
                write()
            else:
                thread.write(spark, write)


def _write(checkpoints: Any, table: str, uri: str, due: Any, manager: LockManager, parent: tracing.Span) -> None:
    try:
        # Without locks, two writers may write the same checkpoint, as with plain Delta.
        with (
            tracing.span("checkpoint", {"sluice.table": uri}, parent=parent),
            manager.acquire_all([f"{uri}/{LAST_CHECKPOINT}"], timeout_seconds=0, needs_exclusion=False),
        ):
            checkpoints.write(due)
    except LockTimeoutError:
        log.debug("another writer writes the checkpoint of %s", table)
    except (SluiceError, *JVM_ERRORS) as error:
        with suppress(*JVM_ERRORS):
            checkpoints.putBack(table, due)
        log.warning("the checkpoint of %s is left to the next write: %s", table, error_reason(error))
