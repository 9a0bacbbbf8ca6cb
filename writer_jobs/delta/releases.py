"""The tested releases of Spark and Delta, and the calls of Delta that differ between them.

``DeltaApi.java`` has the calls of the log store.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError

#: The tested Delta releases of each Spark line, the newest first, each with the lowest Spark release that it accepts.
#: ``sluice/jars`` has a lock file for each pair.
TESTED = {
    "4.2": {"4.4.0": "4.2.0"},
    "4.1": {"4.4.0": "4.1.0", "4.3.1": "4.1.0", "4.2.0": "4.1.0"},
    "4.0": {"4.4.0": "4.0.1", "4.0.1": "4.0.0", "4.0.0": "4.0.0"},
}
#: Spark setting: ``true`` lets :func:`writer_jobs.attach` accept other releases.
ALLOW_UNTESTED = "spark.sluice.allowUntested"
#: Hadoop's options for creating a file only if it is absent. Hadoop has this class since 3.4.2.
CONDITIONAL_CREATE = "org.apache.hadoop.fs.Options$CreateFileOptionKeys"
_UNKNOWN = "unknown"
# A vendor's build has a suffix, such as 4.0.1-amzn-0. So has a pre-release, such as 4.2.0-preview3.
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True)
class Releases:
    """The software of a driver.

    Attributes:
        spark: Version of Spark.
        delta: Version of Delta Lake; ``unknown`` if Delta does not report it.
        hadoop: Version of Hadoop.
        java: Version of Java.
        creates_conditionally: Whether this Hadoop has :data:`CONDITIONAL_CREATE`.

    """

    spark: str
    delta: str
    hadoop: str
    java: str
    creates_conditionally: bool

    def __str__(self) -> str:
        """Return one line for people."""
        way = "Hadoop's conditional create" if self.creates_conditionally else "S3A's client of the AWS SDK"
        return (
            f"Spark {self.spark}, Delta {self.delta}, Hadoop {self.hadoop}, Java {self.java}; {way} puts versions on S3"
        )

    def is_tested(self) -> bool:
        """Return whether this Delta was tested with this line of Spark.

        Pre-releases, builds of vendors, and a Spark older than Delta accepts are not tested.
        """
        lowest = TESTED.get(_spark_line(self.spark), {}).get(self.delta)
        return lowest is not None and bool(_RELEASE.fullmatch(self.spark)) and _rank(self.spark) >= _rank(lowest)

    def problem(self) -> str | None:
        """Return why these releases are not tested, and the nearest tested pair; None if they are tested."""
        if self.is_tested():
            return None
        line, delta = nearest_tested(self.spark, self.delta)
        lowest = TESTED[line][delta]
        spark = line if lowest == f"{line}.0" else f"{line}, at least {lowest},"
        reasons = [
            f"the release of {name} is not known"
            if release == _UNKNOWN
            else f"{name} {release} is a pre-release or a vendor's build"
            for name, release in (("Spark", self.spark), ("Delta", self.delta))
            if not _RELEASE.fullmatch(release)
        ]
        because = f", because {' and '.join(reasons)}" if reasons else ""
        return (
            f"Spark {self.spark} with Delta {self.delta} is not tested{because} "
            f"(the nearest tested pair: Spark {spark} with Delta {delta})"
        )


def nearest_tested(spark: str, delta: str) -> tuple[str, str]:
    """Return the tested Spark line and Delta release that are nearest to two releases."""
    line = _spark_line(spark)
    if line not in TESTED:
        line = _nearest(spark, TESTED)
    return line, _nearest(delta, TESTED[line])


def _spark_line(release: str) -> str:
    """Return the line of a Spark release, such as 4.1 for 4.1.1-amzn-0."""
    return ".".join(release.split(".")[:2])


def _nearest(release: str, candidates: Collection[str]) -> str:
    """Return the nearest candidate; the older one if two are as near, the newest one if the release is unknown."""
    if not re.match(r"\d", release):
        return max(candidates, key=_rank)
    return min(candidates, key=lambda candidate: (abs(_rank(candidate) - _rank(release)), _rank(candidate)))


def _rank(release: str) -> int:
    """Return a number that orders releases and measures their distance. A suffix does not count."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", release)
    major, minor, patch = (int(number or 0) for number in numbers.groups()) if numbers else (0, 0, 0)
    return (major * 1000 + minor) * 1000 + patch


def driver_releases(jvm: Any) -> Releases:
    """Return the software of a driver's JVM."""
    hadoop = jvm
    for name in CONDITIONAL_CREATE.split("."):
        hadoop = getattr(hadoop, name)
    delta = jvm.io.delta.package.VERSION
    return Releases(
        spark=str(jvm.org.apache.spark.package.SPARK_VERSION()),
        delta=_UNKNOWN if isinstance(delta, JavaPackage) else str(delta()),
        hadoop=str(jvm.org.apache.hadoop.util.VersionInfo.getVersion()),
        java=str(jvm.java.lang.System.getProperty("java.version")),
        # py4j returns a package for a class that it does not find.
        creates_conditionally=not isinstance(hadoop, JavaPackage),
    )


def snapshot_at(delta_log: Any, version: int, none: Any) -> Any:
    """Return Delta's snapshot of a version, also of one beyond the table's retention.

    Args:
        delta_log: Delta's ``DeltaLog``.
        version: The version.
        none: Scala's ``None``.

    """
    try:
        # False: do not refuse a version beyond the table's retention. Delta 4.0 has no such argument.
        return delta_log.getSnapshotAt(version, none, none, False)  # noqa: FBT003
    except Py4JError as error:
        if not _lacks_method(error, "getSnapshotAt"):
            raise
        return delta_log.getSnapshotAt(version, none, none)


def has_checkpoint(delta_log: Any, version: int) -> bool:
    """Return whether Delta's log has a complete checkpoint of a version."""
    try:
        return bool(delta_log.checkpointExistsAtVersion(version))
    except Py4JError as error:
        if not _lacks_method(error, "checkpointExistsAtVersion"):
            raise
        # Delta 4.0.
        checkpoint = delta_log.findLastCompleteCheckpointBefore(version + 1)
        return bool(checkpoint.isDefined() and checkpoint.get().version() == version)


def _lacks_method(error: Py4JError, method: str) -> bool:
    """Return whether py4j found no such method. A lost connection is also a Py4JError, and must not be retried."""
    # The text of an exception that Java threw may be anything, and requires a call.
    return not isinstance(error, Py4JJavaError) and bool(re.search(rf"Method {method}\(.*does not exist", str(error)))
