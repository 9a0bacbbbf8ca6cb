"""Sluice's files in a stream's checkpoint folder: the query that owns it, and the newest event time of each batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from lock_manager import canonical_table_uri
from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.side_locations import ALL_SUFFIXES
from writer_jobs.errors import CheckpointError
from writer_jobs.merge.rejected_rows import table_that_may_have_dropped
from writer_jobs.writer import LockedDeltaWriter

_FOLDER = "_sluice"
# Folders with hidden names whose files Delta or Sluice deletes.
_CLEANED_UP = ("_delta_log", "_delta_index", "_change_data", _FOLDER)
# Number of newest batches whose files are kept. Only the files of the last one are needed.
_RETAINED_BATCHES = 3


def claim_checkpoint(files: HadoopFiles, checkpoint: str, query: Mapping[str, str]) -> None:
    """Make sure that a checkpoint belongs to a query, and store the query in a new checkpoint.

    ``query`` contains, by name, the properties of the query that must not change while the checkpoint is in use:
    ``table`` (its canonical URI), source, keys and so on.

    Raises:
        CheckpointError: The checkpoint belongs to another query or program, or is in a folder that VACUUM cleans up.
        StorageError: The checkpoint cannot be read or written.

    """
    if (table := _table_around(checkpoint, query["table"])) is not None:
        raise CheckpointError(
            f"{checkpoint} is in the folder of the table {table}, whose VACUUM may delete the checkpoint's files: "
            "choose a folder outside it"
        )
    query_file = f"{checkpoint.rstrip('/')}/{_FOLDER}/query.json"
    if files.status(f"{checkpoint.rstrip('/')}/metadata") is None:
        # Spark did not start a query with this checkpoint yet, so a stored query does not count.
        files.write_text(query_file, json.dumps(query, indent=1) + "\n")
        return
    text = files.read_text(query_file)
    if text is None:
        raise CheckpointError(f"{checkpoint} is the checkpoint of a query of another program: choose another folder")
    stored_query = json.loads(text)
    differences = [
        f"{name} is {stored_query.get(name)!r}, not {query.get(name)!r}"
        for name in sorted(stored_query.keys() | query.keys())
        if stored_query.get(name) != query.get(name)
    ]
    if differences:
        raise CheckpointError(
            f"{checkpoint} is the checkpoint of another query ({'; '.join(differences)}): choose another folder"
        )


def _table_around(checkpoint: str, table: str) -> str | None:
    """Return the table whose clean-up may delete files of a checkpoint; None if there is none.

    It is ``table`` or one of the tables that Sluice writes next to it. VACUUM skips folders whose names start with
    ``_`` or ``.``, except partitions (``_day=…``). Delta or Sluice deletes files in some of the skipped folders, too
    (``_CLEANED_UP``).
    """
    location = canonical_table_uri(checkpoint)
    for folder in (table, *(f"{table}{suffix}" for suffix in ALL_SUFFIXES)):
        if f"{location}/".startswith(f"{folder}/"):
            name = location.removeprefix(folder).strip("/").partition("/")[0]
            is_skipped = name.startswith(("_", ".")) and "=" not in name and not name.startswith(_CLEANED_UP)
            return None if is_skipped else folder
    return None


def refuse_dropped_batch(files: HadoopFiles, checkpoint: str, writer: LockedDeltaWriter, txn: tuple[str, int]) -> None:
    """Make sure that a batch is not one that was applied and whose transaction the table has dropped.

    Spark stores the offsets of a batch before its first start, so its commits are younger than this file.

    Raises:
        CheckpointError: The table, or a table of its rejected rows, may have had the batch's transaction.
        StorageError: The checkpoint or a table cannot be read.

    """
    offsets = files.status(f"{checkpoint.rstrip('/')}/offsets/{txn[1]}")
    table = table_that_may_have_dropped(writer, txn[0], 0 if offsets is None else offsets.modified_ms / 1000)
    if table is not None:
        raise CheckpointError(
            f"batch {txn[1]} of {checkpoint} may have been applied before: {table} drops old transactions "
            "(delta.setTransactionRetentionDuration), and the batch was first started before that; look into the "
            "table's history. If the batch is not in the table, set a longer duration; if it is, start the stream with "
            "a new checkpoint"
        )


class StreamProgress:
    """The newest event time and the lateness limits of a stream, stored for each batch.

    The event time is stored after all commits of the batch, and before Spark records the batch as finished. The limits
    are stored before the batch is applied. So a repeated batch has the same event time and limits.

    Every method raises :class:`StorageError` if the files cannot be read or written.
    """

    def __init__(self, files: HadoopFiles, checkpoint: str) -> None:
        self._files = files
        self._folder = f"{checkpoint.rstrip('/')}/{_FOLDER}/event_time"

    def newest_before(self, batch: int) -> datetime | None:
        """Return the newest event time of all batches before this one; None if they had no event time.

        Raises:
            CheckpointError: The event time of the previous batch is not stored.

        """
        if batch == 0:
            return None
        file = self._finished_file(batch - 1)
        if (stored_progress := self._read(file)) is None:
            raise CheckpointError(
                f"{file} is missing, so the checkpoint is incomplete: start the stream with a new checkpoint"
            )
        newest = stored_progress["newest_event_time"]
        return None if newest is None else datetime.fromisoformat(newest)

    def is_finished(self, txn: tuple[str, int]) -> bool:
        """Return whether :meth:`finish` was called for this batch. Spark may not have recorded it as finished."""
        return self._read_of_query(self._finished_file(txn[1]), txn[0]) is not None

    def start(self, txn: tuple[str, int], limits: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the limits (JSON values) stored when the batch first started; store ``limits`` if there are none."""
        query, batch = txn
        if (stored_limits := self._read_of_query(self._started_file(batch), query)) is not None:
            return stored_limits
        self._files.write_text(self._started_file(batch), json.dumps({"query": query, **limits}) + "\n")
        return limits

    def finish(self, txn: tuple[str, int], newest: datetime | None) -> None:
        """Store the newest event time of this batch and of all before it. This marks the batch as finished."""
        query, batch = txn
        progress = {"query": query, "newest_event_time": None if newest is None else newest.isoformat()}
        self._files.write_text(self._finished_file(batch), json.dumps(progress) + "\n")
        if batch >= _RETAINED_BATCHES:
            self._files.remove(self._finished_file(batch - _RETAINED_BATCHES))
            self._files.remove(self._started_file(batch - _RETAINED_BATCHES))

    def _finished_file(self, batch: int) -> str:
        return f"{self._folder}/{batch}.json"

    def _started_file(self, batch: int) -> str:
        return f"{self._folder}/{batch}.begun.json"

    def _read_of_query(self, path: str, query: str) -> Mapping[str, Any] | None:
        """Return the JSON object of a file; None if there is none, or an earlier query with this folder wrote it."""
        stored_object = self._read(path)
        return stored_object if stored_object is not None and stored_object.get("query") == query else None

    def _read(self, path: str) -> Mapping[str, Any] | None:
        """Return a file's JSON object; None if there is no file, or its writer was killed before it was complete."""
        text = self._files.read_text(path)
        with suppress(ValueError):
            stored_object: Mapping[str, Any] | None = None if text is None else json.loads(text)
            return stored_object
        return None
