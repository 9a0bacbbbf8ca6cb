"""The commands of the manifests in docs/how-to/cluster-mode.md, run on this machine without Kubernetes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.local.jars import LOG_STORE_JAR
from tests.support import cluster_mode_page as page
from tests.support.java_program import SPARK_HOME, write_spark_defaults
from writer_jobs import append

pytestmark = [pytest.mark.spark, pytest.mark.full]

WAIT = 240


def test_the_command_of_the_driver_s_pod_loads_the_table(
    jars: list[Path], zip_path: Path, zookeeper: Any, csv_file: Callable[..., Path], rows_of: Callable[..., Any]
) -> None:
    folder = csv_file("landing.csv", "id,name", [(1, "x"), (2, "y")]).parent
    class_path = os.pathsep.join(str(path) for path in jars if path != LOG_STORE_JAR)
    # The jars that the image has.
    write_spark_defaults(folder, {f"spark.{process}.extraClassPath": class_path for process in ("driver", "executor")})
    for file, name in ((LOG_STORE_JAR, LOG_STORE_JAR.name), (zip_path, "sluice.zip"), (append.__file__, "append.py")):
        shutil.copy(file, folder / name)
    replacements = {
        "/opt/spark": str(SPARK_HOME),
        "/opt/sluice": str(folder),
        "k8s://https://kubernetes.default.svc": "local[2]",
        "$(POD_IP)": "127.0.0.1",
        page.JOB["--zookeeper"]: zookeeper.hosts,
        page.JOB["--source"]: str(folder / "*.csv"),
        page.JOB["--table"]: str(folder / "table"),
        page.REPORT: str(folder / "report.json"),
    }
    words = page.client_command()
    for text, replacement in replacements.items():
        words = [word.replace(text, replacement) for word in words]
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "JAVA_HOME") if name in os.environ}
    process = subprocess.run(
        words, cwd=folder, capture_output=True, text=True, check=False, timeout=WAIT,
        env={
            **environment, "SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": str(Path(sys.base_prefix) / "bin" / "python3"), "SPARK_HOME": str(SPARK_HOME),
        },
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert rows_of(folder / "table", "id", "name") == [(1, "x"), (2, "y")]
    assert json.loads((folder / "report.json").read_text())["exit_code"] == 0


@pytest.mark.parametrize(("text", "code"), [('{"exit_code": 5}', 5), (None, 1)], ids=["report", "no report"])
def test_the_container_of_the_report_ends_with_its_code(tmp_path: Path, text: str | None, code: int) -> None:
    report = tmp_path / "report.json"
    if text is not None:
        report.write_text(text)
    script = page.report_script().replace("/opt/spark", str(SPARK_HOME)).replace(page.REPORT, f"file:{report}")
    script = script.replace("/tmp/hadoop", str(tmp_path / "hadoop"))  # noqa: S108 (the page's folder)
    process = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False, timeout=WAIT)
    assert process.returncode == code, process.stderr
