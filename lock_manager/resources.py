"""The name under which a table is locked: its canonical URI, and the key derived from it.

All spellings of one table must lead to one lock. :func:`canonical_table_uri` normalizes them:

* ``s3://``, ``s3a://`` and ``s3n://`` name three clients of one store, so they become one scheme (``s3``).
* ``abfs``, ``abfss``, ``wasb`` and ``wasbs`` become one scheme (``abfs``). The two endpoints of an Azure account,
  ``ACCOUNT.blob.CLOUD`` and ``ACCOUNT.dfs.CLOUD``, become one host (``dfs``), in every cloud:
  https://learn.microsoft.com/azure/storage/blobs/data-lake-storage-introduction-abfs-uri
* Scheme and host are lower-case; ``hdfs``' default port is dropped.
* Duplicate and trailing slashes are removed; ``.`` and ``..`` are resolved, as Hadoop's ``Path`` does.
* A local path becomes an absolute ``file:`` URI with symbolic links resolved.
* Nothing is percent-decoded: Hadoop's ``Path`` takes a string literally, and ``%20`` is a legal part of an S3 key.

The form of some names does not show that they lead to one store (an S3 access point and its bucket, an HDFS name
service and its name node). They stay different here. The table's adoption (:mod:`lock_manager.table_records.adoption`)
decides which name counts.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from functools import cached_property

from lock_manager.errors import ResourceError

_URI = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*):(?://(?P<host>[^/]*))?(?P<path>/.*)?", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
#: Schemes of one store, by alias.
_SCHEME_ALIASES = {"s3a": "s3", "s3n": "s3", "abfss": "abfs", "wasb": "abfs", "wasbs": "abfs"}
#: ``CONTAINER@ACCOUNT.blob.core.windows.net``; the name of a newer account ends with the number of its DNS zone.
_AZURE_ENDPOINT = re.compile(r"(?P<account>[^.]+(?:\.z\d+)?)\.(?:blob|dfs)\.(?P<cloud>.+)")
_DEFAULT_PORTS = {"hdfs": ":8020"}


def canonical_table_uri(table: str | os.PathLike[str]) -> str:
    """Return the canonical URI of a table's location, under which the table is locked.

    Args:
        table: A URI (``s3a://bucket/path``, ``file:/path``, ``hdfs://…``), an absolute path, or a relative path that
            contains a slash (``./flights``). A bare word is refused: it may be a catalog name, which only Spark can
            resolve.

    Raises:
        ResourceError: The name is empty, contains a control character, lacks the host that its scheme needs, or climbs
            above its root.

    """
    name = _validated(os.fspath(table))
    match = _URI.fullmatch(name)
    if match is None:
        return _canonical_file(name)
    scheme = match["scheme"].lower()
    host = (match["host"] or "").lower()
    path = match["path"] or ""
    if scheme == "file":
        if host not in ("", "localhost"):
            raise ResourceError(f"{name!r} names a host: write file:/path (or file:///path) for a local table")
        if not path:
            raise ResourceError(f"{name!r} has no path: write file:/path")
        return _canonical_file(path)
    scheme = _SCHEME_ALIASES.get(scheme, scheme)
    if not host:
        raise ResourceError(f"{name!r} has no bucket or host: write {scheme}://BUCKET/path")
    # An empty port (``host:``) is the default port.
    host = host.removesuffix(_DEFAULT_PORTS.get(scheme, "")).removesuffix(":")
    if scheme == "abfs" and (azure := _AZURE_ENDPOINT.fullmatch(host)) is not None:
        host = f"{azure['account']}.dfs.{azure['cloud']}"
    return f"{scheme}://{host}{_normal_path(path, name)}"


def _validated(name: str) -> str:
    if not name.strip():
        raise ResourceError("a table's location is empty: give a URI such as s3a://bucket/table, or a path")
    if name != name.strip():
        raise ResourceError(f"a table's location has blanks around it: {name!r}; remove them")
    if any(ord(character) < 32 or ord(character) == 127 for character in name):  # noqa: PLR2004 (ASCII controls)
        raise ResourceError(f"a table's location has a control character: {name!r}; remove it")
    if _URI.fullmatch(name) is None:
        if "/" not in name:
            raise ResourceError(
                f"{name!r} is neither a URI nor a path: write './{name}' for a local folder; "
                "a catalog name has to be resolved to the table's location first"
            )
        if _SCHEME.match(name):
            raise ResourceError(
                f"{name!r} has a scheme without a '/' after it: write s3a://BUCKET/path, or ./ before a relative path"
            )
    return name


def _canonical_file(path: str) -> str:
    # Normalize as Hadoop does ("a/link/.." is "a"), then resolve links as the file system does.
    return "file:" + os.path.realpath(_normal_path(str(os.path.join(os.getcwd(), path)), path) or "/")  # noqa: PTH109, PTH118 (text, which _normal_path normalizes)


def _normal_path(path: str, name: str) -> str:
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise ResourceError(f"{name!r} climbs above its root: remove a '..'")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "".join(f"/{part}" for part in parts)


def table_key(uri: str) -> str:
    """Return the key of a table, which names its znode: the SHA-256 of its canonical URI, 64 hexadecimal digits."""
    return hashlib.sha256(uri.encode()).hexdigest()


@dataclass(frozen=True, order=True)
class TableResource:
    """A table as the lock identifies it.

    Attributes:
        uri: Canonical URI. The constructor takes any spelling that :func:`canonical_table_uri` takes.

    Raises:
        ResourceError: The location is not usable.

    """

    uri: str

    def __post_init__(self) -> None:
        """Make the URI canonical."""
        object.__setattr__(self, "uri", canonical_table_uri(self.uri))

    @classmethod
    def of(cls, table: str | os.PathLike[str] | TableResource) -> TableResource:
        """Return the resource for any spelling of a table's location."""
        return table if isinstance(table, TableResource) else cls(os.fspath(table))

    @cached_property
    def key(self) -> str:
        """SHA-256 of the canonical URI, 64 hexadecimal digits: the name of the table's znode."""
        return table_key(self.uri)
