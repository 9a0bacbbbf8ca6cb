"""Read a table with the ``deltalake`` package: ``python -m sluice.soak.reader URI`` prints one JSON object.

In a process of its own: ``deltalake`` keeps Python's interpreter to itself now and then while it waits for S3, and the
S3 of a soak lives in the process that asks.
"""

from __future__ import annotations

import json
import sys

from deltalake import DeltaTable, QueryBuilder


def main(uri: str) -> None:
    """Print ``rows`` (the column ``id``) and ``versions`` (of the history)."""
    table = DeltaTable(uri)
    found = QueryBuilder().register("t", table).execute("select id from t").read_all()
    versions = sorted(int(entry["version"]) for entry in table.history() if "version" in entry)
    sys.stdout.write(json.dumps({"rows": found["id"].to_pylist(), "versions": versions}))


if __name__ == "__main__":
    main(sys.argv[1])
