"""An interrupted set-up of the Iceberg environment, for `make bench-peers`, is repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import eventually

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"
SET_UP = """
import sys
from pathlib import Path
import iceberg_environment as environment
environment.BUILD, environment.UV = Path(sys.argv[1]) / "build", Path(sys.argv[1]) / "uv"
environment.PYSPARK = sys.argv[2]
environment.iceberg_python()
print(*(jar.name for jar in environment.iceberg_jars()))
"""
#: Stands in for uv and for the Python that it installs. A step waits while the file ``stop-at-STEP`` exists.
UV = """#!/bin/sh
cd {folder}
echo "$1" >> steps
step() {{ while [ -e "stop-at-$1" ]; do touch stopped; sleep 0.05; done; }}
case "$1" in
venv) mkdir -p build/venv/bin; cp uv build/venv/bin/python ;;
pip) step packages; touch build/venv/pyspark ;;
-c) test -e build/venv/pyspark || exit 1
    mkdir -p build/ivy/jars; touch build/ivy/jars/one.jar; step jars; touch build/ivy/jars/two.jar ;;
esac
"""


@pytest.mark.parametrize(("step", "expected_steps"), [("packages", "venv pip venv pip -c"), ("jars", "venv pip -c -c")])
def test_an_interrupted_set_up_of_iceberg_is_repeated(step: str, expected_steps: str, tmp_path: Path) -> None:
    uv, steps, stop_file = tmp_path / "uv", tmp_path / "steps", tmp_path / f"stop-at-{step}"
    uv.write_text(UV.format(folder=tmp_path))
    uv.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(PEERS)}
    command = [sys.executable, "-c", SET_UP, str(tmp_path)]

    def set_up(pyspark: str) -> str:
        process = subprocess.run([*command, pyspark], env=environment, check=True, stdout=subprocess.PIPE, text=True)
        return process.stdout

    stop_file.touch()
    with subprocess.Popen([*command, "pyspark==4"], env=environment, start_new_session=True) as process:
        try:
            eventually((tmp_path / "stopped").exists)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    stop_file.unlink()
    assert set_up("pyspark==4") == "one.jar two.jar\n"
    assert steps.read_text().split() == expected_steps.split()
    completed_steps = steps.read_text()
    assert set_up("pyspark==4") == "one.jar two.jar\n"
    assert steps.read_text() == completed_steps
    # Another version of PySpark replaces the environment.
    set_up("pyspark==5")
    assert steps.read_text() == completed_steps + "venv\npip\n"
