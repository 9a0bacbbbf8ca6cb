"""The data files of a version of a table, by way of Delta's own snapshot: which there are, and rows of some of them."""

from __future__ import annotations

import functools
from typing import Any
from uuid import UUID

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.hadoop_files import HadoopFiles, escaped
from writer_jobs.delta.table_log import Snapshot

# Which file it is, and which of its rows are deleted.
_IDENTITY = ("path", "deletionVector.storageType", "deletionVector.pathOrInlineDv", "deletionVector.offset")
# The digits of Z85, and of how many of them the UUID in a deletion vector's name is made.
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_DIGITS = 20
#: Of what changed, if that is kept: not of a version, but VACUUM removes it, too.
CHANGE_DATA = "_change_data"


class VersionFiles:
    """The data files of one version, or some of them.

    Args:
        spark: the session.
        snapshot: the version, as Delta has loaded it.
        files: of which these are; None: all.

    """

    def __init__(self, spark: SparkSession, snapshot: Snapshot, files: DataFrame | None = None) -> None:
        self._spark = spark
        self._snapshot = snapshot
        self._loaded = snapshot.loaded
        self._are_all = files is None
        self._files = version_file_rows(spark, snapshot) if files is None else files

    def within(self, condition: Column) -> VersionFiles:
        """Return those that can have rows of which a condition is true, by their statistics and partitions.

        Args:
            condition: on the table's columns, with literals of their types: what needs a cast passes over no file.

        """
        rows = self._spark.read.format("delta").option("versionAsOf", self._snapshot.version)
        plan: Any = rows.load(self._snapshot.location).where(condition)._jdf.queryExecution().analyzed()  # noqa: SLF001
        scan = self._loaded.filesForScan(self._sequence([plan.condition()]), False)  # noqa: FBT003 (keepNumRecords)
        found = self._spark._jsparkSession.createDataset(scan.files(), self._encoder())  # noqa: SLF001
        return VersionFiles(self._spark, self._snapshot, DataFrame(found.toDF(), self._spark))

    def without(self, others: VersionFiles) -> VersionFiles:
        """Return those that are not among others, with the same rows deleted; of this version, or of another."""
        ours, theirs = self._files.alias("ours"), others._files.alias("theirs")
        same = F.lit(1) == F.lit(1)
        for name in _IDENTITY:
            same = same & F.col(f"ours.{name}").eqNullSafe(F.col(f"theirs.{name}"))
        return VersionFiles(self._spark, self._snapshot, ours.join(theirs, same, "left_anti"))

    def count(self) -> int:
        """Return how many there are."""
        # Of all Delta has counted them.
        return int(self._loaded.numOfFiles() if self._are_all else self._collected.size())

    def rows(self) -> DataFrame:
        """Return their rows, with the version's columns."""
        files = self._scala(self._collected)
        nothing = self._jvm.scala.Option.empty()
        return DataFrame(self._loaded.deltaLog().createDataFrame(self._loaded, files, False, nothing), self._spark)  # noqa: FBT003 (isStreaming)

    def paths(self) -> DataFrame:
        """Return where they are, and where their deletion vectors are.

        Returns:
            One column, ``path``: below the table's location, not percent-encoded. Files of another table (a shallow
            clone's) are not in it.

        """
        files = self._files.where(~is_elsewhere()).select(decoded().alias("path"))
        vectors = self._files.where("deletionVector.storageType = 'u'").select("deletionVector.pathOrInlineDv")
        return files.union(deletion_vector_paths(self._spark, vectors).select("path").distinct())

    def removed(self) -> DataFrame:
        """Return the files that the table has lost, for as long as its log remembers them.

        Returns:
            ``path`` as :meth:`paths` has it, and ``deletionTimestamp``, milliseconds since the epoch: the last one, if
            rows of a file were deleted one after the other.

        """
        gone = DataFrame(self._loaded.tombstones().toDF(), self._spark).where(~is_elsewhere())
        return gone.groupBy(decoded().alias("path")).agg(F.max("deletionTimestamp").alias("deletionTimestamp"))

    def has_files_elsewhere(self) -> bool:
        """Tell whether some are not below the table's location: it is a shallow clone of another one."""
        return not self._files.where(is_elsewhere()).isEmpty()

    @functools.cached_property
    def _collected(self) -> Any:
        """They themselves, in the JVM."""
        files: Any = getattr(self._files._jdf, "as")(self._encoder())  # noqa: SLF001
        return files.collectAsList()

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm  # noqa: SLF001

    def _encoder(self) -> Any:
        return self._loaded.allFiles().encoder()

    def _sequence(self, items: list[Any]) -> Any:
        values = self._jvm.java.util.ArrayList()
        for item in items:
            values.add(item)
        return self._scala(values)

    def _scala(self, values: Any) -> Any:
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(values).toSeq()


def version_file_rows(spark: SparkSession, snapshot: Snapshot) -> DataFrame:
    """Return the data files of a version as Delta's log has them: a row for each, with the fields of ``add``."""
    return DataFrame(snapshot.loaded.allFiles().toDF(), spark)


def listed_files(spark: SparkSession, location: str) -> DataFrame:
    """Return all files below a table's location that Delta's VACUUM would look at.

    Returns:
        ``path`` as :meth:`VersionFiles.paths` has it, ``length`` in bytes, ``modified_ms`` since the epoch.

    """
    folders = [location]
    if HadoopFiles.of(spark).status(f"{location}/{CHANGE_DATA}") is not None:
        folders.append(f"{location}/{CHANGE_DATA}")
    found = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load([*map(escaped, folders)])
    base = f"{location.rstrip('/')}/"
    return found.where(F.col("path").startswith(base)).select(
        F.expr(f"substr(path, {len(base) + 1})").alias("path"),
        "length",
        F.unix_millis("modificationTime").alias("modified_ms"),
    )


def is_elsewhere() -> Column:
    """Tell of the column ``path`` of the log whether it is in another table's folder: a shallow clone's."""
    return F.col("path").rlike("^([A-Za-z][A-Za-z0-9+.-]*:|/)")


def decoded() -> Column:
    """Return the column ``path`` of the log, not percent-encoded; as in a query string it would lose each plus."""
    return F.url_decode(F.replace(F.col("path"), F.lit("+"), F.lit("%2B")))


def deletion_vector_paths(spark: SparkSession, vectors: DataFrame) -> DataFrame:
    """Return where deletion vectors are, below the table's location.

    Args:
        spark: the session.
        vectors: one column, as the log names them.

    Returns:
        ``encoded``, as the log names it, each once, and ``path``.

    """
    encoded = sorted(row[0] for row in vectors.distinct().collect())
    return spark.createDataFrame(
        [(each, deletion_vector_path(each)) for each in encoded], "encoded string, path string"
    )


def deletion_vector_path(encoded: str) -> str:
    """Return where a deletion vector is, below the table's location.

    Source: Delta's protocol, "Deletion Vectors": a prefix that may be empty, then a UUID in Z85.
    """
    prefix, name = encoded[:-_UUID_DIGITS], encoded[-_UUID_DIGITS:]
    value = 0
    for start in range(0, _UUID_DIGITS, 5):
        part = 0
        for digit in name[start : start + 5]:
            part = part * len(_DIGITS) + _DIGITS.index(digit)
        value = (value << 32) | part
    return f"{prefix}/deletion_vector_{UUID(int=value)}.bin".lstrip("/")
