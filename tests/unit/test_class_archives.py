"""JVMs with an archive of parsed classes: used where there is one, never in the way."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lock_manager.testing import class_archives
from lock_manager.testing.class_archives import SPARK, archive_options, archive_path, write_archive_options
from lock_manager.testing.embedded import find_java


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the archive would be in an environment of its own; there is none."""
    monkeypatch.setattr(class_archives.sys, "prefix", str(tmp_path))
    path = archive_path(SPARK)
    path.parent.mkdir(parents=True)
    return path


def run_java(*options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([find_java(), *options, "-version"], capture_output=True, text=True, check=False, timeout=60)


def test_without_an_archive_or_with_an_empty_one_nothing_is_asked_for(archive: Path) -> None:
    assert archive_options(SPARK) == []
    archive.touch()
    assert archive_options(SPARK) == []


def test_a_jvm_uses_the_archive_that_another_one_made(archive: Path) -> None:
    assert run_java(*write_archive_options(archive)).returncode == 0
    # Required: without the archive it would not start.
    done = run_java(*archive_options(SPARK), "-Xshare:on")
    assert (done.returncode, done.stdout) == (0, "")


def test_an_archive_that_does_not_fit_is_passed_over_in_silence(archive: Path) -> None:
    archive.write_bytes(b"no archive of classes")
    done = run_java(*archive_options(SPARK))
    assert (done.returncode, done.stdout) == (0, "")
    assert "warning" not in done.stderr
    # The control: the JVM has looked at it.
    assert run_java(*archive_options(SPARK), "-Xshare:on").returncode != 0
