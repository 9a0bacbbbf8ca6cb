"""Command line arguments of jobs that read files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from writer_jobs.delta.hadoop_files import HadoopFiles, is_glob
from writer_jobs.errors import ArgumentsError, SourceError
from writer_jobs.job.append.runs import FILE_SYSTEM_PREFIX, check_run_id
from writer_jobs.job.arguments import (
    APPLIED,
    URI_SCHEME,
    JobArguments,
    JobParser,
    column_names,
    key_and_value,
    nonblank,
)
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import FORMATS

# Setting of the column mapping of all tables that the session creates, side tables included.
_COLUMN_MAPPING = "spark.databricks.delta.properties.defaults.columnMapping.mode"


@dataclass(frozen=True, kw_only=True)
class FileJobArguments(JobArguments):
    """The arguments of a job that reads files."""

    sources: tuple[str, ...]
    format: str | None
    # Options can contain secrets, so repr omits them.
    reader_options: tuple[tuple[str, str], ...] = field(repr=False)
    null_value: str | None = field(repr=False)
    partition_by: tuple[str, ...] = field(metadata=APPLIED)
    column_mapping: bool
    run_id: str | None

    @property
    def options(self) -> Mapping[str, str]:
        """Options of Spark's reader."""
        return dict(self.reader_options) | ({} if self.null_value is None else {"nullValue": self.null_value})

    @property
    def report_fields(self) -> dict[str, Any]:
        """Fields of the report that are known at the start of the job; JSON values."""
        return {"run_id": self.run_id, "commits_asked_for": self.commits, "sources": list(self.sources)}

    @property
    def session_settings(self) -> Mapping[str, str]:
        """Settings of the Spark session while the job runs."""
        return {_COLUMN_MAPPING: "name"} if self.column_mapping else {}

    def check(self) -> None:
        """Check the arguments; see :meth:`JobArguments.check`."""
        super().check()
        if self.run_id is not None:
            check_run_id(self.run_id)
        for name in self.options:
            if name.lower().startswith(FILE_SYSTEM_PREFIX):
                raise ArgumentsError(
                    f"--option {name}: settings and credentials of a file system are not reader options: give them to "
                    f"the session, by an instance role, in spark-defaults.conf, or with --conf spark.hadoop.{name}=…"
                )

    def check_local_sources(self, files: HadoopFiles) -> None:
        """Check the sources; see :meth:`JobArguments.check_local_sources`. A stream's glob may match no file yet."""
        local_sources = [source for source in self.sources if is_local(files, source)]
        if self.commits is not None and local_sources and len(local_sources) == len(self.sources):
            # All at once, because one of several folders may be empty.
            find_sources(files, local_sources)
            return
        for source in local_sources:
            if not is_glob(source) and files.status(source) is None:
                raise SourceError(f"source {source} does not exist")


def is_local(files: HadoopFiles, path: str) -> bool:
    """Return whether a path or URI is on the driver's disk."""
    # A path without a scheme is on the default file system, which need not be the disk.
    uri = path if URI_SCHEME.match(path) else files.qualify(path)
    return uri.startswith("file:")


def add_source(parser: JobParser, *, formats: Sequence[str] = FORMATS, required: bool = True) -> None:
    """Add the options for the source files."""
    add = parser.add_argument
    add(
        "--source", dest="sources", required=required, default=[], nargs="+", action="extend", type=nonblank,
        metavar="FILES",
        help="files, folders, globs; paths or URIs that Spark can read. A file that is named twice is read once",
    )  # fmt: skip
    add("--format", choices=formats, help="format of the files; by default their names show it")


def add_topic(parser: JobParser) -> None:
    """Add the options for a Kafka topic as the source."""
    add = parser.add_argument
    add(
        "--kafka", type=nonblank, metavar="HOSTS",
        help="host:port,… of a Kafka cluster; needs Spark's package for Kafka",
    )  # fmt: skip
    add(
        "--topic",
        type=nonblank,
        metavar="NAME",
        help="topic; read from its earliest message, or from --option startingOffsets=…",
    )


def refuse_incomplete_topic(kafka: str | None, topic: str | None) -> None:
    """Make sure that both options of a topic are given, or none.

    Raises:
        ArgumentsError: One option is missing.

    """
    if (kafka is None) != (topic is None):
        raise ArgumentsError("--kafka and --topic belong together: give both, or none")


def add_new_table(parser: JobParser, more_help: str = "") -> None:
    """Add the options for a new table. ``more_help`` continues the help of ``--partition-by``."""
    parser.add_argument(
        "--partition-by", default=(), type=column_names, metavar="COLS",
        help="partition columns of a new table, separated by commas; for an existing table give the same columns, or "
        "none" + more_help,
    )  # fmt: skip
    parser.add_argument(
        "--column-mapping", action="store_true",
        help="create a new table with delta.columnMapping.mode=name, so that column names may have blanks and "
        "the characters ,;{}()=; an existing table is not changed",
    )  # fmt: skip


def add_report_and_reader_options(parser: JobParser) -> None:
    """Add the last options of a job that reads files: the report and diagnostics, and Spark's reader."""
    parser.add_report()
    add = parser.add_argument
    add(
        "--option", dest="reader_options", action="append", default=[], type=key_and_value, metavar="KEY=VALUE",
        help="option of Spark's reader, such as sep=; or timestampFormat=yyyyMMdd; may be repeated. No credentials: "
        "fs.* is refused, and belongs to the session (--conf spark.hadoop.fs…)",
    )  # fmt: skip
    add("--null-value", metavar="TEXT", help="text that means null in CSV files; short for --option nullValue=TEXT")
