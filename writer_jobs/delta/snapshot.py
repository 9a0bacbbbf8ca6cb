"""Read schema, partitioning and properties of a loaded version of a table."""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructField, StructType

from lock_manager import Adoption, PartitionColumn, PartitionSchema
from lock_manager.intents import NO_VERSION
from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from writer_jobs.delta.java_classes import java_class, scala_object
from writer_jobs.delta.jvm_errors import JVM_ERRORS
from writer_jobs.errors import TableError

#: Metadata key of a field's name in data files, with column mapping.
PHYSICAL_NAME = "delta.columnMapping.physicalName"
_ISOLATION = "delta.isolationLevel"
# Transactions that Delta drops within this time count as dropped: clocks differ, and a write takes time.
_TRANSACTION_MARGIN = timedelta(days=1)
#: Table property that stores how the table is fed; see :mod:`writer_jobs.merge.table_feed`.
FEED_PROPERTY = "sluice.feed"


@dataclass(frozen=True)
class TableState:
    """Schema, partitioning and properties of a version of a table.

    Attributes:
        version: Number of the version.
        schema: Names and types of the columns, in order.
        partition_columns: Names of the partition columns, in partition order.
        supplied_columns: Columns that Delta fills in by itself (generated, identity, with a default).
        adoption: Lock that counts for the table, see :mod:`lock_manager.table_records.adoption`; None if any lock does.
        is_serializable: Whether the isolation level is ``Serializable``, Delta's default: rows that another writer
            appends to the data that a transaction has read are a conflict.
        generated_columns: Columns whose values Delta computes (generated, identity).
        feed: Value of the table property ``sluice.feed``; None if it is not set.

    """

    version: int
    schema: StructType
    partition_columns: tuple[str, ...]
    supplied_columns: frozenset[str]
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
        """Names of the partition columns in names of folders: the logical and the physical names."""
        physical_names = [_physical_name(self.schema[name]) for name in self.partition_columns]
        return tuple(dict.fromkeys([*self.partition_columns, *physical_names]))


class Snapshot:
    """A version of a table that Delta has loaded. Its methods do not look for new versions.

    Attributes:
        version: Number of the version; -1 if there is no table.
        loaded: Delta's snapshot, for :mod:`writer_jobs.delta.data_files`.

    """

    def __init__(self, spark: SparkSession, location: str, loaded: Any) -> None:
        self.location = location
        self.version = int(loaded.version())
        self.loaded = loaded
        self._spark = spark

    @property
    def committed_at(self) -> datetime:
        """Time of the commit by Delta: the in-commit timestamp, or the modification time of the version file."""
        return datetime.fromtimestamp(int(self.loaded.timestamp()) / 1000, UTC)

    @property
    def table_id(self) -> str:
        """Delta's id of the table. A table that is recreated at the same location gets a new id."""
        return str(self.loaded.metadata().id())

    @property
    def file_retention_seconds(self) -> float:
        """Age at which VACUUM deletes a file that was removed from the table, or that belongs to no commit."""
        jvm: Any = self._spark._jvm  # noqa: SLF001
        delta_log = java_class(jvm, "org.apache.spark.sql.delta.DeltaLog")
        return int(delta_log.tombstoneRetentionMillis(self.loaded.metadata())) / 1000

    @property
    def log_retention_seconds(self) -> float:
        """Age at which a version can be removed from the log."""
        return int(self.loaded.deltaLog().deltaRetentionMillis(self.loaded.metadata())) / 1000

    @property
    def transaction_retention_seconds(self) -> float:
        """Age at which Delta drops a transaction (``delta.setTransactionRetentionDuration``); infinite if not set."""
        jvm: Any = self._spark._jvm  # noqa: SLF001
        delta_log = java_class(jvm, "org.apache.spark.sql.delta.DeltaLog")
        retention = delta_log.minSetTransactionRetentionInterval(self.loaded.metadata())
        return int(retention.get()) / 1000 if retention.isDefined() else math.inf

    @property
    def properties(self) -> dict[str, str]:
        """All properties of the table."""
        jvm: Any = self._spark._jvm  # noqa: SLF001
        converters = java_class(jvm, "scala.jdk.javaapi.CollectionConverters")
        properties = converters.asJava(self.loaded.metadata().configuration())
        return {str(name): str(value) for name, value in properties.items()}

    @property
    def clustering_columns(self) -> tuple[str, ...]:
        """Columns by which Delta clusters the table; empty if it is not clustered."""
        jvm: Any = self._spark._jvm  # noqa: SLF001
        info = scala_object(jvm, "org.apache.spark.sql.delta.skipping.clustering.ClusteringColumnInfo")
        names = info.extractLogicalNames(self.loaded)
        return tuple(str(names.apply(i)) for i in range(names.size()))

    @property
    def size(self) -> int:
        """Size of the data files, in bytes."""
        return int(self.loaded.sizeInBytes())

    @property
    def checkpoint_version(self) -> int | None:
        """Version of the checkpoint from which Delta read this version; None if there is no checkpoint."""
        version = int(self.loaded.logSegment().checkpointProvider().version())
        return None if version < 0 else version

    @property
    def checkpoint_interval(self) -> int:
        """Number of versions after which Delta writes the next checkpoint."""
        return int(self.loaded.deltaLog().checkpointInterval(self.loaded.metadata()))

    @property
    def cleans_log(self) -> bool:
        """Whether Delta removes old versions from the log when it writes a checkpoint."""
        return bool(self.loaded.deltaLog().enableExpiredLogCleanup(self.loaded.metadata()))

    def property_of(self, name: str) -> str | None:
        """Return a property of the table; None if it is not set."""
        return _text(self.loaded.metadata().configuration().get(name))

    def last_transaction(self, app_id: str) -> int:
        """Return the last ``txnVersion`` of an application, -1 if it has none or if Delta has dropped it.

        Delta computes the table's state with a Spark job and keeps it until the next version. A write with a
        transaction that follows needs no further job.
        """
        if self.version < 0:
            return NO_VERSION
        transaction = self.loaded.transactions().get(app_id)
        return int(transaction.get()) if transaction.isDefined() else NO_VERSION

    def has_transaction(self, txn: tuple[str, int] | None) -> bool:
        """Return whether the table has the transaction ``(txnAppId, txnVersion)`` or a later one; false for None."""
        return txn is not None and self.last_transaction(txn[0]) >= txn[1]

    @contextmanager
    def computed_meanwhile(self) -> Iterator[None]:
        """Have Delta compute the table's state in another thread, so that :meth:`last_transaction` is fast afterwards.

        The block ends when the state is computed, or at once if it raises an exception.
        """

        def compute() -> None:
            with suppress(*JVM_ERRORS):  # last_transaction raises it again
                self.loaded.transactions()

        if self.version < 0:
            yield
            return
        thread = InheritableThread(target=compute, name="delta-state", daemon=True)
        with suppress(*JVM_ERRORS):
            thread.start()
        yield
        if thread.ident is not None:
            thread.join()

    def may_have_dropped(self, app_id: str, since: float) -> bool:
        """Return whether the table may have had a transaction of an application that Delta has dropped.

        Delta keeps the last transaction of an application only. If the table has one, no later one was dropped.

        Args:
            app_id: Application (``txnAppId``).
            since: Time after which such a transaction was made, in seconds since the epoch. Transactions younger than
                the retention minus one day are in the table.

        """
        if self.version < 0:
            return False
        oldest_kept = time.time() - self.transaction_retention_seconds + _TRANSACTION_MARGIN.total_seconds()
        return since <= oldest_kept and self.last_transaction(app_id) == NO_VERSION

    @property
    def transactions(self) -> DataFrame:
        """Last transaction of each application: ``appId``, ``version``, ``lastUpdated`` (milliseconds, or null)."""
        return DataFrame(self.loaded.stateDF(), self._spark).where("txn IS NOT NULL").select("txn.*")

    @functools.cached_property
    def state(self) -> TableState | None:
        """Schema, partitioning and properties; None if there is no table."""
        if self.version < 0:
            return None
        metadata = self.loaded.metadata()
        # Spark's schema of the table hides Delta's entries in the fields' metadata.
        schema = StructType.fromJson(json.loads(metadata.schemaString()))
        columns = metadata.partitionColumns()
        properties = metadata.configuration()
        adoption = {name: _text(properties.get(name)) for name in (ENSEMBLE_PROPERTY, TABLE_PROPERTY)}
        isolation = _text(properties.get(_ISOLATION))
        generated = frozenset(field.name for field in schema if any(map(_is_generated, field.metadata)))
        return TableState(
            version=self.version,
            schema=schema,
            partition_columns=tuple(str(columns.apply(i)) for i in range(columns.size())),
            supplied_columns=generated | {field.name for field in schema if "CURRENT_DEFAULT" in field.metadata},
            adoption=Adoption.of({name: value for name, value in adoption.items() if value is not None}),
            is_serializable=isolation is None or isolation.lower() == "serializable",
            generated_columns=generated,
            feed=_text(properties.get(FEED_PROPERTY)),
        )

    def has_same_partitioning(self, snapshot: Snapshot) -> bool:
        """Return whether the table has the same partition columns, with the same types, as in another snapshot."""
        if self.loaded == snapshot.loaded:
            return True
        types, other_types = (state and state.partition_types for state in (self.state, snapshot.state))
        return types == other_types

    def has_same_metadata(self, snapshot: Snapshot) -> bool:
        """Return whether schema, properties and protocol are those of another snapshot."""
        mine, theirs = self.loaded, snapshot.loaded
        return bool(mine.metadata() == theirs.metadata() and mine.protocol() == theirs.protocol())

    def partition_schema(self) -> PartitionSchema:
        """Return the partition columns, for locks on partitions.

        Raises:
            TableError: There is no table, or it is not partitioned.
            ResourceError: A partition column has a type whose values Delta does not write exactly.

        """
        state = self.state
        if state is None:
            raise TableError(
                f"there is no Delta table at {self.location}: its first version needs the lock on the table"
            )
        if not state.partition_columns:
            raise TableError(f"{self.location} is not partitioned: lock the table")
        fields = (state.schema[name] for name in state.partition_columns)
        types = ((field, str(field.dataType.jsonValue())) for field in fields)
        columns = tuple(PartitionColumn(field.name, kind, _physical_name(field)) for field, kind in types)
        return PartitionSchema(columns, str(self._spark.conf.get("spark.sql.session.timeZone")))


def _text(option: Any) -> str | None:
    """Return the text in a Scala ``Option``."""
    return str(option.get()) if option.isDefined() else None


def _physical_name(field: StructField) -> str:
    return str((field.metadata or {}).get(PHYSICAL_NAME, field.name))


def _is_generated(metadata_key: str) -> bool:
    return metadata_key == "delta.generationExpression" or metadata_key.startswith("delta.identity.")
