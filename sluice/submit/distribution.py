"""Builds the zip for ``--py-files``, and the arguments of ``spark-submit``.

The zip contains ``lock_manager``, ``writer_jobs`` and kazoo, and if they are installed kazoo's package for SASL and
Delta's Python module. All of them are pure Python, so the zip runs in any interpreter of the cluster's PySpark.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.errors import DistributionError
from sluice.local.jars import jar_paths, jars_folder

# Packages in the zip, each with the distribution whose licence must be in the zip, too; None for this project's own.
_PACKAGES = {"lock_manager": None, "writer_jobs": None, "kazoo": "kazoo"}
_OPTIONAL_PACKAGES = {"puresasl": "pure-sasl", "delta": "delta-spark"}
# "connect" is Delta for Spark Connect: it needs gRPC, and cannot write with the lock.
_EXCLUDED = frozenset({"__pycache__", "tests", "testing", "connect"})
_SUFFIXES = frozenset({".py", ".typed"})
# By default YARN runs a failed driver a second time. Other cluster managers ignore the setting.
_ONE_ATTEMPT = {"spark.yarn.maxAppAttempts": "1"}
# The oldest time of the zip format. A real time would change the bytes.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)


def build_zip(path: str | Path) -> Path:
    """Write the zip for ``--py-files``, and return its absolute path.

    The same packages give the same bytes on every machine: names are sorted, times and modes are fixed, and the zip is
    not compressed, because the result of compression depends on the library. It contains no tests and no byte code, but
    the licences of third-party packages. Missing folders are created. An existing file is replaced when the new one is
    complete.

    Raises:
        DistributionError: A package is not installed as files.

    """
    contents = sorted(_contents())
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for name, file in contents:
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.create_system = 3  # Unix
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, file.read_bytes())
    part.replace(target)
    return target


def submit_arguments(
    zip_path: str | Path | None = None, *, guard: str | None = None, lock: str | None = None
) -> list[str]:
    """Return the ``spark-submit`` arguments for this project: ``--jars``, ``--py-files`` and ``--conf``.

    Quote them with :func:`shlex.join` to print them. The ``--conf`` arguments configure Delta and the guarded log store
    for jobs that start their own session. :func:`writer_jobs.build_session` does not need them. Omit them if the
    cluster's ``spark-defaults.conf`` sets other extensions or another catalog, because ``--conf`` replaces those.
    Without ``lock``, one more makes YARN run a driver once: a job without ``--run-id`` that is run again adds its rows
    a second time. A later ``--conf`` replaces it.

    Args:
        zip_path: A zip of :func:`build_zip`. By default a new one is built next to the folder of the jars.
        guard: ``required``, ``observe`` or ``off``; None for no argument, which means ``required``.
        lock: ``commit`` or ``write`` make an unchanged program wait for its locks, see :func:`plugin_settings`.

    Raises:
        JarsError: A jar is missing. The message names the command that downloads it.
        DistributionError: See :func:`build_zip`.

    """
    archive = build_zip(jars_folder().parent / "sluice-py-files.zip") if zip_path is None else Path(zip_path).absolute()
    settings = session_settings()
    if lock:
        settings |= plugin_settings(archive) | {"spark.sluice.lock": lock}
    else:
        settings |= _ONE_ATTEMPT
    if guard:
        settings["spark.sluice.guard"] = guard
    return [*jar_arguments(), "--py-files", str(archive), *conf_arguments(settings)]


def session_settings() -> dict[str, str]:
    """Return the settings of Delta and the guarded log store for programs that start their own session."""
    from writer_jobs.delta import session  # noqa: PLC0415 (PySpark takes 0.4 s)

    return {
        "spark.sql.extensions": session.DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        **dict.fromkeys((session.LOG_STORE_SETTING, *session.KERNEL_LOG_STORE_SETTINGS), session.LOG_STORE),
    }


def plugin_settings(python_path: Path | None = None) -> dict[str, str]:
    """Return the settings, without the ensemble, that make an unchanged program wait for the lock at each commit.

    The driver runs on this machine, and starts its agent with this interpreter.

    Args:
        python_path: Zip with ``lock_manager``; None if this interpreter has it.

    """
    return {
        "spark.plugins": "io.deltasluice.SluicePlugin",
        "spark.sluice.python": sys.executable,
        **({} if python_path is None else {"spark.sluice.pythonPath": str(python_path)}),
    }


def jar_arguments() -> list[str]:
    """Return the ``--jars`` argument with the jars of this installation; raise JarsError if one is missing."""
    return ["--jars", ",".join(str(path.absolute()) for path in jar_paths())]


def conf_arguments(settings: Mapping[str, str]) -> list[str]:
    """Return settings as ``--conf`` arguments."""
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def job_script(job: str) -> Path:
    """Return the path of a job's script, such as ``append``, in the installed package.

    Raises:
        DistributionError: See :func:`build_zip`.

    """
    return _folder_of("writer_jobs") / f"{job}.py"


def _contents() -> Iterator[tuple[str, Path]]:
    """Yield the name of every entry of the zip, and its file."""
    for package, distribution in (_PACKAGES | _OPTIONAL_PACKAGES).items():
        if package in _OPTIONAL_PACKAGES and importlib.util.find_spec(package) is None:
            continue
        folder = _folder_of(package)
        for file in folder.rglob("*"):
            relative = file.relative_to(folder)
            if file.suffix in _SUFFIXES and file.is_file() and _EXCLUDED.isdisjoint(relative.parts):
                yield f"{package}/{relative.as_posix()}", file
        for licence in (distribution and importlib.metadata.files(distribution)) or ():
            if licence.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")):
                yield f"{package}/{licence.name}", Path(str(licence.locate()))


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise DistributionError(f"package {package} is not installed as files, so it cannot be put into a zip")
    return Path(spec.origin).parent
