"""Read tables with a reader that is not Spark's: ids, what is wrong with a table, and who wrote without the lock.

A program of its own: ``deltalake`` holds Python's lock while it reads, and the S3 it reads from may be in the process
that asks. Each line on standard input is a JSON object with ``table`` and ``options`` (as ``deltalake`` takes them);
each line on standard output the answer.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any

from deltalake import DeltaTable, QueryBuilder

from sluice.audit.verify import verify_table


def look(table: str, options: Mapping[str, str]) -> dict[str, Any]:
    """Return what is found in a table."""
    uri = table.replace("s3a:", "s3:")
    rows = QueryBuilder().register("t", DeltaTable(uri, storage_options=dict(options)))
    ids = rows.execute("select id from t").read_all().column("id").to_pylist()
    verdict = verify_table(uri, storage_options=options)
    return {
        "ids": sorted(ids),
        "problems": verdict.problems,
        "unlocked_writers": dict(verdict.unlocked_writers),
    }


def main() -> None:
    """Answer until standard input ends."""
    for line in sys.stdin:
        try:
            answer = look(**json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
