"""Checks this machine: Python packages, Java, the pinned jars, the guarded log store."""

from __future__ import annotations

import zipfile
from importlib.metadata import PackageNotFoundError, version

from lock_manager.errors import LocalServerError
from lock_manager.testing.embedded import find_java
from sluice.doctor.finding import Finding, failed, note, ok
from sluice.local.jars import LOG_STORE_JAR, is_pinned, jars_folder, locked_jars

_PACKAGES = ("delta-sluice", "kazoo", "pyspark", "delta-spark", "deltalake")
_LOG_STORE_CLASS = "io/deltasluice/storage/GuardedLogStore.class"


def machine_findings() -> list[Finding]:
    """Look at what is installed here; a cluster brings its own PySpark and Java."""
    return [_packages(), _java(), _jars(), _log_store()]


def _packages() -> Finding:
    found, missing = [], []
    for name in _PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing.append(name)
    said = ", ".join(found)
    return note("python", f"{said}; not installed: {', '.join(missing)}") if missing else ok("python", said)


def _java() -> Finding:
    try:
        return ok("java", find_java())
    except LocalServerError as error:
        return note("java", f"no Spark driver can run here: {error}")


def _jars() -> Finding:
    folder, pinned = jars_folder(), locked_jars()
    missing = [jar.file_name for jar in pinned if not (folder / jar.file_name).is_file()]
    if missing:
        return failed(
            "jars",
            f"{len(missing)} of {len(pinned)} are missing from {folder} (the first: {missing[0]}): run `sluice jars`",
        )
    others = [jar.file_name for jar in pinned if not is_pinned(folder / jar.file_name, jar)]
    if others:
        return failed(
            "jars",
            f"{len(others)} of {len(pinned)} in {folder} are not the pinned ones (the first: {others[0]}): "
            "run `sluice jars`, which brings them again",
        )
    return ok("jars", f"{len(pinned)} in {folder}, each as pinned by its SHA-256")


def _log_store() -> Finding:
    what = "log store"
    try:
        with zipfile.ZipFile(LOG_STORE_JAR) as jar:
            there = _LOG_STORE_CLASS in jar.namelist()
    except FileNotFoundError:
        return failed(what, f"{LOG_STORE_JAR} is missing: `make setup` builds it, and an installed package has it")
    except (OSError, zipfile.BadZipFile) as error:
        return failed(what, f"{LOG_STORE_JAR} cannot be read ({error}): build it again (`make setup`)")
    if not there:
        return failed(what, f"{LOG_STORE_JAR} has no GuardedLogStore: build it again (`make setup`)")
    return ok(what, str(LOG_STORE_JAR))
