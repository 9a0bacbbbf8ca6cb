"""Read tables with delta-rs: ids, problems, and writers without the lock.

This is a separate program, because delta-rs holds the GIL while it reads, and the S3 may be a thread of the test
process. Each line on standard input is a JSON object with ``table`` and ``options`` (storage options of delta-rs). Each
line on standard output is the response, a JSON object.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from sluice.audit.verify import verify_table


def inspect(table: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the ids of a table, and the problems and unlocked writers that ``sluice verify`` finds."""
    uri = table.replace("s3a:", "s3:")
    rows = QueryBuilder().register("t", DeltaTable(uri, storage_options=dict(options)))
    ids = rows.execute("select id from t").read_all().column("id").to_pylist()
    verdict = verify_table(uri, storage_options=options)
    return {"ids": sorted(ids), "problems": verdict.problems, "unlocked_writers": dict(verdict.unlocked_writers)}


def main() -> None:
    """Answer requests until standard input ends."""
    for line in sys.stdin:
        try:
            answer = inspect(**json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
