"""Records of batches that make two commits: a file for each, from before its first commit until after its last.

A batch with tombstones or cells makes two commits: to the side table, then to the table. If its process is killed
between the two, the side table has its rows, the table lacks its changes, and its record stays in
``<location>/_sluice/changes``. The next batch reads the record under the lock, before its own first commit. If the
table does not have the killed batch, the next batch deletes the side table's rows of it. So a batch is applied as a
whole, or not at all.

A batch ends when its locks are released. So the holder of a lock on anything that the batch had locked knows that the
batch has ended. A holder of only some of the batch's partitions deletes the side table's rows in these. The record is
removed when the side table has no more rows of the batch.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass

from writer_jobs.delta.hadoop_files import HadoopFiles

_FOLDER = "_sluice/changes"


@dataclass(frozen=True)
class BatchRecord:
    """The record of a batch in progress. The fields are those of its JSON file.

    Attributes:
        batch: Id of the batch.
        after: Version of the table before the batch.
        partitions: Names of the partitions that the batch locked in the table; None: the whole table.

    """

    batch: str
    after: int
    partitions: tuple[str, ...] | None

    def has_ended(self, locked_partitions: tuple[str, ...] | None) -> bool:
        """Return whether the batch has ended, because it had locked one of the partitions that the caller holds now.

        ``locked_partitions`` are the names of these partitions; None: the whole table.
        """
        return (
            locked_partitions is None
            or self.partitions is None
            or not set(locked_partitions).isdisjoint(self.partitions)
        )


class BatchRecords:
    """The records of the batches of the table at a location.

    Every method raises :class:`StorageError` if it fails. A batch must not start if its record cannot be written.
    """

    def __init__(self, files: HadoopFiles, location: str) -> None:
        self._files = files
        self._folder = f"{location.rstrip('/')}/{_FOLDER}"

    def all(self) -> list[BatchRecord]:
        """Return all records: of batches that ended without removing theirs, and of batches in progress."""
        records = []
        for file in self._files.json_files(self._folder):
            # None: the batch has ended and removed its record since the listing.
            if (text := self._files.read_text(file.path)) is None:
                continue
            with suppress(ValueError):  # the process was killed while it wrote the record, before its first commit
                fields = json.loads(text)
                partitions = fields["partitions"]
                partitions = None if partitions is None else tuple(partitions)
                records.append(BatchRecord(fields["batch"], fields["after"], partitions))
        return records

    def write(self, record: BatchRecord) -> None:
        """Write the record of a batch, before its first commit."""
        self._files.write_text(self._path(record.batch), json.dumps(asdict(record)))

    def remove(self, batch: str) -> None:
        """Remove the record of a batch that is applied or undone as a whole."""
        self._files.remove(self._path(batch))

    def _path(self, batch: str) -> str:
        return f"{self._folder}/{batch}.json"
