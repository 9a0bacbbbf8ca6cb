"""Archives of classes that are parsed already, for JVMs of this machine that live for a minute.

`make setup` makes them (``scripts/archive_classes.py``). A JVM uses one only if it is the same JVM with the same jars
in the same places as when the archive was made; otherwise it loads its classes from the jars, and says nothing. So a
missing or an outdated archive costs time, nothing else. See JEP 350, dynamic CDS archives.
"""

from __future__ import annotations

import sys
from pathlib import Path

#: Of a Spark driver, of the bare JVM of a soak's writer, and of a ZooKeeper server.
SPARK, STORE, ZOOKEEPER = "spark", "store", "zookeeper"

#: What the JVM says of an archive, or of making one, on its standard output.
_SILENT = "-Xlog:cds=off,cds+dynamic=off"


def archive_path(name: str) -> Path:
    """Return where an archive is kept: in this Python environment."""
    return Path(sys.prefix) / "share" / "sluice" / f"{name}.jsa"


def making_options(path: Path) -> list[str]:
    """Return the options with which a JVM writes an archive of its classes when it exits."""
    return [f"-XX:ArchiveClassesAtExit={path}", _SILENT]


def archive_options(name: str) -> list[str]:
    """Return the options with which a JVM uses an archive; none if there is no archive, or an empty file."""
    path = archive_path(name)
    return [f"-XX:SharedArchiveFile={path}", _SILENT] if path.is_file() and path.stat().st_size else []
