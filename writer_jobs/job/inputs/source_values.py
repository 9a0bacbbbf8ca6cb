"""Read values of source files exactly: as text where Spark's readers can change them, then by an exact cast."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql import types as T  # noqa: N812 (its name everywhere)

from writer_jobs.delta.exact_cast import exact_cast, is_one_moment
from writer_jobs.delta.exact_columns import INEXACT_TYPES, as_text, from_text, misfit_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import SourceError
from writer_jobs.job.inputs.source_lines import encoding_of, is_utf8

# The reader option that sets the format of a type's values, in lower case.
_FORMAT_OPTIONS: Mapping[type[T.DataType], str] = {
    T.DateType: "dateformat",
    T.TimestampType: "timestampformat",
    T.TimestampNTZType: "timestampntzformat",
}
# A fraction of a second that is finer than microseconds.
_TOO_MANY_DIGITS = r"\.\d{6}0*[1-9]"
# CSV options with texts for NaN and the infinities, and the names of these values in SQL.
_NOT_FINITE = {"nanvalue": "NaN", "positiveinf": "Infinity", "negativeinf": "-Infinity"}
_REPLACEMENT = "\ufffd"


class SourceValues:
    """The casts of the values of files with one format.

    ``options`` are the user's options for Spark's reader, with lower-case names. The values of ``folder_columns`` are
    in names of folders.

    Raises:
        SourceError: The option timeZone differs from the session's time zone.

    """

    def __init__(
        self, spark: SparkSession, file_format: str, options: Mapping[str, str], folder_columns: Collection[str]
    ) -> None:
        self._spark = spark
        self._is_text = file_format in ("csv", "json")
        self._options = options
        self._folder_columns = folder_columns
        zone = str(spark.conf.get("spark.sql.session.timeZone"))
        if self._options.get("timezone", zone) != zone:
            raise SourceError(
                f"--option timeZone={self._options['timezone']}: timestamps are read in the session's time zone, "
                f"{zone}; set it with --conf spark.sql.session.timeZone=…"
            )

    def schema_to_read(self, schema: T.StructType) -> T.StructType:
        """Return a schema with string in place of types whose values Spark can change."""
        return T.StructType(
            [T.StructField(field.name, as_text(field.dataType, self._text_types(field.name))) for field in schema]
        )

    def may_change(self, field: T.StructField) -> bool:
        """Return whether the type that Spark inferred for a column can change a value."""
        return isinstance(field.dataType, (T.IntegerType, T.LongType, *self._text_types(field.name)))

    def is_changed_by_cast(self, text: Column, target: T.DataType) -> Column:
        """Return the condition that a cast to a type changes a text, such as 007, +5, or one with too many digits."""
        has_format = _FORMAT_OPTIONS.get(type(target)) in self._options
        is_rewritten = F.expr("false") if has_format else text.rlike(r"^(\+|-?0\d)")
        return text.isNotNull() & (self._value(text, target).isNull() | is_rewritten)

    def cast(self, rows: DataFrame, schema: T.StructType) -> DataFrame:
        """Cast rows with the types of :meth:`schema_to_read` to a schema.

        A value that would change fails the job that reads it. With the option mode=PERMISSIVE such a value is null.
        """
        text_types = {field.name: types for field in schema if (types := self._text_types(field.name))}
        if not text_types:
            return rows
        file = rows.metadataColumn("_metadata").getField("file_path")

        def cast_text(text: Column, target: T.DataType, path: str) -> Column:
            value = self._value(text, target)
            if self._options.get("mode", "").lower() == "permissive":
                return value
            sentence = F.concat(misfit_sentence(text, target, path), F.lit(", in "), file)
            return F.when(text.isNotNull(), F.coalesce(value, F.raise_error(sentence).cast(target)))

        def column(name: str) -> Column:
            if name not in text_types:
                return rows[quoted(name)]
            return from_text(rows[quoted(name)], schema[name].dataType, text_types[name], cast_text, name).alias(name)

        return rows.select(*map(column, rows.columns))

    def _text_types(self, column: str) -> tuple[type[T.DataType], ...]:
        """Return the types that Spark reads as text in a column."""
        if not self._is_text and column not in self._folder_columns:
            return ()
        # Spark decodes invalid bytes as the replacement character. Lines in UTF-8 are already checked.
        return INEXACT_TYPES if is_utf8(encoding_of(self._options)) else (*INEXACT_TYPES, T.StringType)

    def _value(self, text: Column, target: T.DataType) -> Column:
        if isinstance(target, T.StringType):
            return F.when(~text.contains(_REPLACEMENT), text)
        if isinstance(target, T.DecimalType) and "locale" in self._options:
            java: Any = self._spark._jvm.java  # noqa: SLF001
            symbols = java.text.DecimalFormatSymbols(java.util.Locale.forLanguageTag(self._options["locale"]))
            text = F.translate(text, f"{symbols.getDecimalSeparator()}{symbols.getGroupingSeparator()}", ".")
        if isinstance(target, T.FloatType | T.DoubleType):
            for option, name in _NOT_FINITE.items():
                text = F.when(text == self._options[option], name).otherwise(text) if option in self._options else text
        option = _FORMAT_OPTIONS.get(type(target), "")
        return self._parse_formatted(text, target, option) if option in self._options else exact_cast(text, target)

    def _parse_formatted(self, text: Column, target: T.DataType, option: str) -> Column:
        """Parse a text in the user's format; null if the text is not exactly one value."""
        options = {option: self._options[option], "timestampntzformat": self._options[option]}
        if "locale" in self._options:
            options["locale"] = self._options["locale"]
        schema = T.StructType([T.StructField("value", target), T.StructField("local", T.TimestampNTZType())])
        # from_json parses all of these types by a format; no SQL function does.
        parsed_values = F.from_json(F.to_json(F.struct(text.alias("value"), text.alias("local"))), schema, options)
        # local is null if the format has a time zone.
        value, local = parsed_values.getField("value"), parsed_values.getField("local")
        if isinstance(target, T.DateType):
            is_exact = value.cast(T.TimestampNTZType()) == local
        elif isinstance(target, T.TimestampType):
            is_exact = is_one_moment(value, local)
        else:
            is_exact = F.expr("true")
        return F.when(F.coalesce(is_exact, F.expr("true")) & ~text.rlike(_TOO_MANY_DIGITS), value)
