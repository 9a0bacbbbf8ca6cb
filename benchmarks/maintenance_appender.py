"""A Spark driver for ``maintenance.py`` that writes to a table repeatedly until a file exists.

``maintenance_appender.py append|update HOSTS TABLE OUTPUT READY STOP``: each write appends a row, or updates a row of
partition 0. After the warm-up the driver creates READY. When STOP exists, it writes its figures to OUTPUT and ends.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from bench_session import bench_session

from lock_manager import ZookeeperLockManager
from writer_jobs import LockedDeltaWriter

WARM_UP = 5


def main() -> None:
    operation, hosts, table, output, ready, stop = sys.argv[1:]
    spark = bench_session("appender", {"spark.master": "local[1]"})
    writes = []
    with ZookeeperLockManager(hosts) as manager:
        writer = LockedDeltaWriter(spark, manager, table)
        number = 0
        while not Path(stop).exists():
            rows = spark.range(number, number + 1).selectExpr("-1 - id AS id", "id % 20 AS part", "'x' AS value")
            asked_at, began = time.time(), time.perf_counter()
            if operation == "append":
                result = writer.append(rows.coalesce(1))
            else:
                result = writer.update(
                    {"value": f"'{number}'"}, "part = 0 AND id = 0", lock=[{"part": 0}], lock_during="commit"
                )
            if number >= WARM_UP:
                writes.append(
                    {"asked_at": asked_at, "took_s": time.perf_counter() - began, "waited_s": result.waited_seconds}
                )
            number += 1
            if writes:
                Path(ready).touch()
    Path(output).write_text(json.dumps(writes))
    spark.stop()


if __name__ == "__main__":
    main()
