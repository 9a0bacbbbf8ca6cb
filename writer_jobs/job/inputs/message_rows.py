"""Rows of messages for ``stream.py``. A message whose row cannot be stored becomes a dead letter."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql import types as T  # noqa: N812 (its name everywhere)

from writer_jobs.delta.exact_cast import EXACT_DIGITS, exact_cast
from writer_jobs.delta.exact_columns import INEXACT_TYPES, as_text, contains_type, from_text, misfit_sentence
from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.partition_values import partition_types, unstorable_row_reason
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import SourceError
from writer_jobs.feeds.message_values import has_inexact_number, object_fields, parse_single_value, variant_path
from writer_jobs.job.stream.arguments import StreamJobArguments
from writer_jobs.late_rows.event_time import EVENT_RANGE, event_micros, is_event_time
from writer_jobs.late_rows.stream import RowBatch
from writer_jobs.merge.materialized import MaterializedRows
from writer_jobs.writer import LockedDeltaWriter

ROW = "__sluice_row"
"""Column with the row of a message."""

_CORRUPT, _REASON = "__sluice_corrupt", "__sluice_reason"
_DOCUMENT = "__sluice_document"
# Whether the message has a number with more digits than VARIANT stores, for a column of type double or of type decimal.
_LONG_DOUBLE, _LONG_DECIMAL = "__sluice_long_double", "__sluice_long_decimal"
# Types whose values are read as text first, and then cast.
_TEXT_TYPES = (*INEXACT_TYPES, T.BinaryType)
# Types of variants whose text equals their JSON. Objects, and numbers with a fraction or an exponent, can differ.
_SAME_TEXT = r"^(STRING|BOOLEAN|BIGINT|DECIMAL\(\d+,0\))\z"


class JsonMessages:
    """A reader of messages that are JSON objects with the columns of a schema in DDL.

    Raises:
        SourceError: The schema is invalid, or has a type with a length.

    """

    def __init__(self, writer: LockedDeltaWriter, arguments: StreamJobArguments, schema: str) -> None:
        self._writer = writer
        self._arguments = arguments
        try:
            self._schema = T.StructType.fromDDL(schema)
        except SPARK_ERRORS as error:
            raise SourceError(f"--value-schema {schema!r} is not valid: {error_reason(error)}") from error
        if contains_type(self._schema, (T.CharType, T.VarcharType)):
            raise SourceError(f"--value-schema {schema!r} is not supported: write string for char(n) and varchar(n)")

    @contextmanager
    def rows(self, messages: DataFrame) -> Iterator[RowBatch]:
        """Return a context with the rows of messages.

        Raises:
            SourceError: JSON cannot be read with the schema.
            ChangesError: The messages cannot be read.

        """
        text = F.col("value").cast("string")
        text_schema = as_text(self._schema, _TEXT_TYPES)
        document = parse_single_value(text)
        # from_json finds values of the wrong JSON type, but converts a number to text through a double. The variant
        # keeps the number's digits.
        json_row = F.from_json(
            text,
            T.StructType([*text_schema, T.StructField(_CORRUPT, T.StringType())]),
            {"columnNameOfCorruptRecord": _CORRUPT},
        )
        is_invalid = document.isNull() | json_row.isNull() | json_row.getField(_CORRUPT).isNotNull()
        misfit = _misfit(F.col(_DOCUMENT), F.col(ROW), self._schema, "")
        reason = F.when(is_invalid, "the value is not a JSON object of --value-schema").otherwise(misfit)
        try:
            parsed_messages = messages.select(
                *("key", "value", "origin"),
                document.alias(_DOCUMENT),
                has_inexact_number(text).alias(_LONG_DOUBLE),
                has_inexact_number(text, EXACT_DIGITS[T.DoubleType]).alias(_LONG_DECIMAL),
            )
            parsed_messages = parsed_messages.withColumn(ROW, F.col(_DOCUMENT).try_cast(text_schema))
            parsed_messages = parsed_messages.withColumn(_REASON, reason)
            row = from_text(
                F.col(ROW), self._schema, _TEXT_TYPES, lambda item, data_type, _: _cast_exactly(item, data_type), ""
            )
            parsed_messages = parsed_messages.select("key", "value", "origin", row.alias(ROW), _REASON)
        except PySparkException as error:
            raise SourceError(f"JSON cannot be read with --value-schema: {error_reason(error)}") from error
        with closing(MaterializedRows.of(self._writer.table, parsed_messages, "messages")) as materialized:
            yield separate_dead_letters(materialized.rows, self._writer, self._arguments)


def _misfit(value: Column, text_value: Column, target: T.DataType, path: str) -> Column:
    """Return a sentence about a part of a value that its type would change or lose; null without such a part.

    Top-level fields that the schema lacks are ignored: the user chose the columns. The value is a variant, and
    ``text_value`` has the type that :func:`as_text` returns. The path is empty for the whole message.
    """
    if isinstance(target, T.StructType):
        fields = (
            _misfit(
                F.try_variant_get(value, variant_path(field.name), "variant"),
                text_value.getField(field.name),
                field.dataType,
                f"{path}.{field.name}".lstrip("."),
            )
            for field in target
        )
        return F.coalesce(_unknown_field(value, target, path), *fields)
    if isinstance(target, T.ArrayType):
        return _first_misfit(F.try_variant_get(value, "$", "array<variant>"), text_value, target.elementType, path)
    if isinstance(target, T.MapType):
        values = F.map_values(object_fields(value))
        return _first_misfit(values, F.map_values(text_value), target.valueType, path)
    is_value = value.isNotNull() & ~F.is_variant_null(value)
    if isinstance(target, T.StringType):
        is_lost = ~F.schema_of_variant(value).rlike(_SAME_TEXT)
        return F.when(is_value & is_lost, f"column {path}: the text of its JSON would change; send a JSON string")
    is_changed = (_cast_exactly(text_value, target) if isinstance(target, _TEXT_TYPES) else text_value).isNull()
    if isinstance(target, T.DecimalType | T.FloatType | T.DoubleType):
        is_too_large = text_value.endswith("Infinity") & ~F.col("value").cast("string").contains('Infinity"')
        is_changed |= is_too_large | F.col(_LONG_DECIMAL if isinstance(target, T.DecimalType) else _LONG_DOUBLE)
    text = F.coalesce(text_value.cast("string"), F.to_json(value))
    return F.when(is_value & is_changed, misfit_sentence(text, target, path))


def _first_misfit(values: Column, text_values: Column, target: T.DataType, path: str) -> Column:
    """Return the sentence of :func:`_misfit` about the first element of two arrays with a misfit; null without one."""
    sentences = F.zip_with(values, text_values, lambda value, text: _misfit(value, text, target, f"{path}[]"))
    return F.try_element_at(F.array_compact(sentences), F.lit(1))


def _cast_exactly(text: Column, target: T.DataType) -> Column:
    """Cast a JSON text; null if the text is not exactly one value of the type."""
    return F.try_to_binary(text, F.lit("base64")) if isinstance(target, T.BinaryType) else exact_cast(text, target)


def _unknown_field(value: Column, target: T.StructType, path: str) -> Column:
    """Return a sentence about a field that a type lacks, or has in another case; null without such a field."""
    names = F.map_keys(object_fields(value))
    unknown_names = F.filter(names, lambda name: ~name.isin(*target.names))
    if not path:
        lower_names = [name.lower() for name in target.names]
        unknown_names = F.filter(unknown_names, lambda name: F.lower(name).isin(*lower_names))
    prefix = F.lit(f"{path}.".lstrip("."))
    return F.concat(
        F.lit("field "), prefix, F.try_element_at(unknown_names, F.lit(1)), F.lit(" is not in --value-schema")
    )


def separate_dead_letters(messages: DataFrame, writer: LockedDeltaWriter, arguments: StreamJobArguments) -> RowBatch:
    """Separate the rows of messages from dead letters: messages without a row, or with a row that cannot be stored.

    Messages have the columns ``key``, ``value``, ``origin`` and ``ROW``, and optionally ``_REASON``: the reason why a
    message has no row.
    """
    state = writer.log.state()
    partition_columns = arguments.partition_by if state is None else state.partition_columns
    row = messages.schema[ROW].dataType
    fields = {field.name.lower(): field for field in (row if isinstance(row, T.StructType) else ())}
    names = dict.fromkeys(name.lower() for name in (*arguments.keys, arguments.event_time, *partition_columns))
    values = {fields[name].name: F.col(f"{ROW}.{quoted(fields[name].name)}") for name in names if name in fields}
    nulls = F.concat_ws(", ", *(F.when(value.isNull(), name) for name, value in values.items()))
    schema = T.StructType(list(fields.values()))
    reasons = [
        F.when(nulls != "", F.concat(F.lit("null in "), nulls)),
        unstorable_row_reason(schema, partition_types(state, arguments.partition_by, schema), f"{ROW}."),
    ]
    if (event_time := fields.get(arguments.event_time.lower())) is not None:
        reasons += _event_time_reasons(values[event_time.name], event_time.dataType)
    if _REASON in messages.columns:
        reasons.insert(0, F.col(_REASON))
    messages = messages.withColumn(_REASON, F.coalesce(*reasons))
    reason = F.col(_REASON)
    dead_letters = messages.where(reason.isNotNull()).select("key", "value", "origin", reason.alias("reason"))
    rows = messages.where(reason.isNull()).select(f"{ROW}.*")
    return RowBatch(with_event_timestamps(rows, arguments.event_time), dead_letters)


def _event_time_reasons(value: Column, data_type: T.DataType) -> Iterator[Column]:
    """Yield the reasons why a row's event time is unusable; null for a usable one."""
    target = T.TimestampType() if isinstance(data_type, T.StringType) else data_type
    event_time = exact_cast(value, target) if isinstance(data_type, T.StringType) else value
    yield F.when(event_time.isNull(), "the event time is not a timestamp")
    if is_event_time(target):
        reason = "the event time is outside 0001-01-03 to 9999-12-29 (UTC)"
        yield F.when(~event_micros(event_time, target).between(*EVENT_RANGE), reason)


def with_event_timestamps(rows: DataFrame, event_time: str) -> DataFrame:
    """Cast event times that are text to timestamps. A text that is not exactly a timestamp fails the job."""
    for field in rows.schema:
        if field.name.lower() == event_time.lower() and isinstance(field.dataType, T.StringType):
            text, data_type = rows[quoted(field.name)], T.TimestampType()
            failure = F.raise_error(misfit_sentence(text, data_type, field.name)).cast(data_type)
            return rows.withColumn(
                field.name, F.when(text.isNotNull(), F.coalesce(exact_cast(text, data_type), failure))
            )
    return rows
