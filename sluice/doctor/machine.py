"""Checks this machine: Python packages, Java, the pinned jars, the guarded log store."""

from __future__ import annotations

import zipfile
from importlib.metadata import PackageNotFoundError, version

from lock_manager.errors import LocalServerError
from lock_manager.testing.embedded import find_java
from sluice.doctor.finding import Finding, failed, note, ok
from sluice.local.jars import LOG_STORE_JAR, is_pinned, jars_folder, locked_jars

_PACKAGES = ("delta-sluice", "kazoo", "pyspark", "delta-spark", "deltalake")


def machine_findings() -> list[Finding]:
    """Check the installation on this machine. A cluster has its own PySpark and Java."""
    return [_packages_finding(), _java_finding(), _jars_finding(), _log_store_finding()]


def _packages_finding() -> Finding:
    installed_packages, missing_packages = [], []
    for name in _PACKAGES:
        try:
            installed_packages.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            missing_packages.append(name)
    text = ", ".join(installed_packages)
    if missing_packages:
        return note("python", f"{text}; not installed: {', '.join(missing_packages)}")
    return ok("python", text)


def _java_finding() -> Finding:
    try:
        return ok("java", find_java())
    except LocalServerError as error:
        return note("java", f"no Spark driver can run here: {error}")


def _jars_finding() -> Finding:
    folder, pinned = jars_folder(), locked_jars()
    missing_jars = [jar.file_name for jar in pinned if not (folder / jar.file_name).is_file()]
    if missing_jars:
        return failed(
            "jars",
            f"{len(missing_jars)} of {len(pinned)} are missing from {folder} (the first: {missing_jars[0]}): "
            "run `sluice jars`",
        )
    changed_jars = [jar.file_name for jar in pinned if not is_pinned(folder / jar.file_name, jar)]
    if changed_jars:
        return failed(
            "jars",
            f"{len(changed_jars)} of {len(pinned)} in {folder} are not the pinned ones (the first: {changed_jars[0]}"
            "): run `sluice jars`, which downloads them again",
        )
    return ok("jars", f"{len(pinned)} in {folder}, with the pinned SHA-256")


def _log_store_finding() -> Finding:
    check = "log store"
    try:
        with zipfile.ZipFile(LOG_STORE_JAR) as jar:
            has_log_store = "io/deltasluice/storage/GuardedLogStore.class" in jar.namelist()
    except FileNotFoundError:
        return failed(check, f"{LOG_STORE_JAR} is missing: run `make setup`, or install the package")
    except (OSError, zipfile.BadZipFile) as error:
        return failed(check, f"{LOG_STORE_JAR} cannot be read ({error}): build it again by `make setup`")
    if not has_log_store:
        return failed(check, f"{LOG_STORE_JAR} has no GuardedLogStore: build it again by `make setup`")
    return ok(check, str(LOG_STORE_JAR))
