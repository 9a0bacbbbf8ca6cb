"""Batches of changes that were begun: a note of each, from before its first commit until after its last.

A batch with deletes makes two commits: the tombstones, then the table. A process that is killed in between leaves
tombstones of which the table knows nothing, and its note in ``<location>/_sluice/changes``. Who holds the lock next
finds the note, looks whether the table has the batch, and if not takes its tombstones back, before it does anything
else: so a batch is applied as a whole, or not at all.

A batch lives only as long as its locks are held. So who holds a lock on something that the batch had locked knows that
the batch has ended. A hold on some of the batch's partitions takes back the tombstones in these. The note is removed
when no tombstone of the batch is left.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from lock_manager.partitions import Partition
from writer_jobs.delta.hadoop_files import HadoopFiles

_FOLDER = "_sluice/changes"


@dataclass(frozen=True)
class Note:
    """A batch that was begun.

    Attributes:
        batch: its id.
        after: version of the table before it.
        partitions: names of what it locked of the table; None: all of it.

    """

    batch: str
    after: int
    partitions: tuple[str, ...] | None

    def has_ended(self, held: tuple[str, ...] | None) -> bool:
        """Tell whether a hold of these partitions, or of all, is of something that the batch had locked."""
        return held is None or self.partitions is None or not set(held).isdisjoint(self.partitions)


class Notes:
    """The notes of one table's batches.

    Args:
        files: of the file system.
        location: of the table.

    """

    def __init__(self, files: HadoopFiles, location: str) -> None:
        self._files = files
        self._folder = f"{location.rstrip('/')}/{_FOLDER}"

    def all(self) -> list[Note]:
        """Return those that are there: what ended between two commits, and what lives.

        Raises:
            StorageError: they cannot be read.

        """
        found = []
        for file in self._files.children(self._folder):
            # None: its batch has ended since.
            if (text := self._files.read_text(file.path)) is None:
                continue
            with suppress(ValueError):  # what is no whole note was killed over it, and has begun nothing
                said = json.loads(text)
                partitions = said["partitions"]
                found.append(Note(said["batch"], said["after"], None if partitions is None else tuple(partitions)))
        return found

    def write(self, note: Note) -> None:
        """Note a batch, before its first commit.

        Raises:
            StorageError: it cannot be written; the batch must not begin then.

        """
        self._files.write_text(self._path(note.batch), json.dumps(asdict(note)))

    def remove(self, batch: str) -> None:
        """Forget a batch: all of it is in the table, or nothing.

        Raises:
            StorageError: it cannot be removed.

        """
        self._files.remove(self._path(batch))

    def _path(self, batch: str) -> str:
        return f"{self._folder}/{batch}.json"


def names_of(partitions: Sequence[Partition] | None) -> tuple[str, ...] | None:
    """Return the names of locked partitions, None for the whole table."""
    return None if partitions is None else tuple(str(each) for each in partitions)
