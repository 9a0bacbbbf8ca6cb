"""Truncates of a source table, in the order of its changes.

A truncate deletes the rows with a smaller sequence. Changes may arrive in any order, so the sequence of the last
truncate stays in ``sluice.feed`` (``truncated_at``), and changes with a smaller sequence that arrive later are dropped.
The property does not expire, and a truncate that is applied twice deletes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType

from lock_manager import Hold
from writer_jobs.commit.options import WriteOptions, lock_deadline
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.snapshot import FEED_PROPERTY, TableState
from writer_jobs.delta.sql_names import property_list, quoted, raw_literal
from writer_jobs.errors import ChangesError
from writer_jobs.merge.change_spec import COLUMN_SEQUENCES
from writer_jobs.merge.evolution import sql_type
from writer_jobs.merge.merge_sql import JSON_OPTIONS
from writer_jobs.merge.table_feed import FeedBinding, TableFeed, feed_of
from writer_jobs.merge.table_shape import alter_if_needed, existing_state, lock_table
from writer_jobs.writer import LockedDeltaWriter

_SEQUENCE = "sequence"
_UNREADABLE = f"truncated_at in the table property {FEED_PROPERTY} cannot be read"
_APOSTROPHE, _JSON_APOSTROPHE = "'", r"\u0027"


def sequence_text(sequence: Column) -> Column:
    """Return a sequence as the text that ``truncated_at`` stores."""
    return F.to_json(F.struct(sequence.alias(_SEQUENCE)), JSON_OPTIONS)


def parsed_sequence(text: str, sequence_type: DataType) -> Column:
    """Return the sequence in a text of :func:`sequence_text`; fail when it is read if the text is another one."""
    return F.coalesce(F.expr(_sql(text, sequence_type)), F.raise_error(_UNREADABLE).cast(sequence_type))


def apply_truncate(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    truncated_at: str,
    *,
    sequence_name: str,
    source_tables: tuple[str, ...] | None,
    lock_timeout_seconds: float | None = None,
    metadata: Mapping[str, Any] | None = None,
    before_write: Callable[[Hold], None] | None = None,
) -> CommitResult:
    """Delete the rows of a table that are older than a truncate of its source table, and store its sequence.

    A row with the sequence of the truncate counts as newer.

    Args:
        spark: Session of the writer.
        writer: Writer of a table that :func:`~writer_jobs.merge.apply.apply_changes` has created, with SCD type 1.
        truncated_at: Sequence of the truncate, as :func:`sequence_text` returns it.
        sequence_name: Name of the order; see :func:`~writer_jobs.merge.apply.apply_changes`.
        source_tables: The table that was truncated; None if it is not known.
        lock_timeout_seconds: Seconds to wait for the lock; None: the manager's default.
        metadata: Additional metadata of the commit; JSON values.
        before_write: Called with the hold, under the lock, before the table is changed.

    Raises:
        ChangesError: The table is bound to another feed, or to none.
        SluiceError: See :meth:`LockedDeltaWriter.append`.

    """
    options = WriteOptions(lock_timeout_seconds=lock_timeout_seconds)
    deadline = lock_deadline(options, writer.manager)
    with lock_table(spark, writer, deadline) as hold:
        state = existing_state(writer, writer.log.state())
        feed = _feed(spark, writer, state, sequence_name, source_tables)
        if before_write is not None:
            before_write(hold)
        types = {column.name.lower(): column.dataType for column in state.schema}
        sequence = feed.sequence_column or ""
        if sequence.lower() not in types:
            raise ChangesError(table=writer.table, reason=f"the table no longer has the sequence column {sequence}")
        limit = _sql(truncated_at, types[sequence.lower()])
        order = _compare(spark, truncated_at, feed.truncated_at, types[sequence.lower()])
        if order > 0:
            # Before the rows are deleted: if this run is killed, no older change restores a row that the next run
            # deletes.
            text = replace(feed, truncated_at=truncated_at).text
            clause = f"SET TBLPROPERTIES ({property_list({FEED_PROPERTY: text})})"
            alter_if_needed(spark, writer, state, lambda _: [clause], deadline)
        _reset_kept_values(spark, writer, state, limit, metadata)
        condition = f"{quoted(sequence)} < {limit}"
        if order >= 0:
            # A row without a sequence is older than any change.
            condition += f" OR {quoted(sequence)} IS NULL"
        return writer.delete(condition, lock="table", metadata=metadata)


def _reset_kept_values(
    spark: SparkSession, writer: LockedDeltaWriter, state: TableState, limit: str, metadata: Mapping[str, Any] | None
) -> None:
    """Reset the values of rows that are older than a truncate, and that newer changes of the rows did not contain."""
    if COLUMN_SEQUENCES not in state.schema.names:
        return
    is_older = f"exists(map_values({COLUMN_SEQUENCES}), sequence -> sequence < {limit})"
    table = spark.read.format("delta").load(writer.location)
    names = table.where(is_older).select(F.explode(F.map_keys(COLUMN_SEQUENCES)).alias("name")).distinct().collect()
    if not names:
        return
    lower_names = {row["name"] for row in names}
    assignments = {
        quoted(name): f"CASE WHEN {COLUMN_SEQUENCES}[{raw_literal(name.lower())}] < {limit} THEN NULL "
        f"ELSE {quoted(name)} END"
        for name in state.schema.names
        if name.lower() in lower_names
    }
    assignments[COLUMN_SEQUENCES] = (
        f"transform_values({COLUMN_SEQUENCES}, (name, sequence) -> "
        f"CASE WHEN sequence < {limit} THEN NULL ELSE sequence END)"
    )
    writer.update(assignments, is_older, lock="table", metadata=metadata)


def _feed(
    spark: SparkSession,
    writer: LockedDeltaWriter,
    state: TableState,
    sequence_name: str,
    source_tables: tuple[str, ...] | None,
) -> TableFeed:
    """Return the feed of a table.

    Raises:
        ChangesError: It has another order or other source tables, keeps a history, or there is none.

    """
    feed = feed_of(state)
    if feed is None:
        raise ChangesError(
            table=writer.table,
            reason="the source's table was truncated, and the rows of this feed are not known, because the table is "
            f"bound to no feed (table property {FEED_PROPERTY}): use --on-truncate ignore, and delete the rows",
        )
    run_feed = replace(feed, model="changes", scd_type=1, sequence_by=sequence_name, source_tables=source_tables)
    FeedBinding(spark, writer.table, run_feed).refuse_other(state)
    return feed


def _sql(text: str, sequence_type: DataType) -> str:
    """Return the SQL of the sequence in a text; it is null if the text is not one of :func:`sequence_text`."""
    options = ", ".join(f"{raw_literal(name)}, {raw_literal(value)}" for name, value in JSON_OPTIONS.items())
    fields = raw_literal(f"{_SEQUENCE} {sql_type(sequence_type)}")
    # A raw literal has one kind of quotes.
    return (
        f"from_json({raw_literal(text.replace(_APOSTROPHE, _JSON_APOSTROPHE))}, {fields}, map({options})).{_SEQUENCE}"
    )


def _compare(spark: SparkSession, text: str, stored_text: str | None, sequence_type: DataType) -> int:
    """Return 1 if a sequence is larger than a stored one, 0 if they are equal, else -1."""
    if stored_text is None:
        return 1
    sequence, stored_sequence = (parsed_sequence(value, sequence_type) for value in (text, stored_text))
    order = F.when(sequence > stored_sequence, 1).when(sequence == stored_sequence, 0).otherwise(-1)
    return int(spark.range(1).select(order).collect()[0][0])
