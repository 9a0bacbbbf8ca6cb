"""The slow reader of a mixed soak: writes the table's changes as one JSON file per batch. Run by ``spark-submit``.

``reader_job.py TABLE CHECKPOINT OUTPUT VERSION TRIGGER``. The trigger is an interval or ``available-now``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def main() -> None:
    """Write the changes since the checkpoint, until the job is killed or the trigger ends it."""
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
        # A repeated batch replaces its file.
        path = Path(output) / f"{number:06}.json"
        hidden_path = path.with_name(f".{path.name}")
        hidden_path.write_text("".join(f"{line}\n" for line in batch.toJSON().collect()), encoding="utf-8")
        hidden_path.rename(path)
        print(json.dumps({"event": "read", "batch": number}), flush=True)

    writer = changes.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
    schedule: dict[str, Any] = {"availableNow": True} if trigger == "available-now" else {"processingTime": trigger}
    writer.trigger(**schedule).start().awaitTermination()


if __name__ == "__main__":
    main()
