"""What we note in a stream's checkpoint, beside Spark: of which query it is, and the newest event time so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import CheckpointError

_FOLDER = "_sluice"
# Of the newest batches; one is needed.
_NOTES = 3


def claim_checkpoint(files: HadoopFiles, checkpoint: str, query: Mapping[str, str]) -> None:
    """Make sure that a checkpoint is of this query, and note which it is if it is new.

    Args:
        files: of the file system.
        checkpoint: URI of the folder.
        query: what must not change as long as the checkpoint is used: table, source, keys and so on, by name.

    Raises:
        CheckpointError: it is of another query.
        StorageError: it cannot be read or written.

    """
    note = f"{checkpoint.rstrip('/')}/{_FOLDER}/query.json"
    if files.status(f"{checkpoint.rstrip('/')}/metadata") is None:
        # Spark has begun nothing with it, whatever is noted.
        files.write_text(note, json.dumps(query, indent=1) + "\n")
        return
    text = files.read_text(note)
    if text is None:
        raise CheckpointError(f"{checkpoint} is the checkpoint of a query of another program: give a folder of its own")
    before = json.loads(text)
    changed = [
        f"{name} {before.get(name)}, not {query.get(name)}"
        for name in sorted(before.keys() | query.keys())
        if before.get(name) != query.get(name)
    ]
    if changed:
        raise CheckpointError(
            f"{checkpoint} is the checkpoint of another query, with {', '.join(changed)}: give a folder of its own"
        )


class EventClock:
    """The newest event time that a stream has seen, batch by batch.

    It is noted when a batch is in the table, before Spark notes that. So it is the same each time a batch is tried, and
    so is what is late in it.

    Args:
        files: of the file system.
        checkpoint: URI of the stream's folder.

    """

    def __init__(self, files: HadoopFiles, checkpoint: str) -> None:
        self._files = files
        self._folder = f"{checkpoint.rstrip('/')}/{_FOLDER}/event_time"

    def before(self, batch: int) -> datetime | None:
        """Return the newest event time of all batches before this one; None: they had none, or there was none.

        Raises:
            CheckpointError: it was not noted.
            StorageError: it cannot be read.

        """
        if batch == 0:
            return None
        text = self._files.read_text(self._note(batch - 1))
        if text is None:
            raise CheckpointError(f"{self._note(batch - 1)} is not there: the checkpoint is not whole")
        newest = json.loads(text)["newest_event_time"]
        return None if newest is None else datetime.fromisoformat(newest)

    def after(self, batch: int, newest: datetime | None) -> None:
        """Note the newest event time of this batch and of all before it.

        Raises:
            StorageError: it cannot be written.

        """
        noted = {"newest_event_time": None if newest is None else newest.isoformat()}
        self._files.write_text(self._note(batch), json.dumps(noted) + "\n")
        if batch >= _NOTES:
            self._files.remove(self._note(batch - _NOTES))

    def _note(self, batch: int) -> str:
        return f"{self._folder}/{batch}.json"
