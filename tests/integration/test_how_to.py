"""The commands of docs/how-to run as they stand, but for the addresses in them, and leave what the page says."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter, apply_rows, locked

pytestmark = pytest.mark.spark

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
HOSTS = "zk1:2181,zk2:2181,zk3:2181"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL)


def job_of(command: str, places: dict[str, str]) -> tuple[str, list[str]]:
    """Return the job that a ``spark-submit`` line names, and its arguments, with other places."""
    for written, here in places.items():
        command = command.replace(written, here)
    words = shlex.split(command.replace("$(sluice submit-args)", "").replace("\\\n", " "))
    assert words[0] == "spark-submit"
    arguments = words[2:]
    at = arguments.index("--zookeeper")
    assert arguments[at + 1] == HOSTS
    return Path(words[1]).stem, [*arguments[:at], *arguments[at + 2 :]]


def test_upsert(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    table: Path,
    tmp_path: Path,
    rows_of: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, _, second, feed, _ = blocks("upsert.md", "json")
    command, with_history, as_stream = blocks("upsert.md", "sh")
    history, followed, landing = tmp_path / "history", tmp_path / "followed", tmp_path / "landing"
    landing.mkdir()
    for number, text in enumerate((first, second), start=1):
        (landing / f"{number}.json").write_text(text, encoding="utf-8")
        places = {
            "s3a://landing/customers/1.json": str(landing / f"{number}.json"),
            "s3a://landing/customers/": str(landing),
            "s3a://lake/customers_history": str(history),
            "s3a://lake/_streams/customers_now": str(tmp_path / "checkpoint"),
            "s3a://lake/customers_now": str(followed),
            "s3a://lake/customers": str(table),
        }
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


def test_cdc(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    table: Path,
    tmp_path: Path,
    rows_of: Callable[..., Any],
) -> None:
    first, mapping, counted, second, events = blocks("cdc.md", "json")
    cells, followed = blocks("cdc.md", "sh")
    (tmp_path / "mapping.json").write_text(mapping, encoding="utf-8")
    for number, text in enumerate((first, second), start=1):
        (tmp_path / f"{number}.json").write_text(text, encoding="utf-8")
        places = {
            "s3a://landing/cells/1.json": str(tmp_path / f"{number}.json"),
            "s3a://lake/conf/customers.json": str(tmp_path / "mapping.json"),
            "s3a://lake/customers": str(table),
        }
        job, arguments = job_of(cells, places)
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        if number == 1:
            said = json.loads(counted.replace(", …", ""))
            assert {name: done.lines[-1][name] for name in said} == said
            assert rows_of(table, "country", "id", "name", "age") == [("no", 17, "Ada!", 36)]
    assert rows_of(table, "country", "id", "name", "age", "m_visits") == [("no", 17, "Ada", 36, "3")]
    (letter,) = spark.read.format("delta").load(f"{table}_dead_letters").collect()
    assert "age" in letter["reason"]
    orders, landing = tmp_path / "orders", tmp_path / "landing"
    landing.mkdir()
    (landing / "1.json").write_text(events, encoding="utf-8")
    places = {
        "s3a://landing/orders/": str(landing),
        "s3a://lake/_streams/orders": str(tmp_path / "checkpoint"),
        "s3a://lake/orders": str(orders),
    }
    job, arguments = job_of(followed, places)
    done = run_job(job, *arguments)
    assert (done.code, done.error, done.lines[-1]["skipped"]) == (0, "", 1)
    assert rows_of(orders, "id", "item", "n") == [(1, "tea", 2)]
    (code,) = blocks("cdc.md", "python")
    names: dict[str, Any] = {
        "writer": LockedDeltaWriter(spark, manager, str(table)),
        "cells": spark.read.json(str(tmp_path / "2.json")),
        "text": mapping,
    }
    exec(compile(code, "cdc.md", "exec"), names)  # noqa: S102 (our own page)
    assert names["result"].counts["unchanged"] == 2


def test_stream(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    table: Path,
    tmp_path: Path,
    rows_of: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    first, second, counted = blocks("stream.md", "json")
    (command,) = blocks("stream.md", "sh")
    landing = tmp_path / "landing"
    landing.mkdir()
    for number, text in enumerate((first, second), start=1):
        (landing / f"{number}.json").write_text(text, encoding="utf-8")
        os.utime(landing / f"{number}.json", (1_700_000_000 + number,) * 2)
    places = {
        "s3a://landing/departures/": str(landing),
        "s3a://lake/departures": str(table),
        "s3a://lake/_streams/departures": str(tmp_path / "checkpoint"),
    }
    job, arguments = job_of(command, places)
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


def test_pins(
    run_job: Callable[..., Any],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
    rows_of: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
) -> None:
    made, again = blocks("pins.md", "json")
    take, read, _ = blocks("pins.md", "sh")
    in_python, vacuumed = blocks("pins.md", "python")
    places = {f"s3a://lake/{name}": str(tmp_path / name) for name in ("departures", "arrivals", "january/")}

    def bring(name: str, column: str, batch: int, days: range) -> None:
        at = f"timestamp '2013-01-01T00:00:00Z' + make_dt_interval(id) as {column}"
        rows = spark.range(days.start, days.stop).selectExpr("id", at)
        writer = LockedDeltaWriter(spark, manager, places[f"s3a://lake/{name}"])
        apply_rows(writer, rows.coalesce(1), keys=["id"], event_time=column, txn=(name, batch))

    for name, column in (("departures", "departed_at"), ("arrivals", "arrived_at")):
        bring(name, column, 0, range(1, 40))
    for command, page in ((take, made), (read, again)):
        job, arguments = job_of(command, places)
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        said = json.loads(page.replace(", …", "")) | {"table": f"file:{places['s3a://lake/departures']}"}
        pinned = next(line for line in done.lines if line["event"] == "pinned")
        assert {name: pinned[name] for name in said} == said
        bring("departures", "departed_at", 1, range(-3, -2))
    for name in ("departures", "arrivals"):
        assert sorted(rows_of(tmp_path / "january" / name, "id")) == [(day,) for day in range(1, 32)]

    names = {"spark": spark, "manager": manager}
    for code in (in_python, vacuumed):
        for written, here in places.items():
            code = code.replace(written, here)  # noqa: PLW2901
        exec(compile(code, "pins.md", "exec"), names)  # noqa: S102 (our own page)
    said_there = capsys.readouterr().out
    assert "31 1\n" in said_there
    assert "|new" in said_there.replace(" ", "")
    assert "pins=('2013-01',), dry_run=False" in said_there


def test_overwrite(run_job: Callable[..., Any], table: Path, tmp_path: Path, rows_of: Callable[..., Any]) -> None:
    first, corrected, counted = blocks("overwrite.md", "json")
    places = {
        "s3a://lake/departures": str(table),
        "s3a://landing/first.json": str(tmp_path / "first.json"),
        "s3a://landing/2013-01-02.json": str(tmp_path / "corrected.json"),
    }
    (tmp_path / "first.json").write_text(first, encoding="utf-8")
    (tmp_path / "corrected.json").write_text(corrected, encoding="utf-8")
    load, replace, dynamic, everything = blocks("overwrite.md", "sh")
    new = [("B6725", -1), ("DL461", -4)]
    other_day = [("AA1141", 33), ("UA1545", 2)]
    said = json.loads(counted.replace(", …", ""))
    for command, after in ((load, None), (replace, new), (replace, new), (dynamic, new)):
        job, arguments = job_of(command, places)
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        if after is not None:
            assert rows_of(table, "flight", "delay") == sorted([*other_day, *after], key=repr)
        if "--run-id" in arguments:
            assert {name: done.lines[-1][name] for name in said} == said
            said = {"event": "commit", "already_committed": True}
    job, arguments = job_of(everything, places)
    assert run_job(job, *arguments).code == 0
    assert rows_of(table, "flight", "delay") == new


def test_maintain(
    run_job: Callable[..., Any], spark: SparkSession, manager: ZookeeperLockManager, tmp_path: Path
) -> None:
    (line,), (dag, *_) = blocks("maintain.md", "crontab"), blocks("maintain.md", "python")
    health, look, mend = blocks("maintain.md", "sh")
    measured, made = blocks("maintain.md", "json")
    (policy,) = blocks("maintain.md", "sql")
    table, listed = tmp_path / "flights", tmp_path / "tables.txt"
    places = {
        "s3a://lake/health/": f"{tmp_path}/",
        "s3a://lake/conf/tables.txt": str(listed),
        "s3a://lake/flights": str(table),
    }
    writer = LockedDeltaWriter(spark, manager, str(table))
    writer.append(spark.range(0, 6, 1, 6).selectExpr("id", "'x' AS dest", "'y' AS carrier"))
    listed.write_text(f"{table}\n", encoding="utf-8")

    def ran(command: str) -> Any:
        job, arguments = job_of(command, places)
        done = run_job(job, *arguments)
        assert (done.code, done.error) == (0, "")
        return done

    assert shlex.split(health)[:2] == ["sluice", "health"]
    for command, page, event in ((look, measured, "measured"), (mend, made, "done")):
        said = json.loads(page.replace(", …", ""))
        (found,) = [each for each in ran(command).lines if each["event"] == event]
        assert {name: found[name] for name in said} == said
    assert json.loads((tmp_path / "flights.json").read_text())["tables"][0]["findings"][0]["code"] == "small-files"
    assert (tmp_path / "flights.html").read_text().startswith("<!DOCTYPE html>")
    with locked(spark, str(table), manager=manager):
        spark.sql(policy.replace("s3a://lake/flights", str(table)))
    schedule, command = line.split("cd ", 1)
    assert len(schedule.split()) == 5
    begin = ". .venv/bin/activate && "
    done = ran(command.removeprefix(f"/srv/sluice && {begin}"))
    assert [each["table"] for each in done.lines if each["event"] == "table"] == [writer.table]
    (bash,) = [each.value for each in ast.walk(ast.parse(dag)) if getattr(each, "arg", "") == "bash_command"]
    ran(ast.literal_eval(bash).removeprefix(begin))
