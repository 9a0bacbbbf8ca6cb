"""The newest sequence of a table and its tombstones, known without a query while one writer alone commits to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)
from pyspark.sql.types import StructField

from writer_jobs.merge.change_spec import SEQ
from writer_jobs.merge.key_bounds import KeyBounds
from writer_jobs.writer import LockedDeltaWriter


@dataclass(frozen=True)
class TableVersions:
    """Versions of a table and its side table, and the sequence by which a batch is applied to them.

    Attributes:
        sequence: Column of the sequence, and its type.
        table_id: Delta's id of the table.
        version: Version of the table.
        side_version: Version of the side table; None if there is none.

    """

    sequence: StructField
    table_id: str
    version: int
    side_version: int | None

    def follow(self, earlier: TableVersions) -> bool:
        """Return whether one commit to the table, and at most one to the side table, made these of earlier versions."""
        is_same_table = (self.table_id, self.sequence) == (earlier.table_id, earlier.sequence)
        if not is_same_table or self.version != earlier.version + 1:
            return False
        if self.side_version is None or earlier.side_version is None:
            return self.side_version == earlier.side_version
        return self.side_version - earlier.side_version in (0, 1)


@dataclass(frozen=True)
class _LastBatch:
    """The versions that the last batch of a writer left, and the newest sequence in them (None: not known)."""

    versions: TableVersions
    newest: Any


_LAST_BATCHES: WeakKeyDictionary[LockedDeltaWriter, _LastBatch] = WeakKeyDictionary()


class NewestSequence:
    """The newest sequence of a table and its tombstones before a batch. Used under the lock.

    It is known if the versions are those that the last batch of the same writer left. A commit of any other writer, of
    maintenance or of ALTER TABLE makes it unknown. It is queried only by a batch that finds the versions of the one
    before, so writers that take turns never query it.

    Args:
        writer: Writer of the table.
        sequences: Bounds of :data:`SEQ` in the batch.
        versions: The versions that the batch finds.
        read_sequences: Returns the column :data:`SEQ` of all rows of the table and of the tombstones.

    """

    def __init__(
        self,
        writer: LockedDeltaWriter,
        sequences: KeyBounds,
        versions: TableVersions,
        read_sequences: Callable[[], DataFrame],
    ) -> None:
        self._writer, self._sequences = writer, sequences
        self._versions, self._read_sequences = versions, read_sequences
        self._limits = sequences.limits(SEQ)
        # A batch that fails leaves nothing that is known.
        last_batch = _LAST_BATCHES.pop(writer, None)
        self._is_last_writer = last_batch is not None and last_batch.versions == versions
        self._newest = last_batch.newest if last_batch is not None and self._is_last_writer else None
        self._is_older = False

    def is_older_than_batch(self) -> bool:
        """Return whether all sequences of table and tombstones are known to be older than those of the batch."""
        if self._limits is None or not self._is_last_writer:
            return False
        least, _ = self._limits
        if self._newest is None:
            # Delta skips the files with older sequences.
            stored_rows = self._read_sequences()
            if stored_rows.schema[SEQ].dataType != self._versions.sequence.dataType:
                return False
            rows = stored_rows.where(self._sequences.is_at_least(F.col(SEQ), SEQ))
            bounds = KeyBounds(rows.schema, [SEQ])
            values = rows.agg(F.count("*").alias("count"), *bounds.aggregates()).collect()[0].asDict()
            bounds.load(values)
            limits = bounds.limits(SEQ)
            self._newest, self._is_older = None if limits is None else limits[1], values["count"] == 0
        if self._newest is not None:
            self._is_older = self._newest < least
        return self._is_older

    def record(self, versions: TableVersions) -> None:
        """Record the versions that the batch has left. They do not count if another writer has committed meanwhile."""
        if self._limits is None or not versions.follow(self._versions):
            return
        _, newest = self._limits
        if self._newest is not None:
            newest = max(newest, self._newest)
        is_known = self._is_older or self._newest is not None
        _LAST_BATCHES[self._writer] = _LastBatch(versions, newest if is_known else None)
