"""Builds what a cluster needs: a zip for ``--py-files``, and the list of jars.

The zip holds ``lock_manager``, ``writer_jobs``, kazoo and, where they are installed, what kazoo needs for SASL and
Delta's own Python module: pure Python, so that it runs from the zip in any interpreter that the cluster's PySpark runs
in.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

from sluice.errors import DistributionError
from sluice.local.jars import jar_paths, jars_folder

_ZIP_NAME = "sluice-py-files.zip"
_PACKAGES = ("lock_manager", "writer_jobs", "kazoo")
_IF_INSTALLED = ("puresasl", "delta")
_OF_OTHERS = {"kazoo": "kazoo", "puresasl": "pure-sasl", "delta": "delta-spark"}
"""Distributions of which a licence has to go along, by package."""
# Delta for Spark Connect, which cannot write under a lock, needs gRPC.
_LEFT_OUT = frozenset({"__pycache__", "tests", "testing", "connect"})
_SUFFIXES = frozenset({".py", ".typed"})
# The zip format's oldest: no clock may show in it.
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_FILE_MODE = 0o100644 << 16


def build_zip(path: str | Path) -> Path:
    """Write the zip for ``--py-files``, and return where it is.

    The same packages give the same bytes, wherever and whenever it is built: sorted names, fixed times and modes, no
    compression (whose result depends on the library). Tests and byte code are left out; others' licences go along.

    Args:
        path: of the zip; folders on the way are made. What was there is replaced when the new one is complete.

    Raises:
        DistributionError: one of the packages is not installed as files.

    """
    contents = sorted(_contents())
    target = Path(path).absolute()
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
        for name, file in contents:
            entry = zipfile.ZipInfo(name, _TIMESTAMP)
            entry.create_system = _UNIX
            entry.external_attr = _FILE_MODE
            archive.writestr(entry, file.read_bytes())
    part.replace(target)
    return target


def submit_arguments(zip_path: str | Path | None = None, *, guard: str | None = None) -> list[str]:
    """Return the part of a ``spark-submit`` line that brings this project: ``--jars``, ``--py-files`` and ``--conf``.

    To be quoted with :func:`shlex.join` where it is printed. The ``--conf`` make Delta and the guarded log store known
    to jobs that start their own session. :func:`writer_jobs.build_session` needs none: where a cluster's
    ``spark-defaults.conf`` has extensions or a catalog of its own, leave them out of the line, for ``--conf`` would
    replace those.

    Args:
        zip_path: a zip made by :func:`build_zip`; by default one is made, beside the folder of the jars.
        guard: ``required``, ``observe`` or ``off``, to be named in the line; by default it is not, and ``required``.

    Raises:
        JarsError: the jars are not there; the message says how to bring them.
        DistributionError: see :func:`build_zip`.

    """
    from writer_jobs.delta.session import (  # noqa: PLC0415 (PySpark takes 0.4 s)
        GUARD_MODE,
        KERNEL_LOG_STORE_SETTINGS,
        LOG_STORE,
        LOG_STORE_SETTING,
    )

    jars = [str(path.absolute()) for path in jar_paths()]
    log_stores = [("--conf", f"{key}={LOG_STORE}") for key in (LOG_STORE_SETTING, *KERNEL_LOG_STORE_SETTINGS)]
    archive = build_zip(jars_folder().parent / _ZIP_NAME) if zip_path is None else Path(zip_path).absolute()
    return [
        "--jars", ",".join(jars),
        "--py-files", str(archive),
        "--conf", "spark.sql.extensions=io.delta.sql.DeltaSparkSessionExtension",
        "--conf", "spark.sql.catalog.spark_catalog=org.apache.spark.sql.delta.catalog.DeltaCatalog",
        *itertools.chain.from_iterable(log_stores),
        *(("--conf", f"{GUARD_MODE}={guard}") if guard else ()),
    ]  # fmt: skip


def _contents() -> Iterator[tuple[str, Path]]:
    """Yield every name in the zip with the file that it is made of."""
    packages = [*_PACKAGES, *(package for package in _IF_INSTALLED if importlib.util.find_spec(package))]
    for package in packages:
        folder = _folder_of(package)
        for file in folder.rglob("*"):
            inside = file.relative_to(folder)
            if file.suffix in _SUFFIXES and file.is_file() and _LEFT_OUT.isdisjoint(inside.parts):
                yield f"{package}/{inside.as_posix()}", file
        for licence in importlib.metadata.files(_OF_OTHERS[package]) or () if package in _OF_OTHERS else ():
            if licence.name.upper().startswith(("LICENSE", "LICENCE", "NOTICE")):
                yield f"{package}/{licence.name}", Path(str(licence.locate()))


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None or not Path(spec.origin).is_file():
        raise DistributionError(f"package {package} is not installed as files, so it cannot be put into a zip")
    return Path(spec.origin).parent
