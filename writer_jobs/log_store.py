"""The Java side of the log store, as far as Python calls it."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

_PACKAGE = "io.deltasluice.storage"


def log_store(spark: SparkSession, name: str) -> Any:
    """Return a class of the log store's package, for its static methods.

    By its name at once: py4j's usual way asks the JVM for each part of it.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 (Spark's way to it)
    return JavaClass(f"{_PACKAGE}.{name}", jvm._gateway_client)  # noqa: SLF001
