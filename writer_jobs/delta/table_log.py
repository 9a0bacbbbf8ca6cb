"""Read a table's ``_delta_log``, and write checkpoints and empty commits.

Delta's ``DeltaLog`` replays the log, through py4j. Where a cache must not be used, version files are read directly.
Their format: https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pyspark.sql import SparkSession

from lock_manager.intents import NO_VERSION
from lock_manager.table_records.commit_stamp import batch_of, is_commit_of, run_of, writer_infos
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.java_classes import java_class, log_store, scala_object
from writer_jobs.delta.jvm_errors import JVM_ERRORS, LOST_CONTACT, error_reason, has_condition, is_caused_by
from writer_jobs.delta.releases import has_checkpoint, snapshot_at
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.errors import StorageError, TableError

#: Name of the log's folder below a table's location.
LOG_FOLDER = "_delta_log"
#: Name of a version's file in the log; the group is its number.
VERSION_FILE = re.compile(r"(\d{20})\.json")
_COORDINATOR = "delta.coordinatedCommits.commitCoordinator"
# Maximum number of version files to read for the versions of a run, with one request each.
_RUN_VERSIONS = 1_000
_DELTA = "org.apache.spark.sql.delta"
# In Java this is an IOException, like some of Delta's errors. Here it means a damaged log.
_NOT_JSON = "com.fasterxml.jackson.core.JacksonException"
# Delta's error condition for access to a catalog-managed table by its path.
_PATH_REFUSED = "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED"


@dataclass(frozen=True)
class Head:
    """Newest version of a log.

    Attributes:
        version: Number of the newest version; -1 if there is no table yet.
        last_transaction: Last ``txnVersion`` of the requested application; -1 if it has none.

    """

    version: int
    last_transaction: int


@dataclass(frozen=True)
class Commit:
    """A commit in the log.

    Attributes:
        version: Number of the version.
        rows: Number of rows written (``numOutputRows``); None if Delta does not record it.
        metrics: Delta's ``operationMetrics``.

    """

    version: int
    rows: int | None
    metrics: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, version: int, metrics: Mapping[str, str]) -> Commit:
        """Return the commit with Delta's ``operationMetrics``."""
        rows = metrics.get("numOutputRows")
        return cls(version, None if rows is None else int(rows), metrics)


class DeltaTableLog:
    """The log of the table at one location.

    Its methods raise :class:`TableError` if the log is damaged or the table is catalog-managed, and
    :class:`StorageError` if the log cannot be read or written.

    Args:
        spark: Classic session.
        location: Qualified URI of the table's folder; see :func:`locate_table`.

    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._spark = spark
        self._files = HadoopFiles.of(spark)

    def snapshot(self) -> Snapshot:
        """List the log once, and return the newest version."""
        # False: not in the background, even if spark.databricks.delta.stalenessLimit allows that to readers.
        return self._load_snapshot(lambda log: log.update(False, self._none, self._none))  # noqa: FBT003 (stalenessAcceptable)

    def known_snapshot(self) -> Snapshot:
        """Return the newest version that this driver has loaded, without a request; if there is none, list the log."""
        snapshot = self._load_snapshot(lambda log: log.unsafeVolatileSnapshot())
        return snapshot if snapshot.version != NO_VERSION else self.snapshot()

    def _load_snapshot(self, load: Callable[[Any], Any]) -> Snapshot:
        try:
            snapshot = load(self._delta_log())
            is_catalog_managed = snapshot.version() >= 0 and _is_coordinated(snapshot)
        except JVM_ERRORS as error:
            if not has_condition(error, _PATH_REFUSED):
                self._refuse_unread(error)
                raise TableError(f"{self.location} cannot be read as a Delta table: {error_reason(error)}") from error
            is_catalog_managed = True
        if is_catalog_managed:
            raise TableError(
                f"{self.location} is a catalog-managed table: its catalog decides its commits, so Sluice's lock "
                "cannot order them"
            )
        return Snapshot(self._spark, self.location, snapshot)

    def snapshot_at(self, version: int) -> Snapshot:
        """Return an older version, which Delta reconstructs from the log.

        A version that does not exist, or was removed by log clean-up, raises TableError.
        """
        try:
            delta_snapshot = snapshot_at(self._delta_log(), version, self._none)
        except JVM_ERRORS as error:
            self._refuse_unread(error)
            raise TableError(f"version {version} of {self.location} cannot be read: {error_reason(error)}") from error
        return Snapshot(self._spark, self.location, delta_snapshot)

    def make_checkpoint(self, version: int) -> None:
        """Write a checkpoint of a version, unless it has one. The version can then be read without older versions.

        Delta's pointer to the newest checkpoint is not changed.
        """
        with self._storage_errors(f"no checkpoint of {self.location} can be written"):
            delta_log = self._delta_log()
            if not has_checkpoint(delta_log, version):
                delta_log.createCheckpointAtVersion(version)

    def pointed_checkpoint(self) -> int | None:
        """Return the version in Delta's pointer to the newest checkpoint; None if there is no pointer.

        Delta's clean-up removes only versions before it. Checkpoints of :meth:`make_checkpoint` do not count.
        """
        with self._storage_errors(f"the checkpoints of {self.location} cannot be read"):
            pointer = self._delta_log().readLastCheckpointFile()
            return int(pointer.get().version()) if pointer.isDefined() else None

    def make_newest_checkpoint(self) -> int:
        """Write a checkpoint of the newest version, update Delta's pointer to it, and return the version.

        The log is not cleaned up: see :meth:`clean_up`.
        """
        snapshot = self.snapshot()
        with self._storage_errors(f"no checkpoint of {self.location} can be written"):
            delta_log = self._delta_log()
            info = delta_log.writeCheckpointFiles(snapshot.loaded, self._none)
            session = self._spark._jsparkSession  # noqa: SLF001
            with_checksum = java_class(self._jvm, f"{_DELTA}.LastCheckpointInfo").checksumEnabled(session)
            delta_log.writeLastCheckpointFile(delta_log, info, with_checksum)
        return snapshot.version

    def clean_up(self, retention_seconds: float) -> None:
        """Have Delta remove old versions from the log, unless a reader of a newer version needs them.

        Args:
            retention_seconds: Versions older than the midnight (UTC) before this many seconds ago are removed, if a
                newer checkpoint exists.

        """
        snapshot = self.snapshot()
        with self._storage_errors(f"the log of {self.location} cannot be cleaned up"):
            log_store(self._spark, "DeltaApi").cleanUpExpiredLogs(snapshot.loaded, int(retention_seconds * 1000))

    def head(self, app_id: str | None = None) -> Head:
        """List the log once, and return the number of the newest version.

        Args:
            app_id: Application (``txnAppId``) whose last transaction is also returned; see
                :meth:`Snapshot.last_transaction`.

        """
        snapshot = self.snapshot()
        return Head(snapshot.version, NO_VERSION if app_id is None else snapshot.last_transaction(app_id))

    def state(self) -> TableState | None:
        """Return the newest version's schema, partitioning and properties; None if there is no table yet."""
        return self.snapshot().state

    def find_commit(self, write_id: str, *, after: int, guarded: bool) -> tuple[Commit | None, int]:
        """Find the commit of an operation attempt among the versions that were committed since the attempt began.

        The version files are read without a cache. If no other writer committed, one file is read. An empty commit is
        never the commit of an operation. See :func:`lock_manager.table_records.commit_stamp.is_commit_of`.

        Args:
            after: Newest version when the attempt began; -1 for a new table.
            guarded: Whether the guard stamps each commit of this driver. Otherwise ``userMetadata`` is the proof.

        Returns:
            The commit, or None if the log does not have it; and the last version that was read.

        Raises:
            StorageError: Among other reasons, log clean-up removed versions that may have been the commit.

        """
        version = after
        for version, infos in self.infos_after(after):
            if (commit := _commit_of_write(infos, write_id, version, guarded=guarded)) is not None:
                return commit, version
        return self._find_after_gap(write_id, after=version, guarded=guarded)

    def _find_after_gap(self, write_id: str, *, after: int, guarded: bool) -> tuple[Commit | None, int]:
        """Continue :meth:`find_commit` after a missing version, which log clean-up may have removed."""
        newest = self.head().version
        if newest <= after:
            return None, after
        version = newest
        while version > after and (line := self._first_line(version)) is not None:
            if (commit := _commit_of_write(parse_writer_infos(line), write_id, version, guarded=guarded)) is not None:
                return commit, version
            version -= 1
        if version == after:
            # Other writers committed these versions after the first search.
            return None, newest
        raise StorageError(
            f"versions {after + 1} to {version} of {self.location} were removed by log clean-up during the write: "
            "raise delta.logRetentionDuration above the duration of writes"
        )

    def has_batch(self, batch: str, *, after: int) -> bool:
        """Return whether a version after ``after`` has a batch of changes, or log clean-up removed such a version."""
        # The head is read first, so that versions that are committed meanwhile do not hide a missing one.
        newest = self.head().version
        last = after
        for last, infos in self.infos_after(after):  # noqa: B007 (the last version is compared)
            if any(batch_of(info) == batch for info in infos):
                return True
        return last < newest

    def infos_after(self, version: int) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
        """Yield each version after a version with the ``commitInfo`` of each writer, up to the first missing version.

        The version files are read without a cache.
        """
        version += 1
        while (line := self._first_line(version)) is not None:
            yield version, parse_writer_infos(line)
            version += 1

    def find_run(self, run_id: str, *, newest: int) -> tuple[Mapping[str, Any] | None, int]:
        """Find the newest commit of a run of the append job.

        The version files are read backwards until that commit, version 0, or the first version that log clean-up
        removed.

        Args:
            newest: Version to begin with.

        Returns:
            The commit's note of its run, or None if the log has no such commit; and the last version that was read.

        """
        oldest = newest + 1
        for version, runs in self._runs_before(oldest):
            oldest = version
            for run in runs:
                if run.get("id") == run_id:
                    return run, oldest
        return None, oldest

    def run_versions(self, run_id: str, *, newest: int) -> dict[int, int]:
        """Return the version of each commit of a run by the commit's number in the run, as far as the log has them.

        At most 1,000 version files are read, backwards, until the run's first commit or the beginning of the log.

        Args:
            newest: Version to begin with.

        """
        versions: dict[int, int] = {}
        for version, runs in islice(self._runs_before(newest + 1), _RUN_VERSIONS):
            versions |= {int(run["commit"]): version for run in runs if run.get("id") == run_id}
            if 1 in versions:
                break
        return versions

    def _runs_before(self, version: int) -> Iterator[tuple[int, list[Mapping[str, Any]]]]:
        """Yield the versions before a version, newest first, with each writer's note of a run (empty if it has none).

        The last writer of a version is the first in its list.
        """
        while version > 0 and (line := self._first_line(version - 1)) is not None:
            version -= 1
            yield version, [run_of(info) for info in reversed(parse_writer_infos(line))]

    def make_empty_commit(self) -> int:
        """Make an empty commit, and return its version.

        Delta prepares the commit, with everything that the table's features require. If the commit guard refuses, its
        error is raised.
        """
        operation = scala_object(self._jvm, f"{_DELTA}.DeltaOperations$ManualUpdate")
        no_actions = scala_object(self._jvm, "scala.collection.immutable.Nil")
        with self._storage_errors(f"no commit can be made to {self.location}"):
            transaction = self._delta_log().startTransaction(self._none, self._none)
            return int(transaction.commit(no_actions, operation))

    def refuse_foreign_folder(self) -> None:
        """Make sure that the location is a Delta table, or a folder without files.

        A folder with an empty log is allowed: a killed first append leaves one, because Delta creates the log's folder
        before the data files.

        Raises:
            TableError: The location is a file, or a folder with other files and no log.
            StorageError: The location cannot be read, for example because the bucket does not exist.

        """
        folder = self._files.status(self.location)
        if folder is not None and not folder.is_folder:
            raise TableError(f"{self.location} is not a Delta table but a file")
        entries = self._files.children(self.location)
        if any(not entry.is_hidden for entry in entries) and all(entry.name != LOG_FOLDER for entry in entries):
            raise TableError(f"{self.location} is not a Delta table: it has files, but no {LOG_FOLDER}")

    def _refuse_unread(self, error: BaseException) -> None:
        """Raise ``StorageError`` if the store refused or did not answer. The table itself may be sound then."""
        is_damaged = is_caused_by(error, _NOT_JSON) or has_condition(error, "DELTA_")
        if isinstance(error, LOST_CONTACT) or (is_caused_by(error, "java.io.IOException") and not is_damaged):
            raise StorageError(f"the log of {self.location} cannot be read: {error_reason(error)}") from error

    def _first_line(self, version: int) -> str | None:
        return self._files.read_first_line(f"{self.location}/{LOG_FOLDER}/{version:020d}.json")

    @property
    def _jvm(self) -> Any:
        return self._spark._jvm  # noqa: SLF001

    @property
    def _none(self) -> Any:
        """Scala's ``None``."""
        return scala_object(self._jvm, "scala.None")

    @contextmanager
    def _storage_errors(self, failure: str) -> Iterator[None]:
        """Raise ``StorageError`` with a description of the failure if a call into the JVM fails."""
        try:
            yield
        except JVM_ERRORS as error:
            raise StorageError(f"{failure}: {error_reason(error)}") from error

    def _delta_log(self) -> Any:
        delta_log = java_class(self._jvm, f"{_DELTA}.DeltaLog")
        return delta_log.forTable(self._spark._jsparkSession, self.location)  # noqa: SLF001


def _commit_of_write(
    infos: Iterable[Mapping[str, Any]], write_id: str, version: int, *, guarded: bool
) -> Commit | None:
    """Return the commit of an operation attempt, with its own metrics; None if no writer of the version made it."""
    return next(
        (
            Commit.of(version, info.get("operationMetrics") or {})
            for info in infos
            if is_commit_of(info, write_id, guarded=guarded)
        ),
        None,
    )


def parse_writer_infos(line: str) -> list[Mapping[str, Any]]:
    """Parse a line of a version file: return the ``commitInfo`` of each writer; an empty object if it has none."""
    return writer_infos(parse_commit_info(line))


def parse_commit_info(line: str) -> dict[str, Any]:
    """Parse the ``commitInfo`` in a line of a version file; return an empty object if the line has none."""
    info = parse_object(line).get("commitInfo")
    return info if isinstance(info, dict) else {}


def parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object; return an empty object if the text is not a JSON object."""
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _is_coordinated(snapshot: Any) -> bool:
    properties = snapshot.metadata().configuration()
    return any(properties.contains(_COORDINATOR + suffix) for suffix in ("", "-preview"))
