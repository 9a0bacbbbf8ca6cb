"""Reads and parses the files of a Delta table's log, one by one and without an engine.

An engine returns the table that results from the log, and refuses an inconsistent log. A check must report the
inconsistency instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from lock_manager.table_records.commit_stamp import (
    CommitStamp,
    begun_at_of,
    lineage_run_of,
    observed_refusal,
    parse_stamp,
    writer_infos,
)
from sluice.audit.log_folder import PARALLEL_READS, LogFolder
from sluice.errors import AuditError

_VERSION_FILE = re.compile(r"(\d{20})\.json")
#: Name of a version's checksum file.
CHECKSUM_FILE = re.compile(r"(\d{20})\.crc")
# Parsing malformed JSON or actions of unexpected types raises one of these.
_PARSE_ERRORS = (ValueError, TypeError, KeyError, AttributeError)
# The metrics of Spark and delta-rs that count changed rows. The first group with a metric in the commit is used: MERGE
# also has numOutputRows, which includes rows that it only copied.
_ROW_METRICS = (
    ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    ("num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted"),
    ("numDeletedRows",),
    ("num_deleted_rows",),
    ("numUpdatedRows",),
    ("num_updated_rows",),
    ("numOutputRows",),
    ("num_added_rows",),
)


@dataclass(frozen=True)
class DataFile:
    """A data file that a commit adds or removes.

    Attributes:
        path: The path as in the log, percent-encoded.
        deletion_vector: Identity of the deletion vector; "" if the file has none.
        size: Size in bytes.
        rows: Number of rows, without those that the deletion vector deletes; None if there are no statistics.
        changes_data: Whether the commit changes the rows of the table (``dataChange``).

    """

    path: str
    deletion_vector: str = ""
    size: int = 0
    rows: int | None = None
    changes_data: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """The path and the deletion vector's identity. The log may contain one path with several deletion vectors."""
        return self.path, self.deletion_vector


@dataclass(frozen=True)
class LogCommit:
    """The content of one version file.

    Attributes:
        version: The number in the file's name.
        timestamp: Time at which the commit was prepared, seconds since the epoch; None if it is not recorded.
        engine: The engine, for example ``Apache-Spark/4.2.0 Delta-Lake/4.4.0``.
        read_version: The version that the writer read; None if it is not recorded.
        txn_id: Delta's id of the transaction.
        operation: Delta's name of the operation.
        rows: Number of rows that the commit wrote, or that MERGE, UPDATE or DELETE changed; None if the log has no
            number.
        observed: Name of the error with which the guard would have refused the commit; None unless the guard allowed it
            only because of the mode ``observe``.
        begun_at: When the write began, seconds since the epoch; None if it is not recorded.
        stamp: The commit stamp; None if there is none.
        lineage_run: Id of the OpenLineage run that made the commit; None if it made no events.
        adopted_by: Id of the adopting ensemble after this commit, "" for none; None if the commit has no ``metaData``.
        adopted_name: The adopted name after this commit, "" for none; None if the commit has no ``metaData``.
        group: For a version with the appends of several writers: a commit for each writer, the holder first, without
            ``adds``. Empty for all other versions.

    """

    version: int
    timestamp: float | None = None
    engine: str | None = None
    read_version: int | None = None
    txn_id: str | None = None
    user_metadata: str | None = None
    operation: str | None = None
    rows: int | None = None
    observed: str | None = None
    begun_at: float | None = None
    stamp: CommitStamp | None = None
    lineage_run: str | None = None
    adopted_by: str | None = None
    adopted_name: str | None = None
    adds: tuple[DataFile, ...] = ()
    removes: tuple[DataFile, ...] = ()
    group: tuple[LogCommit, ...] = ()

    @property
    def writes(self) -> tuple[LogCommit, ...]:
        """A commit for each writer of the version; of an ordinary commit, the commit itself."""
        return self.group or (self,)


@dataclass(frozen=True)
class Checksum:
    """The content of a checksum file (``<version>.crc``), in which Spark records the state after a version.

    Attributes:
        txn_id: Id of the transaction that wrote the file.
        files: Number of data files in the table.
        size: Total size of the data files, in bytes.
        keys: Keys of the data files (:attr:`DataFile.key`); None if the table is too large for Spark to list them.

    """

    txn_id: str | None = None
    files: int | None = None
    size: int | None = None
    keys: frozenset[tuple[str, str]] | None = None


def versions_in(names: Sequence[str]) -> list[int]:
    """Return the versions whose files are among ``names``, ascending."""
    return sorted(int(match[1]) for match in map(_VERSION_FILE.fullmatch, names) if match)


def existing_versions(names: Sequence[str], location: str) -> list[int]:
    """Return the versions whose files are among ``names``, ascending.

    Raises:
        AuditError: There is no version file, so there is no Delta table at ``location``.

    """
    versions = versions_in(names)
    if not versions:
        raise AuditError(f"there is no Delta table at {location}: no version file in its _delta_log")
    return versions


def read_commits(log: LogFolder, versions: Sequence[int]) -> Iterator[LogCommit | str]:
    """Read and parse version files. Yield a sentence in place of a version file that cannot be parsed."""
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        contents = pool.map(lambda version: log.read(f"{version:020}.json"), versions)
        for version, content in zip(versions, contents, strict=True):
            try:
                yield parse_commit(version, content)
            except _PARSE_ERRORS as error:
                yield f"version {version} cannot be read: {error}"


def read_overwritten(log: LogFolder, versions: Sequence[int]) -> dict[int, LogCommit]:
    """Read the original commit of each overwritten version file, if the store keeps object versions.

    Returns:
        The original commits by version. A commit that cannot be parsed has only its version.

    """
    names = {f"{version:020}.json": version for version in versions}
    originals = {}
    for name, content in log.first_contents(names).items():
        version = names[name]
        try:
            originals[version] = parse_commit(version, content)
        except _PARSE_ERRORS:
            originals[version] = LogCommit(version)
    return originals


def read_checksums(log: LogFolder, names: Sequence[str]) -> dict[int, Checksum]:
    """Read Spark's checksum files, by version. Ignore a file that cannot be parsed, as Spark does."""
    checksum_files = [name for name in names if CHECKSUM_FILE.fullmatch(name)]
    checksums = {}
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        for name, content in zip(checksum_files, pool.map(log.read, checksum_files), strict=True):
            try:
                checksums[int(name[:20])] = _parse_checksum(json.loads(content))
            except _PARSE_ERRORS:
                continue
    return checksums


def _parse_checksum(fields: dict[str, Any]) -> Checksum:
    files = fields.get("allFiles")
    return Checksum(
        txn_id=fields.get("txnId"),
        files=fields.get("numFiles"),
        size=fields.get("tableSizeBytes"),
        keys=None if files is None else frozenset(_parse_data_file(file).key for file in files),
    )


def parse_commit(version: int, content: bytes) -> LogCommit:
    """Parse one version file: one JSON action per line (Delta's protocol, "Actions").

    Raises:
        ValueError: A line is not JSON.
        TypeError, KeyError, AttributeError: An action is not an object, or lacks a field.

    """
    actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    infos = writer_infos(info)
    adds = tuple(_parse_data_file(action["add"]) for action in actions if "add" in action)
    metadata = next((action["metaData"] for action in actions if "metaData" in action), None)
    properties = None if metadata is None else metadata.get("configuration") or {}
    return replace(
        _parse_info(version, info, adds),
        adopted_by=None if properties is None else str(properties.get(ENSEMBLE_PROPERTY, "")),
        adopted_name=None if properties is None else str(properties.get(TABLE_PROPERTY, "")),
        adds=adds,
        removes=tuple(_parse_data_file(action["remove"]) for action in actions if "remove" in action),
        group=tuple(_parse_info(version, writer) for writer in infos) if len(infos) > 1 else (),
    )


def _parse_info(version: int, info: Mapping[str, Any], adds: Sequence[DataFile] = ()) -> LogCommit:
    """Parse a ``commitInfo``; ``adds`` are the files with the commit's rows, if they are known."""
    timestamp = info.get("timestamp")
    return LogCommit(
        version=version,
        timestamp=timestamp / 1000 if isinstance(timestamp, int) else None,
        engine=info.get("engineInfo"),
        read_version=info.get("readVersion"),
        txn_id=info.get("txnId"),
        user_metadata=info.get("userMetadata"),
        operation=info.get("operation"),
        rows=_row_count(info, adds),
        observed=observed_refusal(info),
        begun_at=begun_at_of(info),
        stamp=parse_stamp(info),
        lineage_run=lineage_run_of(info),
    )


def _row_count(info: Mapping[str, Any], adds: Sequence[DataFile]) -> int | None:
    """Return the number of rows that a commit wrote or changed: by its metrics, else by the added files' statistics."""
    metrics = info.get("operationMetrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    # A write with a predicate also has numDeletedRows, the number of rows that it replaced.
    write_metrics = [("numOutputRows",)] if info.get("operation") == "WRITE" else []
    for names in (*write_metrics, *_ROW_METRICS):
        numbers = [int(metrics[name]) for name in names if str(metrics.get(name, "")).isdecimal()]
        if numbers:
            return sum(numbers)
    counts = [file.rows for file in adds if file.changes_data]
    return None if None in counts or not counts else sum(filter(None, counts))


def _parse_data_file(action: dict[str, Any]) -> DataFile:
    vector = action.get("deletionVector") or {}
    identity = "".join(str(vector.get(part, "")) for part in ("storageType", "pathOrInlineDv", "offset"))
    stats = json.loads(action.get("stats") or "{}")
    rows = stats.get("numRecords")
    return DataFile(
        path=action["path"],
        deletion_vector=identity,
        size=action.get("size") or 0,
        rows=None if rows is None else rows - vector.get("cardinality", 0),
        changes_data=action.get("dataChange", True),
    )
