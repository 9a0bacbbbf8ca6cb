"""Rows out of messages, and of messages without a row that has a place in the table: what nobody can mend there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VarcharType,
)

from writer_jobs.delta.exact_cast import EXACT_DIGITS, exact_cast
from writer_jobs.delta.exact_columns import INEXACT_TYPES, as_text, from_text, has_any, misfit_sentence
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.partition_values import partition_types, unstorable_reason
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import SourceError
from writer_jobs.feeds.wire import has_long_number, only_value
from writer_jobs.feeds.wire import path as variant_path
from writer_jobs.job.stream.arguments import StreamJobArguments
from writer_jobs.late_rows.event_time import EVENT_RANGE, event_micros, is_event_time
from writer_jobs.late_rows.stream import RowBatch
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.writer import LockedDeltaWriter

ROW = "__sluice_row"
"""Column with the row that a message has."""

_CORRUPT, _REASON = "__sluice_corrupt", "__sluice_reason"
_DOCUMENT = "__sluice_document"
# Whether the message has a number of more digits than VARIANT stores, for a column of type double, or of type decimal.
_LONG_DOUBLE, _LONG_DECIMAL = "__sluice_long_double", "__sluice_long_decimal"
_TEXTS = (*INEXACT_TYPES, BinaryType)
# Variants that are written as they arrived: a number with a fraction or an exponent is not, nor is an object.
_SAME_TEXT = r"^(STRING|BOOLEAN|BIGINT|DECIMAL\(\d+,0\))\z"


class JsonValues:
    """Values of messages that are JSON objects with columns of a schema.

    Args:
        writer: of the table that gets them.
        arguments: of the job.
        schema: the columns.

    Raises:
        SourceError: there is no such schema, or it has a type with a length.

    """

    def __init__(self, writer: LockedDeltaWriter, arguments: StreamJobArguments, schema: str) -> None:
        self._writer = writer
        self._arguments = arguments
        try:
            parsed = StructType.fromDDL(schema)
        except (*JVM_ERRORS, PySparkException) as error:
            raise SourceError(f"--value-schema {schema!r}: {one_sentence(error)}") from error
        if has_any(parsed, (CharType, VarcharType)):
            raise SourceError(f"--value-schema {schema!r}: write string for char(n) and varchar(n)")
        self._schema = parsed

    @contextmanager
    def of(self, messages: DataFrame) -> Iterator[RowBatch]:
        """Return the rows of messages, as long as it is open.

        Raises:
            SourceError: JSON has no such columns.
            ChangesError: the messages cannot be read.

        """
        text = F.col("value").cast("string")
        as_texts = as_text(self._schema, _TEXTS)
        document = only_value(text)
        # It finds values of other kinds, and makes a double of a number that is read as text: a variant has its digits.
        checked = F.from_json(
            text, StructType([*as_texts, StructField(_CORRUPT, StringType())]), {"columnNameOfCorruptRecord": _CORRUPT}
        )
        is_bad = document.isNull() | checked.isNull() | checked.getField(_CORRUPT).isNotNull()
        misfit = _misfit(F.col(_DOCUMENT), F.col(ROW), self._schema, "")
        reason = F.when(is_bad, "no JSON of the schema").otherwise(misfit)
        try:
            read = messages.select(
                *("key", "value", "origin"),
                document.alias(_DOCUMENT),
                has_long_number(text).alias(_LONG_DOUBLE),
                has_long_number(text, EXACT_DIGITS[DoubleType]).alias(_LONG_DECIMAL),
            )
            read = read.withColumn(ROW, F.col(_DOCUMENT).try_cast(as_texts)).withColumn(_REASON, reason)
            row = from_text(F.col(ROW), self._schema, _TEXTS, lambda item, kind, _: _value(item, kind), "")
            read = read.select("key", "value", "origin", row.alias(ROW), _REASON)
        except PySparkException as error:
            raise SourceError(f"--value-schema: {one_sentence(error)}") from error
        with closing(MaterializedRows.of(self._writer.table, read, "messages")) as kept:
            yield placed(kept.rows, self._writer, self._arguments)


def _misfit(value: Column, read: Column, target: DataType, path: str) -> Column:
    """Return a sentence on a part of a parsed value that would change in its type, or be lost; null if there is none.

    Fields of the message itself that the schema lacks are not lost: the user chose the columns.

    Args:
        value: a variant.
        read: The value as the type that :func:`as_text` returns.
        target: the type.
        path: name of the column; empty for the whole message.

    """
    if isinstance(target, StructType):
        fields = (
            _misfit(
                F.try_variant_get(value, variant_path(field.name), "variant"),
                read.getField(field.name),
                field.dataType,
                f"{path}.{field.name}".lstrip("."),
            )
            for field in target
        )
        return F.coalesce(_unknown_field(value, target, path), *fields)
    if isinstance(target, ArrayType):
        return _first_misfit(F.try_variant_get(value, "$", "array<variant>"), read, target.elementType, path)
    if isinstance(target, MapType):
        values = F.map_values(F.try_variant_get(value, "$", "map<string,variant>"))
        return _first_misfit(values, F.map_values(read), target.valueType, path)
    is_value = value.isNotNull() & ~F.is_variant_null(value)
    if isinstance(target, StringType):
        is_lost = ~F.schema_of_variant(value).rlike(_SAME_TEXT)
        return F.when(is_value & is_lost, f"column {path}: its JSON would be written anew as text; send a JSON string")
    is_changed = (_value(read, target) if isinstance(target, _TEXTS) else read).isNull()
    if isinstance(target, DecimalType | FloatType | DoubleType):
        is_too_large = read.endswith("Infinity") & ~F.col("value").cast("string").contains('Infinity"')
        is_changed |= is_too_large | F.col(_LONG_DECIMAL if isinstance(target, DecimalType) else _LONG_DOUBLE)
    text = F.coalesce(read.cast("string"), F.to_json(value))
    return F.when(is_value & is_changed, misfit_sentence(text, target, path))


def _first_misfit(values: Column, read: Column, target: DataType, path: str) -> Column:
    """Return the sentence of :func:`_misfit` on the first item of two arrays that has one; null if none has."""
    sentences = F.zip_with(values, read, lambda value, item: _misfit(value, item, target, f"{path}[]"))
    return F.try_element_at(F.array_compact(sentences), F.lit(1))


def _value(text: Column, target: DataType) -> Column:
    """Return the value of a text of JSON; null if it is not exactly one."""
    return F.try_to_binary(text, F.lit("base64")) if isinstance(target, BinaryType) else exact_cast(text, target)


def _unknown_field(value: Column, target: StructType, path: str) -> Column:
    """Return a sentence on a field that a type does not have, or has in another case; null if there is none."""
    names, folded = (
        F.map_keys(F.try_variant_get(value, "$", "map<string,variant>")),
        [name.lower() for name in target.names],
    )
    unknown = F.filter(names, lambda name: ~name.isin(*target.names))
    if not path:
        unknown = F.filter(unknown, lambda name: F.lower(name).isin(*folded))
    place = F.lit(f"{path}.".lstrip("."))
    return F.concat(F.lit("field "), place, F.try_element_at(unknown, F.lit(1)), F.lit(" is not in --value-schema"))


def placed(messages: DataFrame, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> RowBatch:
    """Return the rows of messages, and as dead letters those that have no place in the table.

    For nobody can mend them where they are.

    Args:
        messages: ``key``, ``value``, ``origin``, a row in ``ROW``, and why there is none in ``_REASON``, or not.
        writer: of the table.
        arguments: of the job.

    """
    state = writer.log.state()
    partitioned_by = arguments.partition_by if state is None else state.partition_columns
    row = messages.schema[ROW].dataType
    fields = {field.name.lower(): field for field in (row if isinstance(row, StructType) else ())}
    names = dict.fromkeys(name.lower() for name in (*arguments.keys, arguments.event_time, *partitioned_by))
    values = {fields[name].name: F.col(f"{ROW}.{quoted(fields[name].name)}") for name in names if name in fields}
    nulls = F.concat_ws(", ", *(F.when(value.isNull(), name) for name, value in values.items()))
    schema = StructType(list(fields.values()))
    reasons = [
        F.when(nulls != "", F.concat(F.lit("null in "), nulls)),
        unstorable_reason(schema, partition_types(state, arguments.partition_by, schema), f"{ROW}."),
    ]
    if (at := fields.get(arguments.event_time.lower())) is not None:
        reasons += _of_event_time(values[at.name], at.dataType)
    if _REASON in messages.columns:
        reasons.insert(0, F.col(_REASON))
    told = messages.withColumn(_REASON, F.coalesce(*reasons))
    dead = told.where(F.col(_REASON).isNotNull()).select("key", "value", "origin", F.col(_REASON).alias("reason"))
    rows = told.where(F.col(_REASON).isNull()).select(f"{ROW}.*")
    return RowBatch(with_moments(rows, arguments.event_time), dead)


def _of_event_time(value: Column, kind: DataType) -> Iterator[Column]:
    """Yield the reasons why a row's event time cannot be used; null for a good one."""
    read_as = _moment_or(kind)
    moment = exact_cast(value, read_as) if isinstance(kind, StringType) else value
    yield F.when(moment.isNull(), "the event time is no moment")
    if is_event_time(read_as):
        yield F.when(
            ~event_micros(moment, read_as).between(*EVENT_RANGE), "the event time is beyond the years 1 to 9999"
        )


def with_moments(rows: DataFrame, event_time: str) -> DataFrame:
    """Return rows whose event time is a timestamp if it is text; a text that is not exactly one fails."""
    for field in rows.schema:
        if field.name.lower() == event_time.lower() and isinstance(field.dataType, StringType):
            text, kind = rows[quoted(field.name)], _moment_or(field.dataType)
            failure = F.raise_error(misfit_sentence(text, kind, field.name)).cast(kind)
            return rows.withColumn(field.name, F.when(text.isNotNull(), F.coalesce(exact_cast(text, kind), failure)))
    return rows


def _moment_or(kind: DataType) -> DataType:
    return TimestampType() if isinstance(kind, StringType) else kind
