"""The commit guard of this driver: installed in its JVM once, and asked at every commit from then on."""

from __future__ import annotations

import logging
import threading
from typing import Any

from py4j.clientserver import ClientServer
from py4j.java_gateway import JavaPackage
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

from lock_manager import LockManager, LockSettings, SettingsError
from lock_manager.guard.automatic_ticket import AutomaticTickets
from lock_manager.guard.commit_guard import CommitGuard
from lock_manager.guard.guard_server import GuardServer
from lock_manager.guard_registry import declare_guard_installed
from lock_manager.managers import manager_of
from lock_manager.partitions import PartitionSchema
from lock_manager.releases import ALLOW_UNTESTED
from writer_jobs.commit.refusals import raise_refusals_as_python_errors
from writer_jobs.delta.locate import locate_table
from writer_jobs.delta.releases import driver_releases
from writer_jobs.delta.session import (
    AUTO_COMPACT,
    COMMIT_LOCK,
    GUARD_MODE,
    LOCK,
    LOG_STORE,
    LOG_STORE_SETTING,
    classic_session,
    repair_interrupts,
)
from writer_jobs.delta.table_log import DeltaTableLog
from writer_jobs.errors import GuardMissingError, UnsupportedSessionError

log = logging.getLogger(__name__)

#: Values of the setting :data:`~writer_jobs.delta.session.GUARD_MODE`, which describes them.
OFF, OBSERVE, REQUIRED = "off", "observe", "required"
_NO_LOCK = "none"
# Values of the setting LOCK.
_AUTOMATIC_LOCKS = ("commit", "write", _NO_LOCK)
_GUARD_PROPERTY = "spark.sluice.guard.name"

#: The commit guard of this driver.
GUARD = CommitGuard()
_attach_lock = threading.Lock()


_managers_lock = threading.Lock()
_managers: dict[LockSettings, LockManager] = {}


def attach(spark: SparkSession, *, manager: LockManager | None = None, lock: str | None = None) -> None:
    """Guard every commit that this driver makes from now on.

    A second call without arguments changes nothing in the same thread and session.

    With ``lock="commit"`` each commit of a thread that holds no lock waits for the lock on its table: that of an SQL
    statement, ``df.write``, ``writeStream``, MERGE, OPTIMIZE and so on (docs/how-to/unchanged.md).

    The log store has to be there already, because Delta reads its name once. Sessions of :func:`build_session` have it;
    others need the settings and the jar that the error names.

    In the main thread this call also makes Ctrl-C raise KeyboardInterrupt with Spark 4.0 and 4.1.

    Args:
        manager: Lock manager for ``lock``; by default that of :func:`default_manager`.
        lock: ``commit``; or ``write``: the lock is held from the beginning of each transaction; or ``none``: commits of
            threads that hold no lock are refused, or queue by the agent if the driver has ``SluicePlugin``. By default
            ``spark.sluice.lock``, or ``none`` without it.

    Raises:
        SettingsError: ``lock`` has another value, or no ensemble is configured.
        GuardMissingError: The session was started without the guarded log store or with PYSPARK_PIN_THREAD=false, Delta
            Kernel has another log store, or the JVM cannot reach this process.
        UnsupportedSessionError: The session is of Spark Connect, has no Delta, or has releases that are not tested
            together (:data:`~lock_manager.releases.ALLOW_UNTESTED`).

    """
    context = classic_session(spark).sparkContext
    jvm: Any = spark._jvm  # noqa: SLF001
    if not isinstance(context._gateway, ClientServer):  # noqa: SLF001
        raise GuardMissingError(
            "a lock is bound to the thread that has it, and with PYSPARK_PIN_THREAD=false Java does not know Python's "
            "threads: unset that variable"
        )
    if isinstance(jvm.io.deltasluice.storage.Guard, JavaPackage):
        raise GuardMissingError(
            "the guarded log store is not on the driver's class path: give spark-submit the --jars that "
            "`sluice submit-args` prints, or build_session(jars=…)"
        )
    repair_interrupts()
    # Before the calls that may differ between releases.
    _check_releases(context)
    _check_log_store(context)
    _guard_kernel(context)
    with _attach_lock:
        gateway: Any = context._gateway  # noqa: SLF001
        if not _is_attached(context):
            gateway._sluice_guard = _install_guard(jvm)  # noqa: SLF001 (lives as long as the gateway)
        application = context.applicationId
        if lock is not None or manager is not None or vars(gateway).get("_sluice_application") != application:
            chosen_lock = _automatic_lock(context, lock)
            GUARD.automatic = None
            if chosen_lock != _NO_LOCK:
                GUARD.automatic = AutomaticTickets(manager or default_manager(spark), context.appName)
            jvm.io.deltasluice.storage.Guard.setAutomaticLock(gateway._sluice_guard.name, chosen_lock)  # noqa: SLF001
            gateway._sluice_application = application  # noqa: SLF001
    guard_this_thread(context)
    raise_refusals_as_python_errors(GUARD)

    def schema_of(location: str) -> PartitionSchema:
        return DeltaTableLog(spark, locate_table(spark, location)).snapshot().partition_schema()

    is_required = guard_mode(spark) == REQUIRED
    declare_guard_installed(schema_of if is_required else None)
    if spark.conf.get(COMMIT_LOCK, None) is None:
        spark.conf.set(COMMIT_LOCK, "false")
    auto_compact = spark.conf.get(AUTO_COMPACT, None)
    if auto_compact is None:
        # Otherwise a table property can turn it on.
        spark.conf.set(AUTO_COMPACT, "false")
    elif auto_compact.strip().lower() != "false":
        log.warning(
            "%s=%s: a compaction that the guard refuses is not reported; remove this setting, and compact under a lock",
            AUTO_COMPACT,
            auto_compact,
        )


def _automatic_lock(context: SparkContext, lock: str | None) -> str:
    conf: Any = context._jsc.sc().conf()  # noqa: SLF001 (see guard_mode)
    value = lock or str(conf.get(LOCK, _NO_LOCK)).strip().lower()
    if value not in _AUTOMATIC_LOCKS:
        raise SettingsError(f"{LOCK}={value!r}: choose {', '.join(_AUTOMATIC_LOCKS)}")
    return value


def default_manager(spark: SparkSession) -> LockManager:
    """Return the lock manager that this process shares, with the settings of :meth:`LockSettings.from_spark`.

    Raises:
        SettingsError: No ensemble is configured, or a setting is malformed.

    """
    context = spark.sparkContext
    settings = LockSettings.from_spark(dict(context.getConf().getAll()), app_id=context.applicationId)
    with _managers_lock:
        if settings not in _managers:
            _managers[settings] = manager_of(settings)
        return _managers[settings]


def _install_guard(jvm: Any) -> GuardServer:
    try:
        server = GuardServer(GUARD, GUARD.client_ended)
    except OSError as error:
        raise GuardMissingError(
            f"this process cannot create its socket in the folder for temporary files: {error}; set TMPDIR"
        ) from error
    try:
        server.install(jvm)
    except Py4JJavaError as error:
        server.close()
        raise GuardMissingError(
            f"the driver's JVM cannot ask this process whether a lock is held, at {server.path}: run both on one "
            f"machine, with one folder for temporary files ({error.java_exception})"
        ) from error
    return server


def attach_unless_off(spark: SparkSession) -> None:
    """Guard the driver's commits as :func:`attach` does, with its errors; if the guard is ``off``, declare that."""
    if guard_mode(spark) == OFF:
        declare_guard_installed(None)
    else:
        attach(spark)


def attach_once(spark: SparkSession) -> None:
    """Guard the driver's commits as :func:`attach` does; if they are guarded already, make no call to the JVM."""
    if not _is_attached(spark.sparkContext):
        attach(spark)
    else:
        # Another thread may have attached, and each SparkContext of this JVM installs PySpark's handler again.
        repair_interrupts()


def guard_this_thread(context: SparkContext) -> None:
    """Make the log store ask this process about every commit of this thread, with a lock or without one."""
    gateway: Any = context._gateway  # noqa: SLF001
    context.setLocalProperty(_GUARD_PROPERTY, gateway._sluice_guard.name)  # noqa: SLF001


def _is_attached(context: SparkContext) -> bool:
    # Not hasattr: a gateway takes an unknown attribute for a name in the JVM.
    return "_sluice_guard" in vars(context._gateway)  # noqa: SLF001


def guard_mode(spark: SparkSession) -> str:
    """Return the mode of the commit guard: ``required``, ``observe`` or ``off``."""
    # PySpark's getConf would copy all settings, with one call for each.
    conf: Any = spark.sparkContext._jsc.sc().conf()  # noqa: SLF001
    return str(conf.get(GUARD_MODE, REQUIRED)).strip().lower()


def _guard_kernel(context: SparkContext) -> None:
    """Make Delta Kernel commit through the guarded log store, too; it has one setting for each URI scheme."""
    jvm: Any = context._jvm  # noqa: SLF001
    unguarded_settings = jvm.io.deltasluice.storage.KernelLogStores.guard(context._jsc.hadoopConfiguration())  # noqa: SLF001
    if unguarded_settings:
        raise GuardMissingError(
            f"Delta Kernel bypasses the guarded log store because of {', '.join(unguarded_settings)}: remove these "
            f"settings, or set each to {LOG_STORE}"
        )


def _check_releases(context: SparkContext) -> None:
    """Log the releases of a driver that is not attached; refuse untested ones, unless the user allows them."""
    if _is_attached(context):
        return
    releases = driver_releases(context._jvm)  # noqa: SLF001
    log.info("%s", releases)
    conf: Any = context._jsc.sc().conf()  # noqa: SLF001 (see guard_mode)
    refusal = releases.refusal(str(conf.get(ALLOW_UNTESTED, "false")))
    if refusal is not None:
        raise UnsupportedSessionError(refusal)


def _check_log_store(context: SparkContext) -> None:
    conf: Any = context._jsc.sc().conf()  # noqa: SLF001 (see guard_mode)
    if conf.get(LOG_STORE_SETTING, "") == LOG_STORE:
        return
    pairs_of_all = context.getConf().getAll()
    settings = {key.removeprefix("spark."): value for key, value in pairs_of_all if "delta.logStore." in key}
    if settings.get(LOG_STORE_SETTING.removeprefix("spark.")) == LOG_STORE:
        return
    pairs = ", ".join(f"{key}={value}" for key, value in sorted(settings.items())) or "none"
    raise GuardMissingError(
        f"this session was started without the guarded log store (set: {pairs}): start it with "
        f"--conf {LOG_STORE_SETTING}={LOG_STORE} and no other log store"
    )
