"""Fixtures for tests of writers: a Spark driver, an S3, tables, lock managers and jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lock_manager import ZookeeperLockManager, guard_registry
from sluice.local.jars import resolve_jars
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from sluice.submit.distribution import build_zip, conf_arguments
from soak.s3_faults import FaultyS3
from tests.support.append_rows import HEADER, ROWS
from tests.support.lake import S3, lake
from tests.support.lock_bucket import LockBucket, serving
from tests.support.months import SCHEMA
from tests.support.rivals import RivalManager
from tests.support.spark_settings import spark_settings
from tests.support.submitted_job import SubmittedJob

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lock_manager import LockInspector
    from writer_jobs import LockedDeltaWriter
    from writer_jobs.maintenance.policy import Action
    from writer_jobs.maintenance.result import MaintenanceReport

SUBMIT = Path(sys.executable).with_name("spark-submit")


@pytest.fixture(scope="session")
def jars() -> list[Path]:
    """The jars of Delta and S3A, downloaded if they are missing."""
    return resolve_jars()


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """An S3 with tables below ``s3.root`` and its credentials in the environment."""
    with lake() as server:
        yield server


@pytest.fixture(scope="session")
def spark(jars: list[Path], s3: S3, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The Spark driver for all tests of a process, with the settings of the writers."""
    from writer_jobs import build_session

    session = build_session(
        "sluice-tests",
        jars=jars,
        launch_conf={
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            **LOCAL_DRIVER,
            **FEW_ROWS,
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
            **s3.spark_conf,
        },
        log_level="FATAL",
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def without_guard(spark: SparkSession) -> Callable[..., AbstractContextManager[None]]:
    """Change the guard's mode in a block: ``with without_guard():`` for ``off``, ``with without_guard("observe"):``."""
    from writer_jobs.delta.session import GUARD_MODE

    conf = spark.sparkContext._jsc.sc().conf()
    return lambda mode="off": spark_settings(conf, {GUARD_MODE: mode})


@pytest.fixture(scope="session")
def original(
    spark: SparkSession,
    without_guard: Callable[..., AbstractContextManager[None]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Path]:
    """Create a table once by SQL statements without the lock. ``{t}`` in a statement stands for the table."""
    from writer_jobs import attach

    attach(spark)

    @cache
    def create(*statements: str) -> Path:
        path = tmp_path_factory.mktemp("original") / "table"
        with without_guard():
            for statement in statements:
                spark.sql(statement.replace("{t}", f"delta.`{path}`"))
        return path

    return create


@pytest.fixture
def copy_of(original: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """Copy an original table for one test, in a hundredth of the time that Spark needs to create it."""

    def copy(*statements: str, to: str = "table") -> Path:
        return Path(shutil.copytree(original(*statements), tmp_path / to))

    return copy


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """The path of a table that does not exist yet."""
    return tmp_path / "table"


@pytest.fixture
def source(csv_file: Callable[..., Path]) -> Path:
    """A CSV file that contains ``ROWS``."""
    return csv_file("source.csv", HEADER, ROWS)


@pytest.fixture
def unguarded_sql(
    spark: SparkSession, without_guard: Callable[..., AbstractContextManager[None]]
) -> Callable[[str], None]:
    """Run a SQL statement without the guard."""

    def run(statement: str) -> None:
        with without_guard():
            spark.sql(statement)

    return run


@pytest.fixture
def set_lock(
    spark: SparkSession, manager: ZookeeperLockManager, eventually: Callable[..., None]
) -> Iterator[Callable[[str], None]]:
    """Set when threads of this driver that request no lock get it: ``commit``, ``write`` or ``none``."""
    from writer_jobs import attach
    from writer_jobs.commit.driver_guard import GUARD

    yield lambda lock: attach(spark, manager=manager, lock=lock)
    attach(spark, lock="none")
    # The log store does not wait for the end of a ticket.
    eventually(lambda: not GUARD._tickets, within=30, label="the end of all tickets")


@pytest.fixture
def heed_ctrl_c() -> Iterator[None]:
    """Let child processes receive SIGINT. Processes that a shell starts in the background ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def manager(zookeeper: Any) -> Iterator[ZookeeperLockManager]:
    """A lock manager whose holds belong to the calling thread."""
    with ZookeeperLockManager(zookeeper.hosts, timeout_seconds=240) as lock_manager:
        yield lock_manager


@pytest.fixture
def make_manager(zookeeper: Any) -> Iterator[Callable[..., ZookeeperLockManager]]:
    """Open lock managers: ``make_manager(session_timeout_seconds=4)``."""
    yield from _manager_factory(ZookeeperLockManager, zookeeper.hosts)


@pytest.fixture
def make_rival(zookeeper: Any) -> Iterator[Callable[..., RivalManager]]:
    """Open lock managers whose holds do not belong to the calling thread."""
    yield from _manager_factory(RivalManager, zookeeper.hosts)


def _manager_factory(manager_class: type[ZookeeperLockManager], hosts: str) -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(manager_class(hosts, **{"timeout_seconds": 60, **settings}))


@pytest.fixture
def guard_declared() -> Iterator[None]:
    """Declare that the guard is installed, so that tests that commit nothing can lock partitions."""
    guard_registry.declare_guard_installed(lambda _: SCHEMA)
    yield
    guard_registry.declare_guard_installed(None)


@dataclass(frozen=True)
class Outcome:
    """The exit code of a job, its lines on standard output, and its standard error."""

    code: int
    lines: list[dict[str, Any]]
    error: str

    @property
    def commits(self) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == "commit"]


@pytest.fixture
def run_job(spark: SparkSession, zookeeper: Any, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a job in this process: ``run_job("append", "--table", …, hosts=…)``."""

    def run(job: str, *arguments: str | os.PathLike[str], hosts: str = zookeeper.hosts) -> Outcome:
        capsys.readouterr()
        code = import_module(f"writer_jobs.{job}").main(["--zookeeper", hosts, *map(os.fspath, arguments)])
        output = capsys.readouterr()
        return Outcome(code, [json.loads(line) for line in output.out.splitlines()], output.err)

    return run


@pytest.fixture
def append(run_job: Callable[..., Outcome]) -> Callable[..., Outcome]:
    """Run the append job in this process: ``append("--table", …, hosts=…)``."""
    return partial(run_job, "append")


@pytest.fixture
def versions() -> Callable[[Path], list[str]]:
    """Return the names of the version files of a local table."""
    return lambda table: sorted(path.name for path in table.glob("_delta_log/*.json"))


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a CSV file: ``csv_file("a.csv", "id,name", [(1, "x")])``."""

    def write(name: str, header: str, rows: Sequence[Sequence[object]]) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = [header, *(",".join("" if value is None else str(value) for value in row) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def rows_of() -> Callable[..., list[tuple[Any, ...]]]:
    """Read sorted rows with delta-rs: ``rows_of(table, "id", "name")``."""
    from deltalake import DeltaTable, QueryBuilder

    def read(table: Path | str, *columns: str) -> list[tuple[Any, ...]]:
        batch = QueryBuilder().register("t", DeltaTable(str(table))).execute("select * from t").read_all()
        names = columns or batch.schema.names
        return sorted(zip(*(batch[name].to_pylist() for name in names), strict=True), key=repr)

    return read


@pytest.fixture(scope="session")
def zip_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_zip(tmp_path_factory.mktemp("zip") / "sluice.zip")


@pytest.fixture
def submit(jars: list[Path], zip_path: Path, zookeeper: Any, tmp_path: Path) -> Iterator[Callable[..., SubmittedJob]]:
    """Run a program under spark-submit: ``submit(APPEND, "--table", …, conf={…})``."""
    jobs: list[SubmittedJob] = []

    def start(
        program: Path,
        *arguments: object,
        conf: dict[str, str] | None = None,
        delta: bool = True,
        more_jars: Sequence[Path] = (),
        errors: Path | None = None,
    ) -> SubmittedJob:
        settings = {
            **LOCAL_DRIVER,
            **FEW_ROWS,
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            **(conf or {}),
        }
        command = [str(SUBMIT), "--master", "local[2]", "--driver-memory", "1g"]
        command += ["--jars", ",".join(map(str, [*jars, *more_jars]))] if delta else []
        command += conf_arguments(settings)
        command += ["--py-files", str(zip_path), str(program), *map(str, arguments)]
        environment = {
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SLUICE_ZK_HOSTS": zookeeper.hosts,
            # ZooKeeper keeps the lock of a killed job for this time.
            "SLUICE_SESSION_TIMEOUT_SECONDS": "10",
        }
        errors = errors or tmp_path / f"stderr-{len(jobs)}.txt"
        jobs.append(SubmittedJob(program.name, command, environment, errors))
        return jobs[-1]

    yield start
    for job in jobs:
        job.kill()


@pytest.fixture
def writer(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> LockedDeltaWriter:
    """A writer of ``table``."""
    from writer_jobs import LockedDeltaWriter

    return LockedDeltaWriter(spark, manager, str(table))


@pytest.fixture
def inspector(manager: ZookeeperLockManager) -> Iterator[LockInspector]:
    """An inspector of the lock queues of the ensemble."""
    from lock_manager import LockInspector

    with LockInspector(manager.settings) as lock_inspector:
        yield lock_inspector


@pytest.fixture
def maintain(
    spark: SparkSession, manager: ZookeeperLockManager, inspector: LockInspector, table: Path
) -> Callable[..., MaintenanceReport]:
    """Maintain the table: ``maintain(Action.COMPACT)``; without an action, as ``--auto`` does.

    ``suffix`` selects a side table: ``maintain(Action.FORGET, suffix="_cells")``.
    """
    from writer_jobs.maintenance.executor import UnitExecutor
    from writer_jobs.maintenance.maintainer import TableMaintainer
    from writer_jobs.maintenance.plan import PARALLEL

    def run(
        *actions: Action, parallel: int = PARALLEL, lock_timeout_seconds: float = 60, suffix: str = "", **options: Any
    ) -> MaintenanceReport:
        location = f"{table}{suffix}"
        executor = UnitExecutor(spark, manager, inspector, location, lock_timeout_seconds=lock_timeout_seconds)
        return TableMaintainer(executor, parallel=parallel).run(actions or None, **options)

    return run


@pytest.fixture
def sql(spark: SparkSession, manager: ZookeeperLockManager, table: Path) -> Callable[[str], None]:
    """Run a statement under the table's lock; ``{table}`` stands for the table."""
    from writer_jobs import locked

    def run(statement: str) -> None:
        with locked(spark, str(table), manager=manager):
            spark.sql(statement.format(table=f"delta.`{table}`"))

    return run


@pytest.fixture(scope="module")
def lease_s3() -> Iterator[FaultyS3]:
    """An S3 in this process with a bucket for locks, and with injected faults."""
    with serving(FaultyS3()) as server:
        yield server


@pytest.fixture
def bucket(lease_s3: FaultyS3) -> Iterator[LockBucket]:
    """A prefix for locks that no other test uses."""
    with ExitStack() as stack:
        yield LockBucket(lease_s3, stack)
