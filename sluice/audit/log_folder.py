"""The ``_delta_log`` folder of a table, or another one beside it, listed and read file by file: on S3, or on a disk."""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from lock_manager import canonical_table_uri
from sluice.errors import LogAccessError

if TYPE_CHECKING:
    from deltalake import DeltaTable

log = logging.getLogger(__name__)

PARALLEL_READS = 16
"""How many files are read at a time."""

_S3 = re.compile(r"(?:s3|s3a|s3n)://(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ESCAPE = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


class LogFolder(Protocol):
    """The ``_delta_log`` folder of a table, or another one beside it, in whatever store.

    Attributes:
        uri: the table's location, as ``deltalake`` wants it.
        options: ``deltalake``'s storage options.

    """

    uri: str
    options: dict[str, str]

    def names(self) -> list[str]:
        """List the names of the files in it; empty if there is no such folder.

        Raises:
            LogAccessError: the store refuses, or does not answer.

        """

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            LogAccessError: it is not there (any more), or the store refuses.

        """

    def first_contents(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the first content of each file whose content was replaced, by its name.

        A file that was deleted in between counts from then on. Nothing is returned by a store that keeps no object
        versions, and by one that does not let this user list and read them.

        Args:
            names: of the files to look at.

        """

    def files_of_table(self) -> set[str]:
        """List all files below the table's location, by their paths from there.

        Raises:
            LogAccessError: the store refuses, or does not answer.

        """


def open_log(
    table: str | os.PathLike[str], options: Mapping[str, str] | None = None, *, folder: str = "_delta_log"
) -> LogFolder:
    """Return the log of the table at ``s3://``, ``s3a://``, ``file:`` or a local path.

    Args:
        table: its location.
        options: ``deltalake``'s storage options.
        folder: another folder of the table.

    Raises:
        LogAccessError: a URI of another kind.

    """
    name = os.fspath(table)
    if (found := parse_s3(name)) is not None:
        return _S3Log(*found, folder, dict(options or {}))
    if _SCHEME.match(name) and not name.lower().startswith("file:"):
        raise LogAccessError(f"{name!r}: only s3://, s3a://, file: and local paths can be read")
    path = canonical_table_uri(name).removeprefix("file:") if _SCHEME.match(name) else name
    return _LocalLog(Path(path).resolve(), folder, dict(options or {}))


def open_table(log: LogFolder, version: int | None = None) -> DeltaTable:
    """Return the table of a log, read with ``deltalake``.

    Args:
        log: of the table.
        version: None for the newest one.

    Raises:
        LogAccessError: ``deltalake`` would read another folder: it decodes ``%20`` in a location.
        DeltaError, OSError: ``deltalake`` cannot open the table.

    """
    from deltalake import DeltaTable  # noqa: PLC0415 (0.2 s that other commands need not pay)

    if (escape := _ESCAPE.search(log.uri)) is not None:
        raise LogAccessError(
            f"{log.uri} cannot be checked: deltalake takes {escape[0]} in a location for {unquote(escape[0])!r} and "
            "would read another folder. Spark reads the table; rename its folder to check it"
        )
    return DeltaTable(log.uri, version=version, storage_options=log.options or None)


class _LocalLog:
    def __init__(self, table: Path, folder: str, options: dict[str, str]) -> None:
        self.uri = str(table)
        self.options = options
        self._table = table
        self._log = table / folder

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._log))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise LogAccessError(f"{self._log} cannot be listed: {error.strerror}") from error

    def read(self, name: str) -> bytes:
        try:
            return (self._log / name).read_bytes()
        except OSError as error:
            raise LogAccessError(f"{self._log / name} cannot be read: {error.strerror}") from error

    def first_contents(self, names: Collection[str]) -> dict[str, bytes]:  # noqa: ARG002 (a disk keeps none)
        return {}

    def files_of_table(self) -> set[str]:
        return {path.relative_to(self._table).as_posix() for path in self._table.rglob("*") if path.is_file()}


def parse_s3(location: str) -> tuple[str, str] | None:
    """Return bucket and prefix (without slashes around it) of an ``s3://``, ``s3a://`` or ``s3n://`` location."""
    match = _S3.fullmatch(location)
    return (match["bucket"], (match["prefix"] or "").strip("/")) if match else None


def s3_endpoint(options: Mapping[str, str]) -> str | None:
    """Return the endpoint that ``deltalake``'s storage options or the environment name; None for AWS itself."""
    given = _plain(options)
    return given.get("endpoint_url") or given.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL")


def s3_client(options: Mapping[str, str]) -> Any:
    """Return a boto3 client that finds the store as ``deltalake`` does with the same storage options."""
    import boto3  # noqa: PLC0415 (0.4 s that local tables need not pay)
    from botocore.config import Config  # noqa: PLC0415

    given, endpoint = _plain(options), s3_endpoint(options)
    style = "virtual" if virtual_hosted(options) else "path"
    region = given.get("region") or given.get("default_region")
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        aws_access_key_id=given.get("access_key_id"),
        aws_secret_access_key=given.get("secret_access_key"),
        aws_session_token=given.get("session_token") or given.get("token"),
        config=Config(max_pool_connections=PARALLEL_READS, s3={"addressing_style": style} if endpoint else {}),
    )


def virtual_hosted(options: Mapping[str, str]) -> bool:
    """Tell whether ``deltalake``'s storage options or the environment put the bucket into the host's name."""
    given = _plain(options).get("virtual_hosted_style_request")
    return (given or os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "")).lower() in ("true", "1", "yes", "on")


def _plain(options: Mapping[str, str]) -> dict[str, str]:
    """Return options by their plain names: deltalake takes each in any case, with and without the prefix "aws_"."""
    return {key.lower().removeprefix("aws_"): value for key, value in options.items()}


class _S3Log:
    def __init__(self, bucket: str, prefix: str, folder: str, options: dict[str, str]) -> None:
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._table = f"{prefix}/".lstrip("/")
        self._folder = folder
        self._prefix = f"{self._table}{folder}/"
        self.options = dict(options)
        if (s3_endpoint(options) or "").startswith("http://") and "allow_http" not in _plain(options):
            self.options["AWS_ALLOW_HTTP"] = "true"
        self._client = s3_client(options)

    def names(self) -> list[str]:
        return sorted(self._listed(self._prefix, Delimiter="/"))

    def first_contents(self, names: Collection[str]) -> dict[str, bytes]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        first = {}
        try:
            for name, versions in self._object_versions(names).items():
                newest, oldest = (self._version(name, version) for version in (versions[0], versions[-1]))
                if newest != oldest:
                    first[name] = oldest
        except (BotoCoreError, ClientError):
            log.info("object versions below s3://%s/%s cannot be read", self._bucket, self._prefix, exc_info=True)
        return first

    def _object_versions(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the ids of the object versions, newest first, of the files that have several since their deletion."""
        objects: dict[str, list[dict[str, Any]]] = defaultdict(list)
        deleted: dict[str, datetime] = {}
        pages = self._client.get_paginator("list_object_versions")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"):
            for entry in page.get("Versions", ()):
                objects[entry["Key"].removeprefix(self._prefix)].append(entry)
            for entry in page.get("DeleteMarkers", ()):
                name = entry["Key"].removeprefix(self._prefix)
                deleted[name] = max(deleted.get(name, entry["LastModified"]), entry["LastModified"])
        several = {}
        for name in objects.keys() & set(names):
            # S3's times are whole seconds: a version of the second of a deletion may be from before it.
            since = [entry for entry in objects[name] if name not in deleted or entry["LastModified"] > deleted[name]]
            if len({entry["ETag"] for entry in since}) > 1:
                several[name] = [str(entry["VersionId"]) for entry in since]
        return several

    def _version(self, name: str, version: str) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, VersionId=version)
        content: bytes = answer["Body"].read()
        return content

    def files_of_table(self) -> set[str]:
        return set(self._listed(self._table))

    def _listed(self, prefix: str, **how: str) -> Iterator[str]:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, **how)
        try:
            for page in pages:
                yield from (entry["Key"].removeprefix(prefix) for entry in page.get("Contents", ()))
        except (BotoCoreError, ClientError) as error:
            raise LogAccessError(f"s3://{self._bucket}/{prefix} cannot be listed: {error}") from error

    def read(self, name: str) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            content: bytes = answer["Body"].read()
        except (BotoCoreError, ClientError) as error:
            raise LogAccessError(f"{self.uri}/{self._folder}/{name} cannot be read: {error}") from error
        return content
