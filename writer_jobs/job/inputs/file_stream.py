"""The files of each micro-batch of a stream that reads a folder.

The stream returns the files' paths only. The files of a batch are read in the same way as the files of a job that is
not a stream: with their own columns, so a new column is added with the first file that has it.

Spark's checkpoint lists the files of a batch before the batch begins. Spark's own reader silently skips listed files
that have been deleted, and never reads them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession

from writer_jobs.delta.hadoop_files import HadoopFiles, escape_glob, is_glob
from writer_jobs.errors import CheckpointError, SourceError
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.stream_arguments import StreamArguments

# By default Spark silently skips files that are more than a week older than the newest one.
_ANY_AGE = {"maxFileAge": "36500d"}
# Format version of both checkpoint logs; the default of Spark 4.2.
_VERSION, _VERSION_SETTING = "v1", "spark.sql.streaming.offsetLog.formatVersion"
# Columns of Spark's format binaryFile. The content is not selected, so Spark does not read it.
_FILE_SCHEMA = "path string, modificationTime timestamp, length bigint, content binary"


class FileBatches:
    """The micro-batches of a folder or glob to which files are added.

    Raises:
        SourceError: The folder does not exist, or is a file.

    """

    def __init__(self, spark: SparkSession, source: str, stream: StreamArguments) -> None:
        self._spark = spark
        self._checkpoint = stream.checkpoint.rstrip("/")
        self._skip_missing = stream.skip_missing
        self._files = HadoopFiles.of(spark)
        folder = self._files.status(source)
        if folder is None and not is_glob(source):
            raise SourceError(f"source {source} does not exist")
        if folder is not None and not folder.is_folder:
            raise SourceError(f"source {source} is a file: a stream reads a folder, or a glob in quotes")
        self._folder = None if folder is None else folder.path
        #: The source as Spark's reader takes it.
        self.path = source if folder is None else escape_glob(folder.path)

    def frame(self, max_files: int | None) -> DataFrame:
        """Return the paths of the files as a stream. A micro-batch has at most ``max_files``; None: all that exist."""
        options = _ANY_AGE if max_files is None else {**_ANY_AGE, "maxFilesPerTrigger": str(max_files)}
        reader = self._spark.readStream.format("binaryFile").options(**options)
        return reader.schema(_FILE_SCHEMA).load(self.path).select("path")

    def files(self, batch: int) -> tuple[SourceFiles | None, int]:
        """Return the files of a micro-batch of :meth:`frame`, and the number of deleted files that are skipped.

        Empty files are left out; None if no file is left.

        Raises:
            SourceError: A file was deleted before it was read, and deleted files are not skipped.
            StorageError: A file system refuses access or does not exist.
            CheckpointError: The checkpoint does not list the files, or has an unknown format.

        """
        statuses = {path: self._files.status(path) for path in self._listed_paths(batch)}
        missing_paths = [path for path, status in statuses.items() if status is None]
        if missing_paths and not self._skip_missing:
            raise SourceError(
                f"source {missing_paths[0]} was deleted before micro-batch {batch} of the stream read it: put it back, "
                "or pass --skip-missing to continue without it"
            )
        files = sorted(status for status in statuses.values() if status is not None)
        sources = SourceFiles(
            tuple(file for file in files if file.length), self._base_folder([file.path for file in files])
        )
        return sources if sources.files else None, len(missing_paths)

    def _listed_paths(self, batch: int) -> Iterator[str]:
        """Yield the paths of a batch's files from the checkpoint.

        Source: Spark's ``OffsetSeqLog`` (a version, metadata, then a line for each source) and ``FileStreamSourceLog``
        (a version, then a line for each file; every tenth list also has the lines of the lists before it, which may be
        removed then). After a process was killed between the two logs, the next process applies two lists as one batch.
        """
        previous_number = self._last_list_number(batch - 1) if batch else -1
        newest_number = self._last_list_number(batch)
        for number in range(newest_number, previous_number, -1):
            name, lines = self._read(f"sources/0/{number}", f"sources/0/{number}.compact")
            for file in map(json.loads, lines[1:]):
                if previous_number < file["batchId"] <= number:
                    yield unquote(file["path"])
            if name.endswith(".compact"):
                return

    def _last_list_number(self, batch: int) -> int:
        """Return the number of the last list of files for a batch or an earlier one."""
        _, lines = self._read(f"offsets/{batch}")
        return int(json.loads(lines[2])["logOffset"])

    def _read(self, *names: str) -> tuple[str, list[str]]:
        """Return the name and the lines of the first of these checkpoint files that exists."""
        for name in names:
            if (text := self._files.read_text(f"{self._checkpoint}/{name}")) is not None:
                lines = text.splitlines()
                if lines[:1] != [_VERSION]:
                    raise CheckpointError(
                        f"{self._checkpoint}/{name} has the format {''.join(lines[:1])}, and this program reads "
                        f"{_VERSION} only: use a new checkpoint, and do not set {_VERSION_SETTING}"
                    )
                return name, lines
        raise CheckpointError(f"{self._checkpoint}/{names[0]} does not exist: restore it, or use a new checkpoint")

    def _base_folder(self, paths: list[str]) -> str | None:
        """Return the folder whose sub-folders are columns; None for a glob, or without such sub-folders."""
        if self._folder is None:
            return None
        folders = [path.removeprefix(self._folder).rpartition("/")[0] for path in paths]
        return self._folder if any("=" in folder for folder in folders) else None
