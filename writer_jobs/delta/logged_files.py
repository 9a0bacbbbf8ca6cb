"""Find every file that the version files in a table's log name.

Delta's snapshot is not enough. It drops a removed file ``delta.deletedFileRetentionDuration`` after its removal
(``InMemoryLogReplay.getTombstones``), and has no change data files.
"""

from __future__ import annotations

import functools

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.commit_lines import file_version, log_path, version_file_reader
from writer_jobs.delta.data_files import local_paths
from writer_jobs.delta.listings import list_log
from writer_jobs.delta.table_log import VERSION_FILE

_VECTOR = "deletionVector struct<storageType: string, pathOrInlineDv: string>"
_ACTIONS = (
    f"add struct<path: string, {_VECTOR}>, remove struct<path: string, deletionTimestamp: bigint, {_VECTOR}>, "
    "cdc struct<path: string>"
)


class LoggedFiles:
    """The version files of a table's log, and the files that they name.

    The attributes raise one of :data:`.jvm_errors.JVM_ERRORS` if the log cannot be listed or read.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = location

    @functools.cached_property
    def log_files(self) -> DataFrame:
        """Files of the log at the first access: the columns of :func:`.listings.list_log`, and ``version``.

        ``version`` is the version whose file it is; null for other files.
        """
        version = F.regexp_extract("name", f"^{VERSION_FILE.pattern}$", 1)
        return list_log(self._spark, self._location).withColumn("version", F.nullif(version, F.lit("")).cast("long"))

    @functools.cached_property
    def oldest_version(self) -> tuple[int, int]:
        """Oldest version in the log, and its file's time in milliseconds since the epoch; zeros if there is none."""
        versions = self.log_files.where("version IS NOT NULL")
        (oldest,) = versions.agg(F.min(F.struct("version", "modified_ms"))).collect()[0]
        return (0, 0) if oldest is None else (oldest[0], oldest[1])

    @functools.cached_property
    def paths(self) -> DataFrame:
        """Paths of the files that the version files name, and of their deletion vectors.

        Columns: ``path`` below the table's location, not percent-encoded; ``version``, whose file names the path;
        ``removed_ms``, the time at which that version removed the file, in milliseconds since the epoch, or null if the
        version added it. A change data file counts as removed by the version that names it, because its rows are in no
        version. A path has a row for each version that names it. Files of another table (a shallow clone's source) are
        left out.

        ``removed_ms`` is the later of ``deletionTimestamp`` and the time of the version file. ``deletionTimestamp`` is
        the time at which the statement ran. Its commit may have waited for the lock after that.
        """
        lines = version_file_reader(self._spark).schema(_ACTIONS).json(log_path(self._location))
        path = F.coalesce("add.path", "remove.path", "cdc.path")
        vector = "coalesce(add.deletionVector, remove.deletionVector)"
        committed_ms = F.unix_millis("_metadata.file_modification_time")
        removed_ms = F.greatest("remove.deletionTimestamp", committed_ms)
        return lines.select(
            local_paths(path, vector).alias("path"),
            file_version().alias("version"),
            F.when(F.col("remove").isNotNull() | F.col("cdc").isNotNull(), removed_ms).alias("removed_ms"),
        )
