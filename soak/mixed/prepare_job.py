"""Gives a mixed soak's table what care must spare: a slow stream that is named, and a pin. Run by ``spark-submit``.

``prepare_job.py TABLE CHECKPOINT ZOOKEEPER``. It says ``{"event": "prepared", "version": …}``: that of the pin, from
which on the stream reads.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

from lock_manager import ZookeeperLockManager
from writer_jobs import build_session, locked, take_pin

_PROPERTIES = {
    # What a compaction or a MERGE replaces is removed a minute later, while the soak lasts.
    "delta.deletedFileRetentionDuration": "interval 1 minute",
    "delta.enableChangeDataFeed": "true",
    "delta.enableExpiredLogCleanup": "false",
    # Three feeds, each with keys of its own.
    "sluice.feed": "off",
}


def main() -> None:
    """Set the properties, and pin the table."""
    table, checkpoint, hosts = sys.argv[1:]
    spark = build_session("mixed-prepare")
    properties = {**_PROPERTIES, "sluice.maintenance.streams": checkpoint}
    said = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    with ZookeeperLockManager(hosts) as manager:
        with locked(spark, table, manager=manager):
            spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({said})")
        expires_at = datetime.now(UTC) + timedelta(hours=12)
        pin = take_pin(spark, {table: None}, name="mixed", expires_at=expires_at, manager=manager)
    print(json.dumps({"event": "prepared", "version": pin.tables[0].version}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
