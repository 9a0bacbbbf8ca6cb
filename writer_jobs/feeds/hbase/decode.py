"""Cells of HBase, out of JSON lines, files of columns, or the events of Apache HBase's Kafka proxy."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import IntegralType, LongType, StringType, StructField, StructType

from writer_jobs.delta.partition_values import unstorable_text
from writer_jobs.errors import SourceError
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.feeds.wire import only_value
from writer_jobs.merge.change_spec import DELETED, SEQ

#: Types of cells. Source: ``org.apache.hadoop.hbase.KeyValue.Type``.
PUT, DELETE, DELETE_FAMILY_VERSION, DELETE_COLUMN, DELETE_FAMILY = (
    "Put",
    "Delete",
    "DeleteFamilyVersion",
    "DeleteColumn",
    "DeleteFamily",
)
_CODES = {PUT: 4, DELETE: 8, DELETE_FAMILY_VERSION: 10, DELETE_COLUMN: 12, DELETE_FAMILY: 14}

#: Columns of decoded cells; of two with one timestamp the one that has more in ``WRITTEN`` counts.
FAMILY, QUALIFIER, TYPE, VALUE, WRITTEN = (
    "__sluice_family",
    "__sluice_qualifier",
    "__sluice_type",
    "__sluice_value",
    "__sluice_written",
)

#: Why a cell cannot be decoded, null if it can; where it came from; the bytes that it was read from.
REASON, ORIGIN, MESSAGE = "__sluice_reason", "__sluice_origin", "__sluice_message"
#: Whether an event is of another table of HBase; of such an event nothing else is there.
OTHER = "__sluice_other"

_NEEDED = ("row", "family", "timestamp", "type")
_BYTES = ("row", "family", "qualifier", "value")
_CELL = ("row", "family", "qualifier", "timestamp", "type", "value", "sequence")
_NOT_SAID = -(1 << 63)
_EVENT = "key binary, timestamp long, delete boolean, value binary, qualifier binary, family binary, table binary"
_EVENT_COLUMNS = ("key", "timestamp", "delete", "value", "qualifier", "family", "table")
_UDF, _DECODER = "sluice_hbase_event", "io.deltasluice.feeds.HBaseEvent"
_JSON = StructType(
    [
        *(StructField(name, StringType()) for name in _BYTES),
        StructField("timestamp", LongType()),
        StructField("type", StringType()),
        StructField("sequence", LongType()),
        StructField("corrupt", StringType()),
    ]
)


def cells_of_json(messages: DataFrame, mapping: HBaseMapping) -> DataFrame:
    """Return the cells of messages that are JSON objects.

    Args:
        messages: with ``value`` (binary), and ``origin`` (string).
        mapping: says how bytes are written.

    Returns:
        What :func:`decoded` takes.

    """
    text = F.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    found = messages.select("value", "origin", F.from_json(text, _JSON, options).alias("cell"))
    read = {name: _bytes(F.col(f"cell.{name}"), mapping.encoding) for name in _BYTES}
    no_json = only_value(text).isNull() | F.col("cell").isNull() | F.col("cell.corrupt").isNotNull()
    bad = [
        F.when(no_json, "no JSON of one cell"),
        *(
            F.when(F.col(f"cell.{name}").isNotNull() & bytes_of.isNull(), f"{name} is not {mapping.encoding}")
            for name, bytes_of in read.items()
        ),
    ]
    return found.select(
        *(bytes_of.alias(name) for name, bytes_of in read.items()),
        "cell.timestamp",
        "cell.type",
        "cell.sequence",
        F.coalesce(*bad).alias(REASON),
        F.col("origin").alias(ORIGIN),
        F.col("value").alias(MESSAGE),
    )


def cells_of_avro(messages: DataFrame, mapping: HBaseMapping) -> DataFrame:
    """Return the cells of messages of Apache HBase's Kafka proxy, each an event as Avro.

    Args:
        messages: as for :func:`cells_of_json`.
        mapping: see :func:`cells_of_events`.

    """
    messages.sparkSession.udf.registerJavaFunction(_UDF, _DECODER, _EVENT)
    found = messages.select("value", "origin", F.expr(f"{_UDF}(value)").alias("event"))
    bad = F.when(F.col("event").isNull(), "no HBaseKafkaEvent")
    facts = (bad.alias(REASON), F.col("origin").alias(ORIGIN), F.col("value").alias(MESSAGE))
    return cells_of_events(found.select("event.*", *facts), mapping)


def cells_of_events(events: DataFrame, mapping: HBaseMapping) -> DataFrame:
    """Return the cells of events of Apache HBase's Kafka proxy.

    An event does not say how it deletes: without a qualifier it deletes the family, with one it does what the mapping
    says of ``proxy_deletes``. Source: ``HbaseKafkaEvent.avro`` and ``KafkaTableForBridge`` in hbase-connectors.

    Args:
        events: with the columns of the event, and what else :func:`decoded` takes.
        mapping: of the table whose events are meant; others are marked in ``OTHER``.

    Raises:
        SourceError: they lack a column.

    """
    lost = [name for name in _EVENT_COLUMNS if name not in events.columns]
    if lost:
        raise SourceError(f"the source has no column {', '.join(lost)}, which an event of HBase's Kafka proxy has")
    is_other = F.expr("false")
    if mapping.table is not None:
        is_other = F.coalesce(F.col("table").cast("string") != mapping.table, is_other)
    of_family = F.octet_length("qualifier") == 0
    deletes = F.when(of_family, DELETE_FAMILY).otherwise(mapping.proxy_deletes)
    kind = F.when(F.col("delete"), deletes).when(~F.col("delete"), PUT)
    known = [name for name in (REASON, ORIGIN, MESSAGE) if name in events.columns]
    cell = {"row": F.col("key"), "type": kind}
    cell |= {name: F.col(name) for name in ("family", "qualifier", "timestamp", "value", *known)}
    columns = [F.when(~is_other, value).alias(name) for name, value in cell.items()]
    return events.select(*columns, is_other.alias(OTHER))


def decoded(cells: DataFrame, mapping: HBaseMapping, partition_columns: Collection[str] = ()) -> DataFrame:
    """Return cells as they are applied, and what of them cannot be.

    Args:
        cells: ``row``, ``family``, ``qualifier`` and ``value`` (binary or string), ``timestamp`` (a whole number, ms),
            ``type`` (a name or code of HBase's); maybe ``sequence`` (a whole number), the order in which cells of one
            timestamp were written; maybe ``REASON``, ``ORIGIN``, ``MESSAGE`` and ``OTHER``.
        mapping: of the row key, and of values.
        partition_columns: Of the table. A value that Delta would store as null there is not applied.

    Returns:
        The key columns, ``FAMILY``, ``QUALIFIER``, ``TYPE``, ``VALUE``, ``WRITTEN``, ``SEQ``, ``DELETED``; ``REASON``,
        null unless the cell cannot be decoded, ``ORIGIN``, ``MESSAGE`` and ``OTHER``.

    Raises:
        SourceError: the cells lack a column.

    """
    lost = [name for name in _NEEDED if name not in cells.columns]
    if lost:
        raise SourceError(f"the source has no column {', '.join(lost)}; a cell has {', '.join(_CELL)}")
    for name in ("timestamp", "sequence"):
        if name in cells.columns and not isinstance(cells.schema[name].dataType, IntegralType):
            raise SourceError(f"the column {name} has {cells.schema[name].dataType.simpleString()}, not whole numbers")
    cells = _whole(cells)
    kind = _type_of(F.col("type"))
    text = {name: F.col(name).cast("string") for name in ("family", "qualifier")}
    keys = mapping.key_columns(F.col("row"))
    of_family = kind.isin(DELETE_FAMILY, DELETE_FAMILY_VERSION)
    is_put = kind == PUT
    partitions = {name.lower() for name in partition_columns}
    key_names = {name.lower() for name in keys}
    column = mapping.column_of(text["family"], text["qualifier"])
    reasons = [
        F.col(REASON),
        *(F.when(F.col(name).isNull(), f"no {name}") for name in _NEEDED),
        F.when(F.col("timestamp") < 0, "timestamp is negative"),
        F.when(kind.isNull(), "no such type of cell"),
        *(F.when(~F.is_valid_utf8(each), f"{name} is not UTF-8") for name, each in text.items()),
        F.when(is_put & F.col("value").isNull(), "no value"),
        *(F.when(each.isNull(), f"the row key does not fit the mapping: {name}") for name, each in keys.items()),
        *(unstorable_text(name, value) for name, value in keys.items() if name.lower() in partitions),
        F.when(
            is_put & mapping.undecodable(column, F.col("value")),
            F.concat(F.lit("the value does not fit the type of "), column),
        ),
        *(
            F.when(
                is_put & (F.lower(column) == name.lower()),
                unstorable_text(name, mapping.type_of(name).decoded(F.col("value"))),
            )
            for name in partition_columns
            if name.lower() not in key_names
        ),
    ]
    return cells.select(
        *(each.alias(name) for name, each in keys.items()),
        text["family"].alias(FAMILY),
        F.when(of_family, "").otherwise(text["qualifier"]).alias(QUALIFIER),
        kind.alias(TYPE),
        F.when(is_put, F.col("value")).alias(VALUE),
        F.coalesce(F.col("sequence"), F.lit(_NOT_SAID)).alias(WRITTEN),
        F.col("timestamp").alias(SEQ),
        (~is_put).alias(DELETED),
        F.when(~F.col(OTHER), F.coalesce(*reasons)).alias(REASON),
        F.col(ORIGIN),
        F.col(MESSAGE),
        F.col(OTHER),
    )


def _whole(cells: DataFrame) -> DataFrame:
    """Return the cells with all columns, and their types."""
    kinds = {"row": "binary", "family": "binary", "qualifier": "binary", "value": "binary", "type": "string"}
    kinds |= {"timestamp": "bigint", "sequence": "bigint", REASON: "string", ORIGIN: "string"}
    there = set(cells.columns)
    found = {name: (F.col(name) if name in there else F.lit(None)).cast(kind) for name, kind in kinds.items()}
    found["qualifier"] = F.coalesce(found["qualifier"], F.to_binary(F.lit("")))
    found[OTHER] = F.col(OTHER) if OTHER in there else F.expr("false")
    said = F.to_json(
        F.struct(*(F.hex(name).alias(name) if name in _BYTES else name for name in _CELL if name in there))
    )
    found[MESSAGE] = F.col(MESSAGE) if MESSAGE in there else said.cast("binary")
    return cells.select(*(each.alias(name) for name, each in found.items()))


def _type_of(given: Column) -> Column:
    names = {name.lower(): name for name in _CODES} | {str(code): name for name, code in _CODES.items()}
    return F.create_map(*(F.lit(part) for pair in names.items() for part in pair))[F.lower(given)]


def _bytes(text: Column, encoding: str) -> Column:
    return text.cast("binary") if encoding == "utf-8" else F.try_to_binary(text, F.lit(encoding))
