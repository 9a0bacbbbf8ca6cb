"""The lock file of the jars is that of the installed Spark and Delta, and each lock file is complete."""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from lock_manager.errors import LocalServerError
from lock_manager.releases import TESTED, UNKNOWN, Releases, nearest_tested
from sluice.errors import JarsError
from sluice.local import jars
from sluice.local.jars import (
    chosen_releases,
    compile_class_path,
    locked_jars,
    pinned_jar_paths,
    pinned_releases,
    read_lock,
)
from writer_jobs.delta.releases import has_checkpoint, snapshot_at

PAIRS = [(spark, delta) for spark, deltas in TESTED.items() for delta in deltas]


def releases(spark: str, delta: str) -> Releases:
    return Releases(spark, delta, hadoop="3.4.1", java="17.0.1", creates_conditionally=False)


class Machine:
    """The Spark and the Delta that are installed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.monkeypatch, self.folder = monkeypatch, folder
        monkeypatch.delenv("SLUICE_DELTA", raising=False)

    def has(self, spark: str | None, delta: str | None) -> None:
        if spark is not None:
            (self.folder / f"spark-core_2.13-{spark}.jar").touch()

        def find_spark_jars() -> Path:
            if spark is None:
                raise LocalServerError("not found")
            return self.folder

        def version(_: str) -> str:
            if delta is None:
                raise PackageNotFoundError
            return delta

        self.monkeypatch.setattr(jars, "find_spark_jars", find_spark_jars)
        self.monkeypatch.setattr(jars, "version", version)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    return Machine(monkeypatch, tmp_path)


def test_each_tested_pair_has_a_lock_file_the_newest_first() -> None:
    assert pinned_releases() == PAIRS


@pytest.mark.parametrize(("spark", "delta"), PAIRS)
def test_a_lock_file_pins_delta_and_s3a(machine: Machine, spark: str, delta: str) -> None:
    machine.has(f"{spark}.1", delta)
    pinned = {jar.artifact: jar for jar in locked_jars()}
    (delta_spark,) = (jar for name, jar in pinned.items() if name.startswith("delta-spark_"))
    assert delta_spark.version == delta
    assert pinned["delta-storage"].version == delta
    assert {"hadoop-aws", "s3", "s3-transfer-manager", "sts"} <= pinned.keys()
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in pinned.values())


def test_a_lock_file_may_name_a_classifier() -> None:
    plain, tests = read_lock("# comment\n\norg.example:core:1.0 aa\norg.example:core:1.0:tests bb\n")
    assert (plain.file_name, plain.sha256) == ("core-1.0.jar", "aa")
    assert (tests.file_name, tests.sha256) == ("core-1.0-tests.jar", "bb")


@pytest.mark.parametrize(
    ("spark", "delta", "expected"),
    [
        ("4.1.1", "4.2.0", ("4.1", "4.2.0")),
        ("4.1.1", None, ("4.1", "4.4.0")),
        ("4.1.1-amzn-0", "4.2.0", ("4.1", "4.2.0")),
        (None, "4.4.0", ("4.2", "4.4.0")),
        (None, None, ("4.2", "4.4.0")),
    ],
)
def test_the_releases_are_those_that_are_installed(
    machine: Machine, spark: str | None, delta: str | None, expected: tuple[str, str]
) -> None:
    machine.has(spark, delta)
    assert chosen_releases() == expected


def test_the_variable_chooses_another_delta(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.has("4.1.1", "4.4.0")
    monkeypatch.setenv("SLUICE_DELTA", "4.2.0")
    assert chosen_releases() == ("4.1", "4.2.0")


@pytest.mark.parametrize(
    ("spark", "delta", "message"),
    [
        ("4.1.1-amzn-0", "4.3.0", "Spark 4.1 with Delta 4.3.1): install delta-spark 4.3.1, or set SLUICE_DELTA=4.3.1"),
        ("3.5.6", "3.3.2", "Spark 4.0 with Delta 4.0.0): install PySpark 4.0 and delta-spark 4.0.0"),
        (None, "4.5.0", "Spark 4.2 with Delta 4.5.0 is not tested (the nearest tested pair: Spark 4.2 with Delta 4.4"),
    ],
)
def test_unpinned_releases_are_refused(machine: Machine, spark: str | None, delta: str, message: str) -> None:
    machine.has(spark, delta)
    with pytest.raises(JarsError, match=re.escape(message)):
        chosen_releases()


def test_the_class_path_has_the_jars_of_one_delta(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine.has("4.1.1", "4.2.0")
    monkeypatch.setenv("SLUICE_JARS", str(tmp_path))
    for delta in ("4.4.0", "4.2.0"):
        monkeypatch.setenv("SLUICE_DELTA", delta)
        for jar in locked_jars():
            (tmp_path / jar.file_name).touch()
    spark_jars, *pinned = compile_class_path().split(os.pathsep)
    assert spark_jars == f"{tmp_path}/*"
    assert [Path(jar).name for jar in pinned] == [jar.file_name for jar in locked_jars()]
    assert {"delta-storage-4.2.0.jar"} == {Path(jar).name for jar in pinned if "delta-storage" in jar}


def test_the_jars_of_another_folder_are_named(machine: Machine, tmp_path: Path) -> None:
    machine.has("4.1.1", "4.2.0")
    with pytest.raises(JarsError, match=re.escape(f"missing from {tmp_path}")):
        pinned_jar_paths(tmp_path)
    for jar in locked_jars():
        (tmp_path / jar.file_name).touch()
    assert {path.parent for path in pinned_jar_paths(tmp_path)} == {tmp_path}


@pytest.mark.parametrize(
    ("spark", "delta", "nearest"),
    [
        ("4.2.0", "4.4.1", ("4.2", "4.4.0")),
        ("4.3.0", "4.5.0", ("4.2", "4.4.0")),
        ("4.1.1", "4.3.0", ("4.1", "4.3.1")),
        ("4.1.1", "4.2.1", ("4.1", "4.2.0")),
        ("4.1.1", "unknown", ("4.1", "4.4.0")),
        ("4.0.1-amzn-0", "4.0.0-amzn-1", ("4.0", "4.0.0")),
        ("3.5.6", "3.3.2", ("4.0", "4.0.0")),
    ],
)
def test_untested_releases_have_a_nearest_tested_pair(spark: str, delta: str, nearest: tuple[str, str]) -> None:
    untested_releases = releases(spark, delta)
    assert not untested_releases.is_tested()
    assert nearest_tested(spark, delta) == nearest


SUFFIX = "is a pre-release or a vendor's build (the nearest tested pair: Spark"
PROBLEMS = {
    ("4.0.0", "4.4.0"): "is not tested (the nearest tested pair: Spark 4.0, at least 4.0.1, with Delta 4.4.0)",
    ("4.2.0-SNAPSHOT", "4.4.0"): f"because Spark 4.2.0-SNAPSHOT {SUFFIX} 4.2 with Delta 4.4.0)",
    ("4.2.0-preview3", "4.4.0"): f"because Spark 4.2.0-preview3 {SUFFIX} 4.2 with Delta 4.4.0)",
    ("4.0.1-amzn-0", "4.0.0"): f"because Spark 4.0.1-amzn-0 {SUFFIX} 4.0 with Delta 4.0.0)",
    ("4.1.1", "4.2.0-rc1"): f"because Delta 4.2.0-rc1 {SUFFIX} 4.1 with Delta 4.2.0)",
    ("4.1.1", "unknown"): "because the release of Delta is not known (the nearest tested pair: Spark 4.1 with",
}


@pytest.mark.parametrize(("versions", "problem"), PROBLEMS.items())
def test_old_patches_and_builds_with_a_suffix_are_untested(versions: tuple[str, str], problem: str) -> None:
    assert not releases(*versions).is_tested()
    assert problem in (releases(*versions).problem() or "")


@pytest.mark.parametrize(("spark", "delta"), PAIRS)
def test_tested_releases_are_their_own_nearest(spark: str, delta: str) -> None:
    for patch in (TESTED[spark][delta], f"{spark}.2"):
        tested_releases = releases(patch, delta)
        assert tested_releases.is_tested()
        assert tested_releases.problem() is None
        assert nearest_tested(patch, delta) == (spark, delta)


class OldDeltaLog:
    """A DeltaLog whose newer methods fail with an error, and whose older methods count their calls."""

    def __init__(self, error: Py4JError) -> None:
        self.error, self.old_calls = error, 0

    def getSnapshotAt(self, _version: int, _start: Any, _end: Any, *enforced: bool) -> str:
        if enforced:
            raise self.error
        self.old_calls += 1
        return "snapshot"

    def checkpointExistsAtVersion(self, _version: int) -> bool:
        raise self.error

    def findLastCompleteCheckpointBefore(self, _version: int) -> Mock:
        self.old_calls += 1
        return Mock(isDefined=lambda: False)


def test_a_call_is_repeated_only_if_delta_lacks_the_method() -> None:
    for error in (Py4JNetworkError("Answer from Java side is empty"), Py4JError("table t does not exist")):
        log = OldDeltaLog(error)
        with pytest.raises(Py4JError, match=str(error)):
            snapshot_at(log, 1, None)
        with pytest.raises(Py4JError, match=str(error)):
            has_checkpoint(log, 1)
        assert log.old_calls == 0
    trace = "An error occurred while calling o1.{0}. Trace:\npy4j.Py4JException: Method {0}([class int]) does not exist"
    assert snapshot_at(OldDeltaLog(Py4JError(trace.format("getSnapshotAt"))), 1, None) == "snapshot"
    assert not has_checkpoint(OldDeltaLog(Py4JError(trace.format("checkpointExistsAtVersion"))), 1)


def test_a_delta_that_does_not_report_its_release_is_untested() -> None:
    releases = Releases("4.1.1", UNKNOWN, "3.4.2", "17", creates_conditionally=True)
    assert not releases.is_tested()
    assert "the release of Delta is not known" in str(releases.problem())
