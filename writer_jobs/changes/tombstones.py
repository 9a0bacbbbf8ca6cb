"""Tombstones: which keys were deleted, and by which sequence, so that an older change does not bring a row back.

They are in a Delta table beside the changed one, ``<location>_tombstones``, so that its readers see rows only. It is
written under one hold together with the table, and before it: see :mod:`writer_jobs.changes.unfinished`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from lock_manager import LockManager
from lock_manager.commit_stamp import CHANGES
from writer_jobs.changes.spec import SEQ, SEQUENCE
from writer_jobs.commit.lock_target import Lock
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import TableState
from writer_jobs.writer import LockedDeltaWriter

_SUFFIX = "_tombstones"
_BATCH, _APPLIED_AT = "__BATCH", "__APPLIED_AT"
_MOST_FILES = 32
"""More files than that are rewritten as one, without what has expired."""


class Tombstones:
    """The tombstones of one table.

    Args:
        spark: the session.
        manager: gives the lock.
        location: of the table whose rows are deleted.
        keys: its key columns.

    """

    def __init__(self, spark: SparkSession, manager: LockManager, location: str, keys: Sequence[str]) -> None:
        self._spark = spark
        self._keys = list(keys)
        self._key_columns = [F.col(quoted(name)) for name in keys]
        self.writer = LockedDeltaWriter(spark, manager, location.rstrip("/") + _SUFFIX)

    @property
    def location(self) -> str:
        """Where they are."""
        return self.writer.location

    def state(self) -> TableState | None:
        """Return what is known of their table, None if there is none yet."""
        return self.writer.log.state()

    def create(self, table: TableState, sequence: DataType) -> None:
        """Make their table, partitioned as the other one where its partition columns are keys. Under the lock."""
        kinds = {field.name.lower(): field.dataType for field in table.schema}
        schema = StructType(
            [
                *(StructField(name, kinds[name.lower()]) for name in self._keys),
                StructField(SEQUENCE, sequence),
                StructField(_BATCH, StringType()),
                StructField(_APPLIED_AT, TimestampType()),
            ]
        )
        empty = self._spark.createDataFrame([], schema)
        self.writer.append(empty, partition_by=partition_keys(table, self._keys), hold="write")

    def is_of_keys(self, state: TableState) -> bool:
        """Tell whether they are of these keys."""
        names = {field.name.lower() for field in state.schema}
        return names == {name.lower() for name in (*self._keys, SEQUENCE, _BATCH, _APPLIED_AT)}

    def add(self, deleted: DataFrame, batch: str, lock: Lock) -> None:
        """Append those of a batch; ``deleted`` has the keys and ``SEQ``. Under the lock, of which ``lock`` is what."""
        rows = deleted.select(
            *self._key_columns,
            F.col(SEQ).alias(SEQUENCE),
            F.lit(batch).alias(_BATCH),
            F.timestamp_seconds(F.lit(time.time())).alias(_APPLIED_AT),
        )
        self.writer.append(rows, lock=lock, hold="write", metadata={CHANGES: batch})

    def all(self, predicate: str | None, without: Sequence[str] = ()) -> DataFrame:
        """Return the keys and ``SEQ`` of all deletes, within the rows of a predicate, without those of some batches."""
        rows = self._rows(predicate)
        rows = rows.where(~F.col(_BATCH).isin(*without)) if without else rows
        return rows.select(*self._key_columns, F.col(SEQUENCE).alias(SEQ))

    def take_back(self, batch: str, lock: Lock) -> None:
        """Delete those of a batch of which nothing came into the table. Under the lock, of which ``lock`` is what."""
        self.writer.delete(f"{_BATCH} = '{batch}'", lock=lock)

    def compact(self, retention_seconds: float) -> None:
        """Rewrite them without what has expired, if they are in many files. Under the table's lock."""
        rows = self._rows(None)
        if len(rows.inputFiles()) <= _MOST_FILES:
            return
        oldest = F.timestamp_seconds(F.lit(time.time() - retention_seconds))
        kept = (
            rows.where(F.col(_APPLIED_AT) >= oldest)
            .groupBy(*self._key_columns, SEQUENCE)
            .agg(F.max_by(F.struct(_BATCH, _APPLIED_AT), _APPLIED_AT).alias("kept"))
            .select(*self._key_columns, SEQUENCE, "kept.*")
        )
        self.writer.overwrite(kept)

    def _rows(self, predicate: str | None) -> DataFrame:
        rows = self._spark.read.format("delta").load(self.location)
        return rows if predicate is None else rows.where(predicate)


def partition_keys(table: TableState, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the table's partition columns if all are keys, or none: by others a key does not tell where its row is."""
    known = {name.lower() for name in keys}
    columns = table.partition_columns
    return columns if all(name.lower() in known for name in columns) else ()
