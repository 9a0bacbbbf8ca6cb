"""The feeds and the verdict of a mixed soak. A feed expects the rows that its messages give if applied in order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from soak.mixed.command import is_good, summary
from soak.mixed.feeds import APPEND, CDC, FEEDS, STREAM, UPSERT, Feed
from soak.mixed.retention import RetentionErrors, apply_change_feed
from soak.mixed.run import Job, Outcome, _subtract

COMPLETE_RUN: dict[str, Any] = {"missing": 0, "surplus": 0, "rows": 9, "versions": 3, "drained": True}
"""Fields of an outcome whose table has the expected rows."""


def read_messages(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.json")) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", [UPSERT, STREAM, CDC])
def test_expected_rows_are_the_newest_messages(name: str, tmp_path: Path) -> None:
    feed = Feed(name, tmp_path / name, 7)
    for number in range(5):
        feed.write(200, is_last=number == 4)
    newest: dict[tuple[int, int], tuple[int, dict[str, Any] | None]] = {}
    messages = read_messages(tmp_path / name)
    for message in messages:
        value = message["value"] if name == CDC else None
        row = message if value is None else value["after"]
        position = message["position"] if value is None else value["source"]["position"]
        key = message if value is None else message["key"]
        current = newest.get((key["month"], key["id"]))
        if current is None or position > current[0]:
            newest[key["month"], key["id"]] = position, row
    rows = [tuple(row.values()) for _, row in newest.values() if row is not None]
    assert sorted(rows, key=repr) == feed.expected_rows()
    # Some messages are repetitions, updates or deletes.
    texts = [json.dumps(message) for message in messages]
    assert len(set(texts)) < len(texts)
    if name != STREAM:
        assert len(newest) < len(set(texts))
    if name == CDC:
        assert any(row is None for _, row in newest.values())


def test_appended_rows_are_expected_once(tmp_path: Path) -> None:
    feed = Feed(APPEND, tmp_path, 1)
    paths = [feed.write(50), feed.write(50)]
    rows = [row for path in paths for row in parquet.read_table(path).to_pylist()]
    assert [row["id"] for row in rows] == list(range(1, 101))
    assert len(feed.expected_rows()) == 100
    assert rows[0]["at"].isoformat().replace("+00:00", "Z") in {row[4] for row in feed.expected_rows()}


def test_a_seed_determines_the_expected_rows(tmp_path: Path) -> None:
    for name in FEEDS:
        feeds = [Feed(name, tmp_path / folder / name, 3) for folder in ("one", "two")]
        for feed in feeds:
            feed.write(30)
        assert feeds[0].expected_rows() == feeds[1].expected_rows()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, True), ({"missing": 1}, False), ({"surplus": 1}, False), ({"drained": False}, False), ("failed", False)],
)
def test_wrong_rows_and_failures_are_not_good(changes: Any, expected: bool) -> None:  # noqa: FBT001 (test parameter)
    job = Job("append", failures=["exit code 5"] if changes == "failed" else [])
    fields = COMPLETE_RUN if changes == "failed" else COMPLETE_RUN | changes
    outcome = Outcome(jobs=(job,), lag=((1.0, 2.0), (3.0, 9.0)), **fields)
    assert is_good(outcome) == expected
    assert summary(outcome)["lag_max_s"] == 9.0


def test_errors_of_maintenance_are_not_good() -> None:
    outcome = Outcome(jobs=(Job("append"),), lag=(), retention=RetentionErrors(0, 0, 0), **COMPLETE_RUN)
    assert is_good(outcome)
    for errors in ((1, 0, 0), (0, 1, 0), (0, 0, 1)):
        assert not is_good(replace(outcome, retention=RetentionErrors(*errors)))


def test_a_change_feed_is_applied_in_order() -> None:
    def change(version: int, change_type: str, key: int, delay: int | None = None) -> dict[str, Any]:
        row = {"feed": "cdc", "month": 1, "id": key, "position": version, "at": "2013-01-01T00:00:00.000Z"}
        # Spark omits null values.
        row |= {"carrier": "UA"} | ({} if delay is None else {"delay": delay})
        return {**row, "_commit_version": version, "_change_type": change_type}

    def row(key: int, position: int, delay: int | None) -> Any:
        return ("cdc", 1, key, position, "2013-01-01T00:00:00Z", "UA", delay)

    changes = [
        change(3, "insert", 1),
        change(2, "update_postimage", 7, 5),
        change(2, "update_preimage", 7, 4),
        change(2, "delete", 8),
        change(3, "delete", 1),
    ]
    rows = [row(7, 1, 4), row(8, 1, None), row(9, 1, None)]
    assert sorted(apply_change_feed(rows, changes), key=repr) == [row(1, 3, None), row(7, 2, 5), row(9, 1, None)]
    assert apply_change_feed(rows, []) == rows


def test_a_duplicate_row_is_surplus() -> None:
    row = ("append", 1, 1, 1, "2013-01-01T00:00:00Z", "UA", None)
    assert _subtract([row, row], [row]) == [row]
    assert _subtract([row], [row, row]) == []
