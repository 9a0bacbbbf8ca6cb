"""The watermarks of the streams that write a table, read from the commits in its log."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager.errors import PinError
from lock_manager.table_records.commit_stamp import WATERMARK, watermark_of
from writer_jobs.delta.hadoop_files import escape_glob
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.table_log import LOG_FOLDER, VERSION_FILE, DeltaTableLog, parse_writer_infos
from writer_jobs.errors import StorageError

_RESTORE = "RESTORE"


@dataclass(frozen=True)
class _StreamWatermark:
    """The watermark of a stream in one commit."""

    version: int
    stream: str
    at: datetime


class Watermarks:
    """The watermarks of the streams that write a table, as far as its log goes back.

    A restored table has the watermarks of the version to which it was restored, or none if the statement named a time.
    Rows that came without a stream prove nothing, because other rows of their time may still arrive.

    The constructor and :meth:`passed_version` raise StorageError if the log cannot be read.
    """

    def __init__(self, spark: SparkSession, log: DeltaTableLog) -> None:
        self._log = log
        self._version = log.head().version
        self._watermarks: list[_StreamWatermark] = []
        for version, line in _relevant_commits(spark, log.location):
            if version <= self._version:
                self._add_commits(version, parse_writer_infos(line))

    def passed_version(
        self, moment: datetime, table: str, *, left_out: Collection[str], accept_none: bool
    ) -> int | None:
        """Return the first version at which all streams were past a moment, so that only late rows can follow.

        Commits that were made since the last read are read first.

        Args:
            moment: A time with a time zone.
            table: Canonical URI, for error messages.
            left_out: Ids of streams to ignore, because they have ended.
            accept_none: Whether to accept a log without watermarks.

        Returns:
            The version; None if the log has no watermarks and ``accept_none`` is true.

        Raises:
            PinError: A stream is not past the moment, or the log has no watermarks.

        """
        for version, infos in self._log.infos_after(self._version):
            self._version = version
            self._add_commits(version, infos)
        watermarks = [watermark for watermark in self._watermarks if watermark.stream not in left_out]
        if not watermarks and not accept_none:
            exception = " that is not left out" if left_out else ""
            raise PinError(
                f"no commit in the log of {table} has the watermark of a stream{exception}, so rows up to "
                f"{moment.isoformat()} may be missing; if they arrive in another way, pin --without-watermarks "
                "(without_watermarks=True)"
            )
        newest: dict[str, datetime] = {}
        passed_versions: dict[str, int] = {}
        for watermark in watermarks:
            newest[watermark.stream] = max(watermark.at, newest.get(watermark.stream, watermark.at))
            if watermark.at > moment:
                passed_versions.setdefault(watermark.stream, watermark.version)
        for stream, at in sorted(newest.items(), key=lambda entry: entry[1]):
            if stream not in passed_versions:
                raise PinError(
                    f"{table}: stream {stream} has its watermark at {at.isoformat()}, not yet past "
                    f"{moment.isoformat()}: try again later, or leave that stream out if it has ended"
                )
        return max(passed_versions.values(), default=None)

    def _add_commits(self, version: int, infos: Iterable[Mapping[str, Any]]) -> None:
        for info in infos:
            self._add_commit(version, info)

    def _add_commit(self, version: int, info: Mapping[str, Any]) -> None:
        if info.get("operation") == _RESTORE:
            text = str((info.get("operationParameters") or {}).get("version"))
            # The text is not a number if the statement named a time.
            restored_version = int(text) if text.isdecimal() else -1
            self._watermarks = [watermark for watermark in self._watermarks if watermark.version <= restored_version]
        if (watermark := watermark_of(info)) is not None:
            at, stream = watermark
            if stream is not None:
                self._watermarks.append(_StreamWatermark(version, stream, at))


def _relevant_commits(spark: SparkSession, location: str) -> list[tuple[int, str]]:
    """Return the ``commitInfo`` lines with a watermark or RESTORE, by version; Spark reads the many version files."""
    lines = spark.read.text(escape_glob(f"{location}/{LOG_FOLDER}") + "/*.json")
    value = F.col("value")
    is_relevant = value.contains(WATERMARK) | value.contains(f'"{_RESTORE}"')
    commits = lines.where(value.startswith('{"commitInfo"') & is_relevant)
    try:
        rows = commits.select("_metadata.file_name", "value").collect()
    except JVM_ERRORS as error:
        raise StorageError(f"the log of {location} cannot be read: {error_reason(error)}") from error
    return sorted((int(name[1]), row[1]) for row in rows if (name := VERSION_FILE.fullmatch(row[0])))
