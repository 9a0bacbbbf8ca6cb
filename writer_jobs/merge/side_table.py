"""The side table of a table: the tombstones of deleted keys, or the cells that its rows are computed from.

It is a Delta table beside the changed table, such as ``<location>_tombstones``, so that readers of the table see rows
only. It is committed under the same hold as the table and before it; see :mod:`writer_jobs.merge.batch_records`.
Maintenance deletes its expired rows; see :mod:`writer_jobs.maintenance.side_rows`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import DataType, StringType, StructField, StructType, TimestampType

from lock_manager import LockManager
from lock_manager.table_records.commit_stamp import CHANGES
from writer_jobs.commit.lock_target import Lock
from writer_jobs.commit.result import CommitResult
from writer_jobs.delta.side_locations import TOMBSTONES_SUFFIX
from writer_jobs.delta.snapshot import TableState
from writer_jobs.delta.sql_names import property_list, quoted
from writer_jobs.maintenance.policy import FORGET_AFTER
from writer_jobs.merge.change_spec import SEQ, SEQUENCE
from writer_jobs.writer import LockedDeltaWriter

BATCH = "__BATCH"
"""Column with the id of a row's batch."""

APPLIED_AT = "__APPLIED_AT"
"""Column with the time at which the batch was applied."""


@dataclass(frozen=True)
class SideTableLayout:
    """Layout of a side table.

    Attributes:
        suffix: Suffix of the location.
        fields: Columns in addition to the keys, the sequence, ``BATCH`` and ``APPLIED_AT``.
        holds_all_rows: Whether all rows of the table are computed from the side table.

    """

    suffix: str
    fields: tuple[StructField, ...] = ()
    holds_all_rows: bool = False


#: Tombstones: deleted keys with the sequence of the delete, so that an older change does not restore the row.
TOMBSTONES = SideTableLayout(TOMBSTONES_SUFFIX)


class SideTable:
    """The side table of the table that has this location and these keys.

    ``properties`` are table properties that its rows depend on; None: it must not have the property.
    """

    def __init__(
        self,
        spark: SparkSession,
        manager: LockManager,
        location: str,
        keys: Sequence[str],
        layout: SideTableLayout,
        properties: Mapping[str, str | None],
    ) -> None:
        self._spark = spark
        self._properties = properties
        self._keys = list(keys)
        self._fields = layout.fields
        self._columns = [F.col(quoted(name)) for name in (*keys, *(field.name for field in layout.fields))]
        self.writer = LockedDeltaWriter(spark, manager, location.rstrip("/") + layout.suffix)
        self.location = self.writer.location

    def state(self) -> TableState | None:
        """Return the state of the side table; None if it does not exist."""
        return self.writer.log.state()

    def create(self, table: TableState, sequence: DataType) -> None:
        """Create the side table, partitioned as the table if its partition columns are keys. Called under the lock."""
        types = {field.name.lower(): field.dataType for field in table.schema}
        schema = StructType(
            [
                *(StructField(name, types[name.lower()]) for name in self._keys),
                *self._fields,
                StructField(SEQUENCE, sequence),
                StructField(BATCH, StringType()),
                StructField(APPLIED_AT, TimestampType()),
            ]
        )
        empty_rows = self._spark.createDataFrame([], schema)
        self.writer.append(empty_rows, partition_by=partition_keys(table, self._keys), lock_during="write")

    def has_keys(self, state: TableState) -> bool:
        """Return whether an existing side table has exactly the columns that these keys and the layout require."""
        expected = (*self._keys, *(field.name for field in self._fields), SEQUENCE, BATCH, APPLIED_AT)
        return {name.lower() for name in state.schema.names} == {name.lower() for name in expected}

    def other_properties(self) -> dict[str, str | None]:
        """Return the stored properties that differ from the required ones, in the version that was read last.

        An existing side table without rows may lack them, because its creation has a second commit.
        """
        snapshot = self.writer.log.known_snapshot()
        stored_values = {name: snapshot.property_of(name) for name in self._properties}
        differences = {name: value for name, value in stored_values.items() if value != self._properties[name]}
        is_set = any(differences.values())
        if differences and not is_set and self._spark.read.format("delta").load(self.location).isEmpty():
            return {}
        return differences

    def clauses(self, days: float) -> list[str]:
        """Return the clause of ``ALTER TABLE name`` that sets the properties and keeps rows for at least ``days``.

        The list is empty if the version that this driver read last has these properties already.
        """
        snapshot = self.writer.log.known_snapshot()
        properties = {
            name: value
            for name, value in self._properties.items()
            if value is not None and snapshot.property_of(name) is None
        }
        retention = snapshot.property_of(FORGET_AFTER)
        is_kept = False
        with suppress(ValueError):
            is_kept = retention is not None and float(retention) >= days
        if not is_kept:
            properties[FORGET_AFTER] = str(days)
        return [f"SET TBLPROPERTIES ({property_list(properties)})"] if properties else []

    def add(self, rows: DataFrame, batch: str, lock: Lock) -> CommitResult:
        """Append rows of a batch: keys, fields and ``SEQ``. Called under the lock, whose partitions are in ``lock``."""
        side_rows = rows.select(
            *self._columns,
            F.col(SEQ).alias(SEQUENCE),
            F.lit(batch).alias(BATCH),
            F.timestamp_seconds(F.lit(time.time())).alias(APPLIED_AT),
        )
        return self.writer.append(side_rows, lock=lock, lock_during="write", metadata={CHANGES: batch})

    def rows(self, version: int, predicate: str | None = None) -> DataFrame:
        """Return the keys, the fields and ``SEQ`` of a version's rows that match a predicate."""
        rows = self._spark.read.format("delta").option("versionAsOf", version).load(self.location)
        rows = rows if predicate is None else rows.where(predicate)
        return rows.select(*self._columns, F.col(SEQUENCE).alias(SEQ))

    def delete_batch(self, batch: str, lock: Lock) -> bool:
        """Delete the rows of a batch that was not applied, in the partitions of ``lock``. Called under the lock.

        Return whether the batch has no rows left in other partitions.
        """
        is_of_batch = f"{BATCH} = '{batch}'"
        self.writer.delete(is_of_batch, lock=lock)
        rows_left = self._spark.read.format("delta").load(self.location).where(is_of_batch)
        return bool(rows_left.isEmpty())


def partition_keys(table: TableState, keys: Sequence[str]) -> tuple[str, ...]:
    """Return the table's partition columns if all of them are keys, else an empty tuple.

    If all are keys, the partitions of a batch are known without reading the table.
    """
    key_names = {name.lower() for name in keys}
    columns = table.partition_columns
    return columns if all(name.lower() in key_names for name in columns) else ()
