"""The demo's parts that need no Spark: the data, the folder, the board, the picture and the report."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest
from arro3.core import Array, DataType, Table
from deltalake import write_deltalake
from matplotlib.image import imread
from rich.console import Console

from lock_manager import SettingsError
from sluice.audit.log_files import LogCommit
from sluice.demo.flights import KEY, NUMBERS, Contents, deal_flights, find_flights, read_contents
from sluice.demo.outcome import Outcome, judge
from sluice.demo.progress import Board, show_board
from sluice.demo.records import AcknowledgedCommit, Writer
from sluice.demo.report import print_comparison, print_outcome, print_stderr_tail, write_report
from sluice.demo.run import DemoOptions, Load, _Demo, _print_files, _report_comparison, _report_load
from sluice.demo.services import Store, clear_output, open_store
from sluice.demo.timeline import Lanes, draw_timeline, timeline_figure
from sluice.errors import FlightsError, OutputFolderError
from sluice.local.s3 import LocalS3


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_every_flight_is_dealt_to_exactly_one_writer(tmp_path: Path) -> None:
    paths, contents = deal_flights(tmp_path, 3, limit=10_000)
    files = [read(path) for path in paths]
    assert [len(rows) for rows in files] == [3333, 3333, 3334]
    rows = [row for file in files for row in file]
    assert [tuple(row[name] for name in KEY) for row in rows] == list(contents.keys)
    delays = [int(row["arr_delay"]) for row in rows if row["arr_delay"]]
    assert contents.sums["arr_delay"] == (len(delays), sum(delays))
    assert 0 < len(delays) < contents.rows == 10_000
    assert not any("NA" in row.values() for row in rows)


def test_a_limit_beyond_the_data_set_takes_all_of_it(tmp_path: Path) -> None:
    # Nothing but the header would be left to read after the last flight.
    (path,), contents = deal_flights(tmp_path, 1, limit=10**9)
    assert contents.rows == len(contents.keys) == 336_776
    assert contents.sums["distance"] == (336_776, 350_217_607)
    with path.open() as stream:
        assert sum(1 for _ in stream) == 336_777


def test_what_is_read_back_from_a_table_is_what_was_dealt(tmp_path: Path) -> None:
    (path,), contents = deal_flights(tmp_path, 1, limit=500)
    rows = read(path)
    columns: dict[str, Any] = {name: Array([row[name] for row in rows], type=DataType.string()) for name in KEY}
    for name in NUMBERS:
        columns[name] = Array([int(row[name]) if row[name] else None for row in rows], type=DataType.int32())
    write_deltalake(tmp_path / "table", Table.from_pydict(columns))
    assert read_contents(str(tmp_path / "table"), {}) == contents


def test_a_missing_data_set_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FlightsError, match=r"pip install '\.\[cli\]'"):
        find_flights()


def test_the_output_folder_is_cleared_only_if_a_demo_made_it(tmp_path: Path) -> None:
    folder = clear_output(tmp_path / "build" / "demo")
    for name in ("report.json", "timeline.png", "comparison.png"):
        (folder / name).write_text("{}")
    assert clear_output(folder) == folder
    assert len(list(folder.iterdir())) == 4, "a second demo that fails leaves the earlier results"
    (folder / "logs").mkdir()
    (folder / "notes.txt").write_text("added by a person")
    clear_output(folder)
    assert not (folder / "logs").exists()
    assert (folder / "notes.txt").exists()
    precious = tmp_path / "thesis.tex"
    precious.write_text("years of work")
    with pytest.raises(OutputFolderError, match="choose another --output"):
        clear_output(tmp_path)
    assert precious.read_text() == "years of work"
    with pytest.raises(OutputFolderError, match="cannot be used"):
        clear_output(precious)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({}, {"no_proxy": "", "NO_PROXY": ""}),
        ({"NO_PROXY": "a,b"}, {"no_proxy": "a,b,", "NO_PROXY": "a,b,"}),
        ({"no_proxy": "a", "NO_PROXY": "b"}, {"no_proxy": "a,", "NO_PROXY": "b,"}),
    ],
)
def test_no_proxy_is_asked_for_the_embedded_s3(
    given: dict[str, str], kept: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(LocalS3, "start", lambda self: self)
    monkeypatch.setattr(LocalS3, "create_bucket", lambda *_: None)
    monkeypatch.setattr(LocalS3, "endpoint", "http://127.0.0.1:1")
    wanted = {name: value + "127.0.0.1,localhost" for name, value in kept.items()}
    with open_store("s3", tmp_path) as store:
        assert {name: store.environment[name] for name in wanted} == wanted
        assert {name: os.environ[name] for name in wanted} == wanted
    assert {name: os.environ[name] for name in wanted if name in os.environ} == given


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"writers": 0}, "--writers 0"),
        ({"commits": 4}, "--commits 4"),
        ({"rows": 39}, "--rows 39"),
        ({"storage": "local", "bucket": "scratch"}, "--s3-endpoint and --bucket are for --storage s3"),
        ({"s3_endpoint": "localhost:9000"}, "--s3-endpoint localhost:9000: give http://HOST:PORT or https://HOST"),
    ],
)
def test_a_demo_that_cannot_be_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        DemoOptions(**wrong)


def test_commits_are_shared_out_evenly() -> None:
    assert DemoOptions().shares == [8, 8, 8, 8, 8]
    assert DemoOptions(writers=3, commits=11).shares == [3, 4, 4]


def load(*, locked: bool) -> list[Writer]:
    writers = [Writer(1, 1000.0), Writer(2, 1000.5)]
    for number in range(6):
        began = 1010.0 + 2 * number
        done = AcknowledgedCommit(
            writer=number % 2 + 1, commit_id=f"c{number}", rows=100, requested_at=began - 1,
            acquired_at=began if locked else None, released_at=began + 1.5,
        )  # fmt: skip
        writers[number % 2].commits.append(done)
    return writers


def finished(*, locked: bool) -> tuple[list[Writer], Outcome]:
    writers = load(locked=locked)
    for writer in writers:
        writer.end(0, 1030.0)
    return writers, judge(writers, [], Contents(), Contents(), locked=locked, commits_planned=6, wall_seconds=30.0)


def png_size(path: Path) -> tuple[int, ...]:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", content[16:24])


def test_the_picture_has_a_lane_for_each_writer_and_one_for_the_lock(tmp_path: Path) -> None:
    writers, _ = finished(locked=True)
    writers[0].retried_at.append(1012.0)
    one = Lanes("one", writers, locked=True)
    other = Lanes("other", load(locked=False), locked=False, lost=["c3"])
    assert one.names == ["writer 1", "writer 2", "the lock"]
    assert other.names == ["writer 1", "writer 2"]
    assert (one.seconds, other.seconds) == (30.0, 21.5)
    draw_timeline(tmp_path / "one.png", [one])
    draw_timeline(tmp_path / "both.png", [one, other])
    assert png_size(tmp_path / "one.png")[0] == png_size(tmp_path / "both.png")[0] == 1650
    assert png_size(tmp_path / "one.png")[1] < png_size(tmp_path / "both.png")[1]


def test_every_hold_is_drawn(tmp_path: Path) -> None:
    writers = [Writer(1, 1000.0), Writer(2, 1000.0)]
    for number in range(6):
        moment = 1100.0 + 100 * number
        commit = AcknowledgedCommit(
            writer=2, commit_id=f"c{number}", rows=1, requested_at=moment, acquired_at=moment, released_at=moment + 0.01
        )
        writers[1].commits.append(commit)
    writers[1].end(0, 2000.0)
    draw_timeline(tmp_path / "holds.png", [Lanes("holds", writers, locked=True)])
    assert columns_with(tmp_path / "holds.png", "#E69F00") >= 6, "one for each hold of 10 ms in 1000 s"


def columns_with(path: Path, colour: str) -> int:
    """Count the columns of pixels that have a colour."""
    picture = imread(path)[..., :3]
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return int((abs(picture - channels) < 0.06).all(axis=2).any(axis=0).sum())


def test_the_title_counts_the_conflicts_that_are_drawn_and_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commit ``unknown`` is in the log, but no writer reported it."""
    log = [
        LogCommit(version=number, user_metadata=json.dumps({"rival": {"commit_id": name}}), read_version=read)
        for number, (name, read) in enumerate([("c0", None), ("c1", 0), ("c2", 0), ("unknown", 0), ("c3", 1)])
    ]
    loads = {}
    for locked in (True, False):
        writers = load(locked=locked)
        outcome = judge(writers, log, Contents(), Contents(), locked=locked, commits_planned=6, wall_seconds=30.0)
        loads[locked] = Load("flights", writers, outcome)
    drawn: list[Lanes] = []
    monkeypatch.setattr("sluice.demo.run.draw_timeline", lambda _, lanes: drawn.extend(lanes))
    demo = _Demo(DemoOptions(), Console(file=io.StringIO()), tmp_path, [], Contents(), Store(str(tmp_path), ""))
    _report_comparison(demo, loads[True], loads[False])
    with_lock, without_lock = timeline_figure(drawn).axes
    assert "conflict" not in with_lock.get_title(loc="left")
    assert without_lock.get_title(loc="left").endswith("3 conflicts, 1 of them not acknowledged")
    marks = [line for line in without_lock.lines if line.get_marker() == "x"]
    assert sum(len(line.get_xydata()) for line in marks) == 2


def test_a_demo_keeps_an_earlier_comparison_and_says_so(tmp_path: Path) -> None:
    writers, outcome = finished(locked=True)
    out = io.StringIO()
    console = Console(file=out, width=400)
    demo = _Demo(DemoOptions(), console, tmp_path, [], Contents(), Store(str(tmp_path), ""))
    (tmp_path / "comparison.png").touch()
    _report_load(demo, Load("flights", writers, outcome))
    lines = []
    for compare in (False, True):
        _print_files(tmp_path, console, compare=compare)
        lines.append(out.getvalue().splitlines()[-1])
    files = f"Left in {tmp_path}: "
    assert f"{files}report.json, timeline.png" in out.getvalue().splitlines()
    assert lines == ["comparison.png is of an earlier demo", f"{files}comparison.png, report.json, timeline.png"]


def test_a_load_in_which_nothing_succeeded_can_be_drawn(tmp_path: Path) -> None:
    writer = Writer(1, 1000.0)
    writer.end(3, 1004.0)
    draw_timeline(tmp_path / "t.png", [Lanes("nothing", [writer], locked=True)])
    assert png_size(tmp_path / "t.png")[0] == 1650


def test_off_a_terminal_progress_is_told_in_lines() -> None:
    out = io.StringIO()
    writers = load(locked=True)
    writers[0].apply({"event": "begun", "begun_at": 1.0}, 1.0)
    with show_board(Board("loading", writers, [4, 4], 1000), Console(file=out, width=60)) as refresh:
        for _ in range(5):
            refresh()
        assert out.getvalue() == ""  # a line every ten seconds, not for every refresh
        writers[0].end(0, 2.0)
    assert out.getvalue().splitlines() == ["0 s: 6 of 8 commits, 600 of 1,000 rows; starting Spark: 2; done: 1"]


def test_on_a_terminal_the_board_shows_every_writer() -> None:
    out = io.StringIO()
    writers = load(locked=True)
    writers[0].apply({"event": "holding", "acquired_at": 1.0}, 1.0)
    writers[1].end(4, 2.0)
    with show_board(
        Board("loading", writers, [4, 3], 1000), Console(file=out, width=100, force_terminal=True)
    ) as refresh:
        refresh()
    text = out.getvalue()
    for words in ("COMMITTING", "FAILED", "3/4", "3/3", "300", "6 of 7 commits, 600 of 1,000 rows"):
        assert words in text


def test_the_outcome_is_printed_with_its_problems_and_reported_as_json(tmp_path: Path) -> None:
    writers, outcome = finished(locked=True)
    assert not outcome.ok  # the log is empty: all six are lost
    out = io.StringIO()
    console = Console(file=out, width=100)
    print_outcome(outcome, console)
    print_stderr_tail(writers[0], ["append.py: the lock was not acquired"], console)
    text = out.getvalue()
    for words in (
        "acknowledged commits that are missing",
        "FAILED",
        "problem: 6 acknowledged commits not in the log",
        "was not acquired",
    ):
        assert words in text
    write_report(tmp_path / "report.json", {"storage": "s3"}, outcome, writers)
    report = json.loads((tmp_path / "report.json").read_text())
    for name in (
        "writers", "rows_expected", "rows_found", "duplicate_rows", "commits_acknowledged", "commits_in_log",
        "lost_commits", "conflicts", "overlapping_holds", "wall_seconds", "storage",
    ):  # fmt: skip
        assert name in report
    assert [commit["commit_id"] for commit in report["commits"]] == [f"c{number}" for number in range(6)]


def test_a_comparison_is_printed_side_by_side() -> None:
    _, locked = finished(locked=True)
    writers, _ = finished(locked=False)
    writers[0].retried_at += [1011.0, 1012.0]
    rival = judge(writers, [], Contents(), Contents(), locked=False, commits_planned=6, wall_seconds=99.0)
    out = io.StringIO()
    print_comparison(locked, rival, Console(file=out, width=100))
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "wall time, s 30.0 99.0" in lines
    assert "writes done again by the job (retries) - 2" in lines


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize(
    ("columns", "said"),
    [(("other",), "has no column 'time_hour'"), (KEY, "year")],
    ids=["verify_table raises", "read_contents raises"],
)
def test_a_table_that_cannot_be_read_back_is_a_problem_and_is_reported(
    tmp_path: Path, columns: tuple[str, ...], said: str, *, locked: bool
) -> None:
    rows = Table.from_pydict({name: Array(["a"], type=DataType.string()) for name in columns})
    (tmp_path / "tables").mkdir()
    write_deltalake(tmp_path / "tables" / "flights", rows)
    store = Store(f"file:{tmp_path / 'tables'}", "")
    out = io.StringIO()
    demo = _Demo(DemoOptions(writers=2, commits=6), Console(file=out), tmp_path, [], Contents(), store)
    writers, _ = finished(locked=locked)
    load = demo._judge(store.table("flights"), writers, locked=locked)
    told = [problem for problem in load.outcome.problems if problem.startswith("the table cannot be read back: ")]
    assert len(told) == 1
    assert said in told[0]
    if locked:
        _report_load(demo, load)
    else:
        _report_comparison(demo, load, load)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"] is False
    assert told[0] in report["problems"]
    assert told[0] in out.getvalue()
