"""The feeds of a mixed soak: what they say must be in the table is what one message after the other leaves there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from soak.mixed.command import is_good, summary
from soak.mixed.feeds import APPEND, CDC, FEEDS, STREAM, UPSERT, Feed
from soak.mixed.keeps import Spared, rows_after
from soak.mixed.run import Job, Outcome, _without


def messages(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sorted(folder.glob("*.json")) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("name", [UPSERT, STREAM, CDC])
def test_what_is_expected_is_the_newest_of_what_was_written(name: str, tmp_path: Path) -> None:
    feed = Feed(name, tmp_path / name, 7)
    for number in range(5):
        feed.write(200, is_last=number == 4)
    newest: dict[tuple[int, int], tuple[int, dict[str, Any] | None]] = {}
    written = messages(tmp_path / name)
    for message in written:
        value = message["value"] if name == CDC else None
        row = message if value is None else value["after"]
        position = message["position"] if value is None else value["source"]["position"]
        key = message if value is None else message["key"]
        there = newest.get((key["month"], key["id"]))
        if there is None or position > there[0]:
            newest[key["month"], key["id"]] = position, row
    rows = [tuple(row.values()) for _, row in newest.values() if row is not None]
    assert sorted(rows, key=repr) == feed.expected()
    # There is something to get wrong.
    texts = [json.dumps(message) for message in written]
    assert len(set(texts)) < len(texts)
    if name != STREAM:
        assert len(newest) < len(set(texts))
    if name == CDC:
        assert any(row is None for _, row in newest.values())


def test_appended_rows_are_all_there_once(tmp_path: Path) -> None:
    feed = Feed(APPEND, tmp_path, 1)
    paths = [feed.write(50), feed.write(50)]
    read = [row for path in paths for row in parquet.read_table(path).to_pylist()]
    assert [row["id"] for row in read] == list(range(1, 101))
    assert len(feed.expected()) == 100
    assert read[0]["at"].isoformat().replace("+00:00", "Z") in {row[4] for row in feed.expected()}


def test_a_seed_decides_everything(tmp_path: Path) -> None:
    for name in FEEDS:
        one, two = Feed(name, tmp_path / "one" / name, 3), Feed(name, tmp_path / "two" / name, 3)
        one.write(30)
        two.write(30)
        assert one.expected() == two.expected()


@pytest.mark.parametrize(
    ("changes", "good"),
    [({}, True), ({"missing": 1}, False), ({"surplus": 1}, False), ({"drained": False}, False), ("failed", False)],
)
def test_the_verdict(changes: Any, good: bool) -> None:  # noqa: FBT001 (a parameter of the test)
    job = Job("append", failures=["exit code 5"] if changes == "failed" else [])
    right: dict[str, Any] = {"missing": 0, "surplus": 0, "rows": 9, "versions": 3, "drained": True}
    given = right if changes == "failed" else right | changes
    outcome = Outcome(jobs=(job,), lag=((1.0, 2.0), (3.0, 9.0)), **given)
    assert is_good(outcome) == good
    assert summary(outcome)["lag_max_s"] == 9.0


def test_what_is_spared_counts() -> None:
    right: dict[str, Any] = {"missing": 0, "surplus": 0, "rows": 9, "versions": 3, "drained": True, "lag": ()}
    outcome = Outcome(jobs=(Job("append"),), spared=Spared(0, 0, 0), **right)
    assert is_good(outcome)
    for spoilt in (Spared(1, 0, 0), Spared(0, 1, 0), Spared(0, 0, 1)):
        assert not is_good(replace(outcome, spared=spoilt))


def test_changes_make_the_rows_that_they_say() -> None:
    def change(version: int, kind: str, key: int, delay: int | None = None) -> dict[str, Any]:
        row = {"feed": "cdc", "month": 1, "id": key, "position": version, "at": "2013-01-01T00:00:00.000Z"}
        # Spark leaves out what is null.
        row |= {"carrier": "UA"} | ({} if delay is None else {"delay": delay})
        return {**row, "_commit_version": version, "_change_type": kind}

    def row(key: int, position: int, delay: int | None) -> Any:
        return ("cdc", 1, key, position, "2013-01-01T00:00:00Z", "UA", delay)

    changes = [
        change(3, "insert", 1),
        change(2, "update_postimage", 7, 5),
        change(2, "update_preimage", 7, 4),
        change(2, "delete", 8),
        change(3, "delete", 1),
    ]
    begin = [row(7, 1, 4), row(8, 1, None), row(9, 1, None)]
    assert sorted(rows_after(begin, changes), key=repr) == [row(1, 3, None), row(7, 2, 5), row(9, 1, None)]
    assert rows_after(begin, []) == begin


def test_rows_that_are_there_twice_are_surplus() -> None:
    row = ("append", 1, 1, 1, "2013-01-01T00:00:00Z", "UA", None)
    assert _without([row, row], [row]) == [row]
    assert _without([row], [row, row]) == []
