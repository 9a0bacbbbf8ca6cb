"""Call static methods of the guarded log store's Java classes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_PACKAGE = "io.deltasluice.storage"


def log_store(spark: SparkSession, name: str) -> Any:
    """Return a class of the log store's Java package.

    The full name saves requests: ``jvm.io.deltasluice`` asks the JVM for each part of the name.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no public way)
    return JavaClass(f"{_PACKAGE}.{name}", jvm._gateway_client)  # noqa: SLF001


def track_transactions(spark: SparkSession) -> None:
    """Have the log store track this thread's transactions, also those of OPTIMIZE; without the log store do nothing."""
    with suppress(Py4JError):
        log_store(spark, "ActiveTransaction").track()
