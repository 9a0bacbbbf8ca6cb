"""The lock file of the jars is that of the installed Spark and Delta, and each lock file is complete."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from lock_manager.errors import LocalServerError
from sluice.errors import JarsError
from sluice.local import jars
from sluice.local.jars import chosen_releases, locked_jars, pinned_releases
from writer_jobs.delta.releases import TESTED, Releases

PAIRS = [(spark, delta) for spark, deltas in TESTED.items() for delta in deltas]


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


@pytest.mark.parametrize(
    ("spark", "delta", "expected"),
    [
        ("4.1.1", "4.2.0", ("4.1", "4.2.0")),
        ("4.1.1", None, ("4.1", "4.4.0")),
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
        ("4.1.1", "4.3.0", "Delta 4.3.0 is not tested with Spark 4.1: install delta-spark 4.4.0 or 4.3.1 or 4.2.0, or"),
        ("3.5.6", "3.3.2", "Spark 3.5 is not tested: install PySpark 4.0, 4.1 or 4.2"),
    ],
)
def test_unpinned_releases_are_refused(machine: Machine, spark: str, delta: str, message: str) -> None:
    machine.has(spark, delta)
    with pytest.raises(JarsError, match=re.escape(message)):
        chosen_releases()


@pytest.mark.parametrize(
    ("spark", "delta", "nearest"),
    [
        ("4.2.0", "4.4.1", ("4.2", "4.4.0")),
        ("4.3.0", "4.5.0", ("4.2", "4.4.0")),
        ("4.1.1", "4.3.0", ("4.1", "4.2.0")),
        ("4.0.1-amzn-0", "4.0.0-amzn-1", ("4.0", "4.0.0")),
        ("3.5.6", "3.3.2", ("4.0", "4.0.0")),
    ],
)
def test_untested_releases_have_a_nearest_tested_pair(spark: str, delta: str, nearest: tuple[str, str]) -> None:
    releases = Releases(spark, delta, hadoop="3.4.1", java="17.0.1", creates_conditionally=False)
    assert not releases.is_tested()
    assert releases.nearest_tested() == nearest


@pytest.mark.parametrize(("spark", "delta"), PAIRS)
def test_tested_releases_are_their_own_nearest(spark: str, delta: str) -> None:
    releases = Releases(f"{spark}.1", delta, hadoop="3.4.2", java="17.0.1", creates_conditionally=True)
    assert releases.is_tested()
    assert releases.nearest_tested() == (spark, delta)
