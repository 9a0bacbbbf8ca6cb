"""Select and read the data files of a version of a table, with Delta's snapshot."""

from __future__ import annotations

import functools
import re
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.java_classes import java_class, scala_object
from writer_jobs.delta.snapshot import Snapshot

# Fields of ``add`` that identify a file and its deleted rows.
_IDENTITY = ("path", "deletionVector.storageType", "deletionVector.pathOrInlineDv", "deletionVector.offset")
# Digits of Z85, and the number of digits of the UUID in a deletion vector's name.
_Z85_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_DIGITS = 20
# Five digits of Z85 are a word of 32 bits, which has eight hexadecimal digits.
_WORD_DIGITS, _WORD_HEX_DIGITS = 5, 8


class DataFiles:
    """Data files of one version of a table: all of them, or those in a data frame of ``add`` actions."""

    def __init__(self, spark: SparkSession, snapshot: Snapshot, files: DataFrame | None = None) -> None:
        self._spark = spark
        self._snapshot = snapshot
        self._loaded = snapshot.loaded
        self._are_all = files is None
        self._files = data_file_rows(spark, snapshot) if files is None else files

    def within(self, condition: Column) -> DataFiles:
        """Return the version's files that can have rows that match a condition, by statistics and partition values.

        The condition needs literals of its columns' types. A condition that needs a cast excludes no file.
        """
        rows = self._spark.read.format("delta").option("versionAsOf", self._snapshot.version)
        plan: Any = rows.load(self._snapshot.location).where(condition)._jdf.queryExecution().analyzed()  # noqa: SLF001
        filters = self._scala_seq(java_class(self._jvm, "java.util.Collections").singletonList(plan.condition()))
        scan = self._loaded.filesForScan(filters, False)  # noqa: FBT003 (keepNumRecords)
        files = self._spark._jsparkSession.createDataset(scan.files(), self._encoder())  # noqa: SLF001
        return DataFiles(self._spark, self._snapshot, DataFrame(files.toDF(), self._spark))

    def without(self, excluded: DataFiles) -> DataFiles:
        """Return the files that ``excluded`` does not have, or has with other deleted rows."""
        files, other_files = self._files.alias("files"), excluded._files.alias("other_files")
        is_same = [F.col(f"files.{name}").eqNullSafe(F.col(f"other_files.{name}")) for name in _IDENTITY]
        return DataFiles(self._spark, self._snapshot, files.join(other_files, is_same, "left_anti"))

    def count(self) -> int:
        """Return the number of files."""
        # The snapshot has the number of all files.
        return int(self._loaded.numOfFiles() if self._are_all else self._collected.size())

    def rows(self) -> DataFrame:
        """Return the rows of the files, with the version's columns."""
        files, none = self._scala_seq(self._collected), scala_object(self._jvm, "scala.None")
        return DataFrame(self._loaded.deltaLog().createDataFrame(self._loaded, files, False, none), self._spark)  # noqa: FBT003 (isStreaming)

    def paths(self) -> DataFrame:
        """Return the paths of the files and of their deletion vectors.

        ``path`` is below the location, not percent-encoded. Files of another table (a shallow clone's source) are left
        out. A file with the deletion vectors of several data files has several rows.
        """
        return self._files.select(local_paths(F.col("path"), "deletionVector").alias("path"))

    def removed_files(self) -> DataFrame:
        """Return the removed files that the snapshot still has.

        The columns are ``path`` as in :meth:`paths`, and ``deletionTimestamp`` in milliseconds since the epoch. A file
        has several rows if its rows were deleted by several commits.
        """
        tombstones = DataFrame(self._loaded.tombstones().toDF(), self._spark).where(~is_elsewhere(F.col("path")))
        return tombstones.select(decode_path(F.col("path")).alias("path"), "deletionTimestamp")

    def has_files_elsewhere(self) -> bool:
        """Return whether the version has files outside the table's location, as a shallow clone has."""
        return not self._files.where(is_elsewhere(F.col("path"))).isEmpty()

    @functools.cached_property
    def _collected(self) -> Any:
        """Java list of the files' ``AddFile`` actions."""
        files: Any = getattr(self._files._jdf, "as")(self._encoder())  # noqa: SLF001
        return files.collectAsList()

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm  # noqa: SLF001

    def _encoder(self) -> Any:
        return self._loaded.allFiles().encoder()

    def _scala_seq(self, java_list: Any) -> Any:
        return java_class(self._jvm, "scala.jdk.javaapi.CollectionConverters").asScala(java_list).toSeq()


def data_file_rows(spark: SparkSession, snapshot: Snapshot) -> DataFrame:
    """Return a row with the fields of the log's ``add`` action for each data file of a version."""
    return DataFrame(snapshot.loaded.allFiles().toDF(), spark)


def local_paths(path: Column, vector: str) -> Column:
    """Return a row for each path of a data file and its deletion vector that is below the table's location.

    The paths are below the location, not percent-encoded. ``vector`` is the SQL expression of the vector in the log.
    """
    file = F.when(~is_elsewhere(path), decode_path(path))
    # A shallow clone stores new deletion vectors in its own folder, also vectors of its source's files.
    vector_path = deletion_vector_path(f"{vector}.pathOrInlineDv")
    vector_file = F.expr(f"if({vector}.storageType = 'u', {vector_path}, NULL)")
    return F.explode(F.array_compact(F.array(file, vector_file)))


def is_elsewhere(path: Column) -> Column:
    """Return whether a path in the log is absolute: the file is in the folder of a shallow clone's source."""
    return path.rlike("^([A-Za-z][A-Za-z0-9+.-]*:|/)")


def decode_path(path: Column) -> Column:
    """Decode a percent-encoded path of the log."""
    # url_decode would turn "+" into a blank.
    return F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))


def deletion_vector_path(encoded_name: str) -> str:
    """Return an SQL expression of a deletion vector's path below the table's location, given ``pathOrInlineDv``.

    The expression is text, because ``Column`` calls the JVM for each operation, and there are about 100 of them.

    Source: Delta's protocol, "Deletion Vectors": a prefix that may be empty, then a UUID in Z85.
    """
    uuid_pattern = f"[{re.escape(_Z85_DIGITS)}]{{{_UUID_DIGITS}}}$"
    # A name that cannot be decoded must not become the path of another file.
    failure = f"raise_error(concat('not the name of a deletion vector: ', {encoded_name}))"
    name = f"if({encoded_name} RLIKE r'{uuid_pattern}', right({encoded_name}, {_UUID_DIGITS}), {failure})"
    words = []
    for start in range(1, _UUID_DIGITS + 1, _WORD_DIGITS):
        value = "0L"
        for position in range(start, start + _WORD_DIGITS):
            value = f"(({value}) * {len(_Z85_DIGITS)} + position(substring(name, {position}, 1), '{_Z85_DIGITS}') - 1)"
        words.append(f"lpad(hex({value}), {_WORD_HEX_DIGITS}, '0')")
    # The lambda names the expression, which would otherwise be repeated twenty times.
    digits = f"element_at(transform(array({name}), name -> lower(concat({', '.join(words)}))), 1)"
    uuid = f"regexp_replace({digits}, '^(.{{8}})(.{{4}})(.{{4}})(.{{4}})(.{{12}})$', '$1-$2-$3-$4-$5')"
    prefix = f"regexp_extract({encoded_name}, '^(.*).{{{_UUID_DIGITS}}}$', 1)"
    return f"concat(if({prefix} = '', '', concat({prefix}, '/')), 'deletion_vector_', {uuid}, '.bin')"
