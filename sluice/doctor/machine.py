"""Checks this machine: Python packages, Java, Spark, the pinned jars, the guarded log store."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import zipfile
from importlib.metadata import PackageNotFoundError, version

from lock_manager.errors import LocalServerError
from lock_manager.releases import Releases
from lock_manager.testing.embedded import find_java, find_spark_jars
from sluice.doctor.finding import Finding, failed, note, ok
from sluice.errors import JarsError
from sluice.local.jars import LOG_STORE_JAR, chosen_releases, is_pinned, jars_folder, locked_jars, spark_jar_version

#: The first release of S3A that can create a file only if it is absent.
_CONDITIONAL_CREATE = (3, 4, 2)
_PACKAGES = ("delta-sluice", "kazoo", "pyspark", "delta-spark", "deltalake")


def machine_findings() -> list[Finding]:
    """Check the installation on this machine. A cluster has its own PySpark and Java."""
    return [_packages_finding(), _java_finding(), _spark_finding(), _jars_finding(), _log_store_finding()]


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


def _spark_finding() -> Finding:
    """Report the releases of a driver that this machine's ``spark-submit`` starts with the pinned jars."""
    check = "spark"
    if importlib.util.find_spec("pyspark") is None:
        return note(check, "no Spark driver can run here: PySpark is not installed")
    try:
        folder, java = find_spark_jars(), find_java()
    except LocalServerError as error:
        return note(check, f"no Spark driver can run here: {error}")
    try:
        _, delta = chosen_releases()
    except JarsError as error:
        return failed(check, str(error))
    spark = spark_jar_version(folder, "spark-core_[0-9.]+")
    hadoop = spark_jar_version(folder, "hadoop-client-api")
    if spark is None or hadoop is None:
        name = "spark-core" if spark is None else "hadoop-client-api"
        return note(check, f"the releases are not known, because {folder} has no {name} jar; `attach` logs them")
    (s3a,) = (jar.version for jar in locked_jars() if jar.artifact == "hadoop-aws")
    creates_conditionally = tuple(map(int, s3a.split("."))) >= _CONDITIONAL_CREATE
    process = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    java_version = re.search(r'version "([^"]+)"', process.stderr)
    releases = Releases(
        spark=spark,
        delta=delta,
        hadoop=hadoop,
        java=java_version[1] if java_version else "unknown",
        creates_conditionally=creates_conditionally,
    )
    refusal = releases.refusal()
    return ok(check, str(releases)) if refusal is None else failed(check, refusal)


def _jars_finding() -> Finding:
    folder = jars_folder()
    try:
        pinned = locked_jars()
    except JarsError as error:
        return failed("jars", str(error))
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
