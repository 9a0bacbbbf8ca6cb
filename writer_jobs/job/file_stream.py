"""Files that come into a folder, for a stream: which of them each micro-batch has.

The stream says no more than that. A batch is read as a run of the job reads its files: with the columns that they have,
so that a column that comes later comes with the first file that has it.
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType, TimestampType

from writer_jobs.delta.hadoop_files import HadoopFiles
from writer_jobs.errors import SourceError
from writer_jobs.job.sources import SourceFiles, escaped, find_sources, is_glob

# By default Spark passes over files that are a week older than the newest one, and says nothing.
_ANY_AGE = {"maxFileAge": "36500d"}
# The columns of Spark's format of whole files; what is in them is not read, because it is not selected.
_FILES = StructType(
    [
        StructField("path", StringType()),
        StructField("modificationTime", TimestampType()),
        StructField("length", LongType()),
        StructField("content", BinaryType()),
    ]
)


class FileBatches:
    """A folder, or a glob, that gets files.

    Args:
        spark: the session.
        source: folder or glob.

    Attributes:
        path: what is read, as Spark's reader has to be given it.

    Raises:
        SourceError: there is no such folder, or it is a file.

    """

    def __init__(self, spark: SparkSession, source: str) -> None:
        self._spark = spark
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

    def sources(self, batch: DataFrame) -> SourceFiles | None:
        """Return the files of a micro-batch of :meth:`frame`; None if there is nothing in them.

        Raises:
            SourceError: one is gone, and was never read.

        """
        paths = [row["path"] for row in batch.collect()]
        found = find_sources(self._files, paths).files if paths else ()
        files = tuple(file for file in found if file.length)
        return SourceFiles(files, self._base(paths)) if files else None

    def _base(self, paths: list[str]) -> str | None:
        """Return the folder whose sub-folders are columns, if they are."""
        if self._folder is None:
            return None
        folders = [path.removeprefix(self._folder).rpartition("/")[0] for path in paths]
        return self._folder if any("=" in folder for folder in folders) else None
