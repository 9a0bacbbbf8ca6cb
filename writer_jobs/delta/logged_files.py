"""Find every file that the version files in a table's log name.

Delta's snapshot is not enough. It drops a removed file ``delta.deletedFileRetentionDuration`` after its removal
(``InMemoryLogReplay.getTombstones``), and has no change data files.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.data_files import local_paths
from writer_jobs.delta.hadoop_files import escape_glob
from writer_jobs.delta.listings import list_log, session_for_many_files
from writer_jobs.delta.table_log import LOG_FOLDER, VERSION_FILE

_VECTOR = "deletionVector struct<storageType: string, pathOrInlineDv: string>"
_ACTIONS = (
    f"add struct<path: string, {_VECTOR}>, remove struct<path: string, deletionTimestamp: bigint, {_VECTOR}>, "
    "cdc struct<path: string>"
)
_DIGITS = 20
# These override the cluster's settings. The files that a skipped version file names would look like orphans.
_ALL_OR_NOTHING = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "mode": "FAILFAST"}


class LoggedFiles:
    """The version files of a table's log, and the files that they name.

    The attributes raise one of :data:`.jvm_errors.JVM_ERRORS` if the log cannot be listed or read.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = location

    @functools.cached_property
    def log_files(self) -> Sequence[Row]:
        """Rows of :func:`.listings.list_log` at the first access, one for each file of the log."""
        rows: list[Row] = list_log(self._spark, self._location).collect()
        return rows

    @functools.cached_property
    def version_times(self) -> Mapping[int, int]:
        """Time at which each version's file was written, in milliseconds since the epoch."""
        files = ((VERSION_FILE.fullmatch(row["name"]), row["modified_ms"]) for row in self.log_files)
        return {int(match[1]): modified_ms for match, modified_ms in files if match is not None}

    @property
    def oldest_version(self) -> tuple[int, int]:
        """Oldest version in the log, and its file's time in milliseconds since the epoch; zeros if there is none."""
        return min(self.version_times.items(), default=(0, 0))

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
        reader = session_for_many_files(self._spark).read.schema(_ACTIONS).options(**_ALL_OR_NOTHING)
        lines = reader.json(f"{escape_glob(self._location)}/{LOG_FOLDER}/{'[0-9]' * _DIGITS}.json")
        path = F.coalesce("add.path", "remove.path", "cdc.path")
        vector = "coalesce(add.deletionVector, remove.deletionVector)"
        committed_ms = F.unix_millis("_metadata.file_modification_time")
        removed_ms = F.greatest("remove.deletionTimestamp", committed_ms)
        return lines.select(
            local_paths(path, vector).alias("path"),
            F.substring("_metadata.file_name", 1, _DIGITS).cast("long").alias("version"),
            F.when(F.col("remove").isNotNull() | F.col("cdc").isNotNull(), removed_ms).alias("removed_ms"),
        )
