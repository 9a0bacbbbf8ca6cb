"""The options of a soak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lock_manager import SettingsError
from soak.controls import Protection
from soak.engines import SPARK, STORE
from soak.faults import CLASSES


@dataclass(frozen=True, kw_only=True)
class SoakOptions:
    """What to soak.

    Attributes:
        engine: ``store`` for bare JVMs with the log store, ``spark`` for whole Spark drivers.
        hold: of whole Spark drivers: ``commit`` to go through the gate, ``write`` for the lock over the whole write.
        writers: number of processes.
        commits: acknowledged commits to reach; None to go by time.
        minutes: how long; None to go by commits.
        faults: names of classes.
        seed: of the plan of faults.
        without: the protection to leave out, or None.
        zookeeper: connection string of an ensemble; None for one of the soak's own.
        zookeeper_image: the image to run that one from, in containers; None for embedded servers.
        table: ``s3a://…`` below which it makes its tables, in the S3 of the AWS variables; None for an embedded S3.
        session_seconds: session time-out that writers ask for.
        gap: acknowledged commits between two faults; None for a hundredth of all, and at least 5.
        rows: per commit.
        output: folder for the history, the verdict and the picture.

    Raises:
        SettingsError: an unknown class of faults, or one that needs what is not ours; a control that the engine has
            not.

    """

    engine: str = STORE.name
    hold: str = "commit"
    writers: int = 4
    commits: int | None = 300
    minutes: float | None = None
    faults: tuple[str, ...] = ()
    seed: int = 1
    without: str | None = None
    zookeeper: str | None = None
    zookeeper_image: str | None = None
    table: str | None = None
    session_seconds: float = 3.0
    gap: int | None = None
    rows: int = 3
    output: Path = Path("build/soak")

    def __post_init__(self) -> None:
        unknown = sorted(set(self.faults) - set(CLASSES))
        if unknown:
            raise SettingsError(f"--faults {unknown[0]}: choose none, all, or among {', '.join(CLASSES)}")
        for name in self.faults:
            if name in self.unavailable_faults:
                raise SettingsError(f"--faults {name}: needs {self.unavailable_faults[name]}")
        if self.zookeeper and self.zookeeper_image:
            raise SettingsError("give either --zookeeper or --zookeeper-image")
        if self.engine == SPARK.name and self.without == Protection.CONDITION:
            raise SettingsError("--without condition: only --engine store can put without the condition")
        if self.engine == SPARK.name and self.hold == "commit" and self.without == Protection.ATTEMPTS:
            raise SettingsError("--without attempts: a write at the gate has one block; add --hold write")
        if self.engine != SPARK.name and self.without in (Protection.IDENTITY, Protection.BLOCK):
            raise SettingsError(f"--without {self.without}: only --engine spark has operations with a write id")
        if self.writers < 2 and self.faults:  # noqa: PLR2004
            raise SettingsError("--writers 1: faults need at least two, one to take over from the other")
        if (self.commits is None) == (self.minutes is None):
            raise SettingsError("give either --commits or --minutes")

    @property
    def commits_between_faults(self) -> int:
        """What ``gap`` means."""
        return self.gap or max(5, (self.commits or 0) // 100)

    @property
    def unavailable_faults(self) -> dict[str, str]:
        """The classes that these services cannot play, and what each needs."""
        missing = {
            "gate": "an embedded S3" if self.table else "",
            "zookeeper": "an embedded ZooKeeper or --zookeeper-image" if self.zookeeper else "",
            "container": "" if self.zookeeper_image else "--zookeeper-image",
        }
        return {each.name: missing[each.needs] for each in CLASSES.values() if each.needs and missing[each.needs]}

    def available_faults(self) -> tuple[str, ...]:
        """Return the classes that these services can play."""
        return tuple(name for name in CLASSES if name not in self.unavailable_faults)
