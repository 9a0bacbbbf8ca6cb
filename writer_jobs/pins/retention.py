"""A table's retention, as long as its pins need it: what Delta, and whoever cleans up, goes by.

Delta lets nobody read a version that is older than ``delta.deletedFileRetentionDuration``. Stock VACUUM takes files
that were removed longer ago, and a log's clean-up takes versions that are older than ``delta.logRetentionDuration``. A
pin that is to last longer raises both. When the last one is gone, the table gets back what it had.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql import SparkSession

from lock_manager.errors import PinError
from lock_manager.table_records.pins import Pin
from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.sql_names import property_list, quoted, raw_literal
from writer_jobs.delta.table_log import DeltaTableLog
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

    def keep_until(self, moment: datetime, others: Iterable[Pin] = ()) -> None:
        """Make sure that the newest version can be read until then; commits a newer one if need be.

        Args:
            moment: until when.
            others: pins of the table that are to hold as well: somebody may have lowered the retention since.

        Raises:
            TableError: Delta refuses.
            SluiceError: what the commit guard found.

        """
        snapshot, now = self._log.snapshot(), datetime.now(UTC)
        needed_by_others = [_lasts(pin, self._log.location) for pin in others]
        needed = max([moment - now, *needed_by_others]) + _MARGIN
        needed_as_it_is = moment - snapshot.committed_at + _MARGIN
        there = {_FILES: snapshot.file_retention_seconds, _LOG: snapshot.log_retention_seconds}
        least = timedelta(seconds=min(there.values()))
        if least >= max(needed, needed_as_it_is):
            return
        # Whatever is committed now is the newest version then, and young.
        text = f"interval {math.ceil(needed / _HOUR)} hours"
        wanted = {name: text for name, seconds in there.items() if timedelta(seconds=seconds) < needed}
        if not wanted:
            self._log.commit_nothing()
            return
        noted = _note(snapshot)
        kept = {name: noted["before"].get(name) for name in noted["raised"] if _is_ours(snapshot, noted, name)}
        note = {
            "raised": {**{name: noted["raised"][name] for name in kept}, **wanted},
            "before": {**{name: snapshot.property_of(name) for name in wanted}, **kept},
            "file_retention_seconds": seconds_without_pins(snapshot),
        }
        self._set({**wanted, RETENTION_PROPERTY: json.dumps(note)}, snapshot)

    def is_raised(self) -> bool:
        """Tell whether pins have raised it."""
        return self._log.snapshot().property_of(RETENTION_PROPERTY) is not None

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
        ours = [name for name in noted["raised"] if _is_ours(snapshot, noted, name)]
        self._set({name: noted["before"][name] for name in ours if noted["before"].get(name) is not None}, snapshot)
        gone = [RETENTION_PROPERTY, *(name for name in ours if noted["before"].get(name) is None)]
        self._alter(f"UNSET TBLPROPERTIES ({', '.join(map(raw_literal, gone))})")

    def _set(self, properties: dict[str, str], snapshot: Snapshot) -> None:
        if _FILES in properties and (of_log := snapshot.property_of(_LOG)) is not None:
            # Delta compares the two, and takes the one that is not in the statement for its default.
            properties = {_LOG: of_log, **properties}
        if properties:
            self._alter(f"SET TBLPROPERTIES ({property_list(properties)})")

    def _alter(self, clause: str) -> None:
        try:
            self._spark.sql(f"ALTER TABLE delta.{quoted(self._log.location)} {clause}")
        except JVM_ERRORS as error:
            raise TableError(f"the retention of {self._log.location} was not set: {one_sentence(error)}") from error


def seconds_without_pins(snapshot: Snapshot) -> float:
    """Return for how long VACUUM would spare removed files if there were no pins, in seconds."""
    noted = _note(snapshot)
    if _is_ours(snapshot, noted, _FILES):
        return float(noted["file_retention_seconds"])
    return snapshot.file_retention_seconds


def _is_ours(snapshot: Snapshot, noted: dict[str, Any], name: str) -> bool:
    """Tell whether a property has the value that a pin gave it, and nobody else has changed it since."""
    return name in noted["raised"] and snapshot.property_of(name) == noted["raised"][name]


def _lasts(pin: Pin, location: str) -> timedelta:
    """Return how old its version of a table gets before it expires."""
    try:
        return pin.expires_at - pin.of(location).committed_at
    except PinError:
        # Of another table, whose copy this one is: nothing here is kept for it.
        return timedelta()


def _note(snapshot: Snapshot) -> dict[str, Any]:
    text = snapshot.property_of(RETENTION_PROPERTY)
    return {"raised": {}, "before": {}, **({} if text is None else json.loads(text))}
