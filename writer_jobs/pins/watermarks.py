"""The watermarks of the streams that write a table, read from the commits in its log."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

from lock_manager.errors import PinError
from lock_manager.table_records.commit_stamp import WATERMARK, watermark_of
from writer_jobs.delta.commit_lines import commit_lines, info_field, record_field
from writer_jobs.delta.jvm_errors import SPARK_ERRORS, error_reason
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import StorageError
from writer_jobs.merge.materialized import MaterializedRows

_EPOCH = datetime.fromtimestamp(0, UTC)
_RESTORE = "RESTORE"


@dataclass(frozen=True)
class _StreamProgress:
    """The progress of a stream: its newest watermark, and the first version with a watermark past the moment."""

    newest: datetime
    passed_version: int | None


class Watermarks:
    """The watermarks of the streams that write a table, as far as its log goes back, compared with a moment.

    A restored table has the watermarks of the version to which it was restored, or none if the statement named a time.
    Rows that came without a stream prove nothing, because other rows of their time may still arrive.

    The constructor and :meth:`passed_version` raise StorageError if the log cannot be read.

    Args:
        spark: The session.
        log: Log of the table.
        moment: A time with a time zone.

    """

    def __init__(self, spark: SparkSession, log: DeltaTableLog, moment: datetime) -> None:
        self._spark = spark
        self._log = log
        self._moment = moment
        self._read()

    def _read(self) -> None:
        """Read the progress of each stream up to the newest version; Spark reads the many version files."""
        self._version = self._log.head().version
        try:
            self._streams = _stream_progress(self._spark, self._log.location, self._moment, self._version)
        except SPARK_ERRORS as error:
            reason = error_reason(error)
            raise StorageError(f"the log of {self._log.location} cannot be read: {reason}") from error

    def passed_version(self, table: str, *, left_out: Collection[str], accept_none: bool) -> int | None:
        """Return the first version at which all streams were past the moment, so that only late rows can follow.

        Commits that were made since the last read are read first.

        Args:
            table: Canonical URI, for error messages.
            left_out: Ids of streams to ignore, because they have ended.
            accept_none: Whether to accept a log without watermarks.

        Returns:
            The version; None if the log has no watermarks and ``accept_none`` is true.

        Raises:
            PinError: A stream is not past the moment, or the log has no watermarks.

        """
        self._read_later_commits()
        streams = {stream: progress for stream, progress in self._streams.items() if stream not in left_out}
        if not streams and not accept_none:
            exception = " that is not left out" if left_out else ""
            raise PinError(
                f"no commit in the log of {table} has the watermark of a stream{exception}, so rows up to "
                f"{self._moment.isoformat()} may be missing; if they arrive in another way, pin --without-watermarks "
                "(without_watermarks=True)"
            )
        passed_versions = []
        for stream, progress in sorted(streams.items(), key=lambda entry: entry[1].newest):
            if progress.passed_version is None:
                raise PinError(
                    f"{table}: stream {stream} has its watermark at {progress.newest.isoformat()}, not yet past "
                    f"{self._moment.isoformat()}: try again later, or leave that stream out if it has ended"
                )
            passed_versions.append(progress.passed_version)
        return max(passed_versions, default=None)

    def _read_later_commits(self) -> None:
        """Read the commits that were made since the last read."""
        is_restored = False
        for version, infos in self._log.infos_after(self._version):
            self._version = version
            for info in infos:
                is_restored |= info.get("operation") == _RESTORE
                if (watermark := watermark_of(info)) is not None and watermark[1] is not None:
                    self._add(version, watermark[0], watermark[1])
        if is_restored:
            self._read()

    def _add(self, version: int, at: datetime, stream: str) -> None:
        progress = self._streams.get(stream, _StreamProgress(at, None))
        passed_version = version if progress.passed_version is None and at > self._moment else progress.passed_version
        self._streams[stream] = _StreamProgress(max(at, progress.newest), passed_version)


def _stream_progress(
    spark: SparkSession, location: str, moment: datetime, newest_version: int
) -> dict[str, _StreamProgress]:
    """Return the progress of each stream in the versions up to the newest one, by the stream's id.

    The driver gets a row for each stream and for each RESTORE.
    """
    lines = commit_lines(spark, location).where(F.col("version") <= newest_version)
    is_restore = F.coalesce(info_field("operation") == _RESTORE, F.lit(False))  # noqa: FBT003 (a value)
    # The text is not a number if the statement named a time.
    restored_version = F.coalesce(info_field("operationParameters.version").try_cast("long"), F.lit(-1))
    watermark = record_field(WATERMARK)
    commits = lines.where(F.col("line").contains(WATERMARK) | F.col("line").contains(f'"{_RESTORE}"')).select(
        "version",
        F.when(is_restore, restored_version).alias("restored_version"),
        F.unix_micros(F.get_json_object(watermark, "$.at").try_cast("timestamp")).alias("at"),
        F.get_json_object(watermark, "$.stream").alias("stream"),
    )
    with closing(MaterializedRows(commits)) as materialized:
        restores = materialized.rows.where("restored_version IS NOT NULL").select("version", "restored_version")
        watermarks = materialized.rows.where("at IS NOT NULL AND stream IS NOT NULL")
        for version, restored_to in restores.collect():
            watermarks = watermarks.where((F.col("version") <= restored_to) | (F.col("version") >= version))
        is_past = F.col("at") > _micros(moment)
        streams = watermarks.groupBy("stream").agg(F.max("at"), F.min(F.when(is_past, F.col("version"))))
        return {
            stream: _StreamProgress(_EPOCH + timedelta(microseconds=newest), passed_version)
            for stream, newest, passed_version in streams.collect()
        }


def _micros(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
