"""Debezium's change events, decoded to what :func:`writer_jobs.apply_changes` takes.

A message is what Kafka Connect's ``JsonConverter`` writes, with schemas or without. What cannot be decoded is set aside
with a reason, so that a feed does not stop at it, and nothing is lost.

Sources: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events (operations,
tombstones, keys, ``unavailable.value.placeholder``), and those named in :mod:`writer_jobs.feeds.debezium.positions` and
:mod:`writer_jobs.feeds.debezium.decoders`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from types import TracebackType
from typing import Any, Self

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StringType, StructField, StructType

from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.partition_values import partition_types, unstorable_reason
from writer_jobs.delta.snapshot import TableState
from writer_jobs.errors import FeedError
from writer_jobs.feeds.debezium.decoders import (
    common_type,
    is_held_by_text,
    of_column,
    of_connect,
    of_inferred,
    struct_ddl,
)
from writer_jobs.feeds.debezium.envelopes import FILTERED, ROW, SKIPPED, TRUNCATE, parsed
from writer_jobs.feeds.debezium.json_values import Decoder
from writer_jobs.feeds.debezium.positions import is_known, position, source_of
from writer_jobs.feeds.wire import member, path
from writer_jobs.merge.change_spec import text_sequence_error
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.merge.table_feed import has_name, recorded_columns

#: Columns beside the row's.
ORDER, DELETES = "__sluice_order", "__sluice_deletes"
#: Name of the order that Debezium's events have by default.
POSITION = "position in the source database's log"
_TRANSACTION = "struct<id: string, total_order: bigint, data_collection_order: bigint>"
UNAVAILABLE = "__debezium_unavailable_value"
"""What Debezium writes for a value that it was not given, unless ``unavailable.value.placeholder`` says otherwise."""


@dataclass(frozen=True, kw_only=True)
class RowChanges:
    """Changes of rows, and what of the messages is none. Its data frames are kept until :meth:`close`.

    Attributes:
        changes: the row's columns, :data:`ORDER` and :data:`DELETES`.
        keys: columns that together name a row; none if there are no changes.
        count: how many changes there are; if none, there is nothing to apply.
        event_count: Number of events that have a row; an update that changes a key is one event and two changes.
        dead: messages that cannot be decoded: ``key``, ``value``, ``origin``, ``reason``.
        dead_count: how many.
        dead_reason: The most frequent reason; None if there are none.
        filtered: Number of events of other source tables.
        source_tables: See :func:`tables_of_feed`.
        columns: Columns that the schemas of the messages have.
        skipped: how many messages say nothing of a row: tombstones, heartbeats, messages of the log (``m``).
        order: Text that names the order of the changes: ``sequence_by``, or :data:`POSITION`.
        newest_source_time: latest ``source.ts_ms`` of the changes, seconds since the epoch; None if there is none.

    """

    changes: DataFrame
    keys: tuple[str, ...]
    count: int
    event_count: int
    dead: DataFrame
    dead_count: int
    dead_reason: str | None
    filtered: int
    source_tables: tuple[str, ...] | None
    columns: tuple[str, ...]
    skipped: int
    newest_source_time: float | None
    order: str
    kept: MaterializedRows = field(repr=False)

    @property
    def how(self) -> dict[str, Any]:
        """The arguments of ``apply_changes`` that go with :attr:`changes`."""
        return {
            "keys": self.keys,
            "sequence_by": ORDER,
            "sequence_name": self.order,
            "source_tables": self.source_tables,
            "source_columns": self.columns,
            "apply_as_deletes": DELETES,
            "except_column_list": (ORDER, DELETES),
        }

    def close(self) -> None:
        """Give back what is kept."""
        self.kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def decode(
    messages: DataFrame,
    *,
    table: TableState | None,
    keys: Sequence[str] | None = None,
    sequence_by: str | None = None,
    source_tables: Collection[str] = (),
    partition_by: Sequence[str] = (),
    unavailable: str = UNAVAILABLE,
) -> RowChanges:
    """Decode a batch of Debezium's messages.

    ::

        with decode(messages, table=writer.log.state()) as rows:
            if rows.count:
                apply_changes(writer, rows.changes, **rows.how, schema_evolution=True)

    - ``c``, ``r`` and ``u`` write the row in ``after``. ``d`` deletes the row of the message's key, or else of
      ``before``: it may have nothing but the key. ``t`` is refused.
    - A column that earlier events had, and that an event's schema lacks, is null in its row, so that the row does not
      depend on the other events of the batch. Columns that no event has had are left out.
    - Types come from the messages' schemas; without, from the table, and for columns that it does not have from the
      values. Without schemas the JSON type counts: a text is no number, except in a decimal column if it has a decimal
      point, and a number is no boolean. Messages of one batch may have different schemas: the columns are those of
      all, and types widen. Types that have none in common are refused: it is the source that changed, not one message
      that is wrong.
    - A value that Debezium was not given (PostgreSQL's TOAST, Oracle's LOBs) puts its message among the dead: it must
      not be written over the one that is there, and of the row the rest alone cannot be written.

    The messages are read once, and each is parsed once.

    Args:
        messages: ``key`` and ``value`` (binary; what Kafka's source gives), ``origin`` (a text that says where one
            came from). A line of a file is a value without a key; it may be ``{"key": …, "value": …}``.
        table: the table that gets the changes; None if there is none yet.
        keys: columns that together name a row; by default those of the messages' keys.
        sequence_by: SQL over the envelope's ``source``, ``op``, ``ts_ms``, ``ts_us``, ``ts_ns``, ``transaction``, and
            ``origin``; by default the place in the database's log, see
            :mod:`writer_jobs.feeds.debezium.positions`. Fields of ``source`` that no connector known here has are
            texts.
        source_tables: Tables whose events count, such as ``shop.public.orders``, ``public.orders`` or ``orders``;
            events of other tables are left out. Empty: all events must be of one table. A name must not mean several.
        partition_by: Partition columns of a new table. An event whose value Delta would store as null there is dead.
        unavailable: the connector's ``unavailable.value.placeholder``.

    Raises:
        FeedError: events of several tables; a truncate; no keys, or several; an order that is not known; types that
            have none in common.

    """
    try:
        with closing(MaterializedRows(parsed(messages, source_tables))) as envelopes:
            batch = _Batch(envelopes.rows, table, keys, sequence_by, source_tables, partition_by)
            kept = MaterializedRows(batch.rows(unavailable))
            with ExitStack() as on_failure:
                on_failure.callback(kept.close)
                result = batch.result(kept)
                on_failure.pop_all()
            return result
    except (*JVM_ERRORS, PySparkException) as error:
        raise FeedError(f"the messages cannot be decoded: {one_sentence(error)}") from error


class _Batch:
    """A batch whose schemas and keys are known.

    Args:
        envelopes: messages, parsed.
        table: as :func:`decode` gets it, like the others.

    Attributes:
        keys: columns that together name a row.

    """

    def __init__(
        self,
        envelopes: DataFrame,
        table: TableState | None,
        keys: Sequence[str] | None,
        sequence_by: str | None,
        named_tables: Collection[str],
        partition_by: Sequence[str],
    ) -> None:
        self._envelopes, self._sequence_by = envelopes, sequence_by
        self._table = {} if table is None else {each.name.lower(): each.dataType for each in table.schema}
        found = _groups(envelopes)
        self._skipped = sum(group["skipped"] for group in found)
        self._filtered = sum(group["filtered"] for group in found)
        groups = [group for group in found if group["rows"] or group["truncate"]]
        self._connectors = sorted({name for group in groups for name in group["connectors"]})
        self._source_tables = tables_of_feed(named_tables, {name for group in groups for name in group["tables"]})
        self._refuse(groups)
        self._moves = keys is not None
        self.keys = _keys(groups) if keys is None else tuple(keys)
        # With schemas first: theirs are the types of what comes without.
        groups.sort(key=lambda group: (group["schema"] is None, group["key_schema"] is None))
        self._groups: list[_Group] = []
        self._columns: dict[str, tuple[DataType, dict[Decoder, list[int]]]] = {}
        for group in groups:
            known = {name.lower(): kind for name, (kind, _) in self._columns.items()} | self._table
            self._groups.append(_Group.of(group, known, self.keys))
            self._columns = self._of_all_groups()
        # As the messages spell them.
        spelled = {name.lower(): name for group in self._groups for name in (*group.keys, *group.columns)}
        self.keys = tuple(spelled.get(name.lower(), name) for name in self.keys)
        self._columns = self._of_all_groups()
        self._schema = StructType([StructField(name, kind) for name, (kind, _) in self._columns.items()])
        self._partitions = partition_types(table, partition_by, self._schema)
        # Dropped at the source: other columns of the table are the user's.
        dropped = recorded_columns(table) - {name.lower() for name in self._columns}
        columns = () if table is None else table.schema
        self._absent = {column.name: column.dataType for column in columns if column.name.lower() in dropped}

    def rows(self, unavailable: str) -> DataFrame:
        """Return the messages with the row of each, or the reason why it has none."""
        read = self._envelopes.where(~F.col("kind").isin(SKIPPED, FILTERED)).select(
            *("key", "value", "origin", "op", "reason", "payload", "key_payload"),
            self._group_number().alias("group"),
        )
        read = read.withColumn("reason", F.coalesce(F.col("reason"), self._unnamed_fields()))
        values = [self._raw(name).alias(name) for name in self._columns]
        read = self._ordered(read).select(
            *("key", "value", "origin", "op", "reason", "group", ORDER),
            F.try_variant_get("payload", path("source", "ts_ms"), "bigint").alias("source_ms"),
            _struct(values).alias("raw"),
            self._old().alias("old"),
        )
        raw = {name: F.col("raw").getField(name) for name in self._columns}
        read = read.withColumn("row", _struct([self._decoded(name, raw[name]).alias(name) for name in raw]))
        reason = F.coalesce(
            F.col("reason"),
            self._reason(raw, _placeholders(unavailable), read.schema[ORDER].dataType),
            unstorable_reason(self._schema, self._partitions, "row."),
        )
        read = read.withColumn("reason", reason).drop("raw", "group")
        dead = F.col("reason").isNotNull()
        return read.select(
            *(F.when(dead, F.col(name)).alias(name) for name in ("key", "value", "origin")),
            *("reason", "source_ms", ORDER, "row"),
            (F.col("op") == "d").alias(DELETES),
            self._moved().alias("moved"),
        )

    def result(self, kept: MaterializedRows) -> RowChanges:
        """Return what became of the batch, of which :meth:`rows` are kept."""
        rows = kept.rows
        good = F.col("reason").isNull()
        found = rows.agg(
            F.count_if(good).alias("count"),
            F.count_if(~good).alias("dead"),
            F.count_if(good & F.col("moved").isNotNull()).alias("moved"),
            F.mode("reason").alias("reason"),
            F.max(F.when(good, F.col("source_ms"))).alias("newest"),
        ).collect()[0]
        columns = [F.col("row").getField(name).alias(name) for name in self._columns]
        absent = [F.lit(None).cast(kind).alias(name) for name, kind in self._absent.items()]
        changes = rows.where(good).select(*columns, *absent, ORDER, DELETES)
        if found["moved"]:
            old = [
                (F.col("moved").getField(name) if name in self.keys else F.lit(None).cast(kind)).alias(name)
                for name, (kind, _) in self._columns.items()
            ]
            moved = rows.where(good & F.col("moved").isNotNull())
            changes = changes.union(moved.select(*old, *absent, ORDER, F.expr("true").alias(DELETES)))
        newest = found["newest"]
        return RowChanges(
            changes=changes,
            keys=self.keys,
            count=found["count"] + found["moved"],
            event_count=found["count"],
            dead=rows.where(~good).select("key", "value", "origin", "reason"),
            dead_count=found["dead"],
            dead_reason=found["reason"],
            filtered=self._filtered,
            source_tables=self._source_tables,
            columns=tuple(self._columns),
            skipped=self._skipped,
            newest_source_time=None if newest is None else newest / 1000,
            order=self._sequence_by or POSITION,
            kept=kept,
        )

    # -- what the batch is -----------------------------------------------------------------------------------------

    def _refuse(self, groups: list[Row]) -> None:
        truncates = [group["truncate"] for group in groups if group["truncate"]]
        if truncates:
            raise FeedError(
                f"the source's table was truncated ({min(truncates)}), which changes no row by its key: empty the "
                "table and go on behind that message, or let the connector skip truncates (skipped.operations=t)"
            )
        unknown = [name for name in self._connectors if not is_known(name)]
        if unknown and self._sequence_by is None:
            raise FeedError(
                f"the order of changes of the connector {unknown[0] or '(source.connector is missing)'} is not known "
                "here: say by which field of the envelope they are ordered (sequence_by)"
            )

    def _of_all_groups(self) -> dict[str, tuple[DataType, dict[Decoder, list[int]]]]:
        """Return the columns of all schemas, each with its type and how the groups write it."""
        found: dict[str, dict[Decoder, list[int]]] = {}
        for number, group in enumerate(self._groups):
            row = {**{name: group.keys[name] for name in self.keys if name in group.keys}, **group.columns}
            for name, decoder in row.items():
                fitted = decoder.for_column(self._table.get(name.lower()))
                found.setdefault(name, {}).setdefault(fitted, []).append(number)
        lower = [name.lower() for name in found]
        if twice := sorted({name for name in found if lower.count(name.lower()) > 1}):
            raise FeedError(f"the rows have columns whose names differ by case alone: {', '.join(twice)}")
        columns = {name: self._with_all_fields(name, decoders) for name, decoders in found.items()}
        return {name: (self._type(name, list(decoders)), decoders) for name, decoders in columns.items()}

    def _with_all_fields(self, name: str, decoders: dict[Decoder, list[int]]) -> dict[Decoder, list[int]]:
        """Return the decoders of a column, each with the nested fields of all and of the table's column."""
        kind = self._table.get(name.lower())
        for decoder in decoders:
            kind = decoder.with_fields(kind).type
        filled: dict[Decoder, list[int]] = {}
        for decoder, groups in decoders.items():
            filled.setdefault(decoder.with_fields(kind), []).extend(groups)
        return filled

    def _type(self, name: str, decoders: list[Decoder]) -> DataType:
        kinds = [decoder.type for decoder in decoders]
        column = self._table.get(name.lower())
        if (common := common_type(kinds, column)) is not None:
            return common
        several = " and ".join(sorted({kind.simpleString() for kind in kinds}))
        if isinstance(column, StringType):
            raise FeedError(
                f"the table's column {name} is a string, which does not hold {several} in every time zone: feed a new "
                "table"
            )
        advice = "make the table's column a string" if is_held_by_text(kinds) else "feed a new table"
        raise FeedError(
            f"the type of the column {name} has changed at the source, and none holds both {several}: apply what came "
            f"before the change alone, or {advice}"
        )

    # -- columns ---------------------------------------------------------------------------------------------------

    def _group_number(self) -> Column:
        number = F.lit(None).cast("int")
        for at, group in enumerate(self._groups):
            same = F.col("schema").eqNullSafe(group.schema) & F.col("key_schema").eqNullSafe(group.key_schema)
            number = F.when(same, at).otherwise(number)
        return number

    def _unnamed_fields(self) -> Column:
        """Return the reason of a message whose row has fields that its schema does not name; null: it has none."""
        fields = F.map_keys(F.try_variant_get("payload", path("after"), "map<string,variant>"))
        reason = F.lit(None).cast("string")
        for number, group in enumerate(self._groups):
            if group.schema is None or group.problem:
                continue
            unnamed = F.array_except(fields, F.array(*map(F.lit, group.columns)).cast("array<string>"))
            is_reason = (F.col("group") == number) & (F.size(unnamed) > 0)
            reason = F.when(
                is_reason, F.concat(F.lit("its schema does not name the fields "), F.array_join(unnamed, ", "))
            ).otherwise(reason)
        return reason

    def _raw(self, name: str) -> Column:
        """Return what a message says of a column."""
        deletes, payload = F.col("op") == "d", F.col("payload")

        def found(decoder: Decoder) -> Column:
            after = decoder.raw(payload, "after", name)
            if name not in self.keys:
                return F.when(~deletes, after)
            key = decoder.raw(F.col("key_payload"), name)
            before = decoder.raw(payload, "before", name)
            return F.when(deletes, F.coalesce(key, before)).otherwise(F.coalesce(after, key))

        return self._by_group(name, found)

    def _raw_of(self, name: str, part: str) -> Column:
        return self._by_group(name, lambda decoder: decoder.raw(F.col("payload"), part, name))

    def _by_group(self, name: str, of: Callable[[Decoder], Column]) -> Column:
        """Return an expression that depends on how a message's group writes a column."""
        decoders = self._columns[name][1]
        if len(decoders) == 1:
            return of(next(iter(decoders)))
        conditions = [(F.col("group").isin(*groups), of(decoder)) for decoder, groups in decoders.items()]
        return reduce(lambda chosen, each: chosen.when(*each), conditions[1:], F.when(*conditions[0]))

    def _decoded(self, name: str, raw: Column) -> Column:
        kind = self._columns[name][0]
        return self._by_group(name, lambda decoder: decoder.of_raw(raw).cast(kind))

    def _old(self) -> Column:
        """Return the key that a row had before an update, where keys were given that need not be Debezium's."""
        if not (self._moves and self.keys and all(name in self._columns for name in self.keys)):
            return F.lit(None).cast("struct<_: int>")
        values = {name: self._decoded(name, self._raw_of(name, "before")) for name in self.keys}
        there = F.col("op") == "u"
        for value in values.values():
            there = there & value.isNotNull()
        return F.when(there, F.struct(*(value.alias(name) for name, value in values.items())))

    def _moved(self) -> Column:
        """Return that key where the row has another one now: its row has to go."""
        if not (self._moves and self.keys and all(name in self._columns for name in self.keys)):
            return F.lit(None).cast("struct<_: int>")
        other = [F.col("old").getField(name) != F.col("row").getField(name) for name in self.keys]
        # A key that Delta would store as another one is not in the table.
        keys = {name: kind for name, kind in self._partitions.items() if name in self.keys}
        return F.when(reduce(or_, other) & unstorable_reason(self._schema, keys, "old.").isNull(), F.col("old"))

    def _ordered(self, read: DataFrame) -> DataFrame:
        """Add the order."""
        if self._sequence_by is None:
            return read.withColumn(ORDER, position(self._connectors))
        payload, named = F.col("payload"), re.findall(r"\bsource\.(\w+)", self._sequence_by)
        envelope = {
            "source": source_of(payload, named),
            **{name: F.try_variant_get(payload, path(name), "bigint") for name in ("ts_ms", "ts_us", "ts_ns")},
            "transaction": F.try_variant_get(payload, path("transaction"), _TRANSACTION),
        }
        try:
            ordered = read.withColumns(envelope).withColumn(ORDER, F.expr(self._sequence_by))
            kind = ordered.schema[ORDER].dataType
        except (*JVM_ERRORS, PySparkException) as error:
            raise FeedError(f"sequence_by cannot be used: {one_sentence(error)}") from error
        if (reason := text_sequence_error(self._sequence_by, kind)) is not None:
            raise FeedError(reason)
        return ordered

    def _reason(self, raw: Mapping[str, Column], placeholders: Iterable[str], order: DataType) -> Column:
        """Return why a message of a row cannot be applied, the first of several reasons."""
        row, writes, unavailable = F.col("row"), F.col("op") != "d", F.array(*map(F.lit, placeholders))
        bad = [number for number, group in enumerate(self._groups) if group.problem]
        found = F.when(F.col("group").isin(*bad), "its schema is none of Connect's for a change event")
        for name in self.keys:
            is_there = raw[name].isNotNull() if name in raw else F.expr("false")
            found = found.when(~is_there, f"the key column {name} is missing")
        for name in raw:
            kind = self._columns[name][0]
            found = found.when(
                writes & F.array_contains(unavailable, raw[name]),
                f"the connector was not given the value of the column {name} (unavailable.value.placeholder)",
            )
            unlike = raw[name].isNotNull() & row.getField(name).isNull()
            found = found.when(unlike, f"the value of the column {name} does not fit {kind.simpleString()}")
        unordered = F.col(ORDER).isNull()
        if isinstance(order, StructType):
            unordered = reduce(or_, (F.col(ORDER).getField(name).isNull() for name in order.names), unordered)
        return found.when(unordered, "its place in the order is not known: a field is missing that it is made of")


@dataclass(frozen=True)
class _Group:
    """Messages of one schema, or without one.

    Attributes:
        schema: of values, as JSON; None: they have none.
        key_schema: of keys, likewise.
        columns: of rows.
        keys: of keys, and without a schema of what rows were before.
        problem: whether the schema cannot be used.

    """

    schema: str | None
    key_schema: str | None
    columns: Mapping[str, Decoder]
    keys: Mapping[str, Decoder]
    problem: bool

    @classmethod
    def of(cls, group: Row, types: Mapping[str, DataType], key_names: Collection[str]) -> _Group:
        """Return the group of a row of :func:`_groups`; ``types`` are those of columns by names in lower case."""
        schema, key_schema = group["schema"], group["key_schema"]
        columns = keys = None
        with suppress(KeyError, TypeError, ValueError, StopIteration):
            columns = _inferred(group["shape"], types, key_names) if schema is None else _of_row(json.loads(schema))
            keys = (
                _inferred(group["key_shape"], types, key_names)
                if key_schema is None
                else _fields(json.loads(key_schema))
            )
        # Of a delete only the key counts, so what is before tells no other types.
        keys_before = _inferred(group["old_shape"], types, key_names) if schema is None else {}
        return cls(schema, key_schema, columns or {}, {**keys_before, **(keys or {})}, columns is None or keys is None)


def _groups(envelopes: DataFrame) -> list[Row]:
    """Return what is to be known of the messages before they can be decoded: one row for each schema."""
    is_row, payload, key = F.col("kind") == ROW, F.col("payload"), F.col("key_payload")
    bare = is_row & F.col("schema").isNull()
    connector = F.coalesce(F.try_variant_get(payload, path("source", "connector"), "string"), F.lit(""))
    names = F.map_keys(F.try_variant_get(key, "$", "map<string,variant>"))
    found = envelopes.groupBy("schema", "key_schema").agg(
        F.count_if(F.col("kind") == SKIPPED).alias("skipped"),
        F.count_if(F.col("kind") == FILTERED).alias("filtered"),
        F.collect_set(F.when(F.col("kind").isin(ROW, TRUNCATE), F.col("source_table"))).alias("tables"),
        F.count_if(is_row).alias("rows"),
        F.min(F.when(F.col("kind") == TRUNCATE, F.col("origin"))).alias("truncate"),
        F.collect_set(F.when(is_row, connector)).alias("connectors"),
        F.collect_set(F.when(is_row, names)).alias("names"),
        F.schema_of_variant_agg(F.when(bare, member(payload, "after"))).alias("shape"),
        F.schema_of_variant_agg(F.when(bare, member(payload, "before"))).alias("old_shape"),
        F.schema_of_variant_agg(F.when(is_row & F.col("key_schema").isNull(), key)).alias("key_shape"),
    )
    return list(found.collect())


def tables_of_feed(named: Collection[str], tables: Collection[str]) -> tuple[str, ...] | None:
    """Return the source tables of a feed: those that are named, or else the one that all events are of.

    Args:
        named: By the caller of :func:`decode`.
        tables: Tables of the events, each as ``db.schema.table``; empty for an event that does not name its table.

    Returns:
        Their full names, or a name as it is given if no event is of such a table; None if the events do not name their
        table.

    Raises:
        FeedError: There are several, and none is named, or one name means several.

    """
    if named:
        return tuple(sorted({_full_name(name, tables) for name in named}))
    if len(tables) > 1:
        several = ", ".join(sorted(name or "(source.table is missing)" for name in tables))
        raise FeedError(
            f"the events are of several tables, {several}, whose rows would overwrite each other: pass --source-table "
            "NAME (source_tables) for the table that is meant, or for each leaf partition of it"
        )
    return tuple(name for name in tables if name) or None


def _full_name(name: str, tables: Collection[str]) -> str:
    full = sorted(table for table in tables if has_name(table, name))
    if len(full) > 1:
        raise FeedError(
            f"the name {name} means several source tables, {', '.join(full)}, whose rows would overwrite each other: "
            "pass --source-table (source_tables) with the full name"
        )
    return full[0] if full else name


def _keys(groups: list[Row]) -> tuple[str, ...]:
    """Return the columns of the messages' keys."""
    found = sorted({tuple(sorted(names)) for group in groups for names in group["names"] if names})
    if groups and not found:
        raise FeedError("the messages have no keys: say which columns together name a row (keys)")
    if len(found) > 1:
        several = " and ".join(f"({', '.join(names)})" for names in found)
        raise FeedError(f"the messages have keys of several sorts, {several}: say which columns name a row (keys)")
    return found[0] if found else ()


def _of_row(schema: Mapping[str, Any]) -> dict[str, Decoder]:
    """Return the columns of rows by the schema of change events."""
    return _fields(next(part for part in schema["fields"] if part["field"] == "after"))


def _fields(schema: Mapping[str, Any]) -> dict[str, Decoder]:
    return {part["field"]: of_connect(part) for part in schema.get("fields", ())}


def _inferred(shape: str, types: Mapping[str, DataType], keys: Collection[str]) -> dict[str, Decoder]:
    """Return the columns of rows without a schema: of the types that are known, or of those that their values have."""
    kind, fixed = DataType.fromDDL(struct_ddl(shape)), {name.lower() for name in keys}
    decoders: dict[str, Decoder | None] = {}
    for column in kind if isinstance(kind, StructType) else ():
        name, values = column.name.lower(), column.dataType
        is_known, is_fixed = name in types, name in fixed
        decoders[column.name] = of_column(types[name], values, is_fixed=is_fixed) if is_known else of_inferred(values)
    return {name: decoder for name, decoder in decoders.items() if decoder is not None}


def _struct(columns: list[Column]) -> Column:
    """Return a struct; of a batch without columns one of something."""
    return F.struct(*(columns or [F.lit(None).cast("int").alias("_")]))


def _placeholders(text: str) -> list[str]:
    """Return what stands for a value that the connector was not given, as each type is written.

    Source: Debezium's ``UnchangedToastedPlaceholder.java``.
    """
    octets = text.encode()
    binary = base64.b64encode(octets).decode()
    several = [
        text,
        binary,
        [text],
        [binary],
        list(octets),
        [str(uuid.UUID(bytes=hashlib.md5(octets, usedforsecurity=False).digest(), version=3))],
        {text: text},
    ]
    return [text, *(json.dumps(each, separators=(",", ":")) for each in several)]
