"""The jobs of docs/how-to run with local addresses, and have the results that the pages describe.

test_unchanged_programs.py tests unchanged.md.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from sluice.audit.commit_list import log_to_json, read_commit_list
from sluice.sample import write_sample
from tests.support.lineage import EventFile, names
from writer_jobs import LockedDeltaWriter, locked
from writer_jobs.lineage.sender import PROCESS_SENDER

pytestmark = pytest.mark.spark

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
HOSTS = "zk1:2181,zk2:2181,zk3:2181"
LOCAL_HOSTS = "127.0.0.1:2181"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(encoding="utf-8"), re.DOTALL)


def fields_in(block: str) -> dict[str, Any]:
    """Return the fields of a page's JSON line, which may end with an ellipsis."""
    fields: dict[str, Any] = json.loads(block.replace(", …", ""))
    return fields


def fields_of(line: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a job's output line that have the names of ``fields``."""
    return {name: line[name] for name in fields}


def expand(word: str) -> list[str]:
    """Expand an asterisk in a file name, as a shell does."""
    return sorted(map(str, Path(word).parent.glob(Path(word).name))) if "*" in word else [word]


@dataclass
class Clone:
    """Runs the commands of a page in one folder, as a user runs them in a clone of the repository."""

    run_job: Callable[..., Any]
    rows_of: Callable[..., list[tuple[Any, ...]]]
    spark: SparkSession
    manager: ZookeeperLockManager
    folder: Path

    def commands_of(self, page: str) -> tuple[list[Callable[[], None]], list[str]]:
        """Return a function for each block of a page that writes files, and the page's ``spark-submit`` commands."""
        first_block, *later_blocks = blocks(page, "sh")
        assert "sluice zookeeper --port 2181 &" in first_block, f"{page} does not begin with the commands for a clone"
        write_files: list[Callable[[], None]] = [
            functools.partial(subprocess.run, ["bash", "-ec", block], cwd=self.folder, check=True)
            for block in later_blocks
            if "cat > " in block
        ]
        jobs = [
            match[0]
            for block in [first_block, *later_blocks]
            for match in re.finditer(r"^spark-submit (.*\\\n)*.*", block, re.MULTILINE)
        ]
        return write_files, [re.sub(r"(?<![\w/])(landing|lake)/", rf"{self.folder}/\1/", job) for job in jobs]

    def run(self, command: str, replacements: Mapping[str, str] | None = None) -> Any:
        """Run a ``spark-submit`` command in this process, and check that it succeeds.

        ``replacements`` replace paths of the page in the command.
        """
        for path, replacement in (replacements or {}).items():
            command = command.replace(path, replacement)
        words = shlex.split(command.replace("$(sluice submit-args)", "").replace("\\\n", " "))
        assert words[0] == "spark-submit"
        arguments = [path for word in words[2:] for path in expand(word)]
        index = arguments.index("--zookeeper")
        assert arguments[index + 1] in (LOCAL_HOSTS, HOSTS)
        job = self.run_job(Path(words[1]).stem, *arguments[:index], *arguments[index + 2 :])
        assert (job.code, job.error) == (0, "")
        return job

    def execute(self, code: str, page: str, **names: Any) -> dict[str, Any]:
        """Execute a page's Python code, and return its names."""
        names |= {"spark": self.spark, "manager": self.manager}
        exec(compile(code, page, "exec"), names)  # noqa: S102 (our own page)
        return names

    def table(self, name: str) -> Path:
        return self.folder / "lake" / name

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        return self.rows_of(self.table(name), *columns)

    def writer(self, name: str) -> LockedDeltaWriter:
        return LockedDeltaWriter(self.spark, self.manager, str(self.table(name)))


@pytest.fixture
def clone(
    run_job: Callable[..., Any],
    rows_of: Callable[..., list[tuple[Any, ...]]],
    spark: SparkSession,
    manager: ZookeeperLockManager,
    tmp_path: Path,
) -> Clone:
    return Clone(run_job, rows_of, spark, manager, tmp_path)


@pytest.mark.full
def test_the_upsert_page(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    _, feed, _ = blocks("upsert.md", "json")
    write_files, (apply, apply_with_history, apply_stream) = clone.commands_of("upsert.md")
    columns = ("id", "name", "city", "position")
    for number, write_file in enumerate(write_files, start=1):
        write_file()
        replacements = {"/1.json": f"/{number}.json"}
        job = clone.run(apply, replacements)
        if number == 1:
            assert clone.rows("customers", *columns) == [(1, "Ada", "Tromsø", 107)]
            expected = {"changes": 4, "folded": 2, "inserted": 1, "deleted": 0, "unchanged": 1}
            assert fields_of(job.lines[-1], expected) == expected
        clone.run(apply_with_history, replacements)
        job = clone.run(apply_stream, replacements)
        assert [(line["batch"], line["lag_s"]) for line in job.commits] == [(number - 1, None)]
    assert clone.rows("customers_history", "id", "city", "__START_AT", "__END_AT") == [
        (1, "Oslo", 100, 107), (1, "Tromsø", 107, None), (2, "Bergen", 101, 105), (2, "Stavanger", 105, 109),
        (3, "Oslo", 110, None),
    ]  # fmt: skip
    rows = [(1, "Ada", "Tromsø", 107), (3, "Cy", "Oslo", 110)]
    for name in ("customers", "customers_now"):
        assert clone.rows(name, *columns) == rows
    stored_feed = DeltaTable(clone.table("customers")).metadata().configuration["sluice.feed"]
    assert json.loads(stored_feed) == json.loads(feed)
    unbind, apply_changes = blocks("upsert.md", "python")
    changes = clone.spark.read.json(str(clone.folder / "landing" / "customers" / "*.json"))
    names = {"writer": clone.writer("customers"), "changes": changes}
    for code in (unbind.replace("s3a://lake/customers", str(clone.table("customers"))), apply_changes):
        names = clone.execute(code, "upsert.md", **names)
    assert "'changes': 6" in capsys.readouterr().out
    assert clone.rows("customers", *columns) == rows


@pytest.mark.full
def test_the_cdc_page(clone: Clone) -> None:
    (counts_block,) = blocks("cdc.md", "json")
    write_files, (apply_cells, follow_table) = clone.commands_of("cdc.md")
    for write_file in write_files:
        write_file()
    for number in (1, 2):
        job = clone.run(apply_cells, {"cells/1.json": f"cells/{number}.json"})
        if number == 1:
            expected = fields_in(counts_block)
            assert fields_of(job.lines[-1], expected) == expected
            assert clone.rows("customers", "country", "id", "name", "age") == [("no", 17, "Ada!", 36)]
    assert clone.rows("customers", "country", "id", "name", "age", "m_visits") == [("no", 17, "Ada", 36, "3")]
    ((reason,),) = clone.rows("customers_dead_letters", "reason")
    assert "age" in reason
    assert clone.run(follow_table).lines[-1]["skipped"] == 1
    assert clone.rows("orders", "id", "item", "n") == [(1, "tea", 2)]
    (code,) = blocks("cdc.md", "python")
    names = clone.execute(
        code,
        "cdc.md",
        writer=clone.writer("customers"),
        cells=clone.spark.read.json(str(clone.folder / "landing" / "cells" / "2.json")),
        text=(clone.folder / "lake" / "conf" / "customers.json").read_text(encoding="utf-8"),
    )
    assert names["result"].counts["unchanged"] == 2


@pytest.mark.full
def test_the_stream_page(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    (counts_block,) = blocks("stream.md", "json")
    write_files, (command,) = clone.commands_of("stream.md")
    landing = clone.folder / "landing" / "departures"
    for number, write_file in enumerate(write_files, start=1):
        write_file()
        os.utime(landing / f"{number}.json", (1_700_000_000 + number,) * 2)
    expected = fields_in(counts_block)
    assert fields_of(clone.run(command).lines[-1], expected) == expected
    rows = [("AA1141", 1), ("DL461", 2), ("UA1545", 1)]
    assert clone.rows("departures", "flight", "version") == rows
    assert clone.rows("departures_late", "flight", "version") == [("B6725", 1)]
    (code,) = blocks("stream.md", "python")
    repeated_rows = clone.spark.read.json(str(landing / "*.json")).where("flight != 'B6725'")
    repeated_rows = repeated_rows.withColumn("departed_at", repeated_rows["departed_at"].cast("timestamp"))
    clone.execute(code, "stream.md", writer=clone.writer("departures"), rows=repeated_rows)
    assert "'repeated': 5" in capsys.readouterr().out
    assert clone.rows("departures", "flight", "version") == rows


@pytest.mark.full
def test_the_pins_page(clone: Clone, capsys: pytest.CaptureFixture[str]) -> None:
    take_event, read_event = blocks("pins.md", "json")
    (write_rows, write_late_rows), (load_departures, load_arrivals, take, read) = clone.commands_of("pins.md")
    write_rows()
    for command in (load_departures, load_arrivals):
        clone.run(command)
    for command, block in ((take, take_event), (read, read_event)):
        expected = fields_in(block) | {"table": f"file:{clone.table('departures')}"}
        line = next(line for line in clone.run(command).lines if line["event"] == "pinned")
        assert fields_of(line, expected) == expected
        if command is take:
            write_late_rows()
            clone.run(load_departures)
    for name, flights in (("departures", ["DL461", "UA1545"]), ("arrivals", ["UA1545"])):
        assert sorted(clone.rows(f"january/{name}", "flight")) == [(flight,) for flight in flights]

    names: dict[str, Any] = {}
    for code in blocks("pins.md", "python"):
        names = clone.execute(code.replace('"lake/', f'"{clone.folder}/lake/'), "pins.md", **names)
    output = capsys.readouterr().out
    assert "2 1\n" in output
    assert "|new" in output.replace(" ", "")
    assert "pins=('2013-01',), dry_run=False" in output


@pytest.mark.full
def test_the_overwrite_page(clone: Clone) -> None:
    (commit_block,) = blocks("overwrite.md", "json")
    write_files, (load, replace, replace_dynamically, replace_all) = clone.commands_of("overwrite.md")
    for write_file in write_files:
        write_file()
    new_rows, other_rows = [("B6725", -1), ("DL461", -4)], [("AA1141", 33), ("UA1545", 2)]
    expected = fields_in(commit_block)
    clone.run(load)
    for command in (replace, replace, replace_dynamically):
        job = clone.run(command)
        assert clone.rows("departures", "flight", "delay") == sorted([*other_rows, *new_rows], key=repr)
        if "--run-id" in command:
            assert fields_of(job.lines[-1], expected) == expected
            expected = {"event": "commit", "already_committed": True}
    clone.run(replace_all)
    assert clone.rows("departures", "flight", "delay") == new_rows


@pytest.mark.full
def test_the_maintain_page(clone: Clone) -> None:
    (cron_line,), (dag, *_) = blocks("maintain.md", "crontab"), blocks("maintain.md", "python")
    _, (load, measure, maintain) = clone.commands_of("maintain.md")
    _, health_command, *_ = blocks("maintain.md", "sh")
    measured_block, result_block = blocks("maintain.md", "json")
    (policy,) = blocks("maintain.md", "sql")
    table, table_list, health = clone.table("flights"), clone.folder / "tables.txt", clone.table("health")
    replacements = {
        "s3a://lake/health/": f"{health}/",
        "s3a://lake/conf/tables.txt": str(table_list),
        "s3a://lake/flights": str(table),
    }
    write_sample(clone.folder / "landing")
    table_list.write_text(f"{table}\n", encoding="utf-8")
    assert shlex.split(health_command)[:3] == ["sluice", "health", "lake/flights"]
    clone.run(load, replacements)
    for command, block, event in ((measure, measured_block, "measured"), (maintain, result_block, "done")):
        (line,) = [line for line in clone.run(command, replacements).lines if line["event"] == event]
        expected = fields_in(block)
        assert fields_of(line, expected) == expected
    assert json.loads((health / "flights.json").read_text())["tables"][0]["findings"][0]["code"] == "small-files"
    assert (health / "flights.html").read_text().startswith("<!DOCTYPE html>")
    with locked(clone.spark, str(table), manager=clone.manager):
        clone.spark.sql(policy.replace("s3a://lake/flights", str(table)))
    schedule, command = cron_line.split("cd ", 1)
    assert len(schedule.split()) == 5
    activate = ". .venv/bin/activate && "
    job = clone.run(command.removeprefix(f"/srv/sluice && {activate}"), replacements)
    assert [line["table"] for line in job.lines if line["event"] == "table"] == [f"file:{table}"]
    keywords = [node for node in ast.walk(ast.parse(dag)) if isinstance(node, ast.keyword)]
    (bash_command,) = [keyword.value for keyword in keywords if keyword.arg == "bash_command"]
    clone.run(ast.literal_eval(bash_command).removeprefix(activate), replacements)


@pytest.mark.full
def test_the_lineage_page(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    (write_file,), (append,) = clone.commands_of("lineage.md")
    exports = [word for block in blocks("lineage.md", "sh") for word in re.findall(r"(OPENLINEAGE\w+)=(\S+)", block)]
    for name, value in exports:
        monkeypatch.setenv(name, value.replace("lake/", f"{clone.folder}/lake/"))
    events = EventFile(clone.folder / "lake" / "events.jsonl")
    # The first write of this process has decided that there are no events.
    PROCESS_SENDER.reset()
    write_file()
    clone.run(append)
    (end,) = events.ends("append")
    assert (end["job"]["namespace"], names(end["inputs"])) == ("lake", {("file", str(clone.folder / "landing"))})
    location, commits = read_commit_list(clone.table("departures"))
    (commit,) = log_to_json(location, commits)["commits"]
    assert commit["writers"][0]["lineage_run"] == end["run"]["runId"]
