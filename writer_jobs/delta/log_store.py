"""Calls from Python into the Java side of the log store."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

_PACKAGE = "io.deltasluice.storage"


def log_store(spark: SparkSession, name: str) -> Any:
    """Return a class of the log store's package, for its static methods.

    By its name at once: py4j's usual way asks the JVM for each part of it.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 (Spark's way to it)
    return JavaClass(f"{_PACKAGE}.{name}", jvm._gateway_client)  # noqa: SLF001


def follow_transactions(spark: SparkSession) -> None:
    """Have the log store know each transaction of this thread, that of OPTIMIZE too; nothing in a driver without it."""
    with suppress(Py4JError):
        log_store(spark, "ActiveTransaction").follow()
