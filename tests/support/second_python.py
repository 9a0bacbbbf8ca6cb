"""A second Python process on the JVM of a running driver, as a notebook server starts one.

``PYSPARK_GATEWAY_PORT`` and ``PYSPARK_GATEWAY_SECRET`` identify the JVM. The commands are those of
:mod:`tests.support.spark_driver`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from lock_manager import ZookeeperLockManager
from tests.support.spark_driver import Driver, serve


def session() -> SparkSession:
    """Return a session on the JVM's Spark context."""
    gateway: Any = launch_gateway()
    jvm = gateway.jvm
    java_context = jvm.JavaSparkContext.fromSparkContext(jvm.org.apache.spark.SparkContext.getOrCreate())
    conf = SparkConf(_jvm=jvm, _jconf=java_context.getConf())
    return SparkSession(SparkContext(conf=conf, gateway=gateway, jsc=java_context))


def main() -> None:
    """Serve until standard input ends."""
    logging.basicConfig(level=logging.CRITICAL + 1)
    spark = session()
    with ZookeeperLockManager(sys.argv[1], 120) as manager:
        serve(Driver(spark, manager))


if __name__ == "__main__":
    main()
