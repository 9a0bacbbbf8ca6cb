"""The tested releases of Spark and Delta, and the calls of Delta that differ between them.

``DeltaApi.java`` has the calls of the log store.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JError, Py4JJavaError

#: The tested Delta releases of each Spark line, the newest first. ``sluice/jars`` has a lock file for each pair.
TESTED = {"4.2": ("4.4.0",), "4.1": ("4.4.0", "4.3.1", "4.2.0"), "4.0": ("4.4.0", "4.0.1", "4.0.0")}
#: Spark setting: ``true`` lets :func:`writer_jobs.attach` accept other releases.
ALLOW_UNTESTED = "spark.sluice.allowUntested"
#: Hadoop's class of the options with which S3A creates a file on condition that it is absent (3.4.2 and later).
CONDITIONAL_CREATE = "org.apache.hadoop.fs.Options$CreateFileOptionKeys"


@dataclass(frozen=True)
class Releases:
    """The software of a driver.

    Attributes:
        spark: Version of Spark.
        delta: Version of Delta Lake.
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
        """Return whether this Delta was tested with this line of Spark. Builds of vendors have other versions."""
        line = ".".join(self.spark.split(".")[:2])
        return self.delta in TESTED.get(line, ())

    def nearest_tested(self) -> tuple[str, str]:
        """Return the tested Spark line and Delta release that are nearest to these."""
        lines = sorted(TESTED, key=_numbers)
        line = max((line for line in lines if _numbers(line) <= _numbers(self.spark)), default=lines[0], key=_numbers)
        deltas = sorted(TESTED[line], key=_numbers)
        older = [delta for delta in deltas if _numbers(delta) <= _numbers(self.delta)]
        return line, (older or deltas[:1])[-1]


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def driver_releases(jvm: Any) -> Releases:
    """Return the software of a driver's JVM."""
    hadoop = jvm
    for name in CONDITIONAL_CREATE.split("."):
        hadoop = getattr(hadoop, name)
    return Releases(
        spark=str(jvm.org.apache.spark.package.SPARK_VERSION()),
        delta=str(jvm.io.delta.package.VERSION()),
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
    except Py4JJavaError:
        raise
    except Py4JError:
        return delta_log.getSnapshotAt(version, none, none)


def has_checkpoint(delta_log: Any, version: int) -> bool:
    """Return whether Delta's log has a complete checkpoint of a version."""
    try:
        return bool(delta_log.checkpointExistsAtVersion(version))
    except Py4JJavaError:
        raise
    except Py4JError:
        # Delta 4.0.
        checkpoint = delta_log.findLastCompleteCheckpointBefore(version + 1)
        return bool(checkpoint.isDefined() and checkpoint.get().version() == version)
