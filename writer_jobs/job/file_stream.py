"""Files of changes that come into a folder, as a streaming DataFrame."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from writer_jobs.changes.spec import END, SEQUENCE, START
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.table_log import TableState
from writer_jobs.errors import SourceError
from writer_jobs.job.sources import LINES, SourceReader, escaped, find_sources

# By default Spark passes over files that are a week older than the newest one, and says nothing.
_ANY_AGE = {"maxFileAge": "36500d"}
_OURS = {name.lower() for name in (SEQUENCE, START, END)}


class ChangeFiles:
    """A folder, or a glob, that gets files of changes.

    Names and types of the columns are those of the files that are there at the start, and of the table. They are kept
    beside the checkpoint, for a start at which the files are gone.

    Args:
        spark: the session.
        source: folder or glob.
        file_format: ``csv``, ``json`` or ``parquet``; None: what the files' names tell.
        options: for Spark's reader.
        checkpoint: URI of the stream's folder.

    Raises:
        SourceError: there is no such folder, or it is a file.

    """

    def __init__(
        self, spark: SparkSession, source: str, file_format: str | None, options: Mapping[str, str], checkpoint: str
    ) -> None:
        self._spark = spark
        self._files = files = HadoopFiles.of(spark)
        self._options = options
        self._kept = f"{checkpoint.rstrip('/')}/_sluice/columns.json"
        literal = files.status(source)
        if literal is not None and not literal.is_folder:
            raise SourceError(f"source {source} is a file: a stream reads a folder, or a glob in quotes")
        #: What is read, as Spark's reader has to be given it.
        self.path = source if literal is None else escaped(literal.path)
        self._source = source
        self._format = file_format
        self._found = find_sources(files, [source], may_come_later=True)

    def frame(self, target: TableState | None, table: str, *, evolves: bool, most_files: int | None) -> DataFrame:
        """Return the rows, streaming.

        Args:
            target: the table's state, None if there is none.
            table: canonical URI, for messages.
            evolves: as for :meth:`SourceReader.schema_of_changes`.
            most_files: of a micro-batch; None: all that are there.

        Raises:
            SourceError: nothing tells the columns or the format yet, or the files cannot be read.
            WriteFailedError: a malformed record.

        """
        kept, file_format = self._read(), self.format
        reader = SourceReader(self._spark, self._found, file_format, self._options, table)
        known = StructType.fromJson(kept["columns"]) if kept else None
        if self._found.files:
            schema = reader.schema_of_changes(target, evolves=evolves)
            # A CSV file has all of its columns.
            schema = schema if known is None or file_format == "csv" else _with(schema, known)
        elif known is not None:
            schema = known
        elif target is not None:
            schema = StructType([field for field in target.schema if field.name.lower() not in _OURS])
        else:
            raise SourceError(
                f"source {self._source} has no files yet, and there is no table that has the columns: start the stream "
                "when the first file is there"
            )
        if (now := {"format": file_format, "columns": schema.jsonValue()}) != kept:
            self._files.write_text(self._kept, json.dumps(now) + "\n")
        return reader.stream(schema, self.path, _of_source(most_files))

    @property
    def format(self) -> str:
        """The format: given, told by the files' names, or what it was before.

        Raises:
            SourceError: nothing tells it yet.

        """
        told = self._format or (self._found.format if self._found.files else self._read().get("format"))
        if told is None:
            raise SourceError(f"source {self._source} has no files yet, whose names tell the format: give --format")
        return str(told)

    def lines(self, table: str, *, most_files: int | None) -> DataFrame:
        """Return the lines of the files, ``value`` (string), streaming.

        Args:
            table: canonical URI, for messages.
            most_files: of a micro-batch; None: all that are there.

        """
        reader = SourceReader(self._spark, self._found, "text", self._options, table)
        return reader.stream(LINES, self.path, _of_source(most_files))

    def _read(self) -> dict[str, Any]:
        """Return what is kept; nothing, if a start was killed while it wrote."""
        with suppress(ValueError):
            kept: dict[str, Any] = json.loads(self._files.read_text(self._kept) or "{}")
            return kept
        return {}


def _of_source(most_files: int | None) -> dict[str, str]:
    return _ANY_AGE if most_files is None else {**_ANY_AGE, "maxFilesPerTrigger": str(most_files)}


def _with(schema: StructType, known: StructType) -> StructType:
    """Add what other files had: of JSON and Parquet not each file has each column."""
    names = {field.name.lower() for field in schema}
    return StructType([*schema, *(field for field in known if field.name.lower() not in names)])
