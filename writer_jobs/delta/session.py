"""Spark sessions that can write Delta tables on S3 and on disk, without resolving anything at a start.

Everything set here is a default: a value from ``spark-submit --conf``, ``spark-defaults.conf`` or
``PYSPARK_SUBMIT_ARGS`` wins. Spark's own rule is the other way round (what a program sets in its ``SparkConf`` beats
the command line), so the JVM is asked first what it was given, and only what is missing is added.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from writer_jobs.errors import UnsupportedSessionError

#: What Delta needs in ``spark.sql.extensions``.
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_NO_CONNECT = (
    "Spark Connect is not supported, because its clients cannot reach Delta's log: use a classic Spark session "
    "(spark.api.mode=classic, no SPARK_REMOTE)"
)
_S3A = "org.apache.hadoop.fs.s3a.S3AFileSystem"
_EXTENSIONS = "spark.sql.extensions"
_ANSI = "spark.sql.ansi.enabled"
_PROGRESS = "spark.ui.showConsoleProgress"

#: How commits are written: see ``log_store/``.
LOG_STORE = "io.deltasluice.storage.GuardedLogStore"
#: Delta's setting that names the log store.
LOG_STORE_SETTING = "spark.delta.logStore.class"
#: Delta Kernel reads a setting for each scheme at each commit; in its mode ``STRICT`` Delta commits through Kernel.
#: :func:`writer_jobs.attach` sets them for the schemes of other file systems, too.
KERNEL_LOG_STORE_SETTINGS = tuple(
    f"spark.hadoop.io.delta.kernel.logStore.{scheme}.impl"
    for scheme in ("s3", "s3a", "s3n", "file", "hdfs", "abfs", "abfss", "wasb", "wasbs", "adl", "gs")
)
#: ``required``: no commit without the lock. ``observe``: commit, and log what would be refused. ``off``: do not ask.
GUARD_MODE = "spark.sluice.guard"

#: Delta's own lock on a table, within one driver: a commit that waits for its turn would stop all who read the table.
#: The conditional put does its work.
COMMIT_LOCK = "spark.databricks.delta.commitLock.enabled"

#: What a job gets unless it is told otherwise, and why.
DEFAULTS: Mapping[str, str] = {
    "spark.sql.catalog.spark_catalog": _DELTA_CATALOG,
    GUARD_MODE: "required",
    # One store, three spellings: whichever a table is written with, it is read by the same client.
    "spark.hadoop.fs.s3.impl": _S3A,
    "spark.hadoop.fs.s3n.impl": _S3A,
    # Delta's 50 tasks per snapshot cost more than the rest of a commit to a small table.
    "spark.databricks.delta.snapshotPartitions": "2",
    # It would commit a second time within the first commit, and hide its errors.
    "spark.databricks.delta.autoCompact.enabled": "false",
    COMMIT_LOCK: "false",
    # Every acknowledged append leaves its commit in the log, the one of no rows too.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    # Delta's other connector is young: most statements fail in it.
    "spark.databricks.delta.v2.enableMode": "NONE",
    # Standard error belongs to a job's one sentence.
    _PROGRESS: "false",
}


def defaults_for_everybody() -> dict[str, str]:
    """Return what a ``spark-defaults.conf`` needs for programs that know nothing of :func:`build_session`.

    With these they commit through the guarded log store, and read and write as our own jobs do.
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

    From then on this process ignores one warning: that PySpark does not yet fully support pandas 3.

    Args:
        app_name: name of the application, unless the submitter gave one.
        jars: jars for a driver that plain ``python`` starts (``spark.jars``). Ignored under ``spark-submit``, which
            has its own ``--jars``, and where a session is active.
        launch_conf: more settings for such a driver. They reach its JVM's command line, so that
            ``spark.driver.memory`` works, and win over ``spark-defaults.conf``.
        log_level: of the driver, unless ``spark.log.level`` was given.

    Raises:
        UnsupportedSessionError: the environment asks for Spark Connect, which has no access to Delta's log.

    """
    _refuse_connect_environment()
    # spark-submit writes Python's standard error to standard output, where programs print their results. PySpark warns
    # at the start of a session and at each toPandas(), user-defined function and DataFrame from pandas.
    warnings.filterwarnings("ignore", "PySpark does not yet fully support pandas", FutureWarning)
    running = running_session()
    if running is None:
        conf = driver_conf(jars=jars, launch_conf=launch_conf)
        if conf.get("spark.remote") or (conf.get("spark.api.mode") or "").lower() == "connect":
            raise UnsupportedSessionError(_NO_CONNECT)
        conf.setIfMissing("spark.app.name", app_name)
        conf.setIfMissing("spark.master", "local[*]")
        conf.setIfMissing("spark.log.level", log_level)
        SparkContext.getOrCreate(conf)
        running = SparkSession.builder.getOrCreate()
    return running


def running_session() -> SparkSession | None:
    """Return this process's session; unlike ``SparkSession.getActiveSession``, in whatever thread it was started."""
    if SparkContext._active_spark_context is None:  # noqa: SLF001 (no public way to ask)
        return None
    return SparkSession.getActiveSession() or SparkSession.builder.getOrCreate()


def session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Return a session with more settings, for operations that have no option for what they say."""
    jvm_session = spark._jsparkSession.cloneSession()  # noqa: SLF001 (PySpark has no way to it)
    session = type(spark)(spark.sparkContext, jvm_session)
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


def driver_conf(
    *,
    jars: Sequence[str | os.PathLike[str]] = (),
    launch_conf: Mapping[str, str] | None = None,
) -> SparkConf:
    """Connect to the driver's JVM, started here unless ``spark-submit`` did; return what it was given, with defaults.

    No ``SparkContext`` is started: no executor is asked for, no event log opened. The arguments are those of
    :func:`build_session`.
    """
    launch = SparkConf(loadDefaults=False)
    # The JVM behind plain python counts as a shell, and a shell has it on.
    launch.set(_PROGRESS, DEFAULTS[_PROGRESS])
    if jars:
        launch.set("spark.jars", ",".join(os.fspath(jar) for jar in jars))
    for key, value in (launch_conf or {}).items():
        launch.set(key, value)
    SparkContext._ensure_initialized(conf=launch)  # noqa: SLF001 (what SparkContext itself calls, without the context)
    conf = SparkConf()
    for key, value in DEFAULTS.items():
        conf.setIfMissing(key, value)
    conf.set(_EXTENSIONS, _with_delta(conf.get(_EXTENSIONS)))
    if not any("delta.logStore." in key for key, _ in conf.getAll()):
        # Beside a store that was chosen for one scheme Delta would refuse one for all.
        conf.set(LOG_STORE_SETTING, LOG_STORE)
    if conf.get(LOG_STORE_SETTING, None) == LOG_STORE:
        for key in KERNEL_LOG_STORE_SETTINGS:
            conf.setIfMissing(key, LOG_STORE)
    return conf


def classic_session(spark: Any) -> SparkSession:
    """Return ``spark`` if it is a session whose driver is in reach and has Delta.

    Raises:
        UnsupportedSessionError: it is of Spark Connect, or Delta's jar is not on the driver's class path.

    """
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        raise UnsupportedSessionError(_NO_CONNECT)
    session: SparkSession = spark
    # py4j takes a class that it does not find for a package.
    if isinstance(session._jvm.org.apache.spark.sql.delta.DeltaLog, JavaPackage):  # noqa: SLF001
        raise UnsupportedSessionError(
            "Delta is not on the driver's class path: give spark-submit the --jars that `sluice submit-args` prints, "
            "or build_session(jars=…)"
        )
    return session


def refuse_lenient_casts(spark: SparkSession) -> None:
    """Make sure that a cast to a type that cannot hold a value fails.

    Raises:
        UnsupportedSessionError: ``spark.sql.ansi.enabled`` is false.

    """
    if str(spark.conf.get(_ANSI, "true")).lower() != "true":
        raise UnsupportedSessionError(
            f"{_ANSI} is false, so that Spark stores another number where a column cannot hold one: set "
            f"--conf {_ANSI}=true"
        )


def _refuse_connect_environment() -> None:
    if (
        "SPARK_REMOTE" in os.environ
        or "SPARK_CONNECT_MODE_ENABLED" in os.environ
        or os.environ.get("SPARK_API_MODE", "").lower() == "connect"
    ):
        raise UnsupportedSessionError(_NO_CONNECT)


def _with_delta(extensions: str | None) -> str:
    """Add Delta's extension behind the user's own, which are never dropped."""
    given = [name.strip() for name in (extensions or "").split(",") if name.strip()]
    return ",".join(given if DELTA_EXTENSION in given else [*given, DELTA_EXTENSION])
