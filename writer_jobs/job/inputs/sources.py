"""Reading of source files so that no row and no column is dropped in silence.

Spark's readers are lenient by default: a value that does not parse becomes null, a column that was not asked for is
skipped, a CSV file's columns are taken by position whatever its header says, and a cluster may be configured to pass
over files that are damaged or gone. Here each of these is an error, unless a reader option says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StringType, StructField, StructType

from writer_jobs.delta.hadoop_files import escaped
from writer_jobs.delta.jvm_errors import JVM_ERRORS, has_condition, one_sentence
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import merged_schema, mismatch, type_differences, type_to_read
from writer_jobs.errors import SchemaMismatchError, SourceError, WriteFailedError
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.inputs.source_lines import CsvSyntax, LinesError, check_csv, check_json, encoding_of, is_utf8
from writer_jobs.job.inputs.source_values import SourceValues

#: Formats of source files, as Spark names them.
FORMATS = ("csv", "json", "parquet")
# Over what spark.sql.files.* says.
_NO_FILE_LESS = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
_DEFAULT_OPTIONS: Mapping[str, Mapping[str, str]] = {
    # enforceSchema would let the header be ignored.
    "csv": {
        "header": "true",
        "enforceSchema": "false",
        "mode": "FAILFAST",
        "escape": '"',
        "unescapedQuoteHandling": "RAISE_ERROR",
        **_NO_FILE_LESS,
    },
    "json": {"mode": "FAILFAST", **_NO_FILE_LESS},
    "text": _NO_FILE_LESS,
    # Else one file's columns are taken for all.
    "parquet": {"mergeSchema": "true", **_NO_FILE_LESS},
}

#: Columns of files that are read line by line, as ``text``.
LINES = StructType([StructField("value", StringType())])


class SourceReader:
    """Reads source files for one table.

    Args:
        spark: the session.
        sources: the files.
        file_format: ``csv``, ``json``, ``parquet``, or ``text`` for lines.
        options: for Spark's reader, beside and before the strict defaults.
        table: canonical URI, for messages.

    Raises:
        SourceError: an option would change values.

    """

    def __init__(
        self, spark: SparkSession, sources: SourceFiles, file_format: str, options: Mapping[str, str], table: str
    ) -> None:
        self._given = {name.lower(): value for name, value in options.items()}
        defaults = {
            name: value for name, value in _DEFAULT_OPTIONS[file_format].items() if name.lower() not in self._given
        }
        #: All options of the reader, in effect.
        self.options = {**defaults, **options, **({"basePath": sources.base} if sources.base else {})}
        self._effective = {name.lower(): value.lower() for name, value in self.options.items()}
        if file_format == "json" and not is_utf8(encoding_of(self._given)):
            raise SourceError("JSON is read as UTF-8 alone (RFC 8259): convert the files, and drop --option encoding")
        if file_format == "json" and self._effective.get("multiline") == "true" and sources.are_compressed:
            # Spark reads numbers again from the file, which it cannot where the file is compressed.
            raise SourceError("JSON files with --option multiLine=true must not be compressed: decompress them")
        self._folder_columns = set(sources.folder_columns)
        self._values = SourceValues(spark, file_format, self._given, self._folder_columns)
        self._spark = spark
        self._paths = [escaped(file.path) for file in sources.files]
        self._format = file_format
        self._table = table
        self._exact = str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"

    def schema(self, target: TableState | None) -> StructType:
        """Find out with which names and types the files are to be read.

        For a new table, what Spark infers. For an existing one the table's types, under the files' own names; Parquet
        files keep theirs, which Delta compares and casts.

        Raises:
            SourceError: they cannot be read as this format, or have no columns for a new table.
            SchemaMismatchError: they have columns that the table does not have, or (CSV) lack some of its own.
            WriteFailedError: a malformed record.

        """
        schema = self._inferred(target, types=self._format == "csv" and target is None)
        if target is None:
            if not schema.fields:
                raise SourceError("the source files have no columns to create a table with")
            return self._without_changes(schema)
        if self._format == "csv" and self._effective["header"] != "true":
            schema = self._by_position(schema, target)
        if self._format == "json" and not schema.fields:
            return _nullable(target.schema)
        schema = self._types_to_read(schema, self._table_types(target))
        self._check_names(schema, target)
        return schema

    def schema_of_changes(self, target: TableState | None, *, evolves: bool = False) -> StructType:
        """Find out with which names and types files of changes are to be read, which have columns of their own.

        Columns of the table have its types. Others, and nested fields that the table lacks, have what Spark infers.

        Args:
            target: the table's state, None if there is none.
            evolves: a column of the table is read with what Spark infers, if that is wider than its type.

        Raises:
            SourceError: they cannot be read as this format, or have no columns.
            WriteFailedError: a malformed record.

        """
        schema = self._inferred(target, types=self._format == "csv")
        if not schema.fields:
            raise SourceError("the source files have no columns")
        types = {} if target is None else self._table_types(target)
        return self._without_changes(self._types_to_read(schema, types, widens=evolves), table_columns=types)

    def _table_types(self, target: TableState) -> dict[str, DataType]:
        """Return by folded name the types of the table for columns that are read with them."""
        types = {self._fold(field.name): field.dataType for field in target.schema}
        if self._format == "parquet":
            folder_columns = set(map(self._fold, self._folder_columns))
            return {name: kind for name, kind in types.items() if name in folder_columns}
        return types

    def _types_to_read(self, schema: StructType, types: Mapping[str, DataType], *, widens: bool = False) -> StructType:
        def field_to_read(field: StructField) -> StructField:
            table = types.get(self._fold(field.name), field.dataType)
            return StructField(field.name, type_to_read(table, field.dataType, self._fold, widens=widens))

        return StructType([field_to_read(field) for field in schema])

    def _inferred(self, target: TableState | None, *, types: bool) -> StructType:
        infer = types and "inferschema" not in self._effective
        with self._readable():
            reader = self._reader().options(**({"inferSchema": "true"} if infer else {}))
            schemas = self._schemas(reader, self._paths)
        try:
            return merged_schema(None if target is None else target.schema, schemas, self._fold)
        except ValueError as error:
            raise SourceError(f"the files have different types for a column: {error}") from error

    def _schemas(self, reader: DataFrameReader, paths: Sequence[str]) -> list[StructType]:
        """Return the schemas of files; of Parquet files with different types several."""
        try:
            return [reader.load(list(paths)).schema]
        except JVM_ERRORS as error:
            if len(paths) == 1 or not has_condition(error, "CANNOT_MERGE_SCHEMAS"):
                raise
        half = len(paths) // 2
        return [*self._schemas(reader, paths[:half]), *self._schemas(reader, paths[half:])]

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except LinesError as error:
            raise WriteFailedError(table=self._table, reason=str(error)) from error
        except (*JVM_ERRORS, PySparkException) as error:
            reason = one_sentence(error)
            if has_condition(error, "MALFORMED_RECORD"):
                raise WriteFailedError(table=self._table, reason=reason) from error
            raise SourceError(f"the source cannot be read as {self._format}: {reason}") from error

    def read(self, schema: StructType) -> DataFrame:
        """Return the rows.

        A record that does not fit the schema, or a value that would change in it, fails the job that reads it.

        Args:
            schema: what :meth:`schema` or :meth:`schema_of_changes` returned.

        Raises:
            SourceError: the files cannot be read as this format.
            WriteFailedError: malformed lines.

        """
        # Given a schema, the Parquet reader would not look for columns that the schema lacks: it was inferred just now.
        return self._values.cast(self._load(self._reader().schema(self._values.read_as(schema))), schema)

    def _without_changes(self, schema: StructType, table_columns: Collection[str] = ()) -> StructType:
        """Return a schema with string for inferred columns that would change a value.

        Args:
            schema: as Spark infers it from texts.
            table_columns: folded names of columns whose type is not inferred.

        Raises:
            WriteFailedError: a malformed record.

        """
        inferred = [
            field
            for field in schema
            if (self._format == "csv" or field.name in self._folder_columns)
            and self._fold(field.name) not in table_columns
            and self._values.may_change(field)
        ]
        if not inferred:
            return schema
        names = {field.name for field in inferred}
        kinds = {field.name: StringType() if field.name in names else field.dataType for field in schema}
        texts = self._load(self._reader().schema(StructType([StructField(*column) for column in kinds.items()])))
        change = (
            F.max(self._values.changes(texts[quoted(field.name)], field.dataType)).alias(field.name)
            for field in inferred
        )
        try:
            row = texts.agg(*change).collect()[0]
        except (*JVM_ERRORS, PySparkException) as error:
            raise WriteFailedError(table=self._table, reason=one_sentence(error)) from error
        changed = {name for name, is_changed in row.asDict().items() if is_changed}
        return StructType(
            [StructField(field.name, StringType() if field.name in changed else field.dataType) for field in schema]
        )

    def _reader(self) -> DataFrameReader:
        return self._spark.read.format(self._format).options(**{**self.options, **self._layout})

    @cached_property
    def _layout(self) -> Mapping[str, str]:
        """Options that the lines of the files need, which are checked first."""
        if self._format not in ("csv", "json") or self._effective.get("mode") != "failfast":
            return {}
        with self._readable():
            if self._format == "json":
                documents = {"wholetext": self._given["multiline"]} if "multiline" in self._given else {}
                separator = {"lineSep": self._given["linesep"]} if "linesep" in self._given else {}
                check_json(self._lines(**documents, **separator), self._given)
                return {}
            return check_csv(self._lines(), lambda: self._lines(lineSep="\n"), CsvSyntax.of(self._given))

    def _lines(self, **options: str) -> DataFrame:
        return self._load(self._spark.read.format("text").options(**_NO_FILE_LESS, **options))

    def _load(self, reader: DataFrameReader) -> DataFrame:
        return reader.load(self._paths)

    def _fold(self, name: str) -> str:
        return name if self._exact else name.lower()

    def _by_position(self, schema: StructType, target: TableState) -> StructType:
        if len(schema.fields) != len(target.schema.fields):
            self._mismatch(f"the files have {len(schema.fields)} columns, the table {len(target.schema.fields)}")
        return _nullable(target.schema)

    def _check_names(self, schema: StructType, target: TableState) -> None:
        differences = type_differences(target.schema, schema, self._fold)
        if unknown := mismatch(difference for difference in differences if difference.is_unknown):
            self._mismatch(unknown)
        if self._format == "csv":
            named = {self._fold(name) for name in schema.names}
            supplied = {self._fold(name) for name in target.supplied_columns}
            missing = [name for name in target.schema.names if self._fold(name) not in named | supplied]
            if missing:
                self._mismatch(f"the source has no column {', '.join(missing)}")

    def _mismatch(self, reason: str) -> None:
        raise SchemaMismatchError(table=self._table, reason=reason)


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType) for field in schema])
