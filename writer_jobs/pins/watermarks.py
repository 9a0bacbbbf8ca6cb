"""How far the streams of a table are: the watermarks that their commits note, in the log's order."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager.errors import PinError
from lock_manager.table_records.commit_stamp import watermark_of
from writer_jobs.delta.hadoop_files import escaped
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.table_log import LOG_FOLDER, VERSION_FILE, DeltaTableLog, commit_info_of
from writer_jobs.errors import StorageError

_RESTORE = "RESTORE"


@dataclass(frozen=True)
class _Noted:
    """A watermark that a commit notes."""

    version: int
    stream: str
    at: datetime


class Watermarks:
    """The watermarks of the streams that write a table, as far as its log goes back.

    A table that was restored has those of the version that it was restored to. Rows that came without a stream prove
    nothing: nobody knows what else is on its way.

    Args:
        spark: the session.
        log: of the table.

    Raises:
        StorageError: the log cannot be read.

    """

    def __init__(self, spark: SparkSession, log: DeltaTableLog) -> None:
        self._log = log
        self._version = log.head().version
        self._noted: list[_Noted] = []
        for version, text in _telling_commits(spark, log.location):
            if version <= self._version:
                self._take(version, commit_info_of(text))

    def refresh(self) -> None:
        """Read what was committed since.

        Raises:
            StorageError: the log cannot be read.

        """
        for version, info in self._log.infos_after(self._version):
            self._version = version
            self._take(version, info)

    def passed(self, moment: datetime, table: str, *, left_out: Collection[str], unknown: bool) -> int | None:
        """Return the first version at which all streams were past a moment: none brings a row of it, but for late ones.

        Args:
            moment: that they have to be past.
            table: canonical URI, for messages.
            left_out: ids of streams that do not count, because they have ended.
            unknown: whether it is good enough if no stream has noted a watermark.

        Returns:
            The version; None if it is unknown, and good enough.

        Raises:
            PinError: a stream is not past it, or there is none.

        """
        counted = [each for each in self._noted if each.stream not in left_out]
        if not counted and not unknown:
            raise PinError(
                f"no stream has noted a watermark in the log of {table}, so that nothing says that all rows of "
                f"{moment.isoformat()} are there"
            )
        newest: dict[str, datetime] = {}
        first: dict[str, int] = {}
        for each in counted:
            newest[each.stream] = max(each.at, newest.get(each.stream, each.at))
            if each.at > moment:
                first.setdefault(each.stream, each.version)
        for stream, at in sorted(newest.items(), key=lambda item: item[1]):
            if stream not in first:
                raise PinError(
                    f"{table}: stream {stream} has its watermark at {at.isoformat()}, not yet past "
                    f"{moment.isoformat()}: try again later, or leave that stream out if it has ended"
                )
        return max(first.values(), default=None)

    def _take(self, version: int, info: Mapping[str, Any]) -> None:
        if info.get("operation") == _RESTORE:
            self._noted = [each for each in self._noted if each.version <= _restored_to(info)]
        found = watermark_of(info)
        if found is not None and found[1] is not None:
            self._noted.append(_Noted(version, found[1], found[0]))


def _restored_to(info: Mapping[str, Any]) -> int:
    """Return to which version a table was restored; one before all if it was told by a time."""
    version = str((info.get("operationParameters") or {}).get("version"))
    return int(version) if version.isdecimal() else -1


def _telling_commits(spark: SparkSession, location: str) -> list[tuple[int, str]]:
    """Return the lines of the log that may matter, by version; read by Spark, for there may be many versions."""
    lines = spark.read.text(escaped(f"{location}/{LOG_FOLDER}") + "/*.json")
    tells = F.col("value").contains("watermark") | F.col("value").contains(f'"{_RESTORE}"')
    chosen = lines.where(F.col("value").startswith('{"commitInfo"') & tells)
    try:
        found = chosen.select("_metadata.file_name", "value").collect()
    except JVM_ERRORS as error:
        raise StorageError(f"the log of {location} cannot be read: {one_sentence(error)}") from error
    return sorted((int(name[1]), row[1]) for row in found if (name := VERSION_FILE.fullmatch(row[0])))
