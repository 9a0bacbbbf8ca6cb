"""A table's ``_delta_log`` as the driver sees it: with ``version_files.py`` what touches Delta's internals.

Two ways lead there. Delta's own ``DeltaLog``, through py4j, for what has to be replayed (the current version, the
schema, the transactions of an application); and the version files themselves, read through Hadoop's ``FileSystem``,
for what must not come out of a cache (which commit is ours). Their format is the Delta protocol's:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from pyspark.errors import ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType, StructType

from lock_manager import Adoption, PartitionColumn, PartitionSchema
from lock_manager.adoption import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from lock_manager.commit_stamp import batch_of, is_commit_of, run_of
from lock_manager.intents import NO_VERSION
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, LOST_CONTACT, has_condition, is_java, one_sentence
from writer_jobs.delta.log_store import log_store
from writer_jobs.delta.sql_names import quoted
from writer_jobs.errors import StorageError, TableError

#: Name of the log's folder below a table's location.
LOG_FOLDER = "_delta_log"
#: Name of a version's file in the log; the group is its number.
VERSION_FILE = re.compile(r"(\d{20})\.json")
_COORDINATOR = "delta.coordinatedCommits.commitCoordinator"
#: Of a field, under which name files have it, with column mapping.
PHYSICAL_NAME = "delta.columnMapping.physicalName"
_TIME_ZONE = "spark.sql.session.timeZone"
_RETENTION = "delta.setTransactionRetentionDuration"
_ISOLATION = "delta.isolationLevel"
# Most version files that are read, one request each, for the versions of a run.
_RUN_VERSIONS = 1_000
#: Table property that stores how the table is fed; see :mod:`writer_jobs.changes.table_feed`.
FEED_PROPERTY = "sluice.feed"
# To Java an IOException, like some of Delta's own; to us a damaged log.
_NOT_JSON = "com.fasterxml.jackson.core.JacksonException"
# Delta itself lets nobody near a catalog-managed table by its path.
_PATH_REFUSED = "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED"
_PATH_IDENTIFIER = re.compile(r"delta\.`(?P<path>.+)`", re.IGNORECASE)
_DETAILS = "# Detailed Table Information"


@dataclass(frozen=True)
class Head:
    """Where a log stands.

    Attributes:
        version: the newest, -1 if there is no table yet.
        last_transaction: the last ``txnVersion`` of the application that was asked for, -1 if it has none.

    """

    version: int
    last_transaction: int


@dataclass(frozen=True)
class TableState:
    """A version of a table, as far as an append has to know it.

    Attributes:
        version: its number.
        schema: names and types of its columns, in order.
        partition_columns: in partition order.
        supplied_columns: columns that Delta fills in by itself (generated, identity, with a default).
        forgets_transactions: whether ``txnVersion`` is kept for a limited time only.
        adoption: which lock on the table counts, None if any does; see :mod:`lock_manager.adoption`.
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


@dataclass(frozen=True)
class Commit:
    """A commit found in the log.

    Attributes:
        version: its number.
        rows: how many it added, None if Delta was told not to count (``history.metricsEnabled``).
        metrics: all that Delta counted (``operationMetrics``).

    """

    version: int
    rows: int | None
    metrics: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, version: int, metrics: Mapping[str, str]) -> Commit:
        """Make it of what Delta counted."""
        rows = metrics.get("numOutputRows")
        return cls(version, None if rows is None else int(rows), metrics)


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


class DeltaTableLog:
    """The log of the table at one location.

    Args:
        spark: a classic session.
        location: qualified URI of the table's folder; see :func:`locate_table`.

    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._spark = spark
        self._files = HadoopFiles.of(spark)

    def snapshot(self) -> Snapshot:
        """Have Delta look for new versions now (one LIST of the log), and return the newest.

        Raises:
            TableError: the log is damaged, or the table's commits are not decided by its log.
            StorageError: the log cannot be read.

        """
        nothing = self._spark._jvm.scala.Option.empty()  # noqa: SLF001
        # Not in the background, also if spark.databricks.delta.stalenessLimit allows that to readers.
        return self._loaded(lambda log: log.update(False, nothing, nothing))  # noqa: FBT003 (stalenessAcceptable)

    def known(self) -> Snapshot:
        """Return the newest version that this driver has read, without a request; it looks if it knows of no table.

        Raises:
            TableError, StorageError: See :meth:`snapshot`.

        """
        snapshot = self._loaded(lambda log: log.unsafeVolatileSnapshot())
        return snapshot if snapshot.version != NO_VERSION else self.snapshot()

    def _loaded(self, load: Callable[[Any], Any]) -> Snapshot:
        try:
            snapshot = load(self._delta_log())
            managed = snapshot.version() >= 0 and _is_coordinated(snapshot)
        except JVM_ERRORS as error:
            if not has_condition(error, _PATH_REFUSED):
                self._refuse_unread(error)
                raise TableError(f"{self.location} cannot be read as a Delta table: {one_sentence(error)}") from error
            managed = True
        if managed:
            raise TableError(
                f"{self.location} is a catalog-managed table: its catalog decides its commits, and a lock on its log "
                "would order nothing"
            )
        return Snapshot(self._spark, self.location, snapshot)

    def snapshot_at(self, version: int) -> Snapshot:
        """Return an older version, which Delta makes from the log.

        Raises:
            TableError: there is no such version, or the log has been cleaned up there.
            StorageError: the log cannot be read.

        """
        nothing = self._spark._jvm.scala.Option.empty()  # noqa: SLF001
        try:
            # However long ago it was: whether it may be read is for whoever reads it.
            loaded = self._delta_log().getSnapshotAt(version, nothing, nothing, False)  # noqa: FBT003
        except JVM_ERRORS as error:
            self._refuse_unread(error)
            raise TableError(f"version {version} of {self.location} is not there: {one_sentence(error)}") from error
        return Snapshot(self._spark, self.location, loaded)

    def make_checkpoint(self, version: int) -> None:
        """Write a checkpoint of a version, if there is none: it can be read then, whatever of the log is older.

        Delta's pointer to the newest checkpoint stays as it is.

        Raises:
            StorageError: it cannot be written.

        """
        try:
            delta_log = self._delta_log()
            if not delta_log.checkpointExistsAtVersion(version):
                delta_log.createCheckpointAtVersion(version)
        except JVM_ERRORS as error:
            raise StorageError(f"no checkpoint of {self.location} can be written: {one_sentence(error)}") from error

    def make_newest_checkpoint(self) -> int:
        """Write a checkpoint of the newest version, and have Delta's pointer name it; return the version.

        The log is not cleaned up behind it: see :meth:`clean_up`.

        Raises:
            TableError, StorageError: the log cannot be read, or no checkpoint be written.

        """
        snapshot = self.snapshot()
        nothing = self._spark._jvm.scala.Option.empty()  # noqa: SLF001
        try:
            delta_log = self._delta_log()
            info = delta_log.writeCheckpointFiles(snapshot.loaded, nothing)
            jvm: Any = self._spark._jvm  # noqa: SLF001
            session = self._spark._jsparkSession  # noqa: SLF001
            with_checksum = jvm.org.apache.spark.sql.delta.LastCheckpointInfo.checksumEnabled(session)
            delta_log.writeLastCheckpointFile(delta_log, info, with_checksum)
        except JVM_ERRORS as error:
            raise StorageError(f"no checkpoint of {self.location} can be written: {one_sentence(error)}") from error
        return snapshot.version

    def clean_up(self, retention_seconds: float) -> None:
        """Have Delta remove versions that are older, and that no reader of a newer one needs.

        Delta removes what is older than the midnight (UTC) before, and nothing from the newest checkpoint on.

        Raises:
            TableError, StorageError: the log cannot be read, or not be cleaned up.

        """
        snapshot = self.snapshot()
        try:
            log_store(self._spark, "LogCleanUp").run(snapshot.loaded, int(retention_seconds * 1000))
        except JVM_ERRORS as error:
            raise StorageError(f"the log of {self.location} cannot be cleaned up: {one_sentence(error)}") from error

    def head(self, app_id: str | None = None) -> Head:
        """Have Delta look for new versions now, and say which is the newest.

        Args:
            app_id: also look up the last transaction of this ``txnAppId``; see :meth:`Snapshot.last_transaction`.

        Raises:
            TableError, StorageError: see :meth:`snapshot`.

        """
        snapshot = self.snapshot()
        return Head(snapshot.version, NO_VERSION if app_id is None else snapshot.last_transaction(app_id))

    def state(self) -> TableState | None:
        """Return the newest version's schema and partitioning, or None if there is no table yet.

        Raises:
            TableError, StorageError: see :meth:`snapshot`.

        """
        return self.snapshot().state

    def find_commit(self, write_id: str, *, after: int, guarded: bool) -> tuple[Commit | None, int]:
        """Look for the commit of an operation attempt among the versions after one that was current before it.

        The version files themselves are read, no cache; in an undisturbed table that costs two reads. An empty commit
        is never the commit of an operation. See :func:`lock_manager.commit_stamp.is_commit_of`.

        Args:
            write_id: id of the attempt.
            after: version before the commit, -1 for a new table.
            guarded: whether the guard stamps each commit of this driver. Otherwise ``userMetadata`` is the proof.

        Returns:
            The commit, or None if the log does not have it, and the last version that was read.

        Raises:
            StorageError: the log cannot be read, or log clean-up has removed versions where the commit may have been.
            TableError: see :meth:`snapshot`.

        """
        version = after
        for version, info in self.infos_after(after):
            if is_commit_of(info, write_id, guarded=guarded):
                return Commit.of(version, info.get("operationMetrics", {})), version
        return self._find_behind_gap(write_id, after=version, guarded=guarded)

    def _find_behind_gap(self, write_id: str, *, after: int, guarded: bool) -> tuple[Commit | None, int]:
        """Go on with :meth:`find_commit` where the next version is missing: the log may go on behind it."""
        newest = self.head().version
        if newest <= after:
            return None, after
        version = newest
        while version > after and (line := self._first_line(version)) is not None:
            info = commit_info_of(line)
            if is_commit_of(info, write_id, guarded=guarded):
                return Commit.of(version, info.get("operationMetrics", {})), version
            version -= 1
        if version == after:
            # Other writers committed after the first look.
            return None, newest
        raise StorageError(
            f"versions {after + 1} to {version} of {self.location} were removed by log clean-up during the write: "
            "raise delta.logRetentionDuration above the duration of writes"
        )

    def has_batch(self, batch: str, *, after: int) -> bool:
        """Tell whether a batch of changes was applied in a version after one; also if the log is cleaned up there.

        Raises:
            StorageError, TableError: the log cannot be read.

        """
        # First: what is committed meanwhile is not missing.
        newest = self.head().version
        infos = [info for _, info in self.infos_after(after)]
        return any(batch_of(info) == batch for info in infos) or len(infos) < newest - after

    def infos_after(self, version: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the versions after one, and the ``commitInfo`` of each, up to the first that is missing.

        The version files themselves are read, no cache.

        Raises:
            StorageError: the log cannot be read.

        """
        version += 1
        while (line := self._first_line(version)) is not None:
            yield version, commit_info_of(line)
            version += 1

    def find_run(self, run_id: str, *, newest: int) -> tuple[Mapping[str, Any] | None, int]:
        """Look for the newest commit that a run of the append job made, from a version backwards.

        The version files are read one after the other, until that commit, the beginning, or what log clean-up has left.

        Args:
            run_id: of the run.
            newest: version to begin with.

        Returns:
            What the commit notes of its run, or None if it is not there, and the last version that was read.

        Raises:
            StorageError: the log cannot be read.

        """
        oldest = newest + 1
        for version, run in self._runs_before(oldest):
            oldest = version
            if run.get("id") == run_id:
                return run, oldest
        return None, oldest

    def run_versions(self, run_id: str, *, newest: int) -> dict[int, int]:
        """Return the version of each commit of a run, as far as the log has them.

        At most 1,000 version files are read, backwards, until the run's first commit or the end of the log.

        Args:
            run_id: Id of the run.
            newest: Version to begin with.

        Raises:
            StorageError: The log cannot be read.

        """
        versions: dict[int, int] = {}
        for version, run in islice(self._runs_before(newest + 1), _RUN_VERSIONS):
            if run.get("id") == run_id:
                versions[int(run["commit"])] = version
                if run["commit"] == 1:
                    break
        return versions

    def _runs_before(self, version: int) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the versions before one, the newest first, each with its note of a run; empty if it has none."""
        while version > 0 and (line := self._first_line(version - 1)) is not None:
            version -= 1
            yield version, run_of(commit_info_of(line))

    def commit_nothing(self) -> int:
        """Make an empty commit, and return its version.

        Delta makes it, with whatever the table's features ask of a commit.

        Raises:
            TableError, StorageError: see :meth:`snapshot`.
            SluiceError: what the commit guard found.

        """
        jvm: Any = self._spark._jvm  # noqa: SLF001
        nothing = jvm.scala.Option.empty()
        delta = jvm.org.apache.spark.sql.delta
        operation = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        no_actions = getattr(getattr(jvm.scala.collection.immutable, "Nil$"), "MODULE$")
        try:
            transaction = self._delta_log().startTransaction(nothing, nothing)
            return int(transaction.commit(no_actions, operation))
        except JVM_ERRORS as error:
            raise StorageError(f"no commit can be made to {self.location}: {one_sentence(error)}") from error

    def refuse_foreign_folder(self) -> None:
        """Make sure that the folder holds a Delta table, or nothing yet that a first append could harm.

        An empty log is what a first append leaves behind that was killed: Delta makes the folder, then the data files.

        Raises:
            TableError: it is a file, or a folder with other files and no log.
            StorageError: it cannot be read; a bucket that does not exist is one such case.

        """
        folder = self._files.status(self.location)
        if folder is not None and not folder.is_folder:
            raise TableError(f"{self.location} is not a Delta table but a file")
        entries = self._files.children(self.location)
        if any(not entry.hidden for entry in entries) and all(entry.name != LOG_FOLDER for entry in entries):
            raise TableError(f"{self.location} is not a Delta table: it has files, but no {LOG_FOLDER}")

    def _refuse_unread(self, error: BaseException) -> None:
        """Raise if a store did not answer, or refused: that says nothing of the table.

        Raises:
            StorageError: it was so.

        """
        damaged = is_java(error, _NOT_JSON) or has_condition(error, "DELTA_")
        if isinstance(error, LOST_CONTACT) or (is_java(error, "java.io.IOException") and not damaged):
            raise StorageError(f"the log of {self.location} cannot be read: {one_sentence(error)}") from error

    def _first_line(self, version: int) -> str | None:
        return self._files.read_first_line(f"{self.location}/{LOG_FOLDER}/{version:020d}.json")

    def _delta_log(self) -> Any:
        jvm: Any = self._spark._jvm  # noqa: SLF001
        return jvm.org.apache.spark.sql.delta.DeltaLog.forTable(self._spark._jsparkSession, self.location)  # noqa: SLF001


def locate_table(spark: SparkSession, table: str, *, new: bool = False) -> str:
    """Return the qualified location of a table that is named by URI, by path or by its name in the catalog.

    What has a slash or a colon is a location (``s3a://lake/flights``, ``./flights``, also ``delta.`/data/flights```);
    it need not exist. Anything else is a catalog name, asked of Spark once: a table that is moved in the catalog
    afterwards is still locked and written where it was.

    Args:
        spark: the session.
        table: location or name.
        new: take a name that the session catalog does not have for the table that ``saveAsTable`` would make.

    Raises:
        TableError: no such table in the catalog, a view, a table of another format, or no usable name.
        StorageError: no such file system.

    """
    by_path = _PATH_IDENTIFIER.fullmatch(table.strip())
    location = by_path["path"] if by_path else table
    if "/" not in location and ":" not in location:
        location = _catalog_location(spark, location, new=new)
    try:
        return HadoopFiles.of(spark).qualify(location)
    except StorageError as error:
        raise TableError(f"no table can be at {error}") from error


def _catalog_location(spark: SparkSession, name: str, *, new: bool) -> str:
    try:
        parser = spark._jsparkSession.sessionState().sqlParser()  # noqa: SLF001
        parts = list(parser.parseMultipartIdentifier(name).mkString("\0").split("\0"))
    except ParseException as error:
        raise TableError(f"{name!r} is neither a location nor a table's name (CATALOG.SCHEMA.TABLE)") from error
    full_name = ".".join(map(quoted, parts))
    try:
        if not spark.catalog.tableExists(full_name):
            if new and (location := _location_of_new(spark, parts)) is not None:
                return location
            raise TableError(f"table {name} does not exist in the catalog: create it, or name its location")
        rows = [(row[0], row[1]) for row in spark.sql(f"DESCRIBE TABLE EXTENDED {full_name}").collect()]
    except JVM_ERRORS as error:
        raise TableError(f"table {name} cannot be looked up in the catalog: {one_sentence(error)}") from error
    # Behind the columns, one of which may be named like a detail. A temporary view has no details.
    titles = [title for title, _ in rows]
    details = dict(rows[titles.index(_DETAILS) :]) if _DETAILS in titles else {"Type": "VIEW"}
    if details.get("Type") == "VIEW":
        raise TableError(f"{name} is a view: name the table below it")
    if str(details.get("Provider", "")).lower() != "delta":
        raise TableError(f"{name} is not a Delta table but {details.get('Provider', 'of unknown format')}")
    return str(details["Location"])


def _location_of_new(spark: SparkSession, parts: list[str]) -> str | None:
    """Return where Spark's own catalog would put a new table; other catalogs decide that when they make it."""
    *before, name = parts
    if before[:1] == ["spark_catalog"]:
        before = before[1:]
    if len(before) > 1:
        return None
    jvm: Any = spark._jvm  # noqa: SLF001
    database = jvm.scala.Option.apply(before[0] if before else spark.catalog.currentDatabase())
    identifier = jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, database)
    catalog = spark._jsparkSession.sessionState().catalog()  # noqa: SLF001
    return str(catalog.defaultTablePath(identifier).toString())


def commit_info_of(line: str) -> dict[str, Any]:
    """Return the ``commitInfo`` in a line of a version file; empty if it has none."""
    try:
        action = json.loads(line)
    except ValueError:
        return {}
    info = action.get("commitInfo") if isinstance(action, dict) else None
    return info if isinstance(info, dict) else {}


def _is_coordinated(snapshot: Any) -> bool:
    properties = snapshot.metadata().configuration()
    return any(properties.contains(_COORDINATOR + suffix) for suffix in ("", "-preview"))


def _supplied(metadata: dict[str, Any]) -> bool:
    return "CURRENT_DEFAULT" in metadata or _generated(metadata)


def _generated(metadata: dict[str, Any]) -> bool:
    return any(key == "delta.generationExpression" or key.startswith("delta.identity.") for key in metadata)
