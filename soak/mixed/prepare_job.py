"""Names the slow reader of a mixed soak in the table's properties, and pins the table. Run by ``spark-submit``.

``prepare_job.py TABLE CHECKPOINT ZOOKEEPER`` prints ``{"event": "prepared", "version": …}``, the pinned version. The
slow reader starts at that version.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta

from lock_manager import ZookeeperLockManager
from writer_jobs import build_session, locked, take_pin

_PROPERTIES = {
    # With one minute, VACUUM deletes the files that a compaction or a MERGE replaces during the soak.
    "delta.deletedFileRetentionDuration": "interval 1 minute",
    "delta.enableChangeDataFeed": "true",
    "delta.enableExpiredLogCleanup": "false",
    # Several feeds write to the table, with disjoint keys.
    "sluice.feed": "off",
}


def main() -> None:
    """Set the properties and pin the table."""
    table, checkpoint, hosts = sys.argv[1:]
    spark = build_session("mixed-prepare")
    properties = {**_PROPERTIES, "sluice.maintenance.streams": checkpoint}
    assignments = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
    with ZookeeperLockManager(hosts) as manager:
        with locked(spark, table, manager=manager):
            spark.sql(f"ALTER TABLE delta.`{table}` SET TBLPROPERTIES ({assignments})")
        expires_at = datetime.now(UTC) + timedelta(hours=12)
        pin = take_pin(spark, {table: None}, name="mixed", expires_at=expires_at, manager=manager)
    print(json.dumps({"event": "prepared", "version": pin.tables[0].version}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
