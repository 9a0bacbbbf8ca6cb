"""The options of a soak."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lock_manager import SettingsError
from lock_manager.settings import S3_LEASE
from soak.controls import Protection
from soak.engines import SPARK, STORE
from soak.faults import CLASSES
from soak.group_controls import GROUP_CONTROLS

ZOOKEEPER = "zookeeper"
"""Name of the default coordinator in ``--coordinator``; the other one is ``s3-lease``."""

_MIN_LEASE_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class SoakOptions:
    """The options of a soak.

    Attributes:
        engine: ``store`` for JVMs with the log store but without Spark, ``spark`` for Spark drivers.
        lock_during: When Spark drivers hold the lock: for the ``commit`` only (through the gate), or for the whole
            ``write``.
        writers: Number of writer processes.
        commits: Number of acknowledged commits after which the run ends; None if ``minutes`` ends it.
        minutes: Minutes after which the run ends; None if ``commits`` ends it.
        faults: Names of the classes of faults.
        seed: Seed of the faults and of the writers' steps.
        group_commits: Whether Spark drivers at the gate make group commits. Only a part of the operations are appends
            that a group may contain.
        appends_only: Whether Spark drivers at the gate only append, without ``before_write``.
        without: Protection to leave out, or None.
        prepared_for: Control of group commits that the writers prepare for although they have all protections, or None.
        coordinator: ``zookeeper``, or ``s3-lease`` for locks in objects on S3, beside the tables.
        zookeeper: Connection string of an ensemble; None for an ensemble of this run.
        zookeeper_image: Image of the ensemble's containers; None for embedded servers.
        table: ``s3a://BUCKET/PREFIX`` of the tables, in the S3 of the AWS variables; None for an embedded S3.
        session_seconds: Session timeout that the writers request, or their lease on S3, in seconds.
        gap: Acknowledged commits between two faults; None for a hundredth of ``commits``, at least 5.
        rows: Rows per commit.
        output: Folder for the history, the verdict and the picture.

    Raises:
        SettingsError: A class of faults is unknown or needs a service that the run does not start, the engine cannot
            leave out the protection, or options contradict each other.

    """

    engine: str = STORE.name
    lock_during: str = "commit"
    writers: int = 4
    commits: int | None = 300
    minutes: float | None = None
    faults: tuple[str, ...] = ()
    seed: int = 1
    group_commits: bool = True
    appends_only: bool = False
    without: str | None = None
    prepared_for: str | None = None
    coordinator: str = ZOOKEEPER
    zookeeper: str | None = None
    zookeeper_image: str | None = None
    table: str | None = None
    session_seconds: float = 3.0
    gap: int | None = None
    rows: int = 3
    output: Path = Path("build/soak")

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.faults) - set(CLASSES)):
            raise SettingsError(
                f"--faults {unknown[0]}: unknown class; choose none, all, or among {', '.join(CLASSES)}"
            )
        for name in self.faults:
            if name in self.unavailable_faults:
                raise SettingsError(f"--faults {name}: needs {self.unavailable_faults[name]}")
        if self.zookeeper and self.zookeeper_image:
            raise SettingsError("give either --zookeeper or --zookeeper-image")
        self._refuse_zookeeper_with_lease()
        self._refuse_impossible_control()
        if self.writers < 2 and self.faults:  # noqa: PLR2004
            raise SettingsError("--writers 1: faults need at least two writers; raise it, or pass --faults none")
        if (self.commits is None) == (self.minutes is None):
            raise SettingsError("give either --commits or --minutes")

    def _refuse_zookeeper_with_lease(self) -> None:
        """Raise if an option does not fit locks on S3."""
        if not self.has_lease:
            return
        if self.zookeeper or self.zookeeper_image:
            raise SettingsError(
                f"--coordinator {S3_LEASE} uses no ZooKeeper: leave out --zookeeper and --zookeeper-image"
            )
        if self.session_seconds < _MIN_LEASE_SECONDS:
            raise SettingsError(f"--session {self.session_seconds:g}: a lease on S3 must be at least 2 seconds")

    def _refuse_impossible_control(self) -> None:
        """Raise if these writers cannot leave out the protection."""
        if self.engine == SPARK.name and self.without == Protection.CONDITION:
            raise SettingsError("--without condition: only --engine store can leave out the condition")
        if self.engine == SPARK.name and self.lock_during == "commit" and self.without == Protection.ATTEMPTS:
            raise SettingsError("--without attempts: a write through the gate has only one block; add --hold write")
        if self.engine != SPARK.name and self.without in (Protection.IDENTITY, Protection.BLOCK):
            raise SettingsError(f"--without {self.without}: only --engine spark has operations with a write id")
        if self.without in GROUP_CONTROLS and not self.makes_groups:
            raise SettingsError(f"--without {self.without}: only --engine spark at the gate makes group commits")
        if self.has_lease and (self.without == Protection.VERSION or self.without in GROUP_CONTROLS):
            raise SettingsError(f"--without {self.without}: only --coordinator {ZOOKEEPER} can leave it out")
        if not self.has_lease and self.without == Protection.LEASE_CONDITION:
            raise SettingsError(f"--without {self.without}: only --coordinator {S3_LEASE} has this condition")

    @property
    def has_lease(self) -> bool:
        """Whether the locks are in objects on S3."""
        return self.coordinator == S3_LEASE

    @property
    def makes_groups(self) -> bool:
        """Whether the writers make group commits."""
        return self.group_commits and self.engine == SPARK.name and self.lock_during == "commit"

    @property
    def commits_between_faults(self) -> int:
        """Number of acknowledged commits between two faults."""
        return self.gap or max(5, (self.commits or 0) // 100)

    @property
    def unavailable_faults(self) -> dict[str, str]:
        """Classes of faults that need a service which this run lacks, with that service."""
        embedded_s3 = "an embedded S3" if self.table else ""
        zookeeper = f"--coordinator {ZOOKEEPER}" if self.has_lease else ""
        lacking_services = {
            "gate": embedded_s3,
            "zookeeper": zookeeper,
            "ensemble": zookeeper or ("an embedded ZooKeeper or --zookeeper-image" if self.zookeeper else ""),
            "container": zookeeper or ("" if self.zookeeper_image else "--zookeeper-image"),
            "lease": embedded_s3 if self.has_lease else f"--coordinator {S3_LEASE}",
        }
        return {
            fault.name: lacking_services[fault.needs]
            for fault in CLASSES.values()
            if fault.needs and lacking_services[fault.needs]
        }

    def available_faults(self) -> tuple[str, ...]:
        """Return the classes of faults that can strike with the services of this run."""
        return tuple(name for name in CLASSES if name not in self.unavailable_faults)
