"""Settings of Spark drivers on this machine, for demos, soaks and small commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lock_manager.testing.class_archives import SPARK, archive_options
from sluice.local.jars import jar_paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


def start_spark(name: str, conf: Mapping[str, str]) -> SparkSession:
    """Start a small driver with the jars of this installation; leaving its ``with`` block stops it.

    Args:
        name: of the application.
        conf: Spark's settings; they win over ``spark-defaults.conf``.

    Raises:
        JarsError: the jars are not there; the message says how to bring them.

    """
    from writer_jobs import build_session  # noqa: PLC0415 (needs PySpark)

    small = {
        **LOCAL_DRIVER,
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_JVM,
        **FEW_ROWS,
    }
    return build_session(name, jars=jar_paths(), launch_conf={**small, **conf}, log_level="FATAL")
