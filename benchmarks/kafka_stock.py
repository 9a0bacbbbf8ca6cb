"""A plain Delta MERGE of a Kafka topic's changes in ``foreachBatch``, for ``kafka_lag.py``.

``kafka_stock.py SERVERS TOPIC TABLE CHECKPOINT TRIGGER``: it has an easier task than ``cdc.py``. Its schema is written
down, it keeps no tombstones, checks no order of equal sequences, stores no dead letters, records no transaction of a
batch and takes no lock.
"""

from __future__ import annotations

import json
import sys
import time

from delta.tables import DeltaTable
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (the common name)

ROW = "id bigint, name string, amount bigint"
ENVELOPE = f"op string, before struct<{ROW}>, after struct<{ROW}>, source struct<lsn: bigint>"


def main() -> None:
    servers, topic, table, checkpoint, trigger = sys.argv[1:]
    spark = SparkSession.builder.getOrCreate()
    DeltaTable.createIfNotExists(spark).location(table).addColumns(
        spark.createDataFrame([], f"{ROW}, position bigint").schema
    ).execute()

    def merge(batch: DataFrame, number: int) -> None:
        begun_at = time.time()
        envelope = F.from_json(F.col("value").cast("string"), ENVELOPE).alias("change")
        changes = batch.select(envelope).select(
            F.coalesce("change.after", "change.before").alias("row"), "change.op", "change.source.lsn"
        )
        changes = changes.select("row.*", "op", F.col("lsn").alias("position")).persist()
        newest_first = Window.partitionBy("id").orderBy(F.col("position").desc())
        newest = changes.withColumn("rank", F.row_number().over(newest_first)).where("rank = 1").drop("rank")
        values = {name: f"s.{name}" for name in ("id", "name", "amount", "position")}
        merge = DeltaTable.forPath(spark, table).alias("t").merge(newest.alias("s"), "t.id = s.id")
        merge = merge.whenMatchedDelete("s.op = 'd'").whenMatchedUpdate("s.position > t.position", values)
        merge.whenNotMatchedInsert("s.op <> 'd'", values).execute()
        count = changes.count()
        changes.unpersist()
        commit = {"event": "commit", "version": number + 1, "changes": count, "seconds": time.time() - begun_at}
        print(json.dumps(commit), flush=True)

    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    stream = source.option("startingOffsets", "earliest").load().writeStream.foreachBatch(merge)
    stream.option("checkpointLocation", checkpoint).trigger(processingTime=trigger).start().awaitTermination()


if __name__ == "__main__":
    main()
