"""The README's Python runs as it stands, but for the addresses in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"


def test_the_readme_s_python_runs(spark, zookeeper, tmp_path, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    landing, table = tmp_path / "landing", tmp_path / "flights"
    spark.range(5).selectExpr("id", "2009 + id AS year").write.parquet(str(landing))
    for written, here in (
        ("zk1:2181,zk2:2181,zk3:2181", zookeeper.hosts),
        ("s3a://landing/flights", str(landing)),
        ("s3a://lake/flights", str(table)),
    ):
        assert written in code
        code = code.replace(written, here)
    exec(compile(code, str(README), "exec"), {})  # noqa: S102 (our own README)
    assert capsys.readouterr().out.startswith("0 ")
    assert spark.read.format("delta").load(str(table)).count() == 4
