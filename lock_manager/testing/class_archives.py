"""Archives of parsed Java classes, with which short-lived JVMs on this machine start faster.

`make setup` creates them (``scripts/archive_classes.py``). A JVM uses an archive only if the JVM, the jars and their
paths are the same as at the archive's creation. Otherwise it silently loads its classes from the jars. So a missing or
outdated archive costs only time. See JEP 350, dynamic CDS archives.
"""

from __future__ import annotations

import sys
from pathlib import Path

#: Names of the archives: for a Spark driver, for a soak writer's JVM (without Spark), for a ZooKeeper server.
SPARK, STORE, ZOOKEEPER = "spark", "store", "zookeeper"

#: Disables the JVM's messages about archives on its standard output.
_SILENT = "-Xlog:cds=off,cds+dynamic=off"


def archive_path(name: str) -> Path:
    """Return the path of an archive in this Python environment."""
    return Path(sys.prefix) / "share" / "sluice" / f"{name}.jsa"


def write_archive_options(path: Path) -> list[str]:
    """Return the JVM options that write an archive of the loaded classes at exit."""
    return [f"-XX:ArchiveClassesAtExit={path}", _SILENT]


def archive_options(name: str) -> list[str]:
    """Return the JVM options that use an archive; none if the file does not exist or is empty."""
    path = archive_path(name)
    return [f"-XX:SharedArchiveFile={path}", _SILENT] if path.is_file() and path.stat().st_size else []
