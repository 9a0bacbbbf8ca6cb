"""Tables under maintenance: their findings and the ages of their files."""

from __future__ import annotations

import os
import time
from pathlib import Path

from writer_jobs.maintenance.findings import Finding, find
from writer_jobs.maintenance.measure import Measurement

_HOUR = 3600
_EIGHT_DAYS_HOURS = 24 * 8


def findings_by_code(measurement: Measurement) -> dict[str, Finding]:
    """Return the findings of a measurement by code."""
    return {finding.code: finding for finding in find(measurement.health, measurement.policy)}


def set_file_age(path: Path, hours: float) -> None:
    modified_at = time.time() - hours * _HOUR
    os.utime(path, (modified_at, modified_at))


def age_all_files(table: Path) -> None:
    """Set the age of all files of a table to eight days."""
    for path in table.rglob("*"):
        if path.is_file():
            set_file_age(path, _EIGHT_DAYS_HOURS)
