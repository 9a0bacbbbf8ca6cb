"""Java classes of the driver by their full names.

``jvm.org.apache.spark.sql.delta.DeltaLog`` asks the JVM for each part of the name, and for each answer the JVM searches
all of its jars.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

_LOG_STORE = "io.deltasluice.storage"


def java_class(jvm: Any, name: str) -> Any:
    """Return a class. ``jvm`` is Py4J's view of a JVM; a call of a class that does not exist raises Py4JError."""
    return JavaClass(name, jvm._gateway_client)  # noqa: SLF001 (Py4J has no public way)


def scala_object(jvm: Any, name: str) -> Any:
    """Return a Scala object."""
    return getattr(java_class(jvm, f"{name}$"), "MODULE$")


def log_store(spark: SparkSession, name: str) -> Any:
    """Return a class of the log store's Java package."""
    return java_class(spark._jvm, f"{_LOG_STORE}.{name}")  # noqa: SLF001 (PySpark has no public way)
