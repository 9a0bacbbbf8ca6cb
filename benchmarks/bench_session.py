"""The Spark session of a benchmark's driver on this machine."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession

from sluice.local.jars import jar_paths
from sluice.local.spark import FEW_ROWS, LOCAL_DRIVER, QUICK_JVM
from writer_jobs import build_session


def bench_session(name: str, conf: Mapping[str, str]) -> SparkSession:
    """Start a driver with two cores and 1 GB of memory. The settings of ``conf`` take precedence."""
    return build_session(
        name,
        jars=jar_paths(),
        launch_conf={
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            "spark.sql.shuffle.partitions": "2",
            **LOCAL_DRIVER,
            **FEW_ROWS,
            **conf,
        },
        log_level="OFF",
    )
