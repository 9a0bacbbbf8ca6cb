"""Batches of changes that were begun: a note of each, from before its first commit until after its last.

A batch with deletes makes two commits: the tombstones, then the table. A process that is killed in between leaves
tombstones whose rows are still in the table, and its note in ``<location>/_sluice/changes``. The next holder of the
lock finds the note and deletes those rows in its own commit, before it gives the lock back. That is right however often
it is done: a row that is older than its tombstone does not belong into the table.

A note is of a batch that lives only as long as its locks are held. So whoever holds locks on all that it names knows
that the batch has ended.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from lock_manager.partitions import Partition
from writer_jobs.delta.hadoop_files import HadoopFiles

_FOLDER = "_sluice/changes"


@dataclass(frozen=True)
class Note:
    """A batch that was begun.

    Attributes:
        batch: its id.
        partitions: names of what it locked of the table; None: all of it.

    """

    batch: str
    partitions: tuple[str, ...] | None


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
            text = self._files.read_text(file.path)
            if text is None:
                continue
            said = json.loads(text)
            partitions = said["partitions"]
            found.append(Note(said["batch"], None if partitions is None else tuple(partitions)))
        return found

    def write(self, note: Note) -> None:
        """Note a batch, before its first commit.

        Raises:
            StorageError: it cannot be written; the batch must not begin then.

        """
        said = {"batch": note.batch, "partitions": None if note.partitions is None else list(note.partitions)}
        self._files.write_text(self._path(note.batch), json.dumps(said))

    def remove(self, batch: str) -> None:
        """Forget a batch: all of it is in the table.

        Raises:
            StorageError: it cannot be removed.

        """
        self._files.remove(self._path(batch))

    def _path(self, batch: str) -> str:
        return f"{self._folder}/{batch}.json"


def names_of(partitions: Sequence[Partition] | None) -> tuple[str, ...] | None:
    """Return the names of locked partitions, None for the whole table."""
    return None if partitions is None else tuple(str(each) for each in partitions)


def is_covered(note: Note, held: tuple[str, ...] | None) -> bool:
    """Tell whether a hold is of all that a batch had locked, so that the batch has ended."""
    return held is None or (note.partitions is not None and set(note.partitions) <= set(held))
