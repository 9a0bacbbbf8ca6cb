"""The report of maintenance, as `sluice ui` reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sluice.errors import CommandError, LogAccessError
from sluice.ui.stored_reports import ReportFile, parse_report
from tests.unit.test_health_page import health, maintenance_report
from writer_jobs.maintenance.findings import RENAMED_CODES
from writer_jobs.maintenance.policy import Policy
from writer_jobs.maintenance.result import MaintenanceReport

TABLE = "s3://lake/flights"


def stored(report: MaintenanceReport) -> Any:
    """Return the JSON values of a report, as a file has them."""
    return json.loads(json.dumps(report.to_json()))


@pytest.mark.parametrize(
    "report", [maintenance_report(), MaintenanceReport.of(health(), Policy())], ids=["maintained", "measured"]
)
def test_a_report_is_read_as_it_was_written(report: MaintenanceReport) -> None:
    parsed = parse_report(stored(report))
    assert parsed.before == report.before
    assert parsed.after == report.after
    assert [result.to_json() for result in parsed.done] == [result.to_json() for result in report.done]
    assert stored(parsed) == stored(report)


@pytest.mark.parametrize(("old", "new"), RENAMED_CODES.items())
def test_codes_of_earlier_releases_have_their_new_names(old: str, new: str) -> None:
    document = stored(maintenance_report())
    document["findings"][0]["code"] = old
    assert parse_report(document).findings[0].code == new


def test_a_file_has_reports_and_failures_and_is_parsed_once(tmp_path: Path) -> None:
    report = {**stored(maintenance_report()), "table": "s3a://lake/flights/"}
    tables = [
        report,
        {**report, "table": "s3://lake/half", "error": "the lock was lost", "exit_code": 4},
        {"table": "s3://lake/missing", "error": "there is no table", "exit_code": 3},
        {"table": "s3://lake/later", "skipped": "the time budget was used up"},
        {"table": "bronze.unknown", "error": "no such table", "exit_code": 3},
    ]
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"exit_code": 3, "tables": tables}))
    file = ReportFile(str(path), {})
    content = file.read()
    assert content.reports.keys() == {TABLE, "s3://lake/half"}
    assert content.failures == {"s3://lake/half": "the lock was lost", "s3://lake/missing": "there is no table"}
    assert file.read() is content
    path.write_text(json.dumps({"exit_code": None, "tables": []}))
    assert file.read().reports == {}


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"tables": 1}', '{"tables": [{"table": "s3://a/b", "before": {"version": 1}}]}', b"\xff\xfe{"],
)
def test_another_file_is_one_sentence(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    file = ReportFile(str(path), {})
    with pytest.raises(CommandError, match=r"report.json is no report of this release's maintain\.py"):
        file.read()
    path.unlink()
    with pytest.raises(LogAccessError, match="cannot be read: No such file"):
        file.read()


def test_a_relative_path_and_another_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("report.json").write_text('{"tables": []}')
    assert ReportFile("report.json", {}).read().reports == {}
    with pytest.raises(LogAccessError, match="can be read"):
        ReportFile("hdfs://nn/report.json", {})
