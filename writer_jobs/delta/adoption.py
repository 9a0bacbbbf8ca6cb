"""The pin in a table's properties (:mod:`lock_manager.adoption`): read before a write, kept, set by a commit.

A lock of another ensemble, or on another name of the table, excludes nobody. So a table that was adopted (`sluice
adopt`) is written under its own lock only.
"""

from __future__ import annotations

from pyspark.sql import SparkSession

from lock_manager import Hold, Pin, canonical_table_uri
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.table_log import DeltaTableLog, Snapshot
from writer_jobs.errors import TableError


def refuse_other_ensemble(hold: Hold, snapshot: Snapshot) -> Pin | None:
    """Make sure that a hold is the one that its table is pinned to, by ensemble and by name, and return the pin.

    Raises:
        PinMismatchError: it is of another ensemble, or of another name of the table.

    """
    state = snapshot.state
    if state is None or state.pin is None:
        return None
    state.pin.check(ensemble=hold.ensemble_id, table=canonical_table_uri(snapshot.location))
    return state.pin


def own_pin(hold: Hold, table_log: DeltaTableLog) -> Pin:
    """Return the pin of a table whose lock is this hold."""
    return Pin(hold.ensemble_id, canonical_table_uri(table_log.location))


def pin_again(spark: SparkSession, table_log: DeltaTableLog, hold: Hold, pinned: Pin | None) -> None:
    """Undo a block's side effects on the table's pin.

    REPLACE and RESTORE remove a table's properties, or bring back older ones. A clone gets those of its source. So the
    table gets back the pin that it had before the block. If it had none and has one now, that pin is another table's,
    and the table gets its own.

    Args:
        spark: the session.
        table_log: of the table.
        hold: under which the block ran.
        pinned: to what the table was pinned before the block.

    Raises:
        TableError, StorageError, SluiceError: as :func:`pin_table`.

    """
    state = table_log.state()
    if state is None or state.pin == pinned:
        return
    own = own_pin(hold, table_log)
    wanted = pinned or own
    if pinned is not None and pinned.table is None and state.pin is not None and state.pin.table is not None:
        # An earlier release pinned it, to no name: it may have its own by now, and must not keep another table's.
        wanted = Pin(pinned.ensemble, own.table)
    if state.pin != wanted:
        pin_table(spark, table_log, wanted)


def pin_table(spark: SparkSession, table_log: DeltaTableLog, pin: Pin) -> int:
    """Pin a table by a commit, and return its version. To be called under the table's lock.

    Args:
        spark: the session.
        table_log: of the table.
        pin: to what.

    Raises:
        TableError: Delta refused, or the table's log cannot be read.
        StorageError: the store refused, or does not answer.
        SluiceError: what the commit guard found.

    """
    location = table_log.location.replace("`", "``")
    pairs = ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in pin.properties.items())
    try:
        spark.sql(f"ALTER TABLE delta.`{location}` SET TBLPROPERTIES ({pairs})")
    except JVM_ERRORS as error:
        raise TableError(f"{table_log.location} was not pinned: {one_sentence(error)}") from error
    return table_log.head().version


def _literal(text: str) -> str:
    """Write a text in SQL, as a raw literal, in which nothing but its quote has a meaning."""
    quote = '"' if "'" in text else "'"
    if quote in text:
        raise TableError(f"a table cannot be pinned to a name with both kinds of quotes in it: {text}")
    return f"r{quote}{text}{quote}"
