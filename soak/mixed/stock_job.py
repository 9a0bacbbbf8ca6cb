"""A job of a mixed soak's control: the usual code with stock Delta and without a lock. Run by ``spark-submit``.

``stock_job.py append|upsert|cdc|stream|maintain TABLE SOURCE CHECKPOINT TRIGGER``. Delta itself repeats appends after a
conflict. Appends are numbered (``txnAppId``, ``txnVersion``), so a restarted job writes no row twice. A stream fails
when it loses a conflict, and the soak restarts it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (its usual name)

_SCHEMA = "feed string, month int, id bigint, position bigint, at timestamp, carrier string, delay bigint"
_EVENT = (
    f"key struct<feed: string, month: int, id: bigint>, value struct<op: string, after: struct<{_SCHEMA}>, "
    "source: struct<position: bigint>>"
)
_COLUMNS = tuple(field.split()[0] for field in _SCHEMA.split(", "))
_KEYS = ("feed", "month", "id")


def main() -> None:
    """Run one of the jobs."""
    name, table, source, checkpoint, trigger = sys.argv[1:]
    spark = (
        SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    if name == "append":
        rows = spark.read.parquet(source)
        run = Path(source).stem
        for number, part in enumerate(rows.randomSplit([1.0] * 10, seed=1)):
            writer = part.write.format("delta").option("txnAppId", run).option("txnVersion", number)
            writer.mode("append").partitionBy("month").save(table)
            _print_event(event="commit")
    elif name == "maintain":
        spark.sql(f"OPTIMIZE delta.`{table}`").collect()
        _print_event(event="commit")
        spark.sql(f"VACUUM delta.`{table}`").collect()
    else:
        _run_stream(spark, name, table, source, checkpoint, trigger)
    spark.stop()


def _run_stream(spark: SparkSession, name: str, table: str, source: str, checkpoint: str, trigger: str) -> None:
    files = spark.readStream.schema(_EVENT if name == "cdc" else _SCHEMA).json(source)

    def apply(batch: DataFrame, number: int) -> None:
        rows = _changes(batch) if name == "cdc" else batch.withColumn("op", F.lit("u"))
        newest = Window.partitionBy(*_KEYS).orderBy(F.col("position").desc())
        rows = rows.withColumn("nth", F.row_number().over(newest)).where("nth = 1").drop("nth")
        same_key = " AND ".join(f"t.{key} = s.{key}" for key in _KEYS)
        merge = DeltaTable.forPath(spark, table).alias("t").merge(rows.alias("s"), same_key)
        columns = {name: f"s.{name}" for name in _COLUMNS}
        merge.whenMatchedDelete("s.op = 'd' AND s.position > t.position").whenMatchedUpdate(
            "s.position > t.position", columns
        ).whenNotMatchedInsert("s.op <> 'd'", columns).execute()
        _print_event(event="commit", batch=number, newest_sequence=_newest_position(rows))

    query = (
        files.writeStream.foreachBatch(apply)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=trigger)
        .start()
    )
    query.awaitTermination()


def _newest_position(rows: DataFrame) -> int | None:
    position: int | None = rows.agg(F.max("position")).collect()[0][0]
    return position


def _changes(batch: DataFrame) -> DataFrame:
    keys = [F.coalesce(F.col(f"value.after.{name}"), F.col(f"key.{name}")).alias(name) for name in _KEYS]
    values = [F.col(f"value.after.{name}").alias(name) for name in _COLUMNS if name not in (*_KEYS, "position")]
    return batch.select(*keys, *values, F.col("value.source.position").alias("position"), F.col("value.op").alias("op"))


def _print_event(**fields: Any) -> None:
    print(json.dumps({**fields, "at": time.time()}), flush=True)


if __name__ == "__main__":
    main()
