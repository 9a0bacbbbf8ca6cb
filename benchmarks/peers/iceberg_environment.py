"""The virtual environment with PySpark for Iceberg, and Iceberg's jars, created below build/peers at the first use.

Iceberg needs another version of PySpark than this project, so it has a separate virtual environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from sluice.local.jars import download_jars, read_lock

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "peers"
UV = Path(sys.executable).parent / "uv"
PYSPARK = "pyspark==4.1.0"
#: A file in the virtual environment, written when it is complete. It contains the names of the installed packages.
COMPLETE = ".complete"


def iceberg_python() -> Path:
    """Return the Python that has Iceberg's PySpark. An incomplete environment is created again."""
    folder = BUILD / "venv"
    python, marker = folder / "bin" / "python", folder / COMPLETE
    if not marker.exists() or marker.read_text() != PYSPARK:
        shutil.rmtree(folder, ignore_errors=True)
        print("creating an environment with PySpark for Iceberg (a minute or two, 0.5 GB)", file=sys.stderr)
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        subprocess.run([UV, "pip", "install", "--quiet", "--python", python, PYSPARK], check=True)
        marker.write_text(PYSPARK)
    return python


def iceberg_jars(lock: str) -> list[Path]:
    """Return the jars of a lock file, downloaded and checked.

    Args:
        lock: ``spark`` for the jars of a Spark driver, or ``rest`` for the additional ones of the REST catalog.

    Raises:
        JarsError: A jar cannot be downloaded, or differs from the pinned one.

    """
    text = Path(__file__).with_name(f"iceberg-{lock}.lock").read_text(encoding="utf-8")
    return download_jars(read_lock(text), BUILD / "jars")


def iceberg_variables() -> dict[str, str]:
    """Return the environment variables of a process that runs Iceberg's Python."""
    variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return {**variables, "SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{BUILD / 'venv' / 'bin'}:{variables['PATH']}"}
