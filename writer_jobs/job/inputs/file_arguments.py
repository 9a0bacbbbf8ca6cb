"""What the command lines of jobs share that bring files into a table."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from writer_jobs.delta.hadoop_files import HadoopFiles, is_glob
from writer_jobs.errors import ArgumentsError, SourceError
from writer_jobs.job.append.runs import FILE_SYSTEM_OPTIONS, check_run_id
from writer_jobs.job.arguments import NAME_WITH_SCHEME, JobArguments, JobParser, names, pair, text
from writer_jobs.job.inputs.source_files import find_sources
from writer_jobs.job.inputs.sources import FORMATS

# Of the tables beside the table, too.
_COLUMN_MAPPING = "spark.databricks.delta.properties.defaults.columnMapping.mode"


@dataclass(frozen=True, kw_only=True)
class FileJobArguments(JobArguments):
    """What a job is told that reads files.

    Attributes:
        sources: files, folders, globs.
        format: of the files; None: by their names.
        options: of Spark's reader.
        partition_by: partition columns of a new table.
        column_mapping: Whether new tables have column mapping by name.
        run_id: name of the load; None: it has none.

    """

    sources: tuple[str, ...]
    format: str | None
    # Not shown: whoever passes a secret as an option has it nowhere but where Spark needs it.
    options: Mapping[str, str] = field(repr=False)
    partition_by: tuple[str, ...]
    column_mapping: bool
    run_id: str | None

    @property
    def facts(self) -> dict[str, Any]:
        """What the report says of the load from the start."""
        return {"run_id": self.run_id, "commits_asked_for": self.commits, "sources": list(self.sources)}

    @property
    def session_settings(self) -> Mapping[str, str]:
        """Settings of the session while the job runs."""
        return {_COLUMN_MAPPING: "name"} if self.column_mapping else {}

    def check(self) -> None:
        """Check what can be checked without asking anybody.

        Raises:
            SluiceError: something does not make sense; the message is one sentence.

        """
        super().check()
        if self.run_id is not None:
            check_run_id(self.run_id)
        for name in self.options:
            if name.lower().startswith(FILE_SYSTEM_OPTIONS):
                raise ArgumentsError(
                    f"--option {name}: settings of a file system, credentials above all, are no reader options: give "
                    f"them to the session, by an instance role, in spark-defaults.conf, or with --conf "
                    f"spark.hadoop.{name}=…"
                )

    def check_local_sources(self, files: HadoopFiles) -> None:
        """Check that sources on the driver's disk exist. The glob of a stream may match nothing yet.

        Raises:
            SourceError: one does not exist, or a job that is no stream has no files in it.
            StorageError: a file system refuses, or does not exist.

        """
        local = [source for source in self.sources if is_local(files, source)]
        if self.commits is not None and local and len(local) == len(self.sources):
            # Together: one of several folders may be empty.
            find_sources(files, local)
            return
        for source in local:
            if not is_glob(source) and files.status(source) is None:
                raise SourceError(f"source {source} does not exist")


def is_local(files: HadoopFiles, path: str) -> bool:
    """Return whether a path or URI is on the driver's disk."""
    # Without a scheme it is of the default file system, which may be another one.
    uri = path if NAME_WITH_SCHEME.match(path) else files.qualify(path)
    return uri.startswith("file:")


def add_source(parser: JobParser, *, formats: Sequence[str] = FORMATS, required: bool = True) -> None:
    """Add which files are read."""
    add = parser.add_argument
    add(
        "--source", required=required, default=[], nargs="+", action="extend", type=text, metavar="FILES",
        help="files, folders, globs; paths or URIs that Spark can read. A file that is named twice is read once",
    )  # fmt: skip
    add("--format", choices=formats, help="of the files; by default what their names tell")


def add_topic(parser: JobParser) -> None:
    """Add which topic is read instead of files."""
    add = parser.add_argument
    add("--kafka", type=text, metavar="HOSTS", help="host:port,… of a Kafka cluster; needs Spark's package for Kafka")
    add("--topic", type=text, metavar="NAME", help="topic, from its earliest message on; --option startingOffsets=…")


def refuse_half_a_topic(kafka: str | None, topic: str | None) -> None:
    """Make sure that both are given, or none.

    Raises:
        ArgumentsError: one is.

    """
    if (kafka is None) != (topic is None):
        raise ArgumentsError("--kafka and --topic belong together: give both, or none")


def add_new_table(parser: JobParser, more: str = "") -> None:
    """Add how a new table is created: its partition columns and its column mapping.

    Args:
        parser: of the job.
        more: what the job's help says of it beside.

    """
    parser.add_argument(
        "--partition-by", default=(), type=names, metavar="COLS",
        help="partition columns of a new table, separated by commas; an existing table's own, or nothing" + more,
    )  # fmt: skip
    parser.add_argument(
        "--column-mapping", action="store_true",
        help="create a new table with delta.columnMapping.mode=name, so that column names may have blanks and "
        "the characters ,;{}()=; an existing table is not changed",
    )  # fmt: skip


def add_reader_options(parser: JobParser) -> None:
    """Add how the files are read."""
    add = parser.add_argument
    add(
        "--option", action="append", default=[], type=pair, metavar="KEY=VALUE",
        help="option of Spark's reader, such as sep=; or timestampFormat=yyyyMMdd; may be repeated. No credentials: "
        "fs.* is refused, and belongs to the session (--conf spark.hadoop.fs…)",
    )  # fmt: skip
    add("--null-value", metavar="TEXT", help="what stands for null in CSV files: --option nullValue=TEXT")


def shared_by_file_jobs(found: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of :class:`FileJobArguments` that a command line has."""
    options = dict(found.option)
    if found.null_value is not None:
        options["nullValue"] = found.null_value
    return {
        "zookeeper": found.zookeeper,
        "table": found.table,
        "sources": tuple(found.source),
        "format": found.format,
        "options": options,
        "partition_by": found.partition_by,
        "column_mapping": found.column_mapping,
        "lock_timeout": found.lock_timeout,
        "run_id": found.run_id,
        "report": found.report,
        "metrics": found.metrics,
        "verbose": found.verbose,
    }
