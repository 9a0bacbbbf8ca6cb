"""JVMs with an archive of parsed classes: they use a valid archive and ignore any other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lock_manager.testing import class_archives
from lock_manager.testing.class_archives import SPARK, archive_options, archive_path, write_archive_options
from lock_manager.testing.embedded import find_java


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the archive's path in a new environment that does not contain an archive yet."""
    monkeypatch.setattr(class_archives.sys, "prefix", str(tmp_path))
    path = archive_path(SPARK)
    path.parent.mkdir(parents=True)
    return path


def run_java(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_java(), *options, "-version"], capture_output=True, text=True, check=False, timeout=60)


def test_a_missing_or_empty_archive_is_not_used(archive: Path) -> None:
    assert archive_options(SPARK) == []
    archive.touch()
    assert archive_options(SPARK) == []


def test_a_jvm_uses_the_archive_of_an_earlier_jvm(archive: Path) -> None:
    assert run_java(*write_archive_options(archive)).returncode == 0
    options = archive_options(SPARK)
    assert options, "no archive was written"
    # With -Xshare:on a JVM fails if it cannot use the archive.
    java = run_java(*options, "-Xshare:on")
    assert (java.returncode, java.stdout) == (0, "")


def test_an_invalid_archive_is_ignored_without_a_warning(archive: Path) -> None:
    archive.write_bytes(b"no archive of classes")
    java = run_java(*archive_options(SPARK))
    assert (java.returncode, java.stdout) == (0, "")
    assert "warning" not in java.stderr
    # The control: with -Xshare:on the JVM fails, so it does try to read this archive.
    assert run_java(*archive_options(SPARK), "-Xshare:on").returncode != 0
