"""The commands of docs/how-to run as they stand, but for the addresses in them, and leave what the page says."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from sluice.sample import write_sample
from writer_jobs import LockedDeltaWriter, locked

pytestmark = pytest.mark.spark

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
HOSTS = "zk1:2181,zk2:2181,zk3:2181"
LOCAL_HOSTS = "127.0.0.1:2181"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL)


def in_a_clone(page: str, folder: Path) -> tuple[list[Callable[[], None]], list[str]]:
    """Return what writes each file of a page below a folder, and the page's ``spark-submit`` lines for that folder."""
    first, *later = blocks(page, "sh")
    assert "sluice zookeeper --port 2181 &" in first, "a page begins with what runs in a clone"
    files = [block for block in later if "cat > " in block]
    jobs = [
        match[0]
        for block in [first, *later]
        for match in re.finditer(r"^spark-submit (.*\\\n)*.*", block, re.MULTILINE)
    ]
    write = [functools.partial(subprocess.run, ["bash", "-ec", block], cwd=folder, check=True) for block in files]
    return write, [re.sub(r"(?<![\w/])(landing|lake)/", rf"{folder}/\1/", job) for job in jobs]


def expanded(word: str) -> list[str]:
    """Expand the asterisk of a file's name, as a shell does."""
    return sorted(map(str, Path(word).parent.glob(Path(word).name))) if "*" in word else [word]


def job_of(command: str, places: dict[str, str]) -> tuple[str, list[str]]:
    """Return the job that a ``spark-submit`` line names, and its arguments, with other places."""
    for written, here in places.items():
        command = command.replace(written, here)
    words = shlex.split(command.replace("$(sluice submit-args)", "").replace("\\\n", " "))
    assert words[0] == "spark-submit"
    arguments = [path for word in words[2:] for path in expanded(word)]
    at = arguments.index("--zookeeper")
    assert arguments[at + 1] in (LOCAL_HOSTS, HOSTS)
    return Path(words[1]).stem, [*arguments[:at], *arguments[at + 2 :]]


@pytest.mark.full
def test_upsert(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
    rows_of: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, feed, _ = blocks("upsert.md", "json")
    files, (command, with_history, as_stream) = in_a_clone("upsert.md", tmp_path)
    lake, landing = tmp_path / "lake", tmp_path / "landing" / "customers"
    table, history, followed = lake / "customers", lake / "customers_history", lake / "customers_now"
    for number, write in enumerate(files, start=1):
        write()
        places = {"/1.json": f"/{number}.json"}
        job, arguments = job_of(command, places)
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        if number == 1:
            assert rows_of(table, "id", "name", "city", "position") == [(1, "Ada", "Tromsø", 107)]
            said = {name: done.lines[-1][name] for name in ("changes", "folded", "inserted", "deleted", "unchanged")}
            assert said == {"changes": 4, "folded": 2, "inserted": 1, "deleted": 0, "unchanged": 1}
        job, arguments = job_of(with_history, places)
        assert run_job(job, *arguments).code == 0
        job, arguments = job_of(as_stream, places)
        done = run_job(job, *arguments)
        assert [(line["batch"], line["lag_s"]) for line in done.commits] == [(number - 1, None)], done.error
    assert rows_of(history, "id", "city", "__START_AT", "__END_AT") == [
        (1, "Oslo", 100, 107), (1, "Tromsø", 107, None), (2, "Bergen", 101, 105), (2, "Stavanger", 105, 109),
        (3, "Oslo", 110, None),
    ]  # fmt: skip
    after = [(1, "Ada", "Tromsø", 107), (3, "Cy", "Oslo", 110)]
    for each in (table, followed):
        assert rows_of(each, "id", "name", "city", "position") == after
    property_of = DeltaTable(table).metadata().configuration["sluice.feed"]
    assert json.loads(property_of) == json.loads(feed)
    unbinding, applying = blocks("upsert.md", "python")
    names = {
        "spark": spark,
        "manager": manager,
        "writer": LockedDeltaWriter(spark, manager, str(table)),
        "changes": spark.read.json(str(landing / "*.json")),
    }
    for code in (unbinding.replace("s3a://lake/customers", str(table)), applying):
        exec(compile(code, "upsert.md", "exec"), names)  # noqa: S102 (our own page)
    assert "'changes': 6" in capsys.readouterr().out
    assert rows_of(table, "id", "name", "city", "position") == after


@pytest.mark.full
def test_cdc(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
    rows_of: Callable[..., Any],
) -> None:
    (counted,) = blocks("cdc.md", "json")
    files, (cells, followed) = in_a_clone("cdc.md", tmp_path)
    for write in files:
        write()
    table, orders, landing = tmp_path / "lake" / "customers", tmp_path / "lake" / "orders", tmp_path / "landing"
    for number in (1, 2):
        job, arguments = job_of(cells, {"cells/1.json": f"cells/{number}.json"})
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        if number == 1:
            said = json.loads(counted.replace(", …", ""))
            assert {name: done.lines[-1][name] for name in said} == said
            assert rows_of(table, "country", "id", "name", "age") == [("no", 17, "Ada!", 36)]
    assert rows_of(table, "country", "id", "name", "age", "m_visits") == [("no", 17, "Ada", 36, "3")]
    (letter,) = spark.read.format("delta").load(f"{table}_dead_letters").collect()
    assert "age" in letter["reason"]
    job, arguments = job_of(followed, {})
    done = run_job(job, *arguments)
    assert (done.code, done.error, done.lines[-1]["skipped"]) == (0, "", 1)
    assert rows_of(orders, "id", "item", "n") == [(1, "tea", 2)]
    (code,) = blocks("cdc.md", "python")
    names: dict[str, Any] = {
        "writer": LockedDeltaWriter(spark, manager, str(table)),
        "cells": spark.read.json(str(landing / "cells" / "2.json")),
        "text": (tmp_path / "lake" / "conf" / "customers.json").read_text(encoding="utf-8"),
    }
    exec(compile(code, "cdc.md", "exec"), names)  # noqa: S102 (our own page)
    assert names["result"].counts["unchanged"] == 2


@pytest.mark.full
def test_stream(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
    rows_of: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    (counted,) = blocks("stream.md", "json")
    files, (command,) = in_a_clone("stream.md", tmp_path)
    table, landing = tmp_path / "lake" / "departures", tmp_path / "landing" / "departures"
    for number, write in enumerate(files, start=1):
        write()
        os.utime(landing / f"{number}.json", (1_700_000_000 + number,) * 2)
    job, arguments = job_of(command, {})
    done = run_job(job, *arguments)
    assert (done.code, done.error) == (0, "")
    said = json.loads(counted.replace(", …", ""))
    assert {name: done.lines[-1][name] for name in said} == said
    after = [("AA1141", 1), ("DL461", 2), ("UA1545", 1)]
    assert rows_of(table, "flight", "version") == after
    assert rows_of(Path(f"{table}_late"), "flight", "version") == [("B6725", 1)]
    (code,) = blocks("stream.md", "python")
    rows = spark.read.json(str(landing / "*.json")).where("flight != 'B6725'")
    names = {
        "writer": LockedDeltaWriter(spark, manager, str(table)),
        "rows": rows.withColumn("departed_at", rows["departed_at"].cast("timestamp")),
    }
    exec(compile(code, "stream.md", "exec"), names)  # noqa: S102 (our own page)
    assert "'repeated': 5" in capsys.readouterr().out
    assert rows_of(table, "flight", "version") == after


@pytest.mark.full
def test_pins(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
    rows_of: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, again = blocks("pins.md", "json")
    in_python, vacuumed = blocks("pins.md", "python")
    (write, write_late), (departures, arrivals, take, read) = in_a_clone("pins.md", tmp_path)
    lake = tmp_path / "lake"

    def ran(command: str) -> Any:
        job, arguments = job_of(command, {})
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        return done

    write()
    for command in (departures, arrivals):
        ran(command)
    for command, page in ((take, made), (read, again)):
        expected = json.loads(page.replace(", …", "")) | {"table": f"file:{lake}/departures"}
        line = next(line for line in ran(command).lines if line["event"] == "pinned")
        assert {name: line[name] for name in expected} == expected
        if command is take:
            write_late()
            ran(departures)
    for name, flights in (("departures", ["DL461", "UA1545"]), ("arrivals", ["UA1545"])):
        assert sorted(rows_of(lake / "january" / name, "flight")) == [(flight,) for flight in flights]

    names = {"spark": spark, "manager": manager}
    for code in (in_python, vacuumed):
        exec(compile(code.replace('"lake/', f'"{lake}/'), "pins.md", "exec"), names)  # noqa: S102 (our own page)
    said_there = capsys.readouterr().out
    assert "2 1\n" in said_there
    assert "|new" in said_there.replace(" ", "")
    assert "pins=('2013-01',), dry_run=False" in said_there


def test_overwrite(run_job: Callable[..., Any], tmp_path: Path, rows_of: Callable[..., Any]) -> None:
    (counted,) = blocks("overwrite.md", "json")
    files, (load, replace, dynamic, everything) = in_a_clone("overwrite.md", tmp_path)
    for write in files:
        write()
    table = tmp_path / "lake" / "departures"
    new = [("B6725", -1), ("DL461", -4)]
    other_day = [("AA1141", 33), ("UA1545", 2)]
    said = json.loads(counted.replace(", …", ""))
    for command, after in ((load, None), (replace, new), (replace, new), (dynamic, new)):
        job, arguments = job_of(command, {})
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        if after is not None:
            assert rows_of(table, "flight", "delay") == sorted([*other_day, *after], key=repr)
        if "--run-id" in arguments:
            assert {name: done.lines[-1][name] for name in said} == said
            said = {"event": "commit", "already_committed": True}
    job, arguments = job_of(everything, {})
    assert run_job(job, *arguments).code == 0
    assert rows_of(table, "flight", "delay") == new


@pytest.mark.full
def test_maintain(
    run_job: Callable[..., Any], spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    (line,), (dag, *_) = blocks("maintain.md", "crontab"), blocks("maintain.md", "python")
    _, (load, look, mend) = in_a_clone("maintain.md", tmp_path)
    _, health, *_ = blocks("maintain.md", "sh")
    measured, made = blocks("maintain.md", "json")
    (policy,) = blocks("maintain.md", "sql")
    table, listed, pages = tmp_path / "lake" / "flights", tmp_path / "tables.txt", tmp_path / "lake" / "health"
    places = {
        "s3a://lake/health/": f"{pages}/",
        "s3a://lake/conf/tables.txt": str(listed),
        "s3a://lake/flights": str(table),
    }
    write_sample(tmp_path / "landing")
    listed.write_text(f"{table}\n", encoding="utf-8")

    def ran(command: str) -> Any:
        job, arguments = job_of(command, places)
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        return done

    assert shlex.split(health)[:3] == ["sluice", "health", "lake/flights"]
    ran(load)
    for command, page, event in ((look, measured, "measured"), (mend, made, "done")):
        said = json.loads(page.replace(", …", ""))
        (found,) = [each for each in ran(command).lines if each["event"] == event]
        assert {name: found[name] for name in said} == said
    assert json.loads((pages / "flights.json").read_text())["tables"][0]["findings"][0]["code"] == "small-files"
    assert (pages / "flights.html").read_text().startswith("<!DOCTYPE html>")
    with locked(spark, str(table), manager=manager):
        spark.sql(policy.replace("s3a://lake/flights", str(table)))
    schedule, command = line.split("cd ", 1)
    assert len(schedule.split()) == 5
    begin = ". .venv/bin/activate && "
    done = ran(command.removeprefix(f"/srv/sluice && {begin}"))
    assert [each["table"] for each in done.lines if each["event"] == "table"] == [f"file:{table}"]
    (bash,) = [each.value for each in ast.walk(ast.parse(dag)) if getattr(each, "arg", "") == "bash_command"]
    ran(ast.literal_eval(bash).removeprefix(begin))
