"""A slow reader of a mixed soak's table: what changed, as files of JSON, one for each batch. Run by ``spark-submit``.

``reader_job.py TABLE CHECKPOINT OUTPUT VERSION TRIGGER``; the trigger is an interval, or ``available-now``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    """Read on from where it was, until it is killed or done."""
    table, checkpoint, output, version, trigger = sys.argv[1:]
    spark = (
        SparkSession.builder.config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .getOrCreate()
    )
    changes = (
        spark.readStream.format("delta").option("readChangeFeed", "true").option("startingVersion", version).load(table)
    )

    def write(batch: DataFrame, number: int) -> None:
        # A batch that comes again replaces itself.
        part = Path(output) / f"{number:06}.json"
        hidden = part.with_name(f".{part.name}")
        hidden.write_text("".join(f"{line}\n" for line in batch.toJSON().collect()), encoding="utf-8")
        hidden.rename(part)
        print(json.dumps({"event": "read", "batch": number}), flush=True)

    writer = changes.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    triggered = (
        writer.trigger(availableNow=True) if trigger == "available-now" else writer.trigger(processingTime=trigger)
    )
    triggered.start().awaitTermination()


if __name__ == "__main__":
    main()
