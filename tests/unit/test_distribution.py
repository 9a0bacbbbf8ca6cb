"""The zip of Python packages for a cluster, and the arguments of spark-submit."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from sluice.errors import DistributionError, JarsError
from sluice.local.jars import LOG_STORE_JAR, locked_jars
from sluice.submit import distribution
from sluice.submit.distribution import build_zip, submit_arguments
from writer_jobs.delta.session import KERNEL_LOG_STORE_SETTINGS


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Create empty files with the names of the pinned jars in a folder whose name contains a space."""
    folder = tmp_path / "the jars"
    folder.mkdir()
    monkeypatch.setenv("SLUICE_JARS", str(folder))
    paths = [folder / jar.file_name for jar in locked_jars()]
    for path in paths:
        path.touch()
    return [*paths, LOG_STORE_JAR]


def test_the_zip_is_reproducible(tmp_path: Path) -> None:
    archive = build_zip(tmp_path / "a" / "one.zip")
    os.utime(archive, (0, 0))
    copy = build_zip(str(tmp_path / "b" / "two.zip"))
    assert archive.read_bytes() == copy.read_bytes()
    assert build_zip(archive) == archive
    assert archive.stat().st_mtime > time.time() - 3600
    assert [path.name for path in archive.parent.iterdir()] == ["one.zip"]


def test_the_zip_contains_only_the_imports_of_jobs(tmp_path: Path) -> None:
    with zipfile.ZipFile(build_zip(tmp_path / "jobs.zip")) as archive:
        names = archive.namelist()
        entries = archive.infolist()
    assert names == sorted(set(names))
    assert {name.split("/")[0] for name in names} == {"lock_manager", "writer_jobs", "kazoo", "puresasl", "delta"}
    assert {"lock_manager/zookeeper/manager.py", "writer_jobs/append.py", "kazoo/client.py"} <= set(names)
    assert {"kazoo/LICENSE", "puresasl/LICENSE"} <= set(names)
    assert not [name for name in names if "/tests/" in name or "/testing/" in name or name.endswith(".pyc")]
    assert {entry.date_time for entry in entries} == {(1980, 1, 1, 0, 0, 0)}


def test_the_lock_can_be_imported_from_the_zip_alone(tmp_path: Path) -> None:
    archive = build_zip(tmp_path / "jobs.zip")
    program = (
        f"import sys; sys.path.insert(0, {str(archive)!r})\n"
        "import kazoo, lock_manager\n"
        "assert all('jobs.zip' in module.__file__ for module in (kazoo, lock_manager))\n"
        "lock_manager.ZookeeperLockManager('127.0.0.1:1').close()\n"
        "lock_manager.Security(auth='sasl', username='a', password='b')\n"
    )
    # -I ignores the environment variables of Python, and -S the installed packages.
    subprocess.run([sys.executable, "-I", "-S", "-c", program], check=True, cwd=tmp_path)


def test_submit_arguments_name_jars_zip_and_settings(jars: list[Path], tmp_path: Path) -> None:
    archive = tmp_path / "my zip"
    arguments = submit_arguments(archive)
    assert arguments[:4] == ["--jars", ",".join(map(str, jars)), "--py-files", str(archive)]
    assert set(arguments[4::2]) == {"--conf"}
    assert [setting.partition("=")[0] for setting in arguments[5::2]] == [
        "spark.sql.extensions",
        "spark.sql.catalog.spark_catalog",
        "spark.delta.logStore.class",
        *KERNEL_LOG_STORE_SETTINGS,
        "spark.yarn.maxAppAttempts",
    ]
    assert submit_arguments(archive, guard="observe") == [*arguments, "--conf", "spark.sluice.guard=observe"]
    # Unchanged programs keep YARN's number of attempts.
    with_lock = [*arguments[:-2], "--conf", "spark.plugins=io.deltasluice.SluicePlugin"]
    assert submit_arguments(archive, lock="write")[: len(with_lock)] == with_lock
    assert submit_arguments(archive, lock="write")[-1] == "spark.sluice.lock=write"
    assert shlex.split(shlex.join(arguments)) == arguments


def test_the_default_zip_is_built_next_to_the_jars(jars: list[Path]) -> None:
    archive = Path(submit_arguments()[3])
    assert archive.parent == jars[0].parent.parent
    assert zipfile.is_zipfile(archive)


def test_the_error_for_a_missing_jar_names_the_command(jars: list[Path]) -> None:
    jars[3].unlink()
    with pytest.raises(JarsError, match="run `sluice jars` once"):
        submit_arguments()


def test_an_optional_package_that_is_not_installed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_OPTIONAL_PACKAGES", {"no_such_package": "none"})
    with zipfile.ZipFile(build_zip(tmp_path / "jobs.zip")) as archive:
        assert {name.split("/")[0] for name in archive.namelist()} == {"lock_manager", "writer_jobs", "kazoo"}


def test_the_error_for_a_missing_package_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_PACKAGES", {"lock_manager": None, "no_such_package": None})
    with pytest.raises(DistributionError, match="no_such_package"):
        build_zip(tmp_path / "jobs.zip")
    assert list(tmp_path.iterdir()) == []
