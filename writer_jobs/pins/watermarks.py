"""How far the streams of a table are: the watermarks that their commits note, in the log's order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager.commit_stamp import watermark_of
from lock_manager.errors import PinError
from writer_jobs.delta.hadoop_files import escaped
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.table_log import LOG_FOLDER, DeltaTableLog, commit_info_of
from writer_jobs.errors import StorageError

_UNNAMED = "(rows without a stream)"


class Watermarks:
    """The newest watermark of each stream that writes a table, as far as its log goes back.

    Args:
        spark: the session.
        log: of the table.

    Raises:
        StorageError: the log cannot be read.

    """

    def __init__(self, spark: SparkSession, log: DeltaTableLog) -> None:
        self._log = log
        self._version = log.head().version
        self._newest: dict[str, datetime] = {}
        for text in _commits_with_one(spark, log.location):
            self._take(commit_info_of(text))

    def refresh(self) -> None:
        """Read what was committed since.

        Raises:
            StorageError: the log cannot be read.

        """
        for version, info in self._log.infos_after(self._version):
            self._version = version
            self._take(info)

    def refuse_before(self, moment: datetime, table: str, *, left_out: Collection[str], unknown: bool) -> None:
        """Make sure that all streams are past a moment: none brings a row of it any more, but for late ones.

        Args:
            moment: that they have to be past.
            table: canonical URI, for messages.
            left_out: ids of streams that do not count, because they have ended.
            unknown: whether it is good enough if no stream has noted a watermark.

        Raises:
            PinError: one is not, or there is none.

        """
        counted = {stream: at for stream, at in self._newest.items() if stream not in left_out}
        if not counted and not unknown:
            raise PinError(
                f"no stream has noted a watermark in the log of {table}, so that nothing says that all rows of "
                f"{moment.isoformat()} are there"
            )
        for stream, at in sorted(counted.items(), key=lambda item: item[1]):
            if at <= moment:
                raise PinError(
                    f"{table}: stream {stream} has its watermark at {at.isoformat()}, not yet past "
                    f"{moment.isoformat()}: try again later, or leave that stream out if it has ended"
                )

    def _take(self, info: Mapping[str, Any]) -> None:
        if (found := watermark_of(info)) is not None:
            at, stream = found
            name = stream or _UNNAMED
            # A stream's own never goes back; rows without a stream may come in any order.
            self._newest[name] = max(at, self._newest.get(name, at))


def _commits_with_one(spark: SparkSession, location: str) -> list[str]:
    """Return the lines of the log that may say a watermark; read by Spark, for there may be many versions."""
    lines = spark.read.text(escaped(f"{location}/{LOG_FOLDER}") + "/*.json")
    mine = F.col("value").startswith('{"commitInfo"') & F.col("value").contains("watermark")
    try:
        return [row[0] for row in lines.where(mine).collect()]
    except JVM_ERRORS as error:
        raise StorageError(f"the log of {location} cannot be read: {one_sentence(error)}") from error
