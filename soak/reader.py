"""Read a table with the ``deltalake`` package: ``python -m soak.reader URI [APPLICATION ...]`` prints JSON.

It runs in a separate process, because ``deltalake`` sometimes keeps the lock of Python's interpreter while it waits for
S3, and the S3 of a soak runs in the calling process.
"""

from __future__ import annotations

import json
import sys

from deltalake import DeltaTable, QueryBuilder


def main(uri: str, *applications: str) -> None:
    """Print ``rows`` (the column ``id``), ``versions`` (of the history) and ``transactions`` (by application)."""
    table = DeltaTable(uri)
    ids = QueryBuilder().register("t", table).execute("select id from t").read_all()["id"]
    versions = sorted(int(entry["version"]) for entry in table.history() if "version" in entry)
    newest = {name: table.transaction_version(name) for name in applications}
    transactions = {name: version for name, version in newest.items() if version is not None}
    sys.stdout.write(json.dumps({"rows": ids.to_pylist(), "versions": versions, "transactions": transactions}))


if __name__ == "__main__":
    main(*sys.argv[1:])
