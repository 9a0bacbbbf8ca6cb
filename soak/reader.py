"""Read a table with the ``deltalake`` package: ``python -m soak.reader URI [APPLICATION ...]`` prints JSON.

In a process of its own: ``deltalake`` keeps Python's interpreter to itself now and then while it waits for S3, and the
S3 of a soak lives in the process that asks.
"""

from __future__ import annotations

import json
import sys

from deltalake import DeltaTable, QueryBuilder


def main(uri: str, *applications: str) -> None:
    """Print ``rows`` (the column ``id``), ``versions`` (of the history) and ``transactions`` (by application)."""
    table = DeltaTable(uri)
    found = QueryBuilder().register("t", table).execute("select id from t").read_all()
    versions = sorted(int(entry["version"]) for entry in table.history() if "version" in entry)
    newest = {name: table.transaction_version(name) for name in applications}
    transactions = {name: version for name, version in newest.items() if version is not None}
    sys.stdout.write(json.dumps({"rows": found["id"].to_pylist(), "versions": versions, "transactions": transactions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
