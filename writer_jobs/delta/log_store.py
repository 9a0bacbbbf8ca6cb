"""Call static methods of the guarded log store's Java classes."""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

_PACKAGE = "io.deltasluice.storage"


def log_store(spark: SparkSession, name: str) -> Any:
    """Return a class of the log store's Java package.

    The full name saves requests: ``jvm.io.deltasluice`` asks the JVM for each part of the name.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 (PySpark has no public way)
    return JavaClass(f"{_PACKAGE}.{name}", jvm._gateway_client)  # noqa: SLF001
