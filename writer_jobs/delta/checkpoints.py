"""Write the checkpoints that commits made due: after the lock is released, by one writer at a time."""

from __future__ import annotations

import json
import logging
import threading
from contextlib import suppress
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from lock_manager import LockManager, LockTimeoutError, SluiceError, canonical_table_uri
from lock_manager.nesting import REGISTRY
from writer_jobs.delta.java_classes import log_store
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason

log = logging.getLogger(__name__)

#: Delta's pointer to a table's newest checkpoint. A writer of a checkpoint holds the lock on this name.
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"


def write_due_checkpoints(spark: SparkSession, manager: LockManager) -> None:
    """Write the checkpoints that commits of this driver made due, except for tables that this thread still locks.

    One writer at a time writes a table's checkpoint. If another writer is writing it, this call skips the table: that
    writer's checkpoint, or the next one that is due, serves as well. A failure here is not a failure of the write that
    was committed before. It is logged, and the next write tries again.
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
            _write(checkpoints, table, f"{uri}/{LAST_CHECKPOINT}", due, manager)


def _write(checkpoints: Any, table: str, resource: str, due: Any, manager: LockManager) -> None:
    try:
        # Without locks, two writers may write the same checkpoint, as with plain Delta.
        with manager.acquire_all([resource], timeout_seconds=0, needs_exclusion=False):
            checkpoints.write(due)
    except LockTimeoutError:
        log.debug("another writer writes the checkpoint of %s", table)
    except (SluiceError, *JVM_ERRORS) as error:
        with suppress(*JVM_ERRORS):
            checkpoints.putBack(table, due)
        log.warning("the checkpoint of %s is left to the next write: %s", table, error_reason(error))
