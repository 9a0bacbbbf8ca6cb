"""Read, restore and commit the adoption in a table's properties (:mod:`lock_manager.table_records.adoption`).

A lock of another ensemble, or on another name of the table, excludes nobody. So an adopted table (`sluice adopt`) is
written only under the lock that its adoption names.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from lock_manager import Adoption, Hold, canonical_table_uri
from lock_manager.errors import NotAdoptedError
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.sql_names import property_list, quoted
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import TableError


def refuse_other_ensemble(hold: Hold, snapshot: Snapshot) -> Adoption | None:
    """Return the adoption of a table; None if it is not adopted or does not exist.

    Raises:
        AdoptionMismatchError: The adoption names another lock than the hold's, or the hold counts only for adopted
            tables, and the table is not adopted.

    """
    adoption = None if snapshot.state is None else snapshot.state.adoption
    table = canonical_table_uri(snapshot.location)
    if adoption is not None:
        adoption.check(ensemble=hold.ensemble_id, table=table)
    elif hold.needs_adoption:
        raise NotAdoptedError(resource=table)
    return adoption


def adoption_under(hold: Hold, table_log: DeltaTableLog) -> Adoption:
    """Return the adoption that names the lock of a hold."""
    return Adoption(hold.ensemble_id, canonical_table_uri(table_log.location))


def restore_adoption(
    spark: SparkSession, table_log: DeltaTableLog, hold: Hold, previous_adoption: Adoption | None
) -> None:
    """Undo a block's side effects on the table's adoption, see :meth:`Adoption.to_restore`.

    The errors are those of :func:`commit_adoption`.
    """
    state = table_log.state()
    if state is None:
        return
    adoption = Adoption.to_restore(previous_adoption, state.adoption, adoption_under(hold, table_log))
    if adoption is not None:
        commit_adoption(spark, table_log, adoption)


def commit_adoption(spark: SparkSession, table_log: DeltaTableLog, adoption: Adoption) -> int:
    """Commit the adoption of a table, and return the newest version. The caller holds the table's lock.

    Raises:
        TableError: The properties could not be committed.
        StorageError: They were committed, and the log cannot be read afterwards.
        SluiceError: The commit guard refused.

    """
    try:
        pairs = property_list(adoption.properties)
    except ValueError as error:
        raise TableError(
            f"the location {adoption.table} has both kinds of quotes in it, so the table cannot be adopted: move it"
        ) from error
    try:
        spark.sql(f"ALTER TABLE delta.{quoted(table_log.location)} SET TBLPROPERTIES ({pairs})")
    except JVM_ERRORS as error:
        raise TableError(f"{table_log.location} was not adopted: {error_reason(error)}") from error
    return table_log.head().version
