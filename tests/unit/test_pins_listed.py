"""`sluice pins` prints complete locations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from lock_manager.table_records.pins import Pin, PinnedTable
from sluice import pins
from sluice.audit.pins import PinStatus


def test_locations_are_not_cut_at_80_columns(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    table = f"s3://lake/{'departures/' * 6}flights"
    now = datetime.now(UTC)
    pinned_table = PinnedTable(
        table=table, location=table, table_id="t", version=17, committed_at=now, passed_version=None, event_time=None
    )
    expires_at = now + timedelta(days=1)
    pin = Pin(name="2013-01", pin_id="p", at=None, tables=(pinned_table,), created_at=now, expires_at=expires_at)
    monkeypatch.setattr(pins, "examine_pins", lambda *_: ([PinStatus(pin, has_expired=False, problem=None)], []))
    for columns in (None, "80"):
        if columns:
            monkeypatch.setenv("COLUMNS", columns)
        assert pins.print_pins(str(tmp_path), {}, as_json=False)
        assert f"{table} @17" in capsys.readouterr().out
