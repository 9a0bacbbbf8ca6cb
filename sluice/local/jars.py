"""The jars that Delta on S3A needs beside PySpark: resolved once, checked, never again at a start.

``jars.lock`` names every jar with its SHA-256. They are brought by the Ivy that PySpark ships, without transitive
resolution (which asks for a hundred descriptors, and would bring the 686 MB AWS bundle), so that a set-up takes
seconds and a Spark session start asks nobody for anything.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lock_manager.testing.embedded import find_java, find_spark_jars
from sluice.errors import JarsError

_JARS_ENVIRONMENT_VARIABLE = "SLUICE_JARS"
#: The guarded log store, built from ``log_store/`` by `make setup`; ships inside this package.
LOG_STORE_JAR = Path(str(files("sluice"))) / "sluice-log-store.jar"

_IVY_SETTINGS = """<ivysettings>
  <settings defaultResolver="central"/>
  <property name="ivy.checksums" value=""/>
  <caches defaultCacheDir={cache}/>
  <resolvers><ibiblio name="central" m2compatible="true" usepoms="false" useMavenMetadata="false"/></resolvers>
</ivysettings>
"""


@dataclass(frozen=True)
class Jar:
    """One line of ``jars.lock``."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The name of the jar in the jars folder."""
        return f"{self.artifact}-{self.version}.jar"


def locked_jars() -> list[Jar]:
    """Read the pinned set that ships with this package."""
    jars = []
    for line in files("sluice").joinpath("jars.lock").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            coordinate, sha256 = line.split()
            group, artifact, version = coordinate.split(":")
            jars.append(Jar(group, artifact, version, sha256))
    return jars


def jars_folder() -> Path:
    """Return where the jars are kept: ``$SLUICE_JARS``, else ``share/sluice/jars`` of this Python environment."""
    configured = os.environ.get(_JARS_ENVIRONMENT_VARIABLE)
    return Path(configured) if configured else Path(sys.prefix) / "share" / "sluice" / "jars"


def jar_paths() -> list[Path]:
    """Return the resolved jars and our own, as ``--jars`` wants them.

    Raises:
        JarsError: if the set is not complete; the message says how to bring it.

    """
    paths = [jars_folder() / jar.file_name for jar in locked_jars()]
    if not LOG_STORE_JAR.is_file():
        raise JarsError(f"{LOG_STORE_JAR.name} is missing: `make setup` builds it, and an installed package has it")
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise JarsError(
            f"{len(missing)} of {len(paths)} jars are missing from {jars_folder()} (the first: {missing[0]}): "
            "run `sluice jars` once (`make setup` does it)"
        )
    return [*paths, LOG_STORE_JAR]


def resolve_jars(folder: Path | None = None) -> list[Path]:
    """Bring the pinned jars into ``folder``, checking each one's SHA-256; a complete folder is left as it is.

    Raises:
        JarsError: a jar cannot be resolved, or is not the pinned one. No unchecked jar stays in the folder.

    """
    folder = folder or jars_folder()
    wanted = [jar for jar in locked_jars() if not is_pinned(folder / jar.file_name, jar)]
    if wanted:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sluice-ivy-") as scratch:
            _retrieve(wanted, Path(scratch))
            for jar in wanted:
                brought = Path(scratch) / "jars" / jar.file_name
                if not brought.is_file():
                    raise JarsError(f"{jar.group}:{jar.artifact}:{jar.version} could not be resolved")
                if not is_pinned(brought, jar):
                    raise JarsError(f"{jar.file_name} is not the pinned one: its SHA-256 differs from jars.lock")
                # Beside its final name first, so that a reader never sees half a jar.
                part = folder / f".{jar.file_name}.{os.getpid()}.part"
                shutil.copyfile(brought, part)
                part.replace(folder / jar.file_name)
    return [*(folder / jar.file_name for jar in locked_jars()), LOG_STORE_JAR]


def is_pinned(path: Path, jar: Jar) -> bool:
    """Tell whether a file is the jar that was pinned, by its SHA-256."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == jar.sha256


def _retrieve(wanted: list[Jar], scratch: Path) -> None:
    dependencies = "\n".join(
        f'    <dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false"/>'
        for jar in wanted
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0">\n  <info organisation="sluice" module="spark-jars"/>\n'
        '  <configurations><conf name="default"/></configurations>\n'
        f'  <dependencies defaultconf="default->default">\n{dependencies}\n  </dependencies>\n</ivy-module>\n',
        encoding="utf-8",
    )
    (scratch / "settings.xml").write_text(
        _IVY_SETTINGS.format(cache=quoteattr(str(scratch / "cache"))), encoding="utf-8"
    )
    command = [
        find_java(), "-cp", f"{find_spark_jars()}/*", "org.apache.ivy.Main", "-warn",
        "-settings", str(scratch / "settings.xml"), "-ivy", str(scratch / "ivy.xml"),
        "-retrieve", str(scratch / "jars" / "[artifact]-[revision].[ext]"),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise JarsError("the jars could not be resolved: " + (lines[-1].strip() if lines else "Ivy said nothing"))
