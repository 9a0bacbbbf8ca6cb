"""Read the version files of a table's log with Spark, so that the driver holds neither files nor lines.

The folder of the log is listed once. A glob of the version files would make Spark list each of them.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager.table_records.commit_stamp import EMPTY_COMMIT, GROUP, RECORDS
from writer_jobs.delta.hadoop_files import escape_glob
from writer_jobs.delta.listings import session_for_many_files
from writer_jobs.delta.table_log import LOG_FOLDER

_DIGITS = 20
# These override the cluster's settings. A skipped version file would be a version without files and records.
_ALL_OR_NOTHING = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "mode": "FAILFAST"}


def version_file_reader(spark: SparkSession) -> DataFrameReader:
    """Return a reader that reads only version files, and all of them, from the folder of :func:`log_path`."""
    reader = session_for_many_files(spark).read
    return reader.options(pathGlobFilter=f"{'[0-9]' * _DIGITS}.json", **_ALL_OR_NOTHING)


def log_path(location: str) -> str:
    """Return the path of a table's log for Spark's readers."""
    return f"{escape_glob(location)}/{LOG_FOLDER}"


def file_version() -> Column:
    """Return the version of a row that :func:`version_file_reader` reads."""
    return F.substring("_metadata.file_name", 1, _DIGITS).cast("long")


def commit_lines(spark: SparkSession, location: str) -> DataFrame:
    """Return the ``commitInfo`` of each writer of each version; :func:`info_field` and :func:`record_field` read it.

    The columns are ``version``; ``line``, the line of the version's ``commitInfo``; and ``writer``, the fields of the
    ``commitInfo`` that are this writer's, by name, as text or JSON. ``writer`` is null for an ordinary commit, and if
    the list of writers cannot be parsed. See :func:`lock_manager.table_records.commit_stamp.writer_infos`.
    """
    lines = version_file_reader(spark).text(log_path(location))
    commits = lines.where(F.col("value").startswith('{"commitInfo"')).select(
        file_version().alias("version"), F.col("value").alias("line")
    )
    return commits.select("*", F.explode_outer(_group()).alias("writer"))


def info_field(path: str) -> Column:
    """Return a field of a writer's ``commitInfo``, as text or JSON; null if there is none.

    Fields of the version's hold are not in the stamp of a writer of a group.
    """
    writer = F.col("writer")
    name, _, inner_path = path.partition(".")
    field = F.get_json_object(writer[name], f"$.{inner_path}") if inner_path else writer[name]
    return F.when(F.map_contains_key(writer, name), field).otherwise(_field_of_version(path))


def record_field(key: str) -> Column:
    """Return one record of a write, as JSON; null if the commit has none.

    It is the record that :mod:`lock_manager.table_records.commit_stamp` reads: from the stamp, or from the note if the
    stamp has none. An empty commit has no records.
    """
    of_stamp = info_field(f"{RECORDS}.{key}")
    of_note = F.get_json_object(info_field("userMetadata"), f"$.{RECORDS}.{key}")
    return F.when(~_is_empty_commit(), F.coalesce(F.nullif(of_stamp, F.lit("{}")), of_note))


def _group() -> Column:
    """Return the objects of the writers of a version; null for an ordinary, empty or malformed commit."""
    group = F.from_json(_field_of_version(f"{RECORDS}.{GROUP}"), "array<map<string, string>>")
    has_stamps = F.forall(group, lambda writer: F.coalesce(writer[RECORDS].startswith("{"), F.expr("false")))
    return F.when(has_stamps & ~_is_empty_commit(), group)


def _is_empty_commit() -> Column:
    return _field_of_version(f"{RECORDS}.{EMPTY_COMMIT}").isNotNull()


def _field_of_version(path: str) -> Column:
    return F.get_json_object("line", f"$.commitInfo.{path}")
