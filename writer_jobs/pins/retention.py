"""The retention of a table, raised for as long as its pins need it.

Delta refuses to read a version that is older than ``delta.deletedFileRetentionDuration``. Stock VACUUM deletes files
that were removed longer ago. Clean-up of the log deletes versions that are older than ``delta.logRetentionDuration``. A
pin that lasts longer raises both. When the last pin is gone, the table gets its own values back.
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
from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason
from writer_jobs.delta.snapshot import Snapshot
from writer_jobs.delta.sql_names import property_list, quoted, raw_literal
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import TableError

#: Table property with the raised retention properties: their raised values and the values before that.
RETENTION_PROPERTY = "sluice.pins.retention"
_FILES, _LOG = "delta.deletedFileRetentionDuration", "delta.logRetentionDuration"
#: Clean-up of the log uses whole days and the modification times of files, and clocks differ.
RETENTION_MARGIN = timedelta(days=1)
_HOUR = timedelta(hours=1)


class Retention:
    """The retention of one table. It is changed under the lock on the table.

    Methods that change it raise TableError if Delta refuses the change, and SluiceError if the commit guard refuses the
    commit.
    """

    def __init__(self, spark: SparkSession, log: DeltaTableLog) -> None:
        self._spark = spark
        self._log = log

    def extend_until(self, moment: datetime, other_pins: Iterable[Pin] = ()) -> None:
        """Make the newest version readable until a moment (with a time zone); this may commit a newer version.

        Other pins of the table count, too: the retention may have been lowered since they were taken.
        """
        snapshot, now = self._log.snapshot(), datetime.now(UTC)
        needed_by_pins = [_age_at_expiry(pin, self._log.location) for pin in other_pins]
        # A version that is committed now is young; the present newest version may be old.
        needed_if_committed_now = max([moment - now, *needed_by_pins]) + RETENTION_MARGIN
        needed_without_commit = moment - snapshot.committed_at + RETENTION_MARGIN
        retention_seconds = {_FILES: snapshot.file_retention_seconds, _LOG: snapshot.log_retention_seconds}
        shorter_retention = timedelta(seconds=min(retention_seconds.values()))
        if shorter_retention >= max(needed_if_committed_now, needed_without_commit):
            return
        interval = f"interval {math.ceil(needed_if_committed_now / _HOUR)} hours"
        new_values = {
            name: interval
            for name, seconds in retention_seconds.items()
            if timedelta(seconds=seconds) < needed_if_committed_now
        }
        if not new_values:
            self._log.make_empty_commit()
            return
        note = _read_note(snapshot)
        names_raised_before = [name for name in note["raised"] if _is_unchanged(snapshot, note, name)]
        new_note = {
            "raised": {**{name: note["raised"][name] for name in names_raised_before}, **new_values},
            "before": {
                **{name: snapshot.property_of(name) for name in new_values},
                **{name: note["before"].get(name) for name in names_raised_before},
            },
            "file_retention_seconds": seconds_without_pins(snapshot),
        }
        self._set({**new_values, RETENTION_PROPERTY: json.dumps(new_note)}, snapshot)

    def restore(self) -> None:
        """Restore the properties from before the first pin, except those that another program has changed since."""
        snapshot = self._log.snapshot()
        if snapshot.version < 0 or snapshot.property_of(RETENTION_PROPERTY) is None:
            return
        note = _read_note(snapshot)
        previous_values = {
            name: note["before"].get(name) for name in note["raised"] if _is_unchanged(snapshot, note, name)
        }
        self._set({name: value for name, value in previous_values.items() if value is not None}, snapshot)
        properties_to_unset = [RETENTION_PROPERTY, *(name for name, value in previous_values.items() if value is None)]
        self._alter(f"UNSET TBLPROPERTIES ({', '.join(map(raw_literal, properties_to_unset))})")

    def _set(self, properties: dict[str, str], snapshot: Snapshot) -> None:
        if _FILES in properties and (log_retention := snapshot.property_of(_LOG)) is not None:
            # Delta compares the two properties, and uses the default of one that the statement does not set.
            properties = {_LOG: log_retention, **properties}
        if properties:
            self._alter(f"SET TBLPROPERTIES ({property_list(properties)})")

    def _alter(self, clause: str) -> None:
        try:
            self._spark.sql(f"ALTER TABLE delta.{quoted(self._log.location)} {clause}")
        except JVM_ERRORS as error:
            raise TableError(f"the retention of {self._log.location} was not set: {error_reason(error)}") from error


def seconds_without_pins(snapshot: Snapshot) -> float:
    """Return the seconds that VACUUM would keep removed files if the table had no pins."""
    note = _read_note(snapshot)
    if _is_unchanged(snapshot, note, _FILES):
        return float(note["file_retention_seconds"])
    return snapshot.file_retention_seconds


def _is_unchanged(snapshot: Snapshot, note: dict[str, Any], name: str) -> bool:
    """Return whether a property still has the value to which a pin raised it."""
    return name in note["raised"] and snapshot.property_of(name) == note["raised"][name]


def _age_at_expiry(pin: Pin, location: str) -> timedelta:
    """Return the age that the pinned version of a table has when the pin expires."""
    try:
        return pin.expires_at - pin.of(location).committed_at
    except PinError:
        # The table is a copy of the pin's table. The pin keeps no files of the copy.
        return timedelta()


def _read_note(snapshot: Snapshot) -> dict[str, Any]:
    text = snapshot.property_of(RETENTION_PROPERTY)
    return {"raised": {}, "before": {}, **({} if text is None else json.loads(text))}
