"""The data files of a version of a table, by way of Delta's own snapshot: which there are, and rows of some of them."""

from __future__ import annotations

import functools
import re
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from writer_jobs.delta.snapshot import Snapshot

# Which file it is, and which of its rows are deleted.
_IDENTITY = ("path", "deletionVector.storageType", "deletionVector.pathOrInlineDv", "deletionVector.offset")
# The digits of Z85, and of how many of them the UUID in a deletion vector's name is made.
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_UUID_DIGITS = 20
# Five of them are a word of 32 bits, which has eight hexadecimal digits.
_WORD_DIGITS, _WORD_HEX_DIGITS = 5, 8


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
            clone's) are not in it. A file with deletion vectors of several data files is in it several times.

        """
        return self._files.select(own_paths(F.col("path"), "deletionVector").alias("path"))

    def removed(self) -> DataFrame:
        """Return the files that the table has lost, for as long as its log remembers them.

        Returns:
            ``path`` as :meth:`paths` has it, and ``deletionTimestamp``, milliseconds since the epoch. A file whose rows
            were deleted one after the other is in it several times.

        """
        gone = DataFrame(self._loaded.tombstones().toDF(), self._spark).where(~is_elsewhere(F.col("path")))
        return gone.select(decoded(F.col("path")).alias("path"), "deletionTimestamp")

    def has_files_elsewhere(self) -> bool:
        """Tell whether some are not below the table's location: it is a shallow clone of another one."""
        return not self._files.where(is_elsewhere(F.col("path"))).isEmpty()

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


def own_paths(path: Column, vector: str) -> Column:
    """Return where a data file and its deletion vector are, a row for each that is in the table's own folder.

    Args:
        path: of the file, as the log has it.
        vector: of the file, likewise, as an expression in SQL.

    Returns:
        Paths below the table's location, not percent-encoded.

    """
    file = F.when(~is_elsewhere(path), decoded(path))
    # A clone's new vectors are its own, also those of files that are not.
    vector_path = deletion_vector_path(f"{vector}.pathOrInlineDv")
    vector_file = F.expr(f"if({vector}.storageType = 'u', {vector_path}, NULL)")
    return F.explode(F.array_compact(F.array(file, vector_file)))


def is_elsewhere(path: Column) -> Column:
    """Tell of a path of the log whether it is in another table's folder: a shallow clone's."""
    return path.rlike("^([A-Za-z][A-Za-z0-9+.-]*:|/)")


def decoded(path: Column) -> Column:
    """Return a path of the log, not percent-encoded; as in a query string it would lose each plus."""
    return F.url_decode(F.replace(path, F.lit("+"), F.lit("%2B")))


def deletion_vector_path(encoded: str) -> str:
    """Return where a deletion vector is, below the table's location, as an expression in SQL.

    As text, because columns are made by a call to the JVM for each operation: here some hundred.

    Source: Delta's protocol, "Deletion Vectors": a prefix that may be empty, then a UUID in Z85.

    Args:
        encoded: as the log names it, an expression in SQL.

    """
    last = f"[{re.escape(_DIGITS)}]{{{_UUID_DIGITS}}}$"
    # What is not understood must not look like another file.
    unknown = f"raise_error(concat('no name of a deletion vector: ', {encoded}))"
    name = f"if({encoded} RLIKE r'{last}', right({encoded}, {_UUID_DIGITS}), {unknown})"
    words = []
    for start in range(1, _UUID_DIGITS + 1, _WORD_DIGITS):
        value = "0L"
        for at in range(start, start + _WORD_DIGITS):
            value = f"(({value}) * {len(_DIGITS)} + position(substring(name, {at}, 1), '{_DIGITS}') - 1)"
        words.append(f"lpad(hex({value}), {_WORD_HEX_DIGITS}, '0')")
    # A lambda for one name: what it stands for would be in the expression twenty times.
    digits = f"element_at(transform(array({name}), name -> lower(concat({', '.join(words)}))), 1)"
    uuid = f"regexp_replace({digits}, '^(.{{8}})(.{{4}})(.{{4}})(.{{4}})(.{{12}})$', '$1-$2-$3-$4-$5')"
    prefix = f"regexp_extract({encoded}, '^(.*).{{{_UUID_DIGITS}}}$', 1)"
    return f"concat(if({prefix} = '', '', concat({prefix}, '/')), 'deletion_vector_', {uuid}, '.bin')"
