"""Streams that read a table, by their checkpoints: what they have not read yet has to stay."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import StorageError, TableError


@dataclass(frozen=True)
class SourceStream:
    """A stream that reads a table.

    Attributes:
        checkpoint: folder with its checkpoint.
        version: of the table, from which on it may still read; None: it may read anything.
        log_version: from which on it needs the log. When it is started again, Spark asks for its last batch once more,
            from the end of the one before; Delta then reads which files that batch had, though none of them. None: any.

    """

    checkpoint: str
    version: int | None
    log_version: int | None


def source_streams(files: HadoopFiles, table_id: str, checkpoints: Iterable[str]) -> list[SourceStream]:
    """Return how far the streams are that read a table; a stream that has not begun yet is left out.

    Source: Spark's offset log, a file for each batch with a line of JSON for each source, of which Delta's has
    ``reservoirId`` and ``reservoirVersion``.

    Args:
        files: of the file systems.
        table_id: of the table.
        checkpoints: folders of their checkpoints.

    Raises:
        TableError: a checkpoint is of a stream that reads another table, or cannot be understood.
        StorageError: it is not there, or cannot be read.

    """
    found = (_source_stream(files, table_id, checkpoint.rstrip("/")) for checkpoint in checkpoints)
    return [stream for stream in found if stream is not None]


def _source_stream(files: HadoopFiles, table_id: str, checkpoint: str) -> SourceStream | None:
    if files.status(checkpoint) is None:
        raise StorageError(f"{checkpoint} is not there: it is named as the checkpoint of a stream that reads the table")
    planned, done = _batches(files, f"{checkpoint}/offsets"), _batches(files, f"{checkpoint}/commits")
    if not planned:
        return None
    # A batch that is planned, and not done, is read again from the end of the one before.
    whole = sorted(batch for batch in planned if batch in done)

    def version_of(batch: int) -> int:
        return _version(files, f"{checkpoint}/offsets/{batch}", table_id)

    newest = version_of(whole[-1] if whole else max(planned))
    before = version_of(whole[-2]) if len(whole) > 1 else None
    return SourceStream(checkpoint, newest if whole else None, before)


def _batches(files: HadoopFiles, folder: str) -> set[int]:
    return {int(entry.name) for entry in files.children(folder) if entry.name.isdecimal()}


def _version(files: HadoopFiles, path: str, table_id: str) -> int:
    tables, found = set(), []
    for line in (files.read_text(path) or "").splitlines():
        offset = _parsed(line)
        if offset is None:
            continue
        if offset["reservoirId"] == table_id:
            found.append(int(offset["reservoirVersion"]))
        tables.add(offset["reservoirId"])
    if found:
        # A query may read the table more than once.
        return min(found)
    what = f"table {', '.join(sorted(tables))}, and not {table_id}" if tables else "no Delta table"
    raise TableError(f"{path}: the stream with this checkpoint reads {what}")


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("reservoirId"), str):
        return None
    return found if isinstance(found.get("reservoirVersion"), int) else None
