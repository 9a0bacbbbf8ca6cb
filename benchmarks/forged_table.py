"""Write Delta tables with many versions or many files without Spark: version files, checksums, and one checkpoint."""

from __future__ import annotations

import json
import os
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import parquet

from lock_manager.resources import TableResource

PARTITIONS = 20
#: Seconds between the timestamps of two versions.
INTERVAL = 10
#: Names of one file; ext4 allows 65,000.
LINKS = 50_000
COLUMNS = {"id": "long", "at": "timestamp", "part": "string"}
FIELDS = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in COLUMNS.items()]
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}
METADATA = {
    "id": str(uuid.uuid4()),
    "format": {"provider": "parquet", "options": {}},
    "schemaString": json.dumps({"type": "struct", "fields": FIELDS}),
    "partitionColumns": ["part"],
    "configuration": {},
}


@dataclass
class ForgedTable:
    """A table of one row in each data file. Each commit has a commit stamp of its own hold, and a stream's watermark.

    Attributes:
        path: Folder of the table, which must not exist.
        versions: Number of versions; the newest is ``versions - 1``.

    """

    path: Path
    versions: int
    ensemble: str = field(default_factory=lambda: str(uuid.uuid4()))

    def __post_init__(self) -> None:
        self.log = self.path / "_delta_log"
        self.log.mkdir(parents=True)
        self.first_time = time.time() - self.versions * INTERVAL
        self.key = TableResource.of(self.path).key

    def write_data_files(self, paths: list[str]) -> int:
        """Create data files as links to few files, and return the size of each in bytes."""
        for folder in {(self.path / path).parent for path in paths}:
            folder.mkdir(exist_ok=True)
        for start in range(0, len(paths), LINKS):
            original = self.path / paths[start]
            parquet.write_table(pa.table({"id": [1], "at": [datetime.fromtimestamp(0, UTC)]}), original)
            for path in paths[start + 1 : start + LINKS]:
                os.link(original, self.path / path)
        return original.stat().st_size

    def write_version(
        self, version: int, adds: list[dict[str, Any]], removes: list[dict[str, Any]], state: dict[str, Any]
    ) -> None:
        """Write a version file and its checksum file; ``state`` has the checksum's fields on files."""
        txn = str(uuid.uuid4())
        lines = [{"commitInfo": self._commit_info(version, txn, len(adds))}]
        if version == 0:
            lines += [{"protocol": PROTOCOL}, {"metaData": METADATA}]
        lines += [{"add": add} for add in adds] + [{"remove": remove} for remove in removes]
        text = "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines)
        (self.log / f"{version:020}.json").write_text(text)
        checksum = {
            "txnId": txn,
            **state,
            "numMetadata": 1,
            "numProtocol": 1,
            "setTransactions": [],
            "domainMetadata": [],
            "metadata": METADATA,
            "protocol": PROTOCOL,
        }
        (self.log / f"{version:020}.crc").write_text(json.dumps(checksum, separators=(",", ":")))

    def add(self, path: str, size: int, version: int) -> dict[str, Any]:
        """Return the ``add`` action of a data file."""
        return {
            "path": path,
            "partitionValues": {"part": path.partition("/")[0].partition("=")[2]},
            "size": size,
            "modificationTime": self._time_ms(version),
            "dataChange": True,
            "stats": '{"numRecords":1,"minValues":{"id":1},"maxValues":{"id":1},"nullCount":{"id":0}}',
        }

    def remove(self, path: str, size: int, version: int) -> dict[str, Any]:
        """Return the ``remove`` action of a data file."""
        return {"path": path, "deletionTimestamp": self._time_ms(version), "dataChange": True, "size": size}

    def write_checkpoint(self) -> None:
        """Write a checkpoint of the newest version, with delta-rs."""
        DeltaTable(self.path).create_checkpoint()

    def _time_ms(self, version: int) -> int:
        return int((self.first_time + version * INTERVAL) * 1000)

    def _commit_info(self, version: int, txn: str, files: int) -> dict[str, Any]:
        at = self._time_ms(version)
        return {
            "timestamp": at,
            "operation": "WRITE",
            "operationParameters": {"mode": "Append", "partitionBy": '["part"]'},
            **({"readVersion": version - 1} if version else {}),
            "isolationLevel": "Serializable",
            "isBlindAppend": True,
            "operationMetrics": {"numFiles": str(files), "numOutputRows": str(files)},
            "sluice": {
                "job": "forged",
                "watermark": {"at": datetime.fromtimestamp(at / 1000, UTC).isoformat(), "stream": "forged"},
                "commit_id": uuid.uuid4().hex,
                "hold": uuid.uuid4().hex,
                "ensemble": self.ensemble,
                "nodes": [{"key": self.key, "mode": "exclusive", "token": version + 1}],
                "acquired_at": at / 1000 - 1,
            },
            "engineInfo": "Apache-Spark/4.2.0 Delta-Lake/4.4.0",
            "txnId": txn,
        }


def forge_versions(path: Path, versions: int) -> None:
    """Write a table of one file, which each version replaces, as far as a checkpoint of the newest version.

    Only the newest version's data file exists.
    """
    table = ForgedTable(path, versions)
    paths = [f"part=0/{number:08}.parquet" for number in range(versions)]
    size = table.write_data_files(paths[-1:])
    for version, name in enumerate(paths):
        add = table.add(name, size, version)
        removes = [table.remove(paths[version - 1], size, version)] if version else []
        state = {"tableSizeBytes": size, "numFiles": 1, "allFiles": [add]}
        table.write_version(version, [add], removes, state)
    table.write_checkpoint()


def forge_files(path: Path, files: int) -> None:
    """Write a table of files in 20 partitions, one version for each, as far as a checkpoint of the newest version."""
    table = ForgedTable(path, PARTITIONS)
    numbers = range(files)
    size, count = table.write_data_files([_file_path(number) for number in numbers]), 0
    for version in range(PARTITIONS):
        adds = [table.add(_file_path(number), size, version) for number in numbers[version::PARTITIONS]]
        count += len(adds)
        table.write_version(version, adds, [], {"tableSizeBytes": size * count, "numFiles": count})
    table.write_checkpoint()


def _file_path(number: int) -> str:
    return f"part={number % PARTITIONS}/{number:08}.parquet"
