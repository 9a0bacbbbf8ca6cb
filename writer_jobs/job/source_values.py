"""Values of source files: read as text where Spark's readers may change them, and cast exactly."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import (
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from writer_jobs.delta.exact_cast import exact_cast
from writer_jobs.delta.exact_columns import INEXACT_TYPES, as_text, from_text, misfit_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.job.source_lines import encoding_of, is_utf8

# Types that Spark parses itself, if the user gives the format.
_FORMAT_OPTIONS: Mapping[str, type[DataType]] = {
    "dateformat": DateType,
    "timestampformat": TimestampType,
    "timestampntzformat": TimestampNTZType,
}
# Options of CSV that name values without digits, and their names in SQL.
_NOT_FINITE = {"nanvalue": "NaN", "positiveinf": "Infinity", "negativeinf": "-Infinity"}
_REPLACEMENT = "\ufffd"


class SourceValues:
    """How the values of files are read.

    Args:
        spark: the session.
        file_format: ``csv``, ``json`` or ``parquet``.
        options: of the user, for Spark's reader.
        folder_columns: columns whose values are in names of folders.

    """

    def __init__(
        self, spark: SparkSession, file_format: str, options: Mapping[str, str], folder_columns: Collection[str]
    ) -> None:
        self._spark = spark
        self._is_text = file_format in ("csv", "json")
        self._options = {name.lower(): value for name, value in options.items()}
        self._folder_columns = folder_columns

    def read_as(self, schema: StructType) -> StructType:
        """Return a schema with string in place of types that Spark may change."""
        return StructType(
            [StructField(field.name, as_text(field.dataType, self._texts(field.name))) for field in schema]
        )

    def may_change(self, field: StructField) -> bool:
        """Return whether a column may lose something where Spark has inferred its type from texts."""
        return isinstance(field.dataType, (IntegerType, LongType, *self._texts(field.name)))

    def cast(self, rows: DataFrame, schema: StructType) -> DataFrame:
        """Return rows with the types of a schema; a value that would change fails the job that reads it.

        With the option mode=PERMISSIVE it is null.

        Args:
            rows: as Spark reads them by :meth:`read_as`.
            schema: names and types.

        """
        texts = {field.name: kinds for field in schema if (kinds := self._texts(field.name))}
        if not texts:
            return rows
        file = rows.metadataColumn("_metadata").getField("file_path")

        def leaf(text: Column, target: DataType, path: str) -> Column:
            value = self._value(text, target)
            if self._options.get("mode", "").lower() == "permissive":
                return value
            sentence = F.concat(misfit_sentence(text, target, path), F.lit(", in "), file)
            return F.when(text.isNotNull(), F.coalesce(value, F.raise_error(sentence).cast(target)))

        def column(name: str) -> Column:
            if name not in texts:
                return rows[quoted(name)]
            return from_text(rows[quoted(name)], schema[name].dataType, texts[name], leaf, name).alias(name)

        return rows.select(*map(column, rows.columns))

    def _texts(self, column: str) -> tuple[type[DataType], ...]:
        """Return the types that Spark is to read as text in a column."""
        if not self._is_text and column not in self._folder_columns:
            return ()
        parsed = [kind for option, kind in _FORMAT_OPTIONS.items() if option in self._options]
        exact = tuple(kind for kind in INEXACT_TYPES if kind not in parsed)
        # Spark decodes bytes without a meaning as the replacement character. Lines in UTF-8 are checked before.
        return exact if is_utf8(encoding_of(self._options)) else (*exact, StringType)

    def _value(self, text: Column, target: DataType) -> Column:
        if isinstance(target, StringType):
            return F.when(~text.contains(_REPLACEMENT), text)
        if isinstance(target, DecimalType) and "locale" in self._options:
            java: Any = self._spark._jvm.java  # noqa: SLF001
            symbols = java.text.DecimalFormatSymbols(java.util.Locale.forLanguageTag(self._options["locale"]))
            text = F.translate(text, f"{symbols.getDecimalSeparator()}{symbols.getGroupingSeparator()}", ".")
        if isinstance(target, FloatType | DoubleType):
            for option, name in _NOT_FINITE.items():
                text = F.when(text == self._options[option], name).otherwise(text) if option in self._options else text
        return exact_cast(text, target)


def changes(text: Column, target: DataType) -> Column:
    """Return whether a text would be another one, written as a value of a type: 007, +5, digits that are cut."""
    return text.isNotNull() & (exact_cast(text, target).isNull() | text.rlike(r"^(\+|-?0\d)"))
