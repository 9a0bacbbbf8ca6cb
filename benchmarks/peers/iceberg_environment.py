"""The virtual environment with PySpark for Iceberg, and Iceberg's jars, created below build/peers at the first use.

Iceberg needs another version of PySpark than this project, so it has a separate virtual environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "peers"
UV = Path(sys.executable).parent / "uv"
PYSPARK = "pyspark==4.1.0"
JARS = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0,org.xerial:sqlite-jdbc:3.50.3.0"
#: A file in a folder, written when the folder is complete. It contains the names of the installed packages.
COMPLETE = ".complete"
RESOLVE_PROGRAM = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
builder.config("spark.jars.packages", sys.argv[1]).config("spark.jars.ivy", sys.argv[2]).getOrCreate().stop()
"""


def iceberg_python() -> Path:
    """Return the Python that has Iceberg's PySpark."""
    folder = BUILD / "venv"
    python = folder / "bin" / "python"

    def install() -> None:
        print("creating an environment with PySpark for Iceberg (a minute or two, 0.5 GB)", file=sys.stderr)
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        subprocess.run([UV, "pip", "install", "--quiet", "--python", python, PYSPARK], check=True)

    ensure_complete(folder, PYSPARK, install)
    return python


def iceberg_jars() -> list[Path]:
    """Return Iceberg's jars. Spark resolves them once in advance, because concurrent drivers would interfere."""
    folder = BUILD / "ivy"

    def resolve() -> None:
        command = [str(iceberg_python()), "-c", RESOLVE_PROGRAM, JARS, str(folder)]
        subprocess.run(command, env=iceberg_variables(), check=True, stderr=subprocess.DEVNULL)

    ensure_complete(folder, JARS, resolve)
    return sorted((folder / "jars").glob("*.jar"))


def iceberg_variables() -> dict[str, str]:
    """Return the environment variables of a process that runs Iceberg's Python."""
    variables = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return {**variables, "SPARK_LOCAL_IP": "127.0.0.1", "PATH": f"{BUILD / 'venv' / 'bin'}:{variables['PATH']}"}


def ensure_complete(folder: Path, packages: str, make: Callable[[], None]) -> None:
    """Create a folder unless it is complete. An incomplete folder is removed first.

    Args:
        folder: The folder. It is complete when its last file, `COMPLETE`, exists.
        packages: Names of the installed packages. A folder with other packages is created again.
        make: Creates the folder.

    """
    marker = folder / COMPLETE
    if marker.exists() and marker.read_text() == packages:
        return
    shutil.rmtree(folder, ignore_errors=True)
    make()
    marker.write_text(packages)
