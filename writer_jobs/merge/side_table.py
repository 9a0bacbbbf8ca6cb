"""What a table's own rows do not tell of the changes that made them: tombstones of deleted keys, or cells.

It is in a Delta table beside the changed one, ``<location>_tombstones`` for instance, so that readers see rows only. It
is written under one hold together with the table, and before it: see :mod:`writer_jobs.merge.batch_records`. Maintenance
deletes the rows that have expired: see :mod:`writer_jobs.maintenance.side_rows`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from lock_manager import LockManager
from lock_manager.table_records.commit_stamp import CHANGES
from writer_jobs.commit.lock_target import Lock
from writer_jobs.delta.side_locations import TOMBSTONES_SUFFIX
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import property_list, quoted
from writer_jobs.maintenance.policy import FORGET_AFTER
from writer_jobs.merge.change_spec import SEQ, SEQUENCE
from writer_jobs.writer import LockedDeltaWriter

BATCH = "__BATCH"
"""Column with the id of the batch that a row is of."""

APPLIED_AT = "__APPLIED_AT"
"""Column with the time at which the batch was applied."""


@dataclass(frozen=True)
class Remembered:
    """What is remembered of changes.

    Attributes:
        suffix: of the location.
        fields: columns beside the keys and the sequence.
        is_all: whether the table's rows follow from it alone.

    """

    suffix: str
    fields: tuple[StructField, ...] = ()
    is_all: bool = False


#: Which keys were deleted, and by which sequence, so that an older change does not bring a row back.
TOMBSTONES = Remembered(TOMBSTONES_SUFFIX)


class SideTable:
    """What is remembered beside one table.

    Args:
        spark: the session.
        manager: gives the lock.
        location: of the table whose rows are changed.
        keys: its key columns.
        remembered: what it is.

    """

    def __init__(
        self, spark: SparkSession, manager: LockManager, location: str, keys: Sequence[str], remembered: Remembered
    ) -> None:
        self._spark = spark
        self._keys = list(keys)
        self._fields = remembered.fields
        self._columns = [F.col(quoted(name)) for name in (*keys, *(field.name for field in remembered.fields))]
        self.writer = LockedDeltaWriter(spark, manager, location.rstrip("/") + remembered.suffix)

    @property
    def location(self) -> str:
        """Where it is."""
        return self.writer.location

    def state(self) -> TableState | None:
        """Return what is known of it, None if there is none yet."""
        return self.writer.log.state()

    def create(self, table: TableState, sequence: DataType) -> None:
        """Make it, partitioned as the other one where its partition columns are keys. Under the lock."""
        kinds = {field.name.lower(): field.dataType for field in table.schema}
        schema = StructType(
            [
                *(StructField(name, kinds[name.lower()]) for name in self._keys),
                *self._fields,
                StructField(SEQUENCE, sequence),
                StructField(BATCH, StringType()),
                StructField(APPLIED_AT, TimestampType()),
            ]
        )
        empty = self._spark.createDataFrame([], schema)
        self.writer.append(empty, partition_by=partition_keys(table, self._keys), hold="write")

    def is_of_keys(self, state: TableState) -> bool:
        """Tell whether it is of these keys."""
        names = {field.name.lower() for field in state.schema}
        ours = (*self._keys, *(field.name for field in self._fields), SEQUENCE, BATCH, APPLIED_AT)
        return names == {name.lower() for name in ours}

    def retention_clauses(self, days: float) -> list[str]:
        """Return the clause that makes maintenance keep the rows for so many days; none if it does already.

        It looks at the version that this driver has read last.

        Returns:
            Clauses of ``ALTER TABLE name``.

        """
        text = self.writer.log.known().property_of(FORGET_AFTER)
        with suppress(ValueError):
            if text is not None and float(text) >= days:
                return []
        return [f"SET TBLPROPERTIES ({property_list({FORGET_AFTER: str(days)})})"]

    def add(self, noted: DataFrame, batch: str, lock: Lock) -> None:
        """Append rows of a batch: keys, fields and ``SEQ``. Called under the lock; ``lock`` names its partitions."""
        rows = noted.select(
            *self._columns,
            F.col(SEQ).alias(SEQUENCE),
            F.lit(batch).alias(BATCH),
            F.timestamp_seconds(F.lit(time.time())).alias(APPLIED_AT),
        )
        self.writer.append(rows, lock=lock, hold="write", metadata={CHANGES: batch})

    def all(self, predicate: str | None) -> DataFrame:
        """Return the keys, the fields and ``SEQ`` within the rows of a predicate.

        It stays what it is now, whatever is added.
        """
        reader = self._spark.read.format("delta").option("versionAsOf", self.writer.log.head().version)
        rows = reader.load(self.location)
        rows = rows if predicate is None else rows.where(predicate)
        return rows.select(*self._columns, F.col(SEQUENCE).alias(SEQ))

    def take_back(self, batch: str, lock: Lock) -> bool:
        """Delete the rows of a batch that was not applied, in the partitions of ``lock``. Called under the lock.

        Returns:
            Whether the batch has no row in other partitions either.

        """
        is_of_batch = f"{BATCH} = '{batch}'"
        self.writer.delete(is_of_batch, lock=lock)
        rows_left = self._spark.read.format("delta").load(self.location).where(is_of_batch)
        return bool(rows_left.isEmpty())


def partition_keys(table: TableState, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the table's partition columns if all are keys, or none: by others a key does not tell where its row is."""
    known = {name.lower() for name in keys}
    columns = table.partition_columns
    return columns if all(name.lower() in known for name in columns) else ()
