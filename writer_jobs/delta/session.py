"""Start Spark sessions that can write Delta tables on S3 and on disk, without resolving packages at the start.

Every setting here is a default: a value from ``spark-submit --conf``, ``spark-defaults.conf`` or
``PYSPARK_SUBMIT_ARGS`` wins. Spark's own rule is the opposite: a program's ``SparkConf`` wins over the command line. So
this module first reads the settings that the JVM was given, and adds only the missing ones.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from writer_jobs.errors import UnsupportedSessionError

#: Delta's class in ``spark.sql.extensions``.
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_NO_CONNECT = (
    "Spark Connect is not supported, because its clients cannot reach Delta's log: use a classic Spark session "
    "(spark.api.mode=classic, no SPARK_REMOTE)"
)
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_EXTENSIONS = "spark.sql.extensions"
_ANSI = "spark.sql.ansi.enabled"
_PROGRESS = "spark.ui.showConsoleProgress"

#: Log store through which Delta commits: see ``log_store/``.
LOG_STORE = "io.deltasluice.storage.GuardedLogStore"
#: Delta's setting that names the log store.
LOG_STORE_SETTING = "spark.delta.logStore.class"
#: Delta Kernel's settings of the log store for each scheme. Kernel reads them at each commit. Delta commits through
#: Kernel in its mode ``STRICT``. :func:`writer_jobs.attach` sets them for the schemes of other file systems, too.
KERNEL_LOG_STORE_SETTINGS = tuple(
    f"spark.hadoop.io.delta.kernel.logStore.{scheme}.impl"
    for scheme in ("s3", "s3a", "s3n", "file", "hdfs", "abfs", "abfss", "wasb", "wasbs", "adl", "gs")
)
#: Mode of the commit guard. ``required``: refuse a commit without the lock. ``observe``: allow it, and log that
#: ``required`` would refuse it. ``off``: check nothing.
GUARD_MODE = "spark.sluice.guard"

#: For threads that hold no lock. ``commit``: each commit waits for the lock on its table. ``write``: each transaction
#: waits for it when it begins. ``none``, the default: the guard decides by its mode.
LOCK = "spark.sluice.lock"

#: Delta's lock on a table within one driver. With it a commit that waits for Sluice's lock would block all readers of
#: the table in the driver. The conditional put protects commits instead.
COMMIT_LOCK = "spark.databricks.delta.commitLock.enabled"
#: Delta's setting of auto-compaction, which commits a second time within the first commit, and hides its errors.
AUTO_COMPACT = "spark.databricks.delta.autoCompact.enabled"

#: Default settings of jobs, and of the ``spark-defaults.conf`` for other programs.
DEFAULTS: Mapping[str, str] = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    GUARD_MODE: "required",
    # The three schemes name one store, so one client reads them all.
    "spark.hadoop.fs.s3.impl": _S3A,
    "spark.hadoop.fs.s3n.impl": _S3A,
    # Delta's 50 tasks per snapshot cost more than the rest of a commit to a small table.
    "spark.databricks.delta.snapshotPartitions": "2",
    # A batch of changes has about 130 generated classes. With Spark's 100 each batch would compile all of them again.
    "spark.sql.codegen.cache.maxEntries": "400",
    AUTO_COMPACT: "false",
    COMMIT_LOCK: "false",
    # An acknowledged append leaves a commit in the log, even if it has no rows.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    # Most statements fail in Delta's new connector.
    "spark.databricks.delta.v2.enableMode": "NONE",
    # A job writes only its one-sentence error to standard error.
    _PROGRESS: "false",
}

#: Default settings of jobs, and of sessions of :func:`build_session`.
JOB_DEFAULTS: Mapping[str, str] = {
    **DEFAULTS,
    # Otherwise PySpark calls the JVM six more times for each function in an expression, so that Spark's errors name the
    # line of the program. A batch of changes has about a thousand functions. PySpark reads the setting once.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}


def under_spark_submit() -> bool:
    """Return whether ``spark-submit`` started this Python process."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def cluster_defaults() -> dict[str, str]:
    """Return the ``spark-defaults.conf`` for programs that do not call :func:`build_session`.

    With it they commit through the guarded log store, and read and write with the settings of Sluice's jobs.
    """
    stores = dict.fromkeys((LOG_STORE_SETTING, *KERNEL_LOG_STORE_SETTINGS), LOG_STORE)
    return {_EXTENSIONS: DELTA_EXTENSION, **DEFAULTS, **stores}


def build_session(
    app_name: str,
    *,
    jars: Sequence[str | os.PathLike[str]] = (),
    launch_conf: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
) -> SparkSession:
    """Return the active session, or start one that can write Delta tables.

    After this call the process ignores PySpark's warning that it does not yet fully support pandas 3.

    Args:
        app_name: Name of the application. A name from the submitter wins.
        jars: Jars for a driver that plain ``python`` starts (``spark.jars``). Ignored under ``spark-submit``, which
            has its own ``--jars``, and if a session is active.
        launch_conf: More settings for a driver that plain ``python`` starts. They are on its JVM's command line, so
            ``spark.driver.memory`` works. They win over ``spark-defaults.conf``.
        log_level: Log level of the driver. ``spark.log.level`` wins.

    Raises:
        UnsupportedSessionError: The environment requests Spark Connect, which has no access to Delta's log.

    """
    mode = os.environ.get("SPARK_API_MODE", "").lower()
    if mode == "connect" or os.environ.keys() & {"SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED"}:
        raise UnsupportedSessionError(_NO_CONNECT)
    # spark-submit redirects Python's standard error to standard output, where programs print their results. PySpark
    # warns at the start of a session and at each toPandas(), user-defined function and DataFrame from pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    session = running_session()
    if session is None:
        conf = driver_conf(jars=jars, launch_conf=launch_conf)
        if conf.get("spark.remote") or (conf.get("spark.api.mode") or "").lower() == "connect":
            raise UnsupportedSessionError(_NO_CONNECT)
        conf.setIfMissing("spark.app.name", app_name)
        conf.setIfMissing("spark.master", "local[*]")
        conf.setIfMissing("spark.log.level", log_level)
        SparkContext.getOrCreate(conf)
        session = SparkSession.builder.getOrCreate()
    repair_interrupts()
    return session


def repair_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt with PySpark 4.0 and 4.1, too, if this is the main thread.

    Their handler first cancels all jobs. This fails during a call of py4j, and the caller gets ``Py4JError`` instead.
    """
    handler = signal.getsignal(signal.SIGINT)
    if (
        threading.current_thread() is not threading.main_thread()
        or not callable(handler)
        or not (getattr(handler, "__module__", None) or "").startswith("pyspark.")
    ):
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        try:
            handler(number, frame)
        finally:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)


def running_session() -> SparkSession | None:
    """Return this process's session, also one that another thread started; None if no session runs."""
    if SparkContext._active_spark_context is None:  # noqa: SLF001 (PySpark has no public way)
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a copy of a session with more settings, for operations that have no option for them."""
    jvm_session = spark._jsparkSession.cloneSession()  # noqa: SLF001 (PySpark has no public way)
    session = type(spark)(spark.sparkContext, jvm_session)
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


def driver_conf(
    *, jars: Sequence[str | os.PathLike[str]] = (), launch_conf: Mapping[str, str] | None = None
) -> SparkConf:
    """Connect to the driver's JVM, or start it, and return its settings with the defaults added.

    No ``SparkContext`` is started, so no executor is requested and no event log opened. The arguments are those of
    :func:`build_session`.
    """
    launch = SparkConf(loadDefaults=False)
    # Spark treats the JVM of plain python as a shell, and a shell shows progress.
    launch.set(_PROGRESS, DEFAULTS[_PROGRESS])
    if jars:
        launch.set("spark.jars", ",".join(os.fspath(jar) for jar in jars))
    launch.setAll(list((launch_conf or {}).items()))
    SparkContext._ensure_initialized(conf=launch)  # noqa: SLF001 (what SparkContext itself calls, without the context)
    conf = SparkConf()
    for key, value in JOB_DEFAULTS.items():
        conf.setIfMissing(key, value)
    conf.set(_EXTENSIONS, _with_delta(conf.get(_EXTENSIONS)))
    if not any("delta.logStore." in key for key, _ in conf.getAll()):
        # If the user chose a store for one scheme, Delta would refuse a store for all schemes.
        conf.set(LOG_STORE_SETTING, LOG_STORE)
    if conf.get(LOG_STORE_SETTING, None) == LOG_STORE:
        for key in KERNEL_LOG_STORE_SETTINGS:
            conf.setIfMissing(key, LOG_STORE)
    return conf


def classic_session(spark: Any) -> SparkSession:
    """Return ``spark``; raise UnsupportedSessionError if it is of Spark Connect, or Delta is not on its class path."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSessionError(_NO_CONNECT)
    session: SparkSession = spark
    # py4j returns a package for a class that it does not find.
    if isinstance(session._jvm.org.apache.spark.sql.delta.DeltaLog, JavaPackage):  # noqa: SLF001
        raise UnsupportedSessionError(
            "Delta is not on the driver's class path: give spark-submit the --jars that `sluice submit-args` prints, "
            "or build_session(jars=…)"
        )
    return session


def refuse_lenient_casts(spark: SparkSession) -> None:
    """Make sure that casts out of range fail; raise UnsupportedSessionError if ``spark.sql.ansi.enabled`` is false."""
    if str(spark.conf.get(_ANSI, "true")).lower() != "true":
        raise UnsupportedSessionError(
            f"{_ANSI} is false, so Spark stores a wrong number if a value is out of a column's range: set "
            f"--conf {_ANSI}=true"
        )


def _with_delta(extensions: str | None) -> str:
    """Add Delta's extension after the user's extensions."""
    names = [name.strip() for name in (extensions or "").split(",") if name.strip()]
    return ",".join(names if DELTA_EXTENSION in names else [*names, DELTA_EXTENSION])
