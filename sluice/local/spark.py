"""Settings of Spark drivers on this machine, for demos, soaks and small commands."""

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
from sluice.errors import SparkStartError
from sluice.interrupts import held_back
from sluice.local.jars import jar_paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_STDERR = 2

#: For drivers that live for a minute: they would spend it on the second compiler, on a collector's threads, and on
#: verifying again the classes of jars that were verified by their SHA-256. With one compiler alone a JVM keeps 48 MB of
#: compiled code by default; Spark has more, and would have it thrown away and compiled again for ever.
PLAIN_JVM = (
    "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC "
    "-XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
)

#: The same, with the archive of Spark's classes where there is one.
QUICK_JVM = " ".join([PLAIN_JVM, *map(shlex.quote, archive_options(SPARK))])

#: For a few rows: Java that is made for a query costs more to compile than it saves.
FEW_ROWS: Mapping[str, str] = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

#: Loopback only, and nothing to look at.
LOCAL_DRIVER: Mapping[str, str] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
}


@contextmanager
def start_spark(name: str, conf: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start a small driver with the jars of this installation, for a block.

    What it says on standard error is shown only if it does not start. A signal is held back until it has: a JVM that
    finds nobody to connect to would go on for ever.

    Args:
        name: of the application.
        conf: Spark's settings; they win over ``spark-defaults.conf``.

    Raises:
        JarsError: the jars are not there; the message says how to bring them.
        SparkStartError: it does not start.

    """
    small = {
        **LOCAL_DRIVER,
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        **FEW_ROWS,
    }
    jars = jar_paths()
    with _unless_it_fails(), held_back():
        # PySpark, which all of them need, has something to say of pandas.
        from pyspark.errors import PySparkException  # noqa: PLC0415

        from writer_jobs import build_session  # noqa: PLC0415
        from writer_jobs.delta.jvm_errors import JVM_ERRORS, one_sentence  # noqa: PLC0415

        try:
            started = build_session(name, jars=jars, launch_conf={**small, **conf}, log_level="FATAL")
        except (*JVM_ERRORS, PySparkException) as error:
            raise SparkStartError(f"Spark does not start: {one_sentence(error)}") from error
    # Of a call that is interrupted py4j logs the stack trace, to its own logger and to the root of all.
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_is_not_of_py4j)
    try:
        yield started
    finally:
        # Whatever was called when a signal came, the JVM may still be at it: it ends with this process.
        with warnings.catch_warnings(), suppress(*JVM_ERRORS):
            warnings.simplefilter("ignore")
            started.stop()


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return record.module != "java_gateway"


@contextmanager
def _unless_it_fails() -> Iterator[None]:
    """Keep what this process, and those that it starts in the block, write to standard error, unless it fails.

    The file descriptor is what a JVM inherits: for all of its life it writes where that led when it was started.
    """
    sys.stderr.flush()
    own = os.dup(_STDERR)
    with TemporaryFile() as said:
        os.dup2(said.fileno(), _STDERR)
        try:
            yield
        except Exception:
            said.seek(0)
            os.write(own, said.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(own, _STDERR)
            os.close(own)
