"""Names of datasets by OpenLineage's rules: https://openlineage.io/docs/spec/naming.

A location is made canonical first, as for the lock. So a table has one name as a source and as an output, whichever of
its spellings a program uses.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from lock_manager import ResourceError, canonical_table_uri
from writer_jobs.lineage.records import DatasetName

_FILE = "file:"
_OBJECT_STORES = {"s3": "s3", "gs": "gs", "abfs": "abfss"}
# Databases whose URL is jdbc:NAME://HOST:PORT/DATABASE: name in OpenLineage, default port, and number of parts of a
# table's full name.
_DATABASES = {"postgresql": ("postgres", 5432, 3), "mysql": ("mysql", 3306, 2)}
_TABLE = re.compile(r"[\w$]+(?:\.[\w$]+)*")


def location_name(location: str) -> DatasetName | None:
    """Return the name of a folder or a table at a location; None if the location has no canonical URI."""
    try:
        uri = canonical_table_uri(location)
    except ResourceError:
        return None
    if uri.startswith(_FILE):
        return DatasetName("file", uri.removeprefix(_FILE))
    scheme, _, rest = uri.partition("://")
    host, slash, path = rest.partition("/")
    if scheme != "abfs":
        # Not a user and a password; of abfs, it is the container.
        host = host.rpartition("@")[2]
    if scheme in _OBJECT_STORES:
        return DatasetName(f"{_OBJECT_STORES[scheme]}://{host}", path or "/")
    return DatasetName(f"{scheme}://{host}", f"{slash}{path}" or "/")


def topic_name(servers: str, topic: str) -> DatasetName:
    """Return the name of a Kafka topic; of several bootstrap servers, the first one counts."""
    return DatasetName(f"kafka://{servers.split(',', maxsplit=1)[0].strip().rpartition('://')[2]}", topic)


def database_table_name(url: str, table: str) -> DatasetName | None:
    """Return the name of a table in a database, by a JDBC URL.

    None if the database is not PostgreSQL or MySQL on one host, or if the table's name has quotes.
    """
    try:
        parts = urlsplit(url.removeprefix("jdbc:"))
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme not in _DATABASES or host is None or "," in parts.netloc or not _TABLE.fullmatch(table):
        return None
    name, default_port, most_parts = _DATABASES[parts.scheme]
    address = f"[{host}]" if ":" in host else host
    database = parts.path.strip("/")
    is_complete = not database or table.count(".") + 1 >= most_parts
    return DatasetName(f"{name}://{address}:{port or default_port}", table if is_complete else f"{database}.{table}")
