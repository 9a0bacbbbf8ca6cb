"""Decode cells of HBase from JSON lines, from files with columns, or from events of Apache HBase's Kafka proxy."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import IntegralType

from writer_jobs.delta.partition_values import unstorable_value_reason
from writer_jobs.errors import SourceError
from writer_jobs.feeds.hbase.mapping import HBaseMapping
from writer_jobs.feeds.message_values import parse_single_value
from writer_jobs.merge.change_spec import DELETED, SEQ

#: Types of cells. Source: ``org.apache.hadoop.hbase.KeyValue.Type``.
PUT, DELETE, DELETE_FAMILY_VERSION = "Put", "Delete", "DeleteFamilyVersion"
#: Types of cells that delete all older versions of a column or family.
DELETE_COLUMN, DELETE_FAMILY = "DeleteColumn", "DeleteFamily"
_CODES = {PUT: 4, DELETE: 8, DELETE_FAMILY_VERSION: 10, DELETE_COLUMN: 12, DELETE_FAMILY: 14}

#: Columns of decoded cells.
FAMILY, QUALIFIER, TYPE = "__sluice_family", "__sluice_qualifier", "__sluice_type"
#: Value of a decoded cell. Of two cells with one timestamp, the one with the larger ``WRITE_ORDER`` is newer.
VALUE, WRITE_ORDER = "__sluice_value", "__sluice_written"

#: Reason why a cell cannot be decoded (null for a decoded cell), place of its message, bytes of its message.
REASON, ORIGIN, MESSAGE = "__sluice_reason", "__sluice_origin", "__sluice_message"
#: Whether an event is of another HBase table. The other columns of such an event are null.
FILTERED = "__sluice_other"

_REQUIRED_COLUMNS = ("row", "family", "timestamp", "type")
_BINARY_COLUMNS = ("row", "family", "qualifier", "value")
_CELL_COLUMNS = ("row", "family", "qualifier", "timestamp", "type", "value", "sequence")
_NO_SEQUENCE = -(1 << 63)
_EVENT_SCHEMA = (
    "key binary, timestamp long, delete boolean, value binary, qualifier binary, family binary, table binary"
)
_EVENT_COLUMNS = ("key", "timestamp", "delete", "value", "qualifier", "family", "table")
_UDF, _DECODER = "sluice_hbase_event", "io.deltasluice.feeds.HBaseEvent"
_JSON_SCHEMA = (
    "row string, family string, qualifier string, value string, timestamp long, type string, sequence long, "
    "corrupt string"
)


def parse_json_cells(messages: DataFrame, mapping: HBaseMapping) -> DataFrame:
    """Return the cells of messages that are JSON objects, for :func:`decode_cells`.

    The messages have ``value`` (binary) and ``origin`` (string).
    """
    text = F.col("value").cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}
    parsed_messages = messages.select("value", "origin", F.from_json(text, _JSON_SCHEMA, options).alias("cell"))
    octets = {name: _bytes(F.col(f"cell.{name}"), mapping.encoding) for name in _BINARY_COLUMNS}
    is_malformed = parse_single_value(text).isNull() | F.col("cell").isNull() | F.col("cell.corrupt").isNotNull()
    reasons = [
        F.when(is_malformed, "the message is not the JSON of one cell"),
        *(
            F.when(F.col(f"cell.{name}").isNotNull() & value.isNull(), f"{name} is not {mapping.encoding}")
            for name, value in octets.items()
        ),
    ]
    return parsed_messages.select(
        *(value.alias(name) for name, value in octets.items()),
        "cell.timestamp",
        "cell.type",
        "cell.sequence",
        F.coalesce(*reasons).alias(REASON),
        F.col("origin").alias(ORIGIN),
        F.col("value").alias(MESSAGE),
    )


def parse_avro_cells(messages: DataFrame, mapping: HBaseMapping) -> DataFrame:
    """Return the cells of messages of Apache HBase's Kafka proxy, whose ``value`` (binary) is an event in Avro."""
    messages.sparkSession.udf.registerJavaFunction(_UDF, _DECODER, _EVENT_SCHEMA)
    parsed_messages = messages.select("value", "origin", F.expr(f"{_UDF}(value)").alias("event"))
    reason = F.when(F.col("event").isNull(), "the message is not an HBaseKafkaEvent")
    message_columns = (reason.alias(REASON), F.col("origin").alias(ORIGIN), F.col("value").alias(MESSAGE))
    return parse_event_cells(parsed_messages.select("event.*", *message_columns), mapping)


def parse_event_cells(events: DataFrame, mapping: HBaseMapping) -> DataFrame:
    """Return the cells of events of Apache HBase's Kafka proxy. Events of other tables are marked in ``FILTERED``.

    An event does not state the type of a delete. A delete without a qualifier deletes the family. For a delete with a
    qualifier, the mapping's ``proxy_deletes`` is the type. Source: ``HbaseKafkaEvent.avro`` and
    ``KafkaTableForBridge`` in hbase-connectors.

    ``events`` has the columns of the event, and optionally ``REASON``, ``ORIGIN`` and ``MESSAGE``.

    Raises:
        SourceError: The events lack a column.

    """
    missing_columns = [name for name in _EVENT_COLUMNS if name not in events.columns]
    if missing_columns:
        raise SourceError(
            f"the source has no column {', '.join(missing_columns)}, which an event of HBase's Kafka proxy has"
        )
    is_filtered = F.expr("false")
    if mapping.table is not None:
        is_filtered = F.coalesce(F.col("table").cast("string") != mapping.table, is_filtered)
    has_no_qualifier = F.coalesce(F.octet_length("qualifier"), F.lit(0)) == 0
    delete_type = F.when(has_no_qualifier, DELETE_FAMILY).otherwise(mapping.proxy_deletes)
    cell_type = F.when(F.col("delete"), delete_type).when(~F.col("delete"), PUT)
    message_columns = [name for name in (REASON, ORIGIN, MESSAGE) if name in events.columns]
    cell = {"row": F.col("key"), "type": cell_type}
    cell |= {name: F.col(name) for name in ("family", "qualifier", "timestamp", "value", *message_columns)}
    columns = [F.when(~is_filtered, value).alias(name) for name, value in cell.items()]
    return events.select(*columns, is_filtered.alias(FILTERED))


def decode_cells(cells: DataFrame, mapping: HBaseMapping, partition_columns: Collection[str] = ()) -> DataFrame:
    """Decode cells. A cell that cannot be decoded gets a reason.

    Args:
        cells: ``row``, ``family``, ``qualifier`` and ``value`` (binary or string), ``timestamp`` (an integer,
            milliseconds), ``type`` (HBase's name or code of a type); optionally ``sequence`` (an integer), the order in
            which cells of one timestamp were written; optionally ``REASON``, ``ORIGIN``, ``MESSAGE`` and ``FILTERED``.
        partition_columns: Partition columns of the table. A cell with a value that Delta would store as null there
            cannot be decoded.

    Returns:
        The key columns, ``FAMILY``, ``QUALIFIER``, ``TYPE``, ``VALUE``, ``WRITE_ORDER``, ``SEQ``, ``DELETED``;
        ``REASON``, null for a decoded cell; ``ORIGIN``, ``MESSAGE`` and ``FILTERED``.

    Raises:
        SourceError: The cells lack a column.

    """
    missing_columns = [name for name in _REQUIRED_COLUMNS if name not in cells.columns]
    if missing_columns:
        raise SourceError(
            f"the source has no column {', '.join(missing_columns)}; a cell has {', '.join(_CELL_COLUMNS)}"
        )
    for name in ("timestamp", "sequence"):
        if name in cells.columns and not isinstance(cells.schema[name].dataType, IntegralType):
            raise SourceError(
                f"the column {name} must have whole numbers, got {cells.schema[name].dataType.simpleString()}"
            )
    cells = _with_all_columns(cells)
    cell_type = _cell_type(F.col("type"))
    texts = {name: F.col(name).cast("string") for name in ("family", "qualifier")}
    keys = mapping.key_columns(F.col("row"))
    is_family_delete = cell_type.isin(DELETE_FAMILY, DELETE_FAMILY_VERSION)
    is_put = cell_type == PUT
    partitions = {name.lower() for name in partition_columns}
    key_names = {name.lower() for name in keys}
    column = mapping.column_of(texts["family"], texts["qualifier"])
    reasons = [
        F.col(REASON),
        *(F.when(F.col(name).isNull(), f"the cell has no {name}") for name in _REQUIRED_COLUMNS),
        F.when(F.col("timestamp") < 0, "timestamp is negative"),
        F.when(cell_type.isNull(), "the type of the cell is unknown"),
        *(F.when(~F.is_valid_utf8(text), f"{name} is not UTF-8") for name, text in texts.items()),
        F.when(is_put & F.col("value").isNull(), "the cell has no value"),
        *(F.when(key.isNull(), f"the row key does not fit the mapping: {name}") for name, key in keys.items()),
        *(unstorable_value_reason(name, key) for name, key in keys.items() if name.lower() in partitions),
        F.when(
            is_put & mapping.is_undecodable(column, F.col("value")),
            F.concat(F.lit("the value does not fit the type of "), column),
        ),
        *(
            F.when(
                is_put & (F.lower(column) == name.lower()),
                unstorable_value_reason(name, mapping.type_of(name).decode(F.col("value"))),
            )
            for name in partition_columns
            if name.lower() not in key_names
        ),
    ]
    return cells.select(
        *(key.alias(name) for name, key in keys.items()),
        texts["family"].alias(FAMILY),
        F.when(is_family_delete, "").otherwise(texts["qualifier"]).alias(QUALIFIER),
        cell_type.alias(TYPE),
        F.when(is_put, F.col("value")).alias(VALUE),
        F.coalesce(F.col("sequence"), F.lit(_NO_SEQUENCE)).alias(WRITE_ORDER),
        F.col("timestamp").alias(SEQ),
        (~is_put).alias(DELETED),
        F.when(~F.col(FILTERED), F.coalesce(*reasons)).alias(REASON),
        F.col(ORIGIN),
        F.col(MESSAGE),
        F.col(FILTERED),
    )


def _with_all_columns(cells: DataFrame) -> DataFrame:
    """Add missing columns to cells, and cast each column to its type."""
    data_types = {"row": "binary", "family": "binary", "qualifier": "binary", "value": "binary", "type": "string"}
    data_types |= {"timestamp": "bigint", "sequence": "bigint", REASON: "string", ORIGIN: "string"}
    cell_columns = set(cells.columns)
    columns = {
        name: (F.col(name) if name in cell_columns else F.lit(None)).cast(data_type)
        for name, data_type in data_types.items()
    }
    columns["qualifier"] = F.coalesce(columns["qualifier"], F.to_binary(F.lit("")))
    columns[FILTERED] = F.col(FILTERED) if FILTERED in cell_columns else F.expr("false")
    cell_json = F.to_json(
        F.struct(
            *(
                F.hex(name).alias(name) if name in _BINARY_COLUMNS else name
                for name in _CELL_COLUMNS
                if name in cell_columns
            )
        )
    )
    columns[MESSAGE] = F.col(MESSAGE) if MESSAGE in cell_columns else cell_json.cast("binary")
    return cells.select(*(column.alias(name) for name, column in columns.items()))


def _cell_type(name_or_code: Column) -> Column:
    """Return the name of a cell's type; null for an unknown type."""
    names = {name.lower(): name for name in _CODES} | {str(code): name for name, code in _CODES.items()}
    return F.create_map(*(F.lit(text) for pair in names.items() for text in pair))[F.lower(name_or_code)]


def _bytes(text: Column, encoding: str) -> Column:
    return text.cast("binary") if encoding == "utf-8" else F.try_to_binary(text, F.lit(encoding))
