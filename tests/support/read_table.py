"""Print a table's ids, what is wrong with it and who wrote without the lock, found by a reader that is not Spark's.

A program of its own: ``deltalake`` holds Python's lock while it reads, and the S3 it reads from may be in the process
that asks.
"""

from __future__ import annotations

import json
import sys

from deltalake import DeltaTable, QueryBuilder

from sluice.audit.verify import verify_table

if __name__ == "__main__":
    table = sys.argv[1].replace("s3a:", "s3:")
    found = QueryBuilder().register("t", DeltaTable(table)).execute("select id from t").read_all()
    ids = sorted(found.column("id").to_pylist())
    verdict = verify_table(table)
    answer = {"ids": ids, "problems": verdict.problems, "unlocked_writers": dict(verdict.unlocked_writers)}
    sys.stdout.write(json.dumps(answer))
