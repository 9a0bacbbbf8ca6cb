"""One ensemble per table: the pin, a table property that names the ensemble whose lock on the table counts.

A lock of another ensemble excludes nobody: with a wrong host list, or after an ensemble was wiped and built again,
there would be two gates. So a table that was adopted (`sluice adopt`) is written under its own ensemble's lock only.
"""

from __future__ import annotations

import uuid

from pyspark.sql import SparkSession

from lock_manager import EnsembleMismatchError, HeldLock
from lock_manager.errors import ENSEMBLE_PROPERTY
from writer_jobs.delta_log import DeltaTableLog
from writer_jobs.errors import TableError
from writer_jobs.failures import JVM_ERRORS, one_sentence


def refuse_other_ensemble(hold: HeldLock, table_log: DeltaTableLog) -> str | None:
    """Make sure that a hold is of the ensemble to which its table is pinned, if it is to one; return that one.

    Raises:
        EnsembleMismatchError: it is of another one.
        TableError, StorageError: the table's log cannot be read; see :meth:`DeltaTableLog.state`.

    """
    state = table_log.state()
    if state is not None and state.ensemble is not None and state.ensemble != hold.ensemble_id:
        raise EnsembleMismatchError(resource=hold.resource, ensemble=hold.ensemble_id, pinned_to=state.ensemble)
    return None if state is None else state.ensemble


def pin_again(spark: SparkSession, table_log: DeltaTableLog, ensemble: str) -> None:
    """Pin a table that was replaced or restored under its lock, which drops its properties; as :func:`pin_table`."""
    state = table_log.state()
    if state is not None and state.ensemble is None:
        pin_table(spark, table_log, ensemble)


def pin_table(spark: SparkSession, table_log: DeltaTableLog, ensemble: str) -> int:
    """Pin a table to an ensemble by a commit, and return its version. To be called under the table's lock.

    Args:
        spark: the session.
        table_log: of the table.
        ensemble: UUID.

    Raises:
        TableError: Delta refused, or the table's log cannot be read.
        StorageError: the store refused, or does not answer.
        SluiceError: what the commit guard found.

    """
    location = table_log.location.replace("`", "``")
    try:
        spark.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ('{ENSEMBLE_PROPERTY}' = '{uuid.UUID(ensemble)}')")
    except JVM_ERRORS as error:
        raise TableError(f"{table_log.location} was not pinned: {one_sentence(error)}") from error
    return table_log.head().version
