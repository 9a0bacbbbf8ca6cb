"""Find out from streams' checkpoints how far they have read a table. Maintenance keeps the files after that point."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.delta.table_log import parse_object
from writer_jobs.errors import StorageError, TableError


@dataclass(frozen=True)
class SourceStream:
    """Progress of a stream that reads a table.

    Attributes:
        version: First version of the table whose data files the stream may still read; None if it may read any.
        log_version: First version whose version file the stream needs; None if it may need any. After a restart, Spark
            plans the last batch again, from the end of the batch before it. Delta then reads the version files of that
            batch, but not its data files.

    """

    checkpoint: str
    version: int | None
    log_version: int | None


def source_streams(files: HadoopFiles, table_id: str, checkpoints: Iterable[str]) -> list[SourceStream]:
    """Return the progress of the streams that read a table, without streams that have not planned a batch.

    Source: Spark's offset log. It has a file for each batch, with a line of JSON for each source. A Delta source's line
    has ``reservoirId`` and ``reservoirVersion``.

    Raises:
        TableError: A checkpoint belongs to a stream that reads another table, or cannot be parsed.
        StorageError: A checkpoint does not exist, or cannot be read.

    """
    streams = (_source_stream(files, table_id, checkpoint.rstrip("/")) for checkpoint in checkpoints)
    return [stream for stream in streams if stream is not None]


def _source_stream(files: HadoopFiles, table_id: str, checkpoint: str) -> SourceStream | None:
    if files.status(checkpoint) is None:
        raise StorageError(f"{checkpoint} does not exist: correct or remove its name in the list of streams")
    planned_batches = _batches(files, f"{checkpoint}/offsets")
    committed_batches = _batches(files, f"{checkpoint}/commits")
    if not planned_batches:
        return None
    # A planned batch that is not committed is read again from the end of the batch before it.
    completed_batches = sorted(planned_batches & committed_batches)

    def version_of(batch: int) -> int:
        return _read_version(files, f"{checkpoint}/offsets/{batch}", table_id)

    newest_version = version_of(completed_batches[-1] if completed_batches else max(planned_batches))
    previous_version = version_of(completed_batches[-2]) if len(completed_batches) > 1 else None
    return SourceStream(checkpoint, newest_version if completed_batches else None, previous_version)


def _batches(files: HadoopFiles, folder: str) -> set[int]:
    return {int(entry.name) for entry in files.children(folder) if entry.name.isdecimal()}


def _read_version(files: HadoopFiles, path: str, table_id: str) -> int:
    lines = (files.read_text(path) or "").splitlines()
    offsets = [offset for line in lines if (offset := _delta_offset(line)) is not None]
    # A query may read the table more than once.
    versions = [version for source_id, version in offsets if source_id == table_id]
    if versions:
        return min(versions)
    tables = ", ".join(sorted({source_id for source_id, _ in offsets}))
    sources = f"table {tables}, not table {table_id}" if tables else "no Delta table"
    raise TableError(f"{path}: the stream reads {sources}; correct or remove its name in the list of streams")


def _delta_offset(line: str) -> tuple[str, int] | None:
    """Return the table id and the version in a line of a Delta source; None for any other line."""
    offset = parse_object(line)
    table_id, version = offset.get("reservoirId"), offset.get("reservoirVersion")
    return (table_id, version) if isinstance(table_id, str) and isinstance(version, int) else None
