"""Decode Debezium's change events into changes for :func:`writer_jobs.apply_changes`.

A message is written by Kafka Connect's ``JsonConverter``, with schemas or without. A message that cannot be decoded
becomes a dead letter with a reason, so the feed goes on and loses nothing.

Sources: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events (operations,
tombstones, keys, ``unavailable.value.placeholder``), and the sources of :mod:`writer_jobs.feeds.debezium.positions` and
:mod:`writer_jobs.feeds.debezium.decoders`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import LongType

from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.partition_values import partition_types, unstorable_row_reason
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.decoded_batch import (
    DELETES,
    ORDER,
    POSITION,
    UNAVAILABLE_COLUMNS,
    DecodedBatch,
    OnTruncate,
)
from writer_jobs.feeds.debezium.envelopes import FILTERED, SKIPPED, TRUNCATE, parse_envelopes, resolve_source_tables
from writer_jobs.feeds.debezium.flattened import OP_IS_MISSING
from writer_jobs.feeds.debezium.infinity import Infinity
from writer_jobs.feeds.debezium.positions import TIMES, has_position, position, source_struct, topic_offset, total_order
from writer_jobs.feeds.debezium.row_columns import RowColumns, summarize_schemas
from writer_jobs.feeds.debezium.schema_registry import SchemaRegistry, with_json
from writer_jobs.feeds.debezium.undecodable import (
    UNAVAILABLE,
    is_unordered,
    unavailable_columns,
    undecodable_reason,
    unnamed_fields_reason,
)
from writer_jobs.feeds.message_values import member, variant_path
from writer_jobs.merge.change_spec import text_sequence_error
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.merge.table_feed import recorded_columns
from writer_jobs.merge.truncate import sequence_text

_TRANSACTION = "struct<id: string, total_order: bigint, data_collection_order: bigint>"


def decode(
    messages: DataFrame,
    *,
    table: TableState | None,
    keys: Sequence[str] | None = None,
    sequence_by: str | None = None,
    source_tables: Collection[str] = (),
    partition_by: Sequence[str] = (),
    unavailable_value: str = UNAVAILABLE,
    flattened: bool = False,
    schema_registry: SchemaRegistry | None = None,
    keeps_history: bool = False,
    on_truncate: OnTruncate = "refuse",
    infinity: Infinity = "dead-letter",
    local_times: bool = False,
) -> DecodedBatch:
    """Decode a batch of Debezium's messages.

    ::

        with decode(messages, table=writer.log.state()) as batch:
            if batch.count:
                apply_changes(writer, batch.changes, **batch.apply_options, schema_evolution=True)

    - ``c``, ``r`` and ``u`` write the row in ``after``. ``d`` deletes the row with the message's key, or with the key
      in ``before`` if the message has no key. A delete needs no other columns. ``t`` is refused,
      or is in ``truncated_at`` of the result.
    - A column that earlier events had, and that an event's schema lacks, is null in the event's row, so the row does
      not depend on the other events of the batch. Columns that no event ever had are omitted.
    - Types come from the messages' schemas. Without schemas, they come from the table, and for columns that the table
      lacks from the values. Without schemas, a message is a dead letter if the JSON type of a value does not match the
      column: a string for a number, or a number for a boolean. Two kinds of strings are exceptions: a text with a
      decimal point for a decimal column, and ``NaN``, ``Infinity`` or ``-Infinity`` for a float or double column.
      An object with the fields ``scale`` and ``value``, and no others, is a number of the mode ``precise``
      (``VariableScaleDecimal``) for a column of decimals, whole numbers or text, and for a new column.
      Messages of one batch may have different schemas: the batch has the columns of all schemas, and types that hold
      the values of all. Types without a common type are refused, because then the source has changed, and no single
      message is wrong.
    - An update of PostgreSQL that has a placeholder for a value that Debezium did not receive (TOAST) keeps the
      column's value. It becomes a dead letter if the column is a key, is in ``sequence_by``, or belongs to a
      row whose key changes. A message that inserts a row with a placeholder becomes a dead letter: it has the
      value of a row with another key.

    The messages are read once, and each message is parsed once.

    Args:
        messages: ``key`` and ``value`` (binary, as Kafka's source returns them), ``origin`` (string, the place of the
            message). A line of a file is a value without a key; it may be ``{"key": …, "value": …}``.
        table: State of the target table; None if it does not exist.
        keys: See :func:`writer_jobs.apply_events`.
        sequence_by: SQL expression over the envelope's ``source``, ``op``, ``ts_ms``, ``ts_us``, ``ts_ns``,
            ``transaction``, ``origin``, and columns such as ``row.updated_at`` (null in a delete); by default the
            position in the database's log, see
            :mod:`writer_jobs.feeds.debezium.positions`. Fields of ``source`` that no known connector has are strings.
        source_tables: See :func:`writer_jobs.apply_events`; ``public.orders`` is also accepted.
        partition_by: Partition columns of a new table. An event with a value that Delta stores as null there becomes a
            dead letter.
        unavailable_value: The connector's ``unavailable.value.placeholder``.
        flattened: Whether the messages are rows of the transform ``ExtractNewRecordState``. ``__op`` is the operation,
            else the row is written. ``__deleted`` marks a delete. The position needs the fields of ``source`` in
            ``__source_…`` or ``__…``, or ``sequence_by``. A tombstone is a dead letter: it may be the only trace of a
            delete, and has no position.
        schema_registry: Registry with the schemas of messages in Avro. They are decoded as JSON with schemas.
        keeps_history: Whether all rows of a key are stored. Then each message with a placeholder becomes a dead letter,
            and the place in the topic is not part of the position.
        infinity, local_times, on_truncate: See :func:`writer_jobs.apply_events`.

    Raises:
        FeedError: The events are of several tables, truncate the table, have no keys or keys with different columns,
            have an unknown order, or have types without a common type.

    """
    try:
        with ExitStack() as stack:
            if schema_registry is not None:
                messages = with_json(stack.enter_context(closing(MaterializedRows(messages))).rows, schema_registry)
            parsed_messages = parse_envelopes(messages, source_tables, flattened=flattened)
            envelopes = stack.enter_context(closing(MaterializedRows(parsed_messages)))
            batch = _Batch(
                envelopes.rows,
                table,
                keys,
                sequence_by,
                source_tables,
                partition_by,
                infinity,
                flattened=flattened,
                keeps_history=keeps_history,
                on_truncate=on_truncate,
                local_times=local_times,
            )
            materialized = MaterializedRows(batch.rows(unavailable_value))
            with ExitStack() as on_failure:
                on_failure.callback(materialized.close)
                result = batch.result(materialized)
                on_failure.pop_all()
            return result
    except SPARK_ERRORS as error:
        raise FeedError(f"the messages cannot be decoded: {error_reason(error)}") from error


class _Batch:
    """A batch of parsed messages, with its columns and keys. The other arguments are those of :func:`decode`."""

    def __init__(
        self,
        envelopes: DataFrame,
        table: TableState | None,
        keys: Sequence[str] | None,
        sequence_by: str | None,
        source_tables: Collection[str],
        partition_by: Sequence[str],
        infinity: Infinity,
        *,
        flattened: bool,
        keeps_history: bool,
        on_truncate: OnTruncate,
        local_times: bool,
    ) -> None:
        self._envelopes, self._sequence_by, self._keeps_history = envelopes, sequence_by, keeps_history
        summaries = summarize_schemas(envelopes)
        self._on_truncate = on_truncate
        self._skipped_count = sum(summary["skipped"] for summary in summaries)
        self._filtered_count = sum(summary["filtered"] for summary in summaries)
        if flattened:
            _refuse_short_names(source_tables, {name for summary in summaries for name in summary["filtered_tables"]})
        truncate_count = sum(summary["truncates"] for summary in summaries)
        if on_truncate == "ignore":
            self._skipped_count += truncate_count
            truncate_count = 0
        self._truncate_count = truncate_count
        summaries = [summary for summary in summaries if summary["rows"] or (summary["truncates"] and truncate_count)]
        self._connectors = sorted({name for summary in summaries for name in summary["connectors"]})
        self._source_tables = resolve_source_tables(
            source_tables, {name for summary in summaries for name in summary["tables"]}
        )
        if truncate_count:
            self._refuse_truncate(min(summary["truncate"] for summary in summaries if summary["truncate"]))
        self._refuse_unknown_order()
        summaries = [summary for summary in summaries if summary["rows"]]
        self._columns = RowColumns(summaries, table, keys, infinity, local_times=local_times)
        # Debezium writes a changed message key as a delete and an insert. The caller's keys can change in an update.
        self._keys_can_change = bool(keys) and all(name in self._columns.types for name in self._columns.keys)
        self._partitions = partition_types(table, partition_by, self._columns.schema)
        # Columns that the source dropped. Other columns of the table belong to the user.
        dropped_names = recorded_columns(table) - {name.lower() for name in self._columns.types}
        table_columns = () if table is None else table.schema
        self._table_types = {column.name.lower(): column.dataType for column in table_columns}
        self._dropped_columns = {
            column.name: column.dataType for column in table_columns if column.name.lower() in dropped_names
        }

    def rows(self, unavailable: str) -> DataFrame:
        """Return each message with its row, or with the reason why it has no row."""
        columns = self._columns
        messages = self._envelopes.where(~F.col("kind").isin(SKIPPED, FILTERED, TRUNCATE)).select(
            *("key", "value", "origin", "op", "reason", "payload", "key_payload"),
            columns.group_number().alias("group"),
        )
        reason = F.coalesce(F.col("reason"), unnamed_fields_reason(columns.groups))
        messages = self._with_order(messages.withColumn("reason", reason)).withColumn("key_before", self._key_before())
        messages = messages.select(
            *("key", "value", "origin", "op", "reason", "group", ORDER, "key_before"),
            F.try_variant_get("payload", variant_path("source", "ts_ms"), "bigint").alias("source_ms"),
            _struct([columns.text(name).alias(name) for name in columns.types]).alias("texts"),
            self._is_known_update().alias("is_known_update"),
        )
        texts = {name: F.col("texts").getField(name) for name in columns.types}
        messages = messages.withColumn(UNAVAILABLE_COLUMNS, unavailable_columns(texts, unavailable))
        texts = {name: F.when(~F.array_contains(UNAVAILABLE_COLUMNS, name), text) for name, text in texts.items()}
        row = _struct([columns.decode(name, text).alias(name) for name, text in texts.items()])
        messages = messages.withColumn("row", row)
        reason = F.coalesce(
            F.col("reason"),
            undecodable_reason(
                columns,
                texts,
                messages.schema[ORDER].dataType,
                self._needed_columns(),
            ),
            unstorable_row_reason(columns.schema, self._partitions, "row."),
        )
        messages = messages.withColumn("reason", reason).drop("texts", "group", "is_known_update")
        is_dead = F.col("reason").isNotNull()
        return messages.select(
            *(F.when(is_dead, F.col(name)).alias(name) for name in ("key", "value", "origin")),
            *("reason", "source_ms", ORDER, "row"),
            (F.col("op") == "d").alias(DELETES),
            UNAVAILABLE_COLUMNS,
            self._replaced_key().alias("replaced_key"),
        )

    def result(self, materialized: MaterializedRows) -> DecodedBatch:
        """Return the decoded batch of the materialized data frame of :meth:`rows`."""
        rows, columns = materialized.rows, self._columns
        is_decoded = F.col("reason").isNull()
        totals = rows.agg(
            F.count_if(is_decoded).alias("count"),
            F.count_if(~is_decoded).alias("dead"),
            F.count_if(is_decoded & F.col("replaced_key").isNotNull()).alias("replaced"),
            F.mode("reason").alias("reason"),
            F.max(F.when(is_decoded, F.col("source_ms"))).alias("newest"),
            F.array_sort(
                F.array_distinct(F.flatten(F.collect_set(F.when(is_decoded, F.col(UNAVAILABLE_COLUMNS)))))
            ).alias("unavailable"),
        ).collect()[0]
        values = [F.col("row").getField(name).alias(name) for name in columns.types]
        dropped_columns = [F.lit(None).cast(data_type).alias(name) for name, data_type in self._dropped_columns.items()]
        unavailable_names = [UNAVAILABLE_COLUMNS] if totals["unavailable"] else []
        changes = rows.where(is_decoded).select(*values, *dropped_columns, ORDER, DELETES, *unavailable_names)
        if totals["replaced"]:
            deleted_keys = [
                (F.col("replaced_key").getField(name) if name in columns.keys else F.lit(None).cast(data_type)).alias(
                    name
                )
                for name, data_type in columns.types.items()
            ]
            replaced_rows = rows.where(is_decoded & F.col("replaced_key").isNotNull())
            changes = changes.union(
                replaced_rows.select(
                    *deleted_keys, *dropped_columns, ORDER, F.expr("true").alias(DELETES), *unavailable_names
                )
            )
        newest = totals["newest"]
        return DecodedBatch(
            changes=changes,
            keys=columns.keys,
            count=totals["count"] + totals["replaced"],
            event_count=totals["count"],
            dead_letters=rows.where(~is_decoded).select("key", "value", "origin", "reason"),
            dead_count=totals["dead"],
            dead_reason=totals["reason"],
            filtered_count=self._filtered_count,
            source_tables=self._source_tables,
            columns=tuple(columns.types),
            unavailable_columns=tuple(totals["unavailable"]),
            skipped_count=self._skipped_count,
            newest_source_time=None if newest is None else newest / 1000,
            order=self._sequence_by or POSITION,
            truncate_count=self._truncate_count,
            truncated_at=self._truncated_at(),
            materialized=materialized,
        )

    def _refuse_truncate(self, origin: str) -> None:
        """Refuse a truncate that cannot be applied.

        Raises:
            FeedError: See the message.

        """
        event = f"the source's table was truncated ({origin})"
        if self._on_truncate == "refuse":
            raise FeedError(
                f"{event}: use --on-truncate delete (on_truncate) to delete the rows before it, or ignore to keep them"
            )
        if self._keeps_history:
            raise FeedError(f"{event}, and a history does not have an end of all rows: use --on-truncate ignore")
        if len(self._source_tables or ()) > 1:
            raise FeedError(
                f"{event}, and the rows of the table are those of several source tables, "
                f"{', '.join(self._source_tables or ())}: use --on-truncate ignore, and delete its rows"
            )

    def _truncated_at(self) -> str | None:
        """Return the sequence of the last truncate; see :func:`writer_jobs.merge.truncate.sequence_text`.

        Raises:
            FeedError: A truncate has no sequence.

        """
        if not self._truncate_count:
            return None
        truncates = self._envelopes.where(F.col("kind") == TRUNCATE).withColumn("group", F.lit(None).cast("int"))
        truncates = self._with_order(truncates)
        row = truncates.agg(
            sequence_text(F.max(ORDER)).alias("text"),
            F.min(F.when(is_unordered(truncates.schema[ORDER].dataType), F.col("origin"))).alias("unordered"),
        ).collect()[0]
        if row["unordered"] is not None:
            raise FeedError(f"the position of the truncate {row['unordered']} is unknown: use --on-truncate ignore")
        return str(row["text"])

    def _refuse_unknown_order(self) -> None:
        unknown_connectors = [name for name in self._connectors if not has_position(name)]
        if unknown_connectors and self._sequence_by is None:
            raise FeedError(
                f"the order of changes of the connector {unknown_connectors[0] or '(source.connector is missing)'} "
                "cannot be derived: name the field of the envelope that orders them (sequence_by)"
            )

    def _key_before(self) -> Column:
        """Return the key before an update if the caller's keys can change, else null."""
        if not self._keys_can_change:
            return F.lit(None).cast("struct<_: int>")
        columns = self._columns
        values = {name: columns.decode(name, columns.text_before(name)) for name in columns.keys}
        has_key_before = F.col("op") == "u"
        for value in values.values():
            has_key_before = has_key_before & value.isNotNull()
        return F.when(has_key_before, F.struct(*(value.alias(name) for name, value in values.items())))

    def _replaced_key(self) -> Column:
        """Return the key before an update that changed the key, else null. The row with this key is deleted."""
        if not self._keys_can_change:
            return F.lit(None).cast("struct<_: int>")
        keys = self._columns.keys
        key_differences = [F.col("key_before").getField(name) != F.col("row").getField(name) for name in keys]
        # The table has no row with an old key that Delta cannot store unchanged, so there is no row to delete.
        partitions = {name: data_type for name, data_type in self._partitions.items() if name in keys}
        is_storable = unstorable_row_reason(self._columns.schema, partitions, "key_before.").isNull()
        return F.when(reduce(or_, key_differences) & is_storable, F.col("key_before"))

    def _needed_columns(self) -> Column:
        """Return the names of the columns that a change has to contain, as an array.

        Only an update that keeps the row's key can keep the value of another column. The value belongs to the row
        with the key before, and a change event does not name this key if the connector writes a delete and an insert.
        """
        all_columns = F.array(*map(F.lit, self._columns.types)).cast("array<string>")
        if self._keeps_history:
            return all_columns
        ordering_columns = {name.lower() for name in self._fields_in_order()}
        names = [name for name in self._columns.types if name in self._columns.keys or name.lower() in ordering_columns]
        return F.when(
            F.col("is_known_update") & self._replaced_key().isNull(), F.array(*map(F.lit, names)).cast("array<string>")
        ).otherwise(all_columns)

    def _is_known_update(self) -> Column:
        """Return whether a message is an update of PostgreSQL whose key before is known.

        It is known by ``before`` or by the message's key. Other connectors may write the placeholder for a value that
        has changed, as Oracle's does unless ``lob.enabled`` is true.
        """
        connector = F.try_variant_get("payload", variant_path("source", "connector"), "string")
        is_update = (
            (F.col("op") == "u")
            & (connector == "postgresql")
            & ~F.coalesce(F.try_variant_get("payload", variant_path(OP_IS_MISSING), "boolean"), F.expr("false"))
        )
        if not self._keys_can_change:
            return is_update
        is_message_key = reduce(and_, (member(F.col("key_payload"), name).isNotNull() for name in self._columns.keys))
        return is_update & (F.col("key_before").isNotNull() | is_message_key)

    def _fields_in_order(self) -> set[str]:
        """Return the columns of the row that ``sequence_by`` names."""
        return set(re.findall(r"\brow\.`?(\w+)", self._sequence_by or ""))

    def _row_after(self, names: Collection[str]) -> Column:
        """Return columns of the row after a change. They are null in a delete, and if the batch does not have them."""
        columns = {name.lower(): name for name in self._columns.types}
        return _struct(
            [
                (
                    self._columns.decode(columns[name.lower()], self._columns.text(columns[name.lower()]))
                    if name.lower() in columns
                    else F.lit(None).cast(self._table_types.get(name.lower(), LongType()))
                ).alias(name)
                for name in sorted(names)
            ]
        )

    def _order_in_transaction(self) -> Column:
        """Return the number that orders the changes of one transaction, as text; null without one.

        In a history each position is a version, and an event that the connector repeats may have another number.
        """
        if self._keeps_history:
            return F.lit(None).cast("string")
        # The messages of one key are in one partition, if the key is that of the messages.
        has_one_partition = not self._keys_can_change and len(self._source_tables or ()) <= 1
        return F.coalesce(topic_offset(), total_order()) if has_one_partition else total_order()

    def _with_order(self, messages: DataFrame) -> DataFrame:
        """Add the column :data:`ORDER`."""
        if self._sequence_by is None:
            return messages.withColumn(ORDER, position(self._connectors, self._order_in_transaction()))
        payload, extra_fields = F.col("payload"), re.findall(r"\bsource\.(\w+)", self._sequence_by)
        envelope = {
            "source": source_struct(payload, extra_fields),
            "row": self._row_after(self._fields_in_order()),
            **{name: F.try_variant_get(payload, variant_path(name), "bigint") for name in TIMES},
            "transaction": F.try_variant_get(payload, variant_path("transaction"), _TRANSACTION),
        }
        try:
            ordered_messages = messages.withColumns(envelope).withColumn(ORDER, F.expr(self._sequence_by))
            data_type = ordered_messages.schema[ORDER].dataType
        except SPARK_ERRORS as error:
            raise FeedError(f"sequence_by {self._sequence_by!r} cannot be used: {error_reason(error)}") from error
        if (reason := text_sequence_error(self._sequence_by, data_type)) is not None:
            raise FeedError(reason)
        return ordered_messages


def _refuse_short_names(source_tables: Collection[str], tables: Collection[str]) -> None:
    """Refuse events that name their table with fewer parts than the caller: they may be of the caller's table.

    Args:
        tables: Tables of the events that were filtered out; an empty text for an event without a table.

    Raises:
        FeedError: There is such an event.

    """
    for table in sorted(tables):
        name = next((name for name in source_tables if not table or name.endswith(f".{table}")), None)
        if name is not None:
            raise FeedError(
                f"events name their table {table or '(not at all)'}, which may be {name}: add source.db, source.schema "
                "and source.table to add.fields of the transform ExtractNewRecordState"
            )


def _struct(columns: list[Column]) -> Column:
    """Return a struct; for a batch without columns a struct with one null field."""
    return F.struct(*(columns or [F.lit(None).cast("int").alias("_")]))
