"""Reads each file of a Delta table's log on its own.

Not through an engine: an engine shows the table that the log adds up to, and refuses a log that does not add up. What
is wrong with it is just what a check has to tell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from lock_manager.table_records.adoption import ENSEMBLE_PROPERTY, TABLE_PROPERTY
from lock_manager.table_records.commit_stamp import CommitStamp, observed_refusal, parse_stamp
from sluice.audit.log_folder import PARALLEL_READS, LogFolder

_VERSION_FILE = re.compile(r"(\d{20})\.json")
#: Name of a version's checksum file.
CHECKSUM_FILE = re.compile(r"(\d{20})\.crc")
# What Spark and delta-rs call the rows that an operation changed. The first line of which any is there counts: MERGE
# also has numOutputRows, which includes the rows that it only copied.
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
    """A data file that a commit adds or removes; ``key`` tells apart the same file with other rows deleted."""

    path: str
    deletion_vector: str = ""
    size: int = 0
    rows: int | None = None
    changes_data: bool = True

    @property
    def key(self) -> tuple[str, str]:
        """Path as written in the log (percent-encoded), and the deletion vector's identity."""
        return self.path, self.deletion_vector


@dataclass(frozen=True)
class LogCommit:
    """One version file.

    Attributes:
        version: from its name.
        timestamp: when the commit was prepared, seconds since the epoch; None if it does not say.
        engine: who wrote it, for example ``Apache-Spark/4.2.0 Delta-Lake/4.4.0``.
        read_version: the version that the writer had read; None if it does not say.
        txn_id: Delta's own name of the transaction.
        user_metadata: what the writer said, as it is.
        operation: what it did, in Delta's words.
        rows: Number of rows that it wrote, or that MERGE, UPDATE or DELETE changed; None if the log has no number.
        observed: with which error the guard would have refused it, had it not only observed.
        stamp: what it says of its hold, None if it names none.
        adopted_by: the ensemble that adopts the table by it, "" for none; None if it leaves that as it is.
        adopted_name: the name under which the table is locked from then on, likewise.
        adds: data files that it adds.
        removes: data files that it removes.

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
    stamp: CommitStamp | None = None
    adopted_by: str | None = None
    adopted_name: str | None = None
    adds: tuple[DataFile, ...] = ()
    removes: tuple[DataFile, ...] = ()


@dataclass(frozen=True)
class Checksum:
    """What Spark noted beside a version (``<version>.crc``): its transaction, the table's size after it.

    Attributes:
        txn_id: transaction that wrote the file.
        files: number of data files in the table.
        size: their bytes.
        keys: their keys (:attr:`DataFile.key`); None where the table is too large for Spark to list them.

    """

    txn_id: str | None = None
    files: int | None = None
    size: int | None = None
    keys: frozenset[tuple[str, str]] | None = None


def version_files(names: Sequence[str]) -> list[int]:
    """Return the versions whose files are among ``names``, ascending."""
    return sorted(int(match[1]) for match in map(_VERSION_FILE.fullmatch, names) if match)


def read_commits(log: LogFolder, versions: Sequence[int]) -> Iterator[LogCommit | str]:
    """Read and parse version files; one that cannot be parsed comes as a sentence instead."""
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        contents = pool.map(lambda version: log.read(f"{version:020}.json"), versions)
        for version, content in zip(versions, contents, strict=True):
            try:
                yield parse_commit(version, content)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                yield f"version {version} cannot be read: {error}"


def read_replaced(log: LogFolder, versions: Sequence[int]) -> dict[int, LogCommit]:
    """Read the first content of each version file that was overwritten, where the store keeps object versions."""
    names = {f"{version:020}.json": version for version in versions}
    replaced = {}
    for name, content in log.first_contents(names).items():
        try:
            replaced[names[name]] = parse_commit(names[name], content)
        except (ValueError, TypeError, KeyError, AttributeError):
            replaced[names[name]] = LogCommit(names[name])
    return replaced


def read_checksums(log: LogFolder, names: Sequence[str]) -> dict[int, Checksum]:
    """Read Spark's checksum files, by version. One that cannot be parsed is left out, as Spark does."""
    found = [name for name in names if CHECKSUM_FILE.fullmatch(name)]
    checksums = {}
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        for name, content in zip(found, pool.map(log.read, found), strict=True):
            try:
                checksums[int(name[:20])] = _checksum(json.loads(content))
            except (ValueError, TypeError, KeyError, AttributeError):
                continue
    return checksums


def _checksum(stored: dict[str, Any]) -> Checksum:
    files = stored.get("allFiles")
    return Checksum(
        txn_id=stored.get("txnId"),
        files=stored.get("numFiles"),
        size=stored.get("tableSizeBytes"),
        keys=None if files is None else frozenset(_data_file(file).key for file in files),
    )


def parse_commit(version: int, content: bytes) -> LogCommit:
    """Parse one version file (a JSON action per line, Delta's protocol, "Actions").

    Raises:
        ValueError: it is not JSON, or not made of objects.

    """
    actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    info: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    timestamp = info.get("timestamp")
    adds = tuple(_data_file(action["add"]) for action in actions if "add" in action)
    metadata = next((action["metaData"] for action in actions if "metaData" in action), None)
    properties = None if metadata is None else metadata.get("configuration") or {}
    return LogCommit(
        version=version,
        timestamp=timestamp / 1000 if isinstance(timestamp, int) else None,
        engine=info.get("engineInfo"),
        read_version=info.get("readVersion"),
        txn_id=info.get("txnId"),
        user_metadata=info.get("userMetadata"),
        operation=info.get("operation"),
        rows=_rows(info, adds),
        observed=observed_refusal(info),
        stamp=parse_stamp(info),
        adopted_by=None if properties is None else str(properties.get(ENSEMBLE_PROPERTY, "")),
        adopted_name=None if properties is None else str(properties.get(TABLE_PROPERTY, "")),
        adds=adds,
        removes=tuple(_data_file(action["remove"]) for action in actions if "remove" in action),
    )


def _rows(info: Mapping[str, Any], adds: Sequence[DataFile]) -> int | None:
    """Count the rows that a commit wrote or changed, by its metrics, else by the statistics of the added files."""
    metrics = info.get("operationMetrics")
    metrics = metrics if isinstance(metrics, dict) else {}
    # A write with a predicate also has the number of rows that it replaced.
    written = [("numOutputRows",)] if info.get("operation") == "WRITE" else []
    for names in (*written, *_ROW_METRICS):
        found = [int(metrics[name]) for name in names if str(metrics.get(name, "")).isdecimal()]
        if found:
            return sum(found)
    counts = [file.rows for file in adds if file.changes_data]
    return sum(count for count in counts if count is not None) if counts and None not in counts else None


def _data_file(action: dict[str, Any]) -> DataFile:
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
