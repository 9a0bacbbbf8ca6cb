"""An interrupted set-up of the Iceberg environment, for `make bench-peers`, is repeated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
SET_UP = """
import sys
from pathlib import Path
import iceberg_environment as environment
environment.BUILD, environment.UV = Path(sys.argv[1]) / "build", Path(sys.argv[1]) / "uv"
environment.PYSPARK = sys.argv[2]
environment.iceberg_python()
"""
#: Stands in for uv. The installation of packages waits while the file ``stop`` exists.
UV = """#!/bin/sh
cd {folder}
echo "$1" >> steps
case "$1" in
venv) mkdir -p build/venv ;;
pip) while [ -e stop ]; do touch stopped; sleep 0.05; done ;;
esac
"""


def test_an_interrupted_set_up_of_iceberg_is_repeated(tmp_path: Path) -> None:
    uv, steps, stop_file = tmp_path / "uv", tmp_path / "steps", tmp_path / "stop"
    uv.write_text(UV.format(folder=tmp_path))
    uv.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "benchmarks" / "peers", ROOT)))}
    command = [sys.executable, "-c", SET_UP, str(tmp_path)]

    def set_up(pyspark: str) -> None:
        subprocess.run([*command, pyspark], env=environment, check=True)

    stop_file.touch()
    with subprocess.Popen([*command, "pyspark==4"], env=environment, start_new_session=True) as process:
        try:
            eventually((tmp_path / "stopped").exists)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    stop_file.unlink()
    set_up("pyspark==4")
    assert steps.read_text().split() == ["venv", "pip"] * 2
    set_up("pyspark==4")
    assert steps.read_text().split() == ["venv", "pip"] * 2
    # Another version of PySpark replaces the environment.
    set_up("pyspark==5")
    assert steps.read_text().split() == ["venv", "pip"] * 3
