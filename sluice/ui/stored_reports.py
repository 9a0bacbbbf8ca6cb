"""The report of the last ``maintain.py``, with the storage health of each table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import cattrs

from lock_manager.errors import ResourceError
from lock_manager.resources import canonical_table_uri
from sluice.audit.log_folder import open_log
from sluice.errors import CommandError
from writer_jobs.maintenance.findings import RENAMED_CODES, Finding
from writer_jobs.maintenance.health import FileTotals
from writer_jobs.maintenance.result import MaintenanceReport, UnitResult


@dataclass(frozen=True)
class StoredReports:
    """The content of a report.

    Attributes:
        reports: Reports by table.
        failures: Why the maintenance of a table failed, by table.

    """

    reports: Mapping[str, MaintenanceReport] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)


#: No report.
NO_REPORTS = StoredReports()


class ReportFile:
    """A file that ``maintain.py --report`` writes.

    Args:
        uri: Its location: ``s3a://…``, ``file:…`` or a path.
        storage_options: Options of ``deltalake``.

    Raises:
        LogAccessError: The location is a URI of another scheme.

    """

    def __init__(self, uri: str, storage_options: Mapping[str, str]) -> None:
        self.uri = uri if ":" in uri.partition("/")[0] else str(Path(uri).absolute())
        folder, _, self._name = self.uri.rpartition("/")
        self._folder = open_log(folder or "/", storage_options, folder="")
        self._content: bytes | None = None
        self._reports = NO_REPORTS

    def read(self) -> StoredReports:
        """Return the content; the same object as before if the file is unchanged.

        Raises:
            LogAccessError: The file cannot be read.
            CommandError: It is no report of ``maintain.py``.

        """
        content = self._folder.read(self._name)
        if content != self._content:
            try:
                self._reports = _parse(json.loads(content))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise CommandError(f"{self.uri} is no report of this release's maintain.py: {error!r}") from error
            self._content = content
        return self._reports


def _parse(document: Mapping[str, Any]) -> StoredReports:
    reports, failures = {}, {}
    for entry in document["tables"]:
        table = str(entry["table"])
        try:
            table = canonical_table_uri(table)
        except ResourceError:
            continue  # a name in the catalog, whose location the job did not find
        if "before" in entry:
            reports[table] = parse_report(entry)
        if "error" in entry:
            failures[table] = str(entry["error"])
    return StoredReports(reports, failures)


def parse_report(document: Mapping[str, Any]) -> MaintenanceReport:
    """Return a report from the JSON values of :meth:`MaintenanceReport.to_json`."""
    return _CONVERTER.structure(document, MaintenanceReport)


def _new_converter() -> cattrs.Converter:
    converter = cattrs.Converter(detailed_validation=False)

    def finding(values: Mapping[str, Any], _: object) -> Finding:
        return structure_finding({**values, "code": RENAMED_CODES.get(values["code"], values["code"])}, Finding)

    def result(values: Mapping[str, Any], _: object) -> UnitResult:
        removed = FileTotals(int(values["files_removed"]), int(values["bytes_removed"]))
        added = FileTotals(int(values["files_added"]), int(values["bytes_added"]))
        return structure_result({**values, "removed": vars(removed), "added": vars(added)}, UnitResult)

    converter.register_structure_hook(datetime, lambda text, _: datetime.fromisoformat(text))
    structure_finding = cattrs.gen.make_dict_structure_fn(
        Finding, converter, message=cattrs.gen.override(rename="says")
    )
    # The JSON has no failure.
    structure_result = cattrs.gen.make_dict_structure_fn(UnitResult, converter, failure=cattrs.gen.override(omit=True))
    converter.register_structure_hook(Finding, finding)
    converter.register_structure_hook(UnitResult, result)
    return converter


_CONVERTER = _new_converter()
