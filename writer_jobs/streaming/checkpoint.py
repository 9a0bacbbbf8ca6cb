"""What we note in a stream's checkpoint, beside Spark: of which query it is, and the newest event time so far."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from lock_manager import canonical_table_uri
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.side_locations import SUFFIXES
from writer_jobs.errors import CheckpointError

_FOLDER = "_sluice"
# Folders whose names are hidden, and which Delta or these programs clean up.
_CLEANED_UP = ("_delta_log", "_delta_index", "_change_data", _FOLDER)
# Of the newest batches; one is needed.
_NOTES = 3


def claim_checkpoint(files: HadoopFiles, checkpoint: str, query: Mapping[str, str]) -> None:
    """Make sure that a checkpoint is of this query, and note which it is if it is new.

    Args:
        files: of the file system.
        checkpoint: URI of the folder.
        query: what must not change as long as the checkpoint is used: table (its canonical URI), source, keys and so
            on, by name.

    Raises:
        CheckpointError: it is of another query, or in a folder that VACUUM cleans up.
        StorageError: it cannot be read or written.

    """
    if (table := _table_around(checkpoint, query["table"])) is not None:
        raise CheckpointError(
            f"{checkpoint} is in the folder of the table {table}, where VACUUM deletes files that are not the table's: "
            "give a folder outside it"
        )
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


def _table_around(checkpoint: str, table: str) -> str | None:
    """Return the table, or the side table, whose VACUUM may delete files of a checkpoint; None if there is none.

    VACUUM passes over folders whose names begin with ``_`` or ``.``, but not over partitions (``_day=…``).
    """
    location = canonical_table_uri(checkpoint)
    for folder in (table, *(f"{table}{suffix}" for suffix in SUFFIXES)):
        if f"{location}/".startswith(f"{folder}/"):
            name = location.removeprefix(folder).strip("/").partition("/")[0]
            is_kept = name.startswith(("_", ".")) and "=" not in name and not name.startswith(_CLEANED_UP)
            return None if is_kept else folder
    return None


class EventClock:
    """The newest event time that a stream has seen, batch by batch.

    It is noted when a batch is in the table, and all that is beside it, before Spark notes that. So it is the same each
    time a batch is tried. So is what is late in it: how that is decided is noted before the batch is applied.

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
        if (noted := self._read(self._done(batch - 1))) is None:
            raise CheckpointError(f"{self._done(batch - 1)} is not there: the checkpoint is not whole")
        newest = noted["newest_event_time"]
        return None if newest is None else datetime.fromisoformat(newest)

    def is_done(self, txn: tuple[str, int]) -> bool:
        """Tell whether :meth:`after` was called for this batch: Spark may not know yet that it is done.

        Raises:
            StorageError: it cannot be read.

        """
        return self._noted(self._done(txn[1]), txn[0]) is not None

    def begun(self, txn: tuple[str, int], how: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return how a batch was applied when it was first begun; if it was not, note this, and return it.

        Args:
            txn: id of the query, and number of the batch.
            how: how it is to be applied; JSON values.

        Raises:
            StorageError: it cannot be read or written.

        """
        query, batch = txn
        if (noted := self._noted(self._begun(batch), query)) is not None:
            return noted
        self._files.write_text(self._begun(batch), json.dumps({"query": query, **how}) + "\n")
        return how

    def after(self, txn: tuple[str, int], newest: datetime | None) -> None:
        """Note the newest event time of this batch and of all before it: this one is done.

        Raises:
            StorageError: it cannot be written.

        """
        query, batch = txn
        noted = {"query": query, "newest_event_time": None if newest is None else newest.isoformat()}
        self._files.write_text(self._done(batch), json.dumps(noted) + "\n")
        if batch >= _NOTES:
            self._files.remove(self._done(batch - _NOTES))
            self._files.remove(self._begun(batch - _NOTES))

    def _done(self, batch: int) -> str:
        return f"{self._folder}/{batch}.json"

    def _begun(self, batch: int) -> str:
        return f"{self._folder}/{batch}.begun.json"

    def _noted(self, note: str, query: str) -> Mapping[str, Any] | None:
        """Return a note of this query: Spark's part of a checkpoint may have been removed, and ours not."""
        found = self._read(note)
        return found if found is not None and found.get("query") == query else None

    def _read(self, note: str) -> Mapping[str, Any] | None:
        """Return a note; None if there is none, or a part of one whose writer was killed, and did no more."""
        text = self._files.read_text(note)
        with suppress(ValueError):
            found: Mapping[str, Any] | None = None if text is None else json.loads(text)
            return found
        return None
