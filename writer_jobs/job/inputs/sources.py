"""Read source files without silently dropping rows or columns.

Spark's readers are lenient by default: a value that does not parse becomes null, an unexpected column is skipped, a CSV
file's columns are assigned by position regardless of its header, and a cluster can be configured to skip damaged and
deleted files. Here each of these is an error, unless a reader option allows it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StringType, StructField, StructType

from writer_jobs.delta.hadoop_files import escape_glob
from writer_jobs.delta.jvm_errors import JVM_ERRORS, SPARK_ERRORS, error_reason, has_condition
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.type_differences import merged_schema, mismatch, type_differences, type_to_read
from writer_jobs.errors import SchemaMismatchError, SourceError, WriteFailedError
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.inputs.source_lines import CsvSyntax, LinesError, check_csv, check_json, encoding_of, is_utf8
from writer_jobs.job.inputs.source_values import SourceValues

#: Formats of source files, as Spark names them.
FORMATS = ("csv", "json", "parquet")
# These options override spark.sql.files.*.
_ALL_FILES = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
_DEFAULT_OPTIONS: Mapping[str, Mapping[str, str]] = {
    # With enforceSchema=true Spark ignores the header.
    "csv": {
        "header": "true",
        "enforceSchema": "false",
        "mode": "FAILFAST",
        "escape": '"',
        "unescapedQuoteHandling": "RAISE_ERROR",
        **_ALL_FILES,
    },
    "json": {"mode": "FAILFAST", **_ALL_FILES},
    "text": _ALL_FILES,
    # Without mergeSchema Spark uses the columns of one file for all files.
    "parquet": {"mergeSchema": "true", **_ALL_FILES},
}

#: Schema of files that are read line by line, with the format ``text``.
LINES = StructType([StructField("value", StringType())])


class SourceReader:
    """A reader of source files for one table.

    Args:
        file_format: ``csv``, ``json``, ``parquet``, or ``text`` for lines; None for the format of the files' names.
        options: The user's options for Spark's reader. They override the strict defaults.
        table: Canonical URI of the table, for errors.

    Raises:
        SourceError: An option would change values, the names have no format, or files are beside ``column=value``
            folders.

    """

    def __init__(
        self, spark: SparkSession, sources: SourceFiles, file_format: str | None, options: Mapping[str, str], table: str
    ) -> None:
        if sources.base is not None and any(file.path.rpartition("/")[0] == sources.base for file in sources.files):
            raise SourceError(f"{sources.base} has files beside column=value folders: Spark skips the files; move them")
        #: Format of the files.
        self.format = file_format = file_format or sources.format
        self._user_options = {name.lower(): value for name, value in options.items()}
        defaults = {
            name: value
            for name, value in _DEFAULT_OPTIONS[file_format].items()
            if name.lower() not in self._user_options
        }
        #: All options of the reader: the user's and the defaults.
        self.options = {**defaults, **options, **({"basePath": sources.base} if sources.base else {})}
        self._effective_options = {name.lower(): value.lower() for name, value in self.options.items()}
        if file_format == "json" and not is_utf8(encoding_of(self._user_options)):
            raise SourceError("JSON is read as UTF-8 only (RFC 8259): convert the files, and drop --option encoding")
        if file_format == "json" and self._effective_options.get("multiline") == "true" and sources.are_compressed:
            # Spark reads numbers a second time from the file, which is not possible in a compressed file.
            raise SourceError("JSON files with --option multiLine=true must not be compressed: decompress them")
        self._folder_columns = set(sources.folder_columns)
        self._values = SourceValues(spark, file_format, self._user_options, self._folder_columns)
        self._spark = spark
        self._paths = [escape_glob(file.path) for file in sources.files]
        self._table = table
        self._is_case_sensitive = str(spark.conf.get("spark.sql.caseSensitive", "false")).lower() == "true"

    def schema(self, target: TableState | None) -> StructType:
        """Return the names and types to read the files with.

        For a new table Spark infers them. For an existing table they are the files' names with the table's types. Of
        Parquet files only types that are narrower than the table's are replaced; Delta compares and casts the others.

        Raises:
            SourceError: The files cannot be read as this format, have a column whose types have no common type, or have
                no columns for a new table.
            SchemaMismatchError: The files have columns that the table lacks, or CSV files lack columns of the table, or
                CSV files without a header have another number of columns.
            WriteFailedError: A record is malformed.

        """
        schema = self._inferred_schema(target, infer_types=self.format == "csv" and target is None)
        if target is None:
            if not schema.fields:
                raise SourceError("the source files have no columns to create a table with")
            return self._with_exact_types(schema)
        if self.format == "csv" and self._effective_options["header"] != "true":
            schema = self._by_position(schema, target)
        if self.format == "json" and not schema.fields:
            return _nullable(target.schema)
        schema = self._types_to_read(schema, self._table_types(target))
        self._check_names(schema, target)
        return schema

    def read_changes(self, target: TableState | None, *, evolves: bool = False) -> DataFrame:
        """Return the rows of files of changes; see :meth:`read`. Such files may have columns that the table lacks.

        Columns of the table have the same types as in :meth:`schema`. If the table ``evolves``, an inferred type that
        is wider replaces the table's type. Spark infers the types of other columns and nested fields.

        Raises:
            SourceError: The files cannot be read as this format, have a column whose types have no common type, or have
                no columns.
            WriteFailedError: A record, or a line, is malformed.

        """
        schema = self._inferred_schema(target, infer_types=self.format == "csv")
        if not schema.fields:
            raise SourceError("the source files have no columns")
        types = {} if target is None else self._table_types(target)
        schema = self._types_to_read(schema, types, widens=evolves)
        return self.read(self._with_exact_types(schema, table_columns=types))

    def _table_types(self, target: TableState) -> dict[str, DataType]:
        """Return the table's types, by folded name, of the columns that are read with the table's types."""
        types = {self._fold(field.name): field.dataType for field in target.schema}
        if self.format == "parquet":
            folder_columns = set(map(self._fold, self._folder_columns))
            return {name: data_type for name, data_type in types.items() if name in folder_columns}
        return types

    def _types_to_read(self, schema: StructType, types: Mapping[str, DataType], *, widens: bool = False) -> StructType:
        def field_to_read(field: StructField) -> StructField:
            table_type = types.get(self._fold(field.name), field.dataType)
            return StructField(field.name, type_to_read(table_type, field.dataType, self._fold, widens=widens))

        return StructType([field_to_read(field) for field in schema])

    def _inferred_schema(self, target: TableState | None, *, infer_types: bool) -> StructType:
        with self._convert_errors():
            reader = self._reader()
            if infer_types and "inferschema" not in self._effective_options:
                reader = reader.option("inferSchema", "true")
            schemas = self._schemas(reader, self._paths)
        try:
            return merged_schema(None if target is None else target.schema, schemas, self._fold)
        except ValueError as error:
            raise SourceError(f"the files have different types for a column: {error}") from error

    def _schemas(self, reader: DataFrameReader, paths: Sequence[str]) -> list[StructType]:
        """Return the schemas of files; several for Parquet files with different types."""
        try:
            return [reader.load(list(paths)).schema]
        except JVM_ERRORS as error:
            if len(paths) == 1 or not has_condition(error, "CANNOT_MERGE_SCHEMAS"):
                raise
        half = len(paths) // 2
        return [*self._schemas(reader, paths[:half]), *self._schemas(reader, paths[half:])]

    @contextmanager
    def _convert_errors(self) -> Iterator[None]:
        try:
            yield
        except LinesError as error:
            raise WriteFailedError(table=self._table, reason=str(error)) from error
        except SPARK_ERRORS as error:
            reason = error_reason(error)
            if has_condition(error, "MALFORMED_RECORD"):
                raise WriteFailedError(table=self._table, reason=reason) from error
            raise SourceError(f"the source cannot be read as {self.format}: {reason}") from error

    def read(self, schema: StructType) -> DataFrame:
        """Return the rows with a schema from :meth:`schema`.

        A record that does not fit the schema, or a value that the schema would change, fails the job that reads it.

        Raises:
            SourceError: The files cannot be read as this format.
            WriteFailedError: Lines are malformed.

        """
        # With a schema, the Parquet reader ignores columns that the schema lacks. This one has all columns of the files
        rows = self._reader().schema(self._values.schema_to_read(schema)).load(self._paths)
        return self._values.cast(rows, schema)

    def _with_exact_types(self, schema: StructType, table_columns: Collection[str] = ()) -> StructType:
        """Return a schema with the type string for columns whose inferred type would change a value.

        ``table_columns`` are the folded names of columns whose type is not inferred.

        Raises:
            WriteFailedError: A record is malformed.

        """
        fields_to_check = [
            field
            for field in schema
            if (self.format == "csv" or field.name in self._folder_columns)
            and self._fold(field.name) not in table_columns
            and self._values.may_change(field)
        ]
        if not fields_to_check:
            return schema
        text_schema = _with_strings(schema, {field.name for field in fields_to_check})
        texts = self._reader().schema(text_schema).load(self._paths)
        change_flags = (
            F.max(self._values.is_changed_by_cast(texts[quoted(field.name)], field.dataType)).alias(field.name)
            for field in fields_to_check
        )
        try:
            row = texts.agg(*change_flags).collect()[0]
        except SPARK_ERRORS as error:
            raise WriteFailedError(table=self._table, reason=error_reason(error)) from error
        return _with_strings(schema, {name for name, is_changed in row.asDict().items() if is_changed})

    def _reader(self) -> DataFrameReader:
        return self._spark.read.format(self.format).options(**{**self.options, **self._line_options})

    @cached_property
    def _line_options(self) -> Mapping[str, str]:
        """Options of Spark's reader for the lines of the files, after a check of the lines."""
        if self.format not in ("csv", "json") or self._effective_options.get("mode") != "failfast":
            return {}
        options = self._user_options
        with self._convert_errors():
            if self.format == "json":
                documents = {"wholetext": options["multiline"]} if "multiline" in options else {}
                separator = {"lineSep": options["linesep"]} if "linesep" in options else {}
                check_json(self._lines(**documents, **separator), options)
                return {}
            return check_csv(self._lines(), lambda: self._lines(lineSep="\n"), CsvSyntax(options))

    def _lines(self, **options: str) -> DataFrame:
        return self._spark.read.format("text").options(**_ALL_FILES, **options).load(self._paths)

    def _fold(self, name: str) -> str:
        """Return a name in lower case, unless the session distinguishes case."""
        return name if self._is_case_sensitive else name.lower()

    def _by_position(self, schema: StructType, target: TableState) -> StructType:
        if len(schema.fields) != len(target.schema.fields):
            self._refuse_schema(
                f"the files have {len(schema.fields)} columns, the table has {len(target.schema.fields)}"
            )
        return _nullable(target.schema)

    def _check_names(self, schema: StructType, target: TableState) -> None:
        differences = type_differences(target.schema, schema, self._fold)
        if reason := mismatch(difference for difference in differences if difference.is_unknown):
            self._refuse_schema(reason)
        if self.format == "csv":
            file_columns = {self._fold(name) for name in schema.names}
            supplied_columns = {self._fold(name) for name in target.supplied_columns}
            missing_columns = [
                name for name in target.schema.names if self._fold(name) not in file_columns | supplied_columns
            ]
            if missing_columns:
                self._refuse_schema(f"the source has no column {', '.join(missing_columns)}")

    def _refuse_schema(self, reason: str) -> None:
        raise SchemaMismatchError(table=self._table, reason=reason)


def _nullable(schema: StructType) -> StructType:
    return StructType([StructField(field.name, field.dataType) for field in schema])


def _with_strings(schema: StructType, columns: Collection[str]) -> StructType:
    """Return a schema with the type string for some of its columns."""
    return StructType(
        [StructField(field.name, StringType() if field.name in columns else field.dataType) for field in schema]
    )
