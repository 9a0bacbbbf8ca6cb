"""A job of the control of a mixed soak: what one writes with stock Delta, without a lock. Run by ``spark-submit``.

``stock_job.py append|upsert|cdc|stream|maintain TABLE SOURCE CHECKPOINT TRIGGER``. Appends retry after a conflict, as
Delta does by itself, and are numbered (``txnAppId``, ``txnVersion``), so one that is started again writes no row twice;
a stream that loses its race fails, and is started again by whoever looks after it.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (its name everywhere)

_SCHEMA = "feed string, month int, id bigint, position bigint, at timestamp, carrier string, delay bigint"
_EVENT = (
    f"key struct<feed: string, month: int, id: bigint>, value struct<op: string, after: struct<{_SCHEMA}>, "
    "source: struct<position: bigint>>"
)
_KEYS = ("feed", "month", "id")


def main() -> None:
    """Do one of the jobs, until it is killed or done."""
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
            once = part.write.format("delta").option("txnAppId", run).option("txnVersion", number)
            once.mode("append").partitionBy("month").save(table)
            _say(event="commit")
    elif name == "maintain":
        spark.sql(f"OPTIMIZE delta.`{table}`").collect()
        _say(event="commit")
        spark.sql(f"VACUUM delta.`{table}`").collect()
    else:
        _follow(spark, name, table, source, checkpoint, trigger)
    spark.stop()


def _follow(spark: SparkSession, name: str, table: str, source: str, checkpoint: str, trigger: str) -> None:
    files = spark.readStream.schema(_EVENT if name == "cdc" else _SCHEMA).json(source)

    def apply(batch: DataFrame, number: int) -> None:
        rows = _changes(batch) if name == "cdc" else batch.withColumn("op", F.lit("u"))
        newest = Window.partitionBy(*_KEYS).orderBy(F.col("position").desc())
        rows = rows.withColumn("nth", F.row_number().over(newest)).where("nth = 1").drop("nth")
        same = " AND ".join(f"t.{key} = s.{key}" for key in _KEYS)
        merge = DeltaTable.forPath(spark, table).alias("t").merge(rows.alias("s"), same)
        columns = {each: f"s.{each}" for each in _SCHEMA_NAMES}
        merge.whenMatchedDelete("s.op = 'd' AND s.position > t.position").whenMatchedUpdate(
            "s.position > t.position", columns
        ).whenNotMatchedInsert("s.op <> 'd'", columns).execute()
        _say(event="commit", batch=number, newest_sequence=batch_position(rows))

    query = (
        files.writeStream.foreachBatch(apply)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime=trigger)
        .start()
    )
    query.awaitTermination()


_SCHEMA_NAMES = tuple(part.split()[0] for part in _SCHEMA.split(", "))


def batch_position(rows: DataFrame) -> int | None:
    """Return the newest position of a batch."""
    found: int | None = rows.agg(F.max("position")).collect()[0][0]
    return found


def _changes(batch: DataFrame) -> DataFrame:
    gone = [F.coalesce(F.col(f"value.after.{name}"), F.col(f"key.{name}")).alias(name) for name in _KEYS]
    rest = [F.col(f"value.after.{name}").alias(name) for name in _SCHEMA_NAMES if name not in (*_KEYS, "position")]
    return batch.select(*gone, *rest, F.col("value.source.position").alias("position"), F.col("value.op").alias("op"))


def _say(**fields: Any) -> None:
    print(json.dumps({**fields, "at": time.time()}), flush=True)


if __name__ == "__main__":
    main()
