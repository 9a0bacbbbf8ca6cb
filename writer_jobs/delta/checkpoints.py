"""Checkpoints that commits made due: written after the lock is released, by one writer at a time."""

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
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.log_store import log_store

log = logging.getLogger(__name__)

#: Delta's pointer to a table's newest checkpoint; who writes one holds the lock on this name.
LAST_CHECKPOINT = "_delta_log/_last_checkpoint"


def write_due_checkpoints(spark: SparkSession, manager: LockManager) -> None:
    """Write what the commits of this driver have made due, but for tables that this thread still has a lock on.

    One writer at a time: who finds another at it leaves it out, for that one's checkpoint, or the one after ten more
    versions, does as well. Nothing that goes wrong here is an error of the write that was committed before: it is
    logged, and tried again behind the next write.

    Args:
        spark: the session.
        manager: gives the lock on a table's last checkpoint.

    """
    checkpoints = log_store(spark, "Checkpoints")
    try:
        due = json.loads(checkpoints.due())
    except (Py4JError, *JVM_ERRORS):
        # A driver without our log store, which may have its guard off, or one whose JVM is gone.
        return
    held = {table for hold in REGISTRY.of(threading.current_thread()) for table in hold.scope} if due else set()
    for table in due:
        uri = canonical_table_uri(table)
        if uri not in held and (taken := checkpoints.take(table)) is not None:
            _write(checkpoints, table, f"{uri}/{LAST_CHECKPOINT}", taken, manager)


def _write(checkpoints: Any, table: str, resource: str, taken: Any, manager: LockManager) -> None:
    try:
        with manager.acquire(resource, timeout_seconds=0):
            checkpoints.write(taken)
    except LockTimeoutError:
        log.debug("another writer is at the checkpoint of %s", table)
    except (SluiceError, *JVM_ERRORS) as error:
        with suppress(*JVM_ERRORS):
            checkpoints.putBack(table, taken)
        log.warning("the checkpoint of %s is left to the next write: %s", table, one_sentence(error))
