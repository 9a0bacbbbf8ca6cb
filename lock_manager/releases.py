"""The tested releases of Spark and Delta, and the releases of a driver."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass

log = logging.getLogger(__name__)

#: The tested Delta releases of each Spark line, the newest first, each with the lowest Spark release that it accepts.
#: ``sluice/jars`` has a lock file for each pair.
TESTED = {
    "4.2": {"4.4.0": "4.2.0"},
    "4.1": {"4.4.0": "4.1.0", "4.3.1": "4.1.0", "4.2.0": "4.1.0"},
    "4.0": {"4.4.0": "4.0.1", "4.0.1": "4.0.0", "4.0.0": "4.0.0"},
}
#: Spark setting: ``true`` lets a driver with other releases commit.
ALLOW_UNTESTED = "spark.sluice.allowUntested"
#: The version of a build that does not report it.
UNKNOWN = "unknown"
# A vendor's build has a suffix, such as 4.0.1-amzn-0. So has a pre-release, such as 4.2.0-preview3.
_RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)")


@dataclass(frozen=True)
class Releases:
    """The software of a driver.

    Attributes:
        spark: Version of Spark.
        delta: Version of Delta Lake; :data:`UNKNOWN` if Delta does not report it.
        hadoop: Version of Hadoop.
        java: Version of Java.
        creates_conditionally: Whether this Hadoop can create a file only if it is absent (3.4.2 and later).

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
            if release == UNKNOWN
            else f"{name} {release} is a pre-release or a vendor's build"
            for name, release in (("Spark", self.spark), ("Delta", self.delta))
            if not _RELEASE.fullmatch(release)
        ]
        because = f", because {' and '.join(reasons)}" if reasons else ""
        return (
            f"Spark {self.spark} with Delta {self.delta} is not tested{because} "
            f"(the nearest tested pair: Spark {spark} with Delta {delta})"
        )

    def refusal(self, allow_untested: str = "false") -> str | None:
        """Return why a driver with these releases must not commit; None if it may.

        Args:
            allow_untested: Value of the driver's setting :data:`ALLOW_UNTESTED`.

        """
        problem = self.problem()
        if problem is None:
            return None
        if allow_untested.strip().lower() == "true":
            log.warning("%s; %s=true accepts it", problem, ALLOW_UNTESTED)
            return None
        return f"{problem}: use that pair, or set {ALLOW_UNTESTED}=true to go on at your own risk"


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
