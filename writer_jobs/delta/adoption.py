"""The adoption in a table's properties (:mod:`lock_manager.table_records.adoption`): read, restored and committed.

A lock of another ensemble, or on another name of the table, excludes nobody. So a table that was adopted (`sluice
adopt`) is written under its own lock only.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from lock_manager import Adoption, Hold, canonical_table_uri
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.sql_names import property_list, quoted
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import TableError


def refuse_other_ensemble(hold: Hold, snapshot: Snapshot) -> Adoption | None:
    """Make sure that the table is adopted by a hold's ensemble and under its name, and return the adoption.

    Raises:
        AdoptionMismatchError: it is of another ensemble, or of another name of the table.

    """
    state = snapshot.state
    if state is None or state.adoption is None:
        return None
    state.adoption.check(ensemble=hold.ensemble_id, table=canonical_table_uri(snapshot.location))
    return state.adoption


def own_adoption(hold: Hold, table_log: DeltaTableLog) -> Adoption:
    """Return the adoption of a table whose lock is this hold."""
    return Adoption(hold.ensemble_id, canonical_table_uri(table_log.location))


def restore_adoption(spark: SparkSession, table_log: DeltaTableLog, hold: Hold, before: Adoption | None) -> None:
    """Undo a block's side effects on the table's adoption.

    REPLACE and RESTORE remove a table's properties, or bring back older ones. A clone gets those of its source. So the
    table gets back the adoption that it had before the block. If it had none and has one now, that is another table's,
    and the table gets its own.

    Args:
        spark: the session.
        table_log: of the table.
        hold: under which the block ran.
        before: the adoption of the table before the block.

    Raises:
        TableError, StorageError, SluiceError: as :func:`commit_adoption`.

    """
    state = table_log.state()
    if state is None or state.adoption == before:
        return
    own = own_adoption(hold, table_log)
    wanted = before or own
    if before is not None and before.table is None and state.adoption is not None and state.adoption.table is not None:
        # An earlier release adopted it, under no name: it may have its own by now, and must not keep another table's.
        wanted = Adoption(before.ensemble, own.table)
    if state.adoption != wanted:
        commit_adoption(spark, table_log, wanted)


def commit_adoption(spark: SparkSession, table_log: DeltaTableLog, adoption: Adoption) -> int:
    """Commit the adoption of a table, and return the version. To be called under the table's lock.

    Args:
        spark: the session.
        table_log: of the table.
        adoption: by which ensemble, and under which name.

    Raises:
        TableError: Delta refused, or the table's log cannot be read.
        StorageError: the store refused, or does not answer.
        SluiceError: what the commit guard found.

    """
    try:
        pairs = property_list(adoption.properties)
    except ValueError as error:
        raise TableError(
            f"a table cannot be adopted under a name with both kinds of quotes in it: {adoption.table}"
        ) from error
    try:
        spark.sql(f"ALTER TABLE delta.{quoted(table_log.location)} SET TBLPROPERTIES ({pairs})")
    except JVM_ERRORS as error:
        raise TableError(f"{table_log.location} was not adopted: {one_sentence(error)}") from error
    return table_log.head().version
