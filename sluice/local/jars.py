"""The jars that Delta on S3A needs in addition to PySpark. They are downloaded and checked once.

``jars/spark-SPARK-delta-DELTA.lock`` lists every jar with its SHA-256, for each tested pair of releases. The Ivy that
PySpark ships downloads them without transitive resolution, which would read a hundred descriptors and download the AWS
bundle of 686 MB. So a set-up takes seconds, and a Spark session starts without network.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lock_manager.errors import LocalServerError
from lock_manager.releases import nearest_tested
from lock_manager.testing.embedded import find_java, find_spark_jars
from sluice.errors import JarsError

_DELTA_ENVIRONMENT_VARIABLE = "SLUICE_DELTA"
_LOCK_NAME = re.compile(r"spark-(?P<spark>[\d.]+)-delta-(?P<delta>[\d.]+)\.lock")
#: The jar of the guarded log store. `make setup` builds it from ``log_store/``; this package contains it.
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
    """One line of a lock file."""

    group: str
    artifact: str
    version: str
    sha256: str
    classifier: str = ""

    @property
    def file_name(self) -> str:
        """The file's name in the jars folder."""
        return f"{'-'.join(filter(None, (self.artifact, self.version, self.classifier)))}.jar"


def pinned_releases() -> list[tuple[str, str]]:
    """Return the tested pairs of a Spark line, such as 4.2, and a Delta release, such as 4.4.0; the newest first."""
    names = [_LOCK_NAME.fullmatch(entry.name) for entry in files("sluice").joinpath("jars").iterdir()]
    return sorted(((name["spark"], name["delta"]) for name in names if name), key=_numbers, reverse=True)


def _numbers(releases: tuple[str, str]) -> list[list[int]]:
    return [[int(part) for part in release.split(".")] for release in releases]


def chosen_releases() -> tuple[str, str]:
    """Return the Spark line and the Delta release of this environment.

    Spark is that of ``$SPARK_HOME`` or of the installed PySpark. Delta is ``$SLUICE_DELTA``, else the installed
    ``delta-spark``. If one of them is not installed, it is the newest tested one.

    Raises:
        JarsError: The pair has no lock file. The message names the nearest tested pair.

    """
    tested = pinned_releases()
    release = _spark_release() or tested[0][0]
    spark = ".".join(release.split(".")[:2])
    deltas = [delta for line, delta in tested if line == spark]
    delta = os.environ.get(_DELTA_ENVIRONMENT_VARIABLE) or _delta_release() or (deltas or [tested[0][1]])[0]
    if delta not in deltas:
        raise JarsError(_untested(release, delta))
    return spark, delta


def _untested(spark: str, delta: str) -> str:
    sentence = f"Spark {spark} with Delta {delta} is not tested"
    nearest_spark, nearest_delta = nearest_tested(spark, delta)
    sentence += f" (the nearest tested pair: Spark {nearest_spark} with Delta {nearest_delta})"
    if f"{spark}.".startswith(f"{nearest_spark}."):
        return f"{sentence}: install delta-spark {nearest_delta}, or set {_DELTA_ENVIRONMENT_VARIABLE}={nearest_delta}"
    return f"{sentence}: install PySpark {nearest_spark} and delta-spark {nearest_delta}"


def _spark_release() -> str | None:
    try:
        return spark_jar_version(find_spark_jars(), "spark-core_[0-9.]+")
    except LocalServerError:
        return None


def spark_jar_version(folder: Path, artifact: str) -> str | None:
    """Return the version in the name of a jar of Spark, such as 4.1.1 or a vendor's 4.1.1-amzn-0.

    Args:
        folder: Spark's folder of jars.
        artifact: Regular expression of the artifact's name.

    Returns:
        The version; None if the folder has no such jar.

    """
    names = (re.fullmatch(rf"{artifact}-(\d.*)\.jar", path.name) for path in sorted(folder.glob("*.jar")))
    return next((name[1] for name in names if name), None)


def _delta_release() -> str | None:
    try:
        return version("delta-spark")
    except PackageNotFoundError:
        return None


def locked_jars() -> list[Jar]:
    """Read the lock file of this environment's Spark and Delta.

    Raises:
        JarsError: See :func:`chosen_releases`.

    """
    spark, delta = chosen_releases()
    return read_lock(files("sluice").joinpath("jars", f"spark-{spark}-delta-{delta}.lock").read_text(encoding="utf-8"))


def read_lock(text: str) -> list[Jar]:
    """Return the jars of a lock file.

    Each line is ``group:artifact:version[:classifier] sha256``. Empty lines and comments are ignored.
    """
    jars = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            coordinate, sha256 = line.split()
            group, artifact, version, *classifier = coordinate.split(":")
            jars.append(Jar(group, artifact, version, sha256, *classifier))
    return jars


def jars_folder() -> Path:
    """Return the folder of the jars: ``$SLUICE_JARS``, else ``share/sluice/jars`` of this Python environment."""
    configured = os.environ.get("SLUICE_JARS")
    return Path(configured) if configured else Path(sys.prefix) / "share" / "sluice" / "jars"


def jar_paths(folder: Path | None = None) -> list[Path]:
    """Return the paths of the pinned jars and of the guarded log store, for ``--jars``.

    Args:
        folder: Folder of the pinned jars. Default: :func:`jars_folder`.

    Raises:
        JarsError: A jar is missing. The message names the command that downloads it.

    """
    paths = pinned_jar_paths(folder)
    if not LOG_STORE_JAR.is_file():
        raise JarsError(f"{LOG_STORE_JAR.name} is missing: run `make setup`, or install the package")
    return [*paths, LOG_STORE_JAR]


def pinned_jar_paths(folder: Path | None = None) -> list[Path]:
    """Return the paths of the pinned jars.

    Args:
        folder: See :func:`jar_paths`.

    Raises:
        JarsError: See :func:`jar_paths`.

    """
    folder = folder or jars_folder()
    paths = [folder / jar.file_name for jar in locked_jars()]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise JarsError(
            f"{len(missing)} of {len(paths)} jars are missing from {folder} (the first: {missing[0]}): "
            "run `sluice jars` once (`make setup` does it)"
        )
    return paths


def compile_class_path() -> str:
    """Return the class path for ``scripts/build_log_store.sh``, which compiles the log store.

    It contains the jars of one Delta release, even if their folder contains those of several.

    Raises:
        JarsError: See :func:`jar_paths`.

    """
    return os.pathsep.join([f"{find_spark_jars()}/*", *map(str, pinned_jar_paths())])


def resolve_jars(folder: Path | None = None) -> list[Path]:
    """Download the pinned jars that ``folder``, by default :func:`jars_folder`, lacks, and check their SHA-256.

    Returns:
        The paths of the pinned jars and of the guarded log store.

    Raises:
        JarsError: A jar cannot be downloaded, or differs from the pinned one. No unchecked jar is put into the folder.

    """
    return [*download_jars(locked_jars(), folder or jars_folder()), LOG_STORE_JAR]


def download_jars(jars: Sequence[Jar], folder: Path) -> list[Path]:
    """Download the jars that ``folder`` lacks, and check their SHA-256; return the paths of all.

    Raises:
        JarsError: See :func:`resolve_jars`.

    """
    missing = [jar for jar in jars if not is_pinned(folder / jar.file_name, jar)]
    if missing:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sluice-ivy-") as scratch:
            _download(missing, Path(scratch))
            for jar in missing:
                download = Path(scratch) / "jars" / jar.file_name
                if not download.is_file():
                    raise JarsError(f"{jar.group}:{jar.artifact}:{jar.version} could not be resolved")
                if not is_pinned(download, jar):
                    raise JarsError(f"{jar.file_name} is not the pinned one: its SHA-256 differs from the lock file")
                # Rename a complete copy, so that no reader sees an incomplete jar.
                part = folder / f".{jar.file_name}.{os.getpid()}.part"
                shutil.copyfile(download, part)
                part.replace(folder / jar.file_name)
    return [folder / jar.file_name for jar in jars]


def is_pinned(path: Path, jar: Jar) -> bool:
    """Return whether a file exists and has the SHA-256 of the pinned jar."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == jar.sha256


def _download(jars: Sequence[Jar], scratch: Path) -> None:
    modules: dict[str, list[str]] = {}
    for jar in jars:
        module = f'org="{jar.group}" name="{jar.artifact}" rev="{jar.version}"'
        artifact = f'<artifact name="{jar.artifact}" type="jar" m:classifier="{jar.classifier}"/>'
        modules.setdefault(module, []).append(artifact)
    dependencies = "\n".join(
        f'    <dependency {module} transitive="false">{"".join(artifacts)}</dependency>'
        for module, artifacts in modules.items()
    )
    (scratch / "ivy.xml").write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">\n'
        '  <info organisation="sluice" module="spark-jars"/>\n'
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
        "-retrieve", str(scratch / "jars" / "[artifact]-[revision](-[classifier]).[ext]"),
    ]  # fmt: skip
    ivy = subprocess.run(command, capture_output=True, text=True, check=False)
    if ivy.returncode != 0:
        lines = (ivy.stdout + ivy.stderr).strip().splitlines() or ["Ivy printed nothing"]
        raise JarsError(f"the jars could not be resolved: {lines[-1].strip()}")
