"""A table's retention, as long as its pins need it: what Delta, and whoever cleans up, goes by.

Delta lets nobody read a version that is older than ``delta.deletedFileRetentionDuration``. Stock VACUUM takes files
that were removed longer ago, and a log's clean-up takes versions that are older than ``delta.logRetentionDuration``. A
pin that is to last longer raises both. When the last one is gone, the table gets back what it had.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.sql_names import quoted
from writer_jobs.delta.table_log import DeltaTableLog, Snapshot
from writer_jobs.errors import TableError

#: Table property that says what was raised: to what, and what it was before.
RETENTION_PROPERTY = "sluice.pins.retention"
_FILES, _LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
# A log's clean-up goes by whole days, and clocks differ.
_MARGIN = timedelta(days=1)
_HOUR = timedelta(hours=1)


class Retention:
    """The retention of one table. It is changed under the lock on the table.

    Args:
        spark: the session.
        log: of the table.

    """

    def __init__(self, spark: SparkSession, log: DeltaTableLog) -> None:
        self._spark = spark
        self._log = log

    def keep_until(self, moment: datetime) -> None:
        """Make sure that the newest version can be read until then; commits a newer one if need be.

        Raises:
            TableError: Delta refuses.
            SluiceError: what the commit guard found.

        """
        snapshot = self._log.snapshot()
        now = datetime.now(UTC)
        age = now - datetime.fromtimestamp(snapshot.committed_at, UTC)
        there = {_FILES: snapshot.file_retention_seconds, _LOG: snapshot.log_retention_seconds}
        needed = moment - now + _MARGIN
        if all(timedelta(seconds=seconds) >= needed + age for seconds in there.values()):
            return
        # Whatever is committed now is the newest version then, and young.
        text = f"interval {math.ceil(needed / _HOUR)} hours"
        wanted = {name: text for name, seconds in there.items() if timedelta(seconds=seconds) < needed}
        if not wanted:
            self._log.commit_nothing()
            return
        noted = _note(snapshot)
        note = {
            "raised": {**noted["raised"], **wanted},
            "before": {**{name: snapshot.property_of(name) for name in wanted}, **noted["before"]},
            "file_retention_seconds": seconds_without_pins(snapshot),
        }
        self._set({**wanted, RETENTION_PROPERTY: json.dumps(note)})

    def restore(self) -> None:
        """Bring back what was there before any pin, but for what somebody else has changed since.

        Raises:
            TableError: Delta refuses.
            SluiceError: what the commit guard found.

        """
        snapshot = self._log.snapshot()
        if snapshot.version < 0 or snapshot.property_of(RETENTION_PROPERTY) is None:
            return
        noted = _note(snapshot)
        ours = [name for name, text in noted["raised"].items() if snapshot.property_of(name) == text]
        self._set({name: noted["before"][name] for name in ours if noted["before"].get(name) is not None})
        gone = [RETENTION_PROPERTY, *(name for name in ours if noted["before"].get(name) is None)]
        self._alter(f"UNSET TBLPROPERTIES ({', '.join(map(_literal, gone))})")

    def _set(self, properties: dict[str, str]) -> None:
        if properties:
            pairs = ", ".join(f"{_literal(name)} = {_literal(value)}" for name, value in properties.items())
            self._alter(f"SET TBLPROPERTIES ({pairs})")

    def _alter(self, clause: str) -> None:
        try:
            self._spark.sql(f"ALTER TABLE delta.{quoted(self._log.location)} {clause}")
        except JVM_ERRORS as error:
            raise TableError(f"the retention of {self._log.location} was not set: {one_sentence(error)}") from error


def seconds_without_pins(snapshot: Snapshot) -> float:
    """Return for how long VACUUM would spare removed files if there were no pins, in seconds."""
    noted = _note(snapshot)
    is_ours = _FILES in noted["raised"] and snapshot.property_of(_FILES) == noted["raised"][_FILES]
    return float(noted["file_retention_seconds"]) if is_ours else snapshot.file_retention_seconds


def _note(snapshot: Snapshot) -> dict[str, Any]:
    text = snapshot.property_of(RETENTION_PROPERTY)
    return {"raised": {}, "before": {}, **({} if text is None else json.loads(text))}


def _literal(text: str) -> str:
    return "r'" + text + "'"
