"""A table's ``_delta_log`` as the driver sees it: with ``version_files.py`` what touches Delta's internals.

Two ways lead there. Delta's own ``DeltaLog``, through py4j, for what has to be replayed (the current version, the
schema, the transactions of an application); and the version files themselves, read through Hadoop's ``FileSystem``,
for what must not come out of a cache (which commit is ours). Their format is the Delta protocol's:
https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pyspark.sql import SparkSession

from lock_manager.intents import NO_VERSION
from lock_manager.table_records.commit_stamp import batch_of, is_commit_of, run_of
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.jvm_errors import JVM_ERRORS, LOST_CONTACT, has_condition, is_java, one_sentence
from writer_jobs.delta.log_store import log_store
from writer_jobs.delta.snapshot import Snapshot, TableState
from writer_jobs.errors import StorageError, TableError

#: Name of the log's folder below a table's location.
LOG_FOLDER = "_delta_log"
#: Name of a version's file in the log; the group is its number.
VERSION_FILE = re.compile(r"(\d{20})\.json")
_COORDINATOR = "delta.coordinatedCommits.commitCoordinator"
# Most version files that are read, one request each, for the versions of a run.
_RUN_VERSIONS = 1_000
# To Java an IOException, like some of Delta's own; to us a damaged log.
_NOT_JSON = "com.fasterxml.jackson.core.JacksonException"
# Delta itself lets nobody near a catalog-managed table by its path.
_PATH_REFUSED = "DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED"


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
        is never the commit of an operation. See :func:`lock_manager.table_records.commit_stamp.is_commit_of`.

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
