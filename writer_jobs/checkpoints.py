"""Checkpoints of the log that commits have made due: written when the lock is given back, by one writer at a time."""

from __future__ import annotations

import json
import logging
import threading

from pyspark.sql import SparkSession

from lock_manager import LockTimeoutError, SluiceError, ZookeeperLockManager
from lock_manager.nesting import REGISTRY
from lock_manager.resources import canonical_table_uri
from writer_jobs.failures import JVM_ERRORS, one_sentence
from writer_jobs.log_store import log_store

log = logging.getLogger(__name__)

LAST_CHECKPOINT = "_delta_log/_last_checkpoint"


def write_due_checkpoints(spark: SparkSession, manager: ZookeeperLockManager) -> None:
    """Write what the commits of this driver have made due, unless this thread still holds a lock.

    One writer at a time: who finds another at it leaves it out, for that one's checkpoint, or the one after ten more
    versions, does as well. Nothing that goes wrong here is an error of the write that was committed before: it is
    logged, and the next checkpoint is as good.

    Args:
        spark: the session.
        manager: gives the lock on a table's last checkpoint.

    """
    if REGISTRY.of(threading.current_thread()):
        return
    checkpoints = log_store(spark, "Checkpoints")
    try:
        for table in json.loads(checkpoints.due()):
            resource = f"{canonical_table_uri(table)}/{LAST_CHECKPOINT}"
            try:
                with manager.acquire(resource, timeout_seconds=0):
                    log.debug("checkpoint of %s by %s", table, checkpoints.write(table))
            except LockTimeoutError:
                checkpoints.forget(table)
    except (SluiceError, *JVM_ERRORS) as error:
        log.warning("a checkpoint is left to the next commit that makes one due: %s", one_sentence(error))
