"""Split rows into commits by their values: the same rows have the same parts on any cluster, in any order."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import ArrayType, DataType, MapType, StructType, VariantType

from writer_jobs.delta.sql_names import quoted

#: Version of the rule of :class:`SplitRows`. A run is not resumed with another version.
SPLIT_RULE = 1


class SplitRows:
    """Rows that are read once and divided into parts.

    The part of a row is the xxHash64 of all its columns, modulo the number of parts. It does not depend on files,
    partitions, parallelism or order. Equal rows share a part, and every row is in exactly one part. The rows are in
    Spark's cache, sorted by part within its partitions, so reading a part does not read the others.

    Args:
        df: The rows. The order of the columns determines the hash.
        parts: Number of parts.
        colocated_columns: Columns whose equal values are put into one Spark partition for each part. A table with
            these partition columns then gets one file for each of its partitions and part, and not one for each task.

    """

    def __init__(self, df: DataFrame, parts: int, colocated_columns: Sequence[str] = ()) -> None:
        self._part = "__sluice_part"
        while self._part in df.columns:
            self._part += "_"
        part_number = F.pmod(F.xxhash64(*(_hashable(df, name) for name in df.columns)), F.lit(parts))
        numbered_rows = df.withColumn(self._part, part_number)
        if colocated_columns:
            tasks = max(df.sparkSession.sparkContext.defaultParallelism, df.rdd.getNumPartitions())
            numbered_rows = numbered_rows.repartition(
                tasks, self._part, *(_column(df, name) for name in colocated_columns)
            )
        self._rows = numbered_rows.sortWithinPartitions(self._part).persist()

    def count(self) -> int:
        """Read the source into the cache and return the number of rows."""
        return int(self._rows.count())

    def part(self, number: int) -> DataFrame:
        """Return the rows of part ``number``, from 0."""
        return self._rows.where(F.col(self._part) == F.lit(number)).drop(self._part)

    def close(self) -> None:
        """Release the cache."""
        self._rows.unpersist()


def _hashable(df: DataFrame, name: str) -> Column:
    column = _column(df, name)
    # Spark refuses to hash types whose equal values can differ in memory. In one Spark version the same row of a file
    # always has the same JSON.
    return F.to_json(F.struct(column)) if _has_no_hash(df.schema[name].dataType) else column


def _column(df: DataFrame, name: str) -> Column:
    return df[quoted(name)]


def _has_no_hash(data_type: DataType) -> bool:
    if isinstance(data_type, ArrayType):
        return _has_no_hash(data_type.elementType)
    if isinstance(data_type, StructType):
        return any(_has_no_hash(field.dataType) for field in data_type)
    return isinstance(data_type, MapType | VariantType)
