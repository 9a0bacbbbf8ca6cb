"""Split rows into commits by what is in them: the same rows fall into the same parts on any cluster, in any order."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from writer_jobs.delta.sql_names import quoted

#: Counts up when the rule below changes, so that a run is not resumed by another rule.
SPLIT_RULE = 1


class SplitRows:
    """Rows, read once and divided into parts.

    The part of a row is the xxHash64 of all its columns, modulo the number of parts: it does not depend on files,
    partitions, parallelism or order, equal rows share a part, and every row is in exactly one. The rows are kept in
    Spark's cache, sorted by part within its partitions, so that a part is read without reading the others.

    Args:
        df: the rows; columns in the order of their schema.
        parts: how many.
        together: columns of which equal values come into one Spark partition for each part, so that a table that is
            partitioned by them gets one file for each of its partitions and part instead of one for each task.

    """

    def __init__(self, df: DataFrame, parts: int, together: Sequence[str] = ()) -> None:
        self._part = "__sluice_part"
        while self._part in df.columns:
            self._part += "_"
        number = F.pmod(F.xxhash64(*(_hashable(df, name) for name in df.columns)), F.lit(parts))
        numbered = df.withColumn(self._part, number)
        if together:
            tasks = max(df.sparkSession.sparkContext.defaultParallelism, df.rdd.getNumPartitions())
            numbered = numbered.repartition(tasks, self._part, *(_column(df, name) for name in together))
        self._rows = numbered.sortWithinPartitions(self._part).persist()

    def count(self) -> int:
        """Read the source now, into the cache, and return the number of rows."""
        return int(self._rows.count())

    def part(self, number: int) -> DataFrame:
        """Return the rows of part ``number``, from 0."""
        return self._rows.where(F.col(self._part) == F.lit(number)).drop(self._part)

    def close(self) -> None:
        """Give the cache back."""
        self._rows.unpersist()


def _hashable(df: DataFrame, name: str) -> Column:
    column = _column(df, name)
    # Spark refuses to hash what it may hold in several ways; as JSON it has one, for one version of Spark.
    return F.to_json(F.struct(column)) if _has_no_hash(df.schema[name].dataType) else column


def _column(df: DataFrame, name: str) -> Column:
    return df[quoted(name)]


def _has_no_hash(data_type: DataType) -> bool:
    if isinstance(data_type, ArrayType):
        return _has_no_hash(data_type.elementType)
    if isinstance(data_type, StructType):
        return any(_has_no_hash(field.dataType) for field in data_type)
    return isinstance(data_type, MapType | VariantType)
