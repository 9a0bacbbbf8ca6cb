"""Files that come into a folder, for a stream: which of them each micro-batch has.

The stream says no more than that. A batch is read as a run of the job reads its files: with the columns that they have,
so that a column that comes later comes with the first file that has it.

Which files a batch has stands in Spark's checkpoint, before the batch begins. Spark itself, when it reads them, passes
over those that are gone meanwhile, says nothing, and never reads them again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from writer_jobs.delta.hadoop_files import HadoopFiles, escaped, is_glob
from writer_jobs.errors import CheckpointError, SourceError
from writer_jobs.job.inputs.source_files import SourceFiles
from writer_jobs.job.stream_arguments import StreamArguments

# By default Spark passes over files that are a week older than the newest one, and says nothing.
_ANY_AGE = {"maxFileAge": "36500d"}
# Of both kinds of files; the default of Spark 4.2.
_VERSION, _VERSION_SETTING = "v1", "spark.sql.streaming.offsetLog.formatVersion"
# The columns of Spark's format of whole files; what is in them is not read, because it is not selected.
_FILES = StructType(
    [
        StructField("path", StringType()),
        StructField("modificationTime", TimestampType()),
        StructField("length", LongType()),
        StructField("content", BinaryType()),
    ]
)


@dataclass(frozen=True)
class BatchFiles:
    """The files of a micro-batch.

    Attributes:
        sources: Files that are there and not empty; None if there is none.
        missing: Number of files that were deleted and are skipped.

    """

    sources: SourceFiles | None
    missing: int


class FileBatches:
    """A folder, or a glob, that gets files.

    Args:
        spark: the session.
        source: folder or glob.
        stream: Trigger and checkpoint of the stream.

    Attributes:
        path: what is read, as Spark's reader has to be given it.

    Raises:
        SourceError: there is no such folder, or it is a file.

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
        self.path = source if folder is None else escaped(folder.path)

    def frame(self, most_files: int | None) -> DataFrame:
        """Return the files, streaming.

        Args:
            most_files: of a micro-batch; None: all that are there.

        """
        options = _ANY_AGE if most_files is None else {**_ANY_AGE, "maxFilesPerTrigger": str(most_files)}
        reader = self._spark.readStream.format("binaryFile").options(**options)
        return reader.schema(_FILES).load(self.path).select("path")

    def files(self, batch: int) -> BatchFiles:
        """Return the files of a micro-batch of :meth:`frame`.

        Raises:
            SourceError: one is gone, was never read, and is not to be skipped.
            StorageError: A file system refuses, or does not exist.
            CheckpointError: the checkpoint does not say which they are, or in a format that is not known.

        """
        statuses = {path: self._files.status(path) for path in self._planned(batch)}
        missing = [path for path, status in statuses.items() if status is None]
        if missing and not self._skip_missing:
            raise SourceError(
                f"source {missing[0]} does not exist, and micro-batch {batch} of the stream has it: put it back, or "
                "pass --skip-missing to go on without it"
            )
        files = sorted(status for status in statuses.values() if status is not None)
        sources = SourceFiles(tuple(file for file in files if file.length), self._base([file.path for file in files]))
        return BatchFiles(sources if sources.files else None, len(missing))

    def _planned(self, batch: int) -> Iterator[str]:
        """Read from the checkpoint which files a batch has.

        Source: Spark's ``OffsetSeqLog`` (a version, metadata, then a line for each source) and ``FileStreamSourceLog``
        (a version, then a line for each file; every tenth has the lines of those before, too, which may be removed
        then). If a process is killed between the two, the next one makes one batch of two lists.
        """
        before, last = self._last_list(batch - 1) if batch else -1, self._last_list(batch)
        for number in range(last, before, -1):
            name, lines = self._read(f"sources/0/{number}", f"sources/0/{number}.compact")
            for file in map(json.loads, lines[1:]):
                if before < file["batchId"] <= number:
                    yield unquote(file["path"])
            if name.endswith(".compact"):
                return

    def _last_list(self, batch: int) -> int:
        """Return the number of the last list of files that came with a batch, or with one before."""
        _, lines = self._read(f"offsets/{batch}")
        return int(json.loads(lines[2])["logOffset"])

    def _read(self, *names: str) -> tuple[str, list[str]]:
        """Return which of these files of the checkpoint is there, and its lines."""
        for name in names:
            if (text := self._files.read_text(f"{self._checkpoint}/{name}")) is not None:
                lines = text.splitlines()
                if lines[:1] != [_VERSION]:
                    raise CheckpointError(
                        f"{self._checkpoint}/{name} has the format {''.join(lines[:1])}, and this program knows "
                        f"{_VERSION} only: begin with a checkpoint of its own, and without {_VERSION_SETTING}"
                    )
                return name, lines
        raise CheckpointError(f"{self._checkpoint}/{names[0]} is not there: the checkpoint is not whole")

    def _base(self, paths: list[str]) -> str | None:
        """Return the folder whose sub-folders are columns, if they are."""
        if self._folder is None:
            return None
        folders = [path.removeprefix(self._folder).rpartition("/")[0] for path in paths]
        return self._folder if any("=" in folder for folder in folders) else None
