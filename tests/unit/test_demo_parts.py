"""Parts of the demo that need no Spark: data, output folder, progress board, pictures and reports."""

from __future__ import annotations

import csv
import io
import json
import os
import struct
from collections.abc import Sequence
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


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_flight_goes_to_exactly_one_writer(tmp_path: Path) -> None:
    paths, contents = deal_flights(tmp_path, 3, limit=10_000)
    files = [read_csv(path) for path in paths]
    assert [len(rows) for rows in files] == [3333, 3333, 3334]
    rows = [row for file in files for row in file]
    assert [tuple(row[name] for name in KEY) for row in rows] == list(contents.keys)
    delays = [int(row["arr_delay"]) for row in rows if row["arr_delay"]]
    assert contents.sums["arr_delay"] == (len(delays), sum(delays))
    assert 0 < len(delays) < contents.rows == 10_000
    assert not any("NA" in row.values() for row in rows)


@pytest.mark.full
def test_a_limit_larger_than_the_data_set_takes_all_flights(tmp_path: Path) -> None:
    (path,), contents = deal_flights(tmp_path, 1, limit=10**9)
    assert contents.rows == len(contents.keys) == 336_776
    assert contents.sums["distance"] == (336_776, 350_217_607)
    with path.open() as file:
        assert sum(1 for _ in file) == 336_777


def test_contents_of_the_table_equal_the_contents_of_the_files(tmp_path: Path) -> None:
    (path,), contents = deal_flights(tmp_path, 1, limit=500)
    rows = read_csv(path)
    columns: dict[str, Any] = {name: Array([row[name] for row in rows], type=DataType.string()) for name in KEY}
    for name in NUMBERS:
        columns[name] = Array([int(row[name]) if row[name] else None for row in rows], type=DataType.int32())
    write_deltalake(tmp_path / "table", Table.from_pydict(columns))
    assert read_contents(str(tmp_path / "table"), {}) == contents


def test_the_error_for_a_missing_data_set_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FlightsError, match=r"pip install '\.\[cli\]'"):
        find_flights()


def test_only_an_output_folder_of_a_demo_is_cleared(tmp_path: Path) -> None:
    folder = clear_output(tmp_path / "build" / "demo")
    for name in ("report.json", "timeline.png", "comparison.png"):
        (folder / name).write_text("{}")
    assert clear_output(folder) == folder
    assert len(list(folder.iterdir())) == 4, "the start of a second demo removed earlier results or added files"
    (folder / "logs").mkdir()
    (folder / "notes.txt").write_text("added by a person")
    clear_output(folder)
    assert not (folder / "logs").exists()
    assert (folder / "notes.txt").exists()
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("years of work")
    with pytest.raises(OutputFolderError, match="choose another --output"):
        clear_output(tmp_path)
    assert thesis.read_text() == "years of work"
    with pytest.raises(OutputFolderError, match="cannot be used"):
        clear_output(thesis)


@pytest.mark.parametrize(
    ("variables", "expected_prefixes"),
    [
        ({}, {"no_proxy": "", "NO_PROXY": ""}),
        ({"NO_PROXY": "a,b"}, {"no_proxy": "a,b,", "NO_PROXY": "a,b,"}),
        ({"no_proxy": "a", "NO_PROXY": "b"}, {"no_proxy": "a,", "NO_PROXY": "b,"}),
    ],
)
def test_the_embedded_s3_is_excluded_from_proxies(
    variables: dict[str, str], expected_prefixes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(LocalS3, "start", lambda self: self)
    monkeypatch.setattr(LocalS3, "create_bucket", lambda *_: None)
    monkeypatch.setattr(LocalS3, "endpoint", "http://127.0.0.1:1")
    expected = {name: prefix + "127.0.0.1,localhost" for name, prefix in expected_prefixes.items()}
    with open_store("s3", tmp_path) as store:
        assert {name: store.environment[name] for name in expected} == expected
        assert {name: os.environ[name] for name in expected} == expected
    assert {name: os.environ[name] for name in expected if name in os.environ} == variables


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"writers": 0}, "--writers 0"),
        ({"commits": 4}, "--commits 4"),
        ({"rows": 39}, "--rows 39"),
        ({"storage": "local", "bucket": "scratch"}, "--s3-endpoint and --bucket are for --storage s3"),
        ({"storage": "local", "coordinator": "s3-lease"}, "--coordinator s3-lease keeps the locks on S3"),
        ({"hdfs": "hdfs://lake/scratch", "coordinator": "s3-lease"}, "omit --storage local, --s3-endpoint"),
        ({"hdfs": "hdfs://lake"}, "--hdfs hdfs://lake: give hdfs://SERVICE/FOLDER"),
        ({"s3_endpoint": "localhost:9000"}, "--s3-endpoint localhost:9000: give http://HOST:PORT or https://HOST"),
    ],
)
def test_an_impossible_demo_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        DemoOptions(**options)


def test_writers_get_equal_shares_of_the_commits() -> None:
    assert DemoOptions().commits_per_writer == [8, 8, 8, 8, 8]
    assert DemoOptions(writers=3, commits=11).commits_per_writer == [3, 4, 4]


def loading_writers(*, locked: bool) -> list[Writer]:
    """Return two running writers with three commits each."""
    writers = [Writer(1, 1000.0), Writer(2, 1000.5)]
    for number in range(6):
        start = 1010.0 + 2 * number
        commit = AcknowledgedCommit(
            writer=number % 2 + 1, commit_id=f"c{number}", rows=100, requested_at=start - 1,
            acquired_at=start if locked else None, released_at=start + 1.5,
        )  # fmt: skip
        writers[number % 2].commits.append(commit)
    return writers


def outcome_of(writers: list[Writer], *, locked: bool, log: Sequence[LogCommit] = (), seconds: float = 30.0) -> Outcome:
    return judge(writers, list(log), Contents(), Contents(), locked=locked, commits_planned=6, wall_seconds=seconds)


def finished_load(*, locked: bool) -> Load:
    writers = loading_writers(locked=locked)
    for writer in writers:
        writer.end(0, 1030.0)
    return Load("flights", writers, outcome_of(writers, locked=locked))


def new_demo(folder: Path, *, width: int = 80, **options: Any) -> tuple[_Demo, io.StringIO]:
    """Return a demo with tables in a folder, and its output of this width."""
    output = io.StringIO()
    console = Console(file=output, width=width)
    return _Demo(DemoOptions(**options), console, folder, [], Contents(), Store(f"file:{folder}", "")), output


def png_size(path: Path) -> tuple[int, ...]:
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", content[16:24])


def test_the_picture_has_a_lane_for_each_writer_and_the_lock(tmp_path: Path) -> None:
    writers = finished_load(locked=True).writers
    writers[0].retried_at.append(1012.0)
    locked = Lanes("locked", writers, locked=True)
    unlocked = Lanes("unlocked", loading_writers(locked=False), locked=False, lost=["c3"])
    assert locked.names == ["writer 1", "writer 2", "the lock"]
    assert unlocked.names == ["writer 1", "writer 2"]
    assert (locked.seconds, unlocked.seconds) == (30.0, 21.5)
    draw_timeline(tmp_path / "locked.png", [locked])
    draw_timeline(tmp_path / "comparison.png", [locked, unlocked])
    assert png_size(tmp_path / "locked.png")[0] == png_size(tmp_path / "comparison.png")[0] == 1650
    assert png_size(tmp_path / "locked.png")[1] < png_size(tmp_path / "comparison.png")[1]


def test_the_picture_shows_every_hold(tmp_path: Path) -> None:
    writers = [Writer(1, 1000.0), Writer(2, 1000.0)]
    for number in range(6):
        start = 1100.0 + 100 * number
        commit = AcknowledgedCommit(
            writer=2, commit_id=f"c{number}", rows=1, requested_at=start, acquired_at=start, released_at=start + 0.01
        )
        writers[1].commits.append(commit)
    writers[1].end(0, 2000.0)
    draw_timeline(tmp_path / "holds.png", [Lanes("holds", writers, locked=True)])
    pixels = imread(tmp_path / "holds.png")[..., :3]
    writer_2_colour = [channel / 255 for channel in bytes.fromhex("E69F00")]
    columns = (abs(pixels - writer_2_colour) < 0.06).all(axis=2).any(axis=0).sum()
    assert columns >= 6, "a hold of 10 ms in 1000 s has no column of pixels"


def test_the_title_counts_all_and_unacknowledged_conflicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit ``unknown`` is in the log, but no writer reported it."""
    log = [
        LogCommit(version=number, user_metadata=json.dumps({"rival": {"commit_id": name}}), read_version=read_version)
        for number, (name, read_version) in enumerate([("c0", None), ("c1", 0), ("c2", 0), ("unknown", 0), ("c3", 1)])
    ]
    loads = []
    for locked in (True, False):
        writers = loading_writers(locked=locked)
        loads.append(Load("flights", writers, outcome_of(writers, locked=locked, log=log)))
    drawn_lanes: list[Lanes] = []
    monkeypatch.setattr("sluice.demo.run.draw_timeline", lambda _, lanes: drawn_lanes.extend(lanes))
    demo, _ = new_demo(tmp_path)
    _report_comparison(demo, *loads)
    with_lock, without_lock = timeline_figure(drawn_lanes).axes
    assert "conflict" not in with_lock.get_title(loc="left")
    assert without_lock.get_title(loc="left").endswith("3 conflicts, 1 of them not acknowledged")
    marks = [line for line in without_lock.lines if line.get_marker() == "x"]
    assert sum(len(line.get_xydata()) for line in marks) == 2


def test_a_demo_names_an_earlier_comparison_that_it_keeps(tmp_path: Path) -> None:
    demo, output = new_demo(tmp_path, width=400)
    (tmp_path / "comparison.png").touch()
    _report_load(demo, finished_load(locked=True))
    last_lines = []
    for compare in (False, True):
        _print_files(tmp_path, demo.console, compare=compare)
        last_lines.append(output.getvalue().splitlines()[-1])
    prefix = f"Files in {tmp_path}: "
    assert f"{prefix}report.json, timeline.png" in output.getvalue().splitlines()
    assert last_lines == ["comparison.png is of an earlier demo", f"{prefix}comparison.png, report.json, timeline.png"]


def test_the_picture_of_a_failed_load_has_the_same_width(tmp_path: Path) -> None:
    writer = Writer(1, 1000.0)
    writer.end(3, 1004.0)
    draw_timeline(tmp_path / "t.png", [Lanes("nothing", [writer], locked=True)])
    assert png_size(tmp_path / "t.png")[0] == 1650


def test_a_short_load_prints_one_progress_line_to_a_file() -> None:
    """A longer load prints a line every 10 s."""
    output = io.StringIO()
    writers = loading_writers(locked=True)
    writers[0].apply({"event": "begun", "begun_at": 1.0}, 1.0)
    with show_board(Board("loading", writers, [4, 4], 1000), Console(file=output, width=60)) as refresh:
        for _ in range(5):
            refresh()
        assert output.getvalue() == ""
        writers[0].end(0, 2.0)
    assert output.getvalue().splitlines() == ["0 s: 6 of 8 commits, 600 of 1,000 rows; starting Spark: 2; done: 1"]


def test_the_board_in_a_terminal_shows_every_writer() -> None:
    output = io.StringIO()
    writers = loading_writers(locked=True)
    writers[0].apply({"event": "holding", "acquired_at": 1.0}, 1.0)
    writers[1].retried_at.append(1.5)
    writers[1].end(4, 2.0)
    console = Console(file=output, width=100, force_terminal=True)
    with show_board(Board("loading", writers, [4, 3], 1000), console) as refresh:
        refresh()
    for words in ("COMMITTING", "FAILED  (1 conflict)", "3/4", "3/3", "300", "6 of 7 commits, 600 of 1,000 rows"):
        assert words in output.getvalue()


def test_the_outcome_is_printed_and_reported_as_json(tmp_path: Path) -> None:
    load = finished_load(locked=True)
    assert not load.outcome.ok  # The log is empty: all six commits are lost.
    output = io.StringIO()
    console = Console(file=output, width=100)
    print_outcome(load.outcome, console)
    print_stderr_tail(load.writers[0], ["append.py: the lock was not acquired"], console)
    for words in (
        "acknowledged commits that are missing",
        "FAILED",
        "problem: 6 acknowledged commits not in the log",
        "was not acquired",
    ):
        assert words in output.getvalue()
    write_report(tmp_path / "report.json", {"storage": "s3"}, load.outcome, load.writers)
    report = json.loads((tmp_path / "report.json").read_text())
    for name in (
        "writers", "rows_expected", "rows_found", "duplicate_rows", "commits_acknowledged", "commits_in_log",
        "lost_commits", "conflicts", "overlapping_holds", "wall_seconds", "storage",
    ):  # fmt: skip
        assert name in report
    assert [commit["commit_id"] for commit in report["commits"]] == [f"c{number}" for number in range(6)]


def test_a_comparison_is_printed_side_by_side() -> None:
    writers = finished_load(locked=False).writers
    writers[0].retried_at += [1011.0, 1012.0]
    unlocked = outcome_of(writers, locked=False, seconds=99.0)
    output = io.StringIO()
    print_comparison(finished_load(locked=True).outcome, unlocked, Console(file=output, width=100))
    lines = [" ".join(line.split()) for line in output.getvalue().splitlines()]
    assert "wall time, s 30.0 99.0" in lines
    assert "writes repeated by the job (retries) - 2" in lines


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize(
    ("columns", "message"),
    [(("other",), "has no column 'time_hour'"), (KEY, "year")],
    ids=["verify_table raises", "read_contents raises"],
)
def test_a_table_that_cannot_be_read_is_a_reported_problem(
    tmp_path: Path, columns: tuple[str, ...], message: str, *, locked: bool
) -> None:
    rows = Table.from_pydict({name: Array(["a"], type=DataType.string()) for name in columns})
    write_deltalake(tmp_path / "flights", rows)
    demo, output = new_demo(tmp_path, writers=2, commits=6)
    load = demo._judge("flights", finished_load(locked=locked).writers, locked=locked)
    [problem] = [problem for problem in load.outcome.problems if problem.startswith("the table cannot be read back: ")]
    assert message in problem
    if locked:
        _report_load(demo, load)
    else:
        _report_comparison(demo, load, load)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["ok"] is False
    assert problem in report["problems"]
    assert problem in output.getvalue()
