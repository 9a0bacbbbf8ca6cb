"""Every file that the versions in a table's log name, whatever became of it since.

Delta's own snapshot does not tell that: it forgets a file ``delta.deletedFileRetentionDuration`` after its removal
(``InMemoryLogReplay.getTombstones``), and names no change data. What the version files say lasts as long as they do.
"""

from __future__ import annotations

import functools

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.hadoop_files import FileStatus, HadoopFiles, escaped
from writer_jobs.delta.table_log import LOG_FOLDER, VERSION_FILE
from writer_jobs.delta.version_files import decoded, deletion_vector_paths, is_elsewhere

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
        self._folder = f"{location}/{LOG_FOLDER}"
        self._files = HadoopFiles.of(spark)

    @functools.cached_property
    def oldest(self) -> tuple[int, int]:
        """The oldest version that the log has, and when its file was written, in milliseconds since the epoch."""
        found = (_version_of(entry) for entry in self._files.children(self._folder))
        return min((each for each in found if each is not None), default=(0, 0))

    @functools.cached_property
    def paths(self) -> DataFrame:
        """Where they are, and where their deletion vectors are.

        ``path`` below the table's location, not percent-encoded; ``version``, that names it; ``removed_ms``, when that
        version removed it, in milliseconds since the epoch, or null: it added it. A path has several rows if several
        versions name it. Files of another table (a shallow clone's) are not in it.
        """
        reader = self._spark.read.schema(_ACTIONS).options(**_ALL_OR_NOTHING)
        lines = reader.json(f"{escaped(self._folder)}/{'[0-9]' * _DIGITS}.json")
        version = F.substring("_metadata.file_name", 1, _DIGITS).cast("long")
        named = lines.select(
            version.alias("version"),
            F.coalesce("add.path", "remove.path", "cdc.path").alias("path"),
            F.when(F.col("remove").isNotNull(), F.coalesce("remove.deletionTimestamp", F.lit(0))).alias("removed_ms"),
            F.coalesce("add.deletionVector", "remove.deletionVector").alias("vector"),
        ).where("path IS NOT NULL")
        files = named.where(~is_elsewhere()).select(decoded().alias("path"), "version", "removed_ms")
        vectors = named.where("vector.storageType = 'u'").select(
            F.col("vector.pathOrInlineDv").alias("encoded"), "version", "removed_ms"
        )
        where = deletion_vector_paths(self._spark, vectors.select("encoded"))
        return files.union(vectors.join(where, "encoded").select("path", "version", "removed_ms"))


def _version_of(entry: FileStatus) -> tuple[int, int] | None:
    match = VERSION_FILE.fullmatch(entry.name)
    return None if match is None else (int(match[1]), entry.modified_ms)
