"""The README's Python code and its spark-submit commands run; only addresses and a port are replaced."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lock_manager.testing.embedded import free_ports
from sluice.audit.commit_list import log_to_json, read_commit_list

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def replace_addresses(code: str, replacements: dict[str, str]) -> str:
    """Replace addresses in code of the README."""
    for address, replacement in replacements.items():
        assert address in code, f"the README does not contain {address}"
        code = code.replace(address, replacement)
    return code


def test_the_readme_s_python_runs(spark, zookeeper, tmp_path, capsys):
    landing, table = tmp_path / "landing", tmp_path / "flights"
    spark.range(5).selectExpr("id", "2009 + id AS year").write.parquet(str(landing))
    replacements = {
        "zk1:2181,zk2:2181,zk3:2181": zookeeper.hosts,
        "s3a://landing/flights": str(landing),
        "s3a://lake/flights": str(table),
    }
    (code,) = blocks("python")
    exec(compile(replace_addresses(code, replacements), str(README), "exec"), {})  # noqa: S102 (our own README)
    assert capsys.readouterr().out.startswith("0 ")
    assert spark.read.format("delta").load(str(table)).count() == 4
    commits = log_to_json(*read_commit_list(table))["commits"]
    assert {commit["job"] for commit in commits} == {spark.sparkContext.appName}


@pytest.mark.full
def test_the_readme_s_spark_submit_commands_run(jars, tmp_path, rows_of):
    _, block = blocks("sh")
    (port,) = free_ports(1)
    (tmp_path / "writer_jobs").symlink_to(ROOT / "writer_jobs")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    stop_jobs_at_exit = "trap 'kill $(jobs -p) || true' EXIT\n"
    process = subprocess.run(
        ["bash", "-euc", stop_jobs_at_exit + replace_addresses(block, {"2181": str(port)})],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    assert lines[:3] == [f"landing/flights-2013-{month}.csv" for month in ("01", "10", "11")]
    rows = [json.loads(line) for line in lines if line.startswith("{")]
    events = [(row["event"], row["commit"]) for row in rows]
    assert events == [(event, commit) for commit in (1, 2) for event in ("begun", "holding", "commit")]
    assert len(rows_of(tmp_path / "lake" / "flights")) == 90
