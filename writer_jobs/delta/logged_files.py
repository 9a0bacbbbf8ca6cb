"""Every file that the versions in a table's log name, whatever became of it since.

Delta's own snapshot does not tell that: it forgets a file ``delta.deletedFileRetentionDuration`` after its removal
(``InMemoryLogReplay.getTombstones``), and names no change data. What the version files say lasts as long as they do.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.hadoop_files import escaped
from writer_jobs.delta.listings import listed_log, session_for_many_files
from writer_jobs.delta.table_log import LOG_FOLDER, VERSION_FILE
from writer_jobs.delta.version_files import own_paths

_VECTOR = "deletionVector struct<storageType: string, pathOrInlineDv: string>"
_ACTIONS = (
    f"add struct<path: string, {_VECTOR}>, remove struct<path: string, deletionTimestamp: bigint, {_VECTOR}>, "
    "cdc struct<path: string>"
)
_DIGITS = 20
# Whatever the cluster's settings are: without a version file, what it names would look like nobody's.
_ALL_OR_NOTHING = {"ignoreMissingFiles": "false", "ignoreCorruptFiles": "false", "mode": "FAILFAST"}


class LoggedFiles:
    """What the version files of a log name.

    Args:
        spark: the session.
        location: of the table.

    Raises:
        StorageError: the log cannot be listed.

    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._location = location

    @functools.cached_property
    def listed(self) -> Sequence[Row]:
        """The files of the log, as they were when this was first asked: see :func:`.listings.listed_log`."""
        found: list[Row] = listed_log(self._spark, self._location).collect()
        return found

    @functools.cached_property
    def versions(self) -> Mapping[int, int]:
        """When the file of each version was written, in milliseconds since the epoch."""
        found = ((VERSION_FILE.fullmatch(row["name"]), row["modified_ms"]) for row in self.listed)
        return {int(match[1]): modified_ms for match, modified_ms in found if match is not None}

    @property
    def oldest(self) -> tuple[int, int]:
        """The oldest version that the log has, and when its file was written, in milliseconds since the epoch."""
        return min(self.versions.items(), default=(0, 0))

    @functools.cached_property
    def paths(self) -> DataFrame:
        """Where they are, and where their deletion vectors are.

        ``path`` below the table's location, not percent-encoded; ``version``, that names it; ``removed_ms``, when that
        version removed it, in milliseconds since the epoch, or null: it added it. Change data counts as removed by the
        version that names it, because no version has it as rows. A path has several rows if several versions name it.
        Files of another table (a shallow clone's) are not in it.

        ``removed_ms`` is the later of ``deletionTimestamp`` and the time of the version file. The former is the time at
        which the statement ran: its commit may have waited for the lock since.
        """
        reader = session_for_many_files(self._spark).read.schema(_ACTIONS).options(**_ALL_OR_NOTHING)
        lines = reader.json(f"{escaped(self._location)}/{LOG_FOLDER}/{'[0-9]' * _DIGITS}.json")
        path = F.coalesce("add.path", "remove.path", "cdc.path")
        vector = "coalesce(add.deletionVector, remove.deletionVector)"
        committed_ms = F.unix_millis("_metadata.file_modification_time")
        removed_ms = F.greatest("remove.deletionTimestamp", committed_ms)
        return lines.select(
            own_paths(path, vector).alias("path"),
            F.substring("_metadata.file_name", 1, _DIGITS).cast("long").alias("version"),
            F.when(F.col("remove").isNotNull() | F.col("cdc").isNotNull(), removed_ms).alias("removed_ms"),
        )
