"""A version of a table that Delta has loaded."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from lock_manager import Adoption, PartitionColumn, PartitionSchema
from lock_manager.intents import NO_VERSION
from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from writer_jobs.errors import TableError

#: Of a field, under which name files have it, with column mapping.
PHYSICAL_NAME = "delta.columnMapping.physicalName"
_TIME_ZONE = "spark.sql.session.timeZone"
_RETENTION = "delta.setTransactionRetentionDuration"
_ISOLATION = "delta.isolationLevel"
#: Table property that stores how the table is fed; see :mod:`writer_jobs.merge.table_feed`.
FEED_PROPERTY = "sluice.feed"


@dataclass(frozen=True)
class TableState:
    """A version of a table, as far as an append has to know it.

    Attributes:
        version: its number.
        schema: names and types of its columns, in order.
        partition_columns: in partition order.
        supplied_columns: columns that Delta fills in by itself (generated, identity, with a default).
        forgets_transactions: whether ``txnVersion`` is kept for a limited time only.
        adoption: which lock on the table counts, None if any does; see :mod:`lock_manager.table_records.adoption`.
        is_serializable: whether rows that others append to what a transaction has read are a conflict to Delta, as they
            are by default.
        generated_columns: Columns whose values Delta computes (generated, identity).
        feed: Value of the table property ``sluice.feed``; None if it is not set.

    """

    version: int
    schema: StructType
    partition_columns: tuple[str, ...]
    supplied_columns: frozenset[str]
    forgets_transactions: bool
    adoption: Adoption | None = None
    is_serializable: bool = True
    generated_columns: frozenset[str] = frozenset()
    feed: str | None = None

    @property
    def partition_types(self) -> dict[str, DataType]:
        """Types of the partition columns, by name."""
        return {name: self.schema[name].dataType for name in self.partition_columns}

    @property
    def partition_folders(self) -> tuple[str, ...]:
        """Names of the partition columns as folders of files have them: the logical one, and Delta's own for it."""
        own = [str((self.schema[name].metadata or {}).get(PHYSICAL_NAME, name)) for name in self.partition_columns]
        return tuple(dict.fromkeys([*self.partition_columns, *own]))


class Snapshot:
    """A version of a table that Delta has loaded: what is asked of it is of that version, and reads no log.

    Args:
        spark: the session.
        location: of the table.
        loaded: Delta's own snapshot, in the JVM.

    Attributes:
        location: of the table.
        version: its number, -1 if there is no table.
        loaded: Delta's own snapshot, for :mod:`writer_jobs.delta.version_files`.

    """

    def __init__(self, spark: SparkSession, location: str, loaded: Any) -> None:
        self.location = location
        self.version = int(loaded.version())
        self.loaded = loaded
        self._spark = spark

    @property
    def committed_at(self) -> datetime:
        """When the version was committed, by the table's own clock."""
        return datetime.fromtimestamp(int(self.loaded.timestamp()) / 1000, UTC)

    @property
    def table_id(self) -> str:
        """Id of the table, which another table at the same place has not."""
        return str(self.loaded.metadata().id())

    @property
    def file_retention_seconds(self) -> float:
        """For how long VACUUM spares a file that was removed, or that belongs to no commit."""
        jvm: Any = self._spark._jvm  # noqa: SLF001
        return int(jvm.org.apache.spark.sql.delta.DeltaLog.tombstoneRetentionMillis(self.loaded.metadata())) / 1000

    @property
    def log_retention_seconds(self) -> float:
        """For how long versions stay in the log."""
        return int(self.loaded.deltaLog().deltaRetentionMillis(self.loaded.metadata())) / 1000

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the table."""
        jvm: Any = self._spark._jvm  # noqa: SLF001
        found = jvm.scala.jdk.javaapi.CollectionConverters.asJava(self.loaded.metadata().configuration())
        return {str(name): str(value) for name, value in found.items()}

    @property
    def clustering_columns(self) -> tuple[str, ...]:
        """Columns by which Delta clusters the table; empty: it does not."""
        jvm: Any = self._spark._jvm  # noqa: SLF001
        info = getattr(jvm.org.apache.spark.sql.delta.skipping.clustering, "ClusteringColumnInfo$")
        names = getattr(info, "MODULE$").extractLogicalNames(self.loaded)
        return tuple(str(names.apply(i)) for i in range(names.size()))

    @property
    def size(self) -> int:
        """Of its data files, in bytes."""
        return int(self.loaded.sizeInBytes())

    @property
    def checkpoint_version(self) -> int | None:
        """Version of the checkpoint from which on it was read; None: there is none."""
        version = int(self.loaded.logSegment().checkpointProvider().version())
        return None if version < 0 else version

    @property
    def checkpoint_interval(self) -> int:
        """After so many versions Delta writes the next checkpoint."""
        return int(self.loaded.deltaLog().checkpointInterval(self.loaded.metadata()))

    @property
    def cleans_log(self) -> bool:
        """Whether each checkpoint that a writer writes removes old versions, too."""
        return bool(self.loaded.deltaLog().enableExpiredLogCleanup(self.loaded.metadata()))

    def property_of(self, name: str) -> str | None:
        """Return a property of the table; None if it is not set."""
        found = self.loaded.metadata().configuration().get(name)
        return str(found.get()) if found.isDefined() else None

    def last_transaction(self, app_id: str) -> int:
        """Return the last ``txnVersion`` of an application, -1 if it has none.

        Delta replays the table's state for it, with a Spark job, and keeps the result until another version comes: a
        write that follows and carries a transaction has it for nothing.
        """
        if self.version < 0:
            return NO_VERSION
        found = self.loaded.transactions().get(app_id)
        return int(found.get()) if found.isDefined() else NO_VERSION

    @functools.cached_property
    def state(self) -> TableState | None:
        """Schema, partitioning and adoption; None if there is no table."""
        if self.version < 0:
            return None
        metadata = self.loaded.metadata()
        # Not Spark's view of the table, which hides what Delta keeps in the fields' metadata.
        schema = StructType.fromJson(json.loads(metadata.schemaString()))
        columns = metadata.partitionColumns()
        properties = metadata.configuration()
        found = {name: properties.get(name) for name in (ENSEMBLE_PROPERTY, TABLE_PROPERTY)}
        isolation, feed = properties.get(_ISOLATION), properties.get(FEED_PROPERTY)
        return TableState(
            version=self.version,
            schema=schema,
            partition_columns=tuple(str(columns.apply(i)) for i in range(columns.size())),
            supplied_columns=frozenset(field.name for field in schema if _supplied(field.metadata)),
            forgets_transactions=bool(properties.contains(_RETENTION)),
            adoption=Adoption.of({name: str(value.get()) for name, value in found.items() if value.isDefined()}),
            is_serializable=not isolation.isDefined() or str(isolation.get()).lower() == "serializable",
            generated_columns=frozenset(field.name for field in schema if _generated(field.metadata)),
            feed=str(feed.get()) if feed.isDefined() else None,
        )

    def is_laid_out_as(self, snapshot: Snapshot) -> bool:
        """Return whether the table has the same partition columns, with the same types, as in another snapshot."""
        if self.loaded == snapshot.loaded:
            return True
        one, two = (None if state is None else state.partition_types for state in (self.state, snapshot.state))
        return one == two

    def partition_schema(self) -> PartitionSchema:
        """Return the partition columns.

        Raises:
            TableError: there is no table, or it is not partitioned.
            ResourceError: a column's type is one whose values Delta does not write exactly.

        """
        state = self.state
        if state is None:
            raise TableError(
                f"there is no Delta table at {self.location}: its first version needs the lock on the table"
            )
        if not state.partition_columns:
            raise TableError(f"{self.location} is not partitioned: lock the table")
        columns = []
        for name in state.partition_columns:
            field_of = state.schema[name]
            physical = (field_of.metadata or {}).get(PHYSICAL_NAME, name)
            columns.append(PartitionColumn(name, str(field_of.dataType.jsonValue()), str(physical)))
        return PartitionSchema(tuple(columns), str(self._spark.conf.get(_TIME_ZONE)))


def _supplied(metadata: dict[str, Any]) -> bool:
    return "CURRENT_DEFAULT" in metadata or _generated(metadata)


def _generated(metadata: dict[str, Any]) -> bool:
    return any(key == "delta.generationExpression" or key.startswith("delta.identity.") for key in metadata)
