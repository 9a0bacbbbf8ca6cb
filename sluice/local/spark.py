"""Starts small Spark drivers on this machine, for commands, demos and soaks, and defines their settings."""

from __future__ import annotations

import logging
import os
import shlex
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from lock_manager.testing.class_archives import SPARK, archive_options
from sluice.errors import CommandError
from sluice.interrupts import defer_signals
from sluice.local.jars import jar_paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STDERR = 2

#: JVM options for drivers that run for a minute. They avoid the second compiler, parallel garbage collection, and the
#: verification of classes in jars that were checked by their SHA-256. With one compiler the code cache is 48 MB by
#: default. That is too small for Spark, which would discard and compile code again and again.
PLAIN_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

#: PLAIN_JVM, and the options that use the archive of Spark's classes if it exists.
QUICK_JVM = " ".join([PLAIN_JVM, *map(shlex.quote, archive_options(SPARK))])

#: Settings for a few rows. Generated code costs more to compile than it saves.
FEW_ROWS: Mapping[str, str] = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}

#: Settings of a driver that listens on 127.0.0.1 only, without a UI.
LOCAL_DRIVER: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@contextmanager
def start_spark(name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start a small driver with the jars of this installation for a block.

    Its standard error is shown only if the driver does not start. A stop signal is delayed until the driver has
    started, because a JVM whose Python has ended earlier would not end. ``conf`` overrides ``spark-defaults.conf``.

    Raises:
        JarsError: A jar is missing. The message names the command that downloads it.
        CommandError: Spark does not start.

    """
    driver_conf = {
        **LOCAL_DRIVER,
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        **FEW_ROWS,
    }
    jars = jar_paths()
    with _stderr_only_on_failure(), defer_signals():
        # Importing PySpark prints a warning about pandas.
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from writer_jobs import build_session  # noqa: PLC0415
        from writer_jobs.delta.jvm_errors import JVM_ERRORS, error_reason  # noqa: PLC0415

        try:
            session = build_session(name, jars=jars, launch_conf={**driver_conf, **conf}, log_level="FATAL")
        except (*JVM_ERRORS, PySparkException) as error:
            raise CommandError(f"Spark does not start: {error_reason(error)}") from error
    # py4j logs the stack trace of an interrupted call, to its own logger and to the root logger.
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        yield session
    finally:
        # The JVM may still execute an interrupted call. It ends with this process.
        with warnings.catch_warnings(), suppress(*JVM_ERRORS):
            warnings.simplefilter("ignore")
            session.stop()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


@contextmanager
def _stderr_only_on_failure() -> Iterator[None]:
    """Hide the standard error of this process and of processes that start in the block, unless the block fails.

    The file descriptor is replaced, because a JVM inherits it and keeps it until it ends.
    """
    sys.stderr.flush()
    original_stderr = os.dup(_STDERR)
    with TemporaryFile() as output:
        os.dup2(output.fileno(), _STDERR)
        try:
            yield
        except Exception:
            output.seek(0)
            os.write(original_stderr, output.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(original_stderr, _STDERR)
            os.close(original_stderr)
