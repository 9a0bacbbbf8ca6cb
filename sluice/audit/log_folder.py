"""Lists and reads a folder of a table, such as ``_delta_log``, on S3 or on a disk."""

from __future__ import annotations

import logging
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote

from lock_manager import canonical_table_uri
from sluice.errors import LogAccessError

if TYPE_CHECKING:
    from deltalake import DeltaTable

_logger = logging.getLogger(__name__)

#: Number of files that are read in parallel.
PARALLEL_READS = 16
# Number of values of a column that are Python objects at the same time.
_ROWS_AT_ONCE = 10_000

_S3 = re.compile(r"(?:s3|s3a|s3n)://(?P<bucket>[^/]+)(?:/(?P<prefix>.*))?", re.IGNORECASE | re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_ESCAPE = re.compile(r"(?:%[0-9A-Fa-f]{2})+")


class LogFolder(Protocol):
    """One folder of a table, ``_delta_log`` by default.

    Methods raise LogAccessError if the store refuses the request, or does not answer.

    Attributes:
        uri: The table's location, in the form that ``deltalake`` takes.
        options: Storage options of ``deltalake``.

    """

    uri: str
    options: dict[str, str]

    def names(self, after: str = "") -> list[str]:
        """Return the names of the files in the folder that sort after a name. Empty if there is no such folder.

        The list is sorted. On a disk it also contains the names of subfolders.
        """

    def read(self, name: str) -> bytes:
        """Return a file's content. A missing file is a LogAccessError."""

    def first_contents(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the original content of each of these files that was overwritten, by name.

        Content from before a deletion of the file is ignored. The result is empty if the store keeps no object
        versions or refuses to list them, and incomplete if it refuses to read one.
        """

    def files_of_table(self) -> set[str]:
        """Return the paths of all files of the table, relative to its location."""


def open_log(
    table: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
    *,
    folder: str = "_delta_log",
    client: Any = None,
) -> LogFolder:
    """Return a folder of the table at ``s3://``, ``s3a://``, ``file:`` or a local path.

    ``folder`` is empty for the location itself. ``options`` are storage options of ``deltalake``; missing ones come
    from the environment (``AWS_*``). ``client`` is a client of :func:`s3_client` that several folders share; by default
    the folder has its own.

    Raises:
        LogAccessError: The location is a URI of another scheme.

    """
    name = os.fspath(table)
    if (bucket_and_prefix := parse_s3(name)) is not None:
        return _S3Log(*bucket_and_prefix, folder, dict(options or {}), client)
    if _SCHEME.match(name) and not name.lower().startswith("file:"):
        raise LogAccessError(f"{name!r}: only s3://, s3a://, file: and local paths can be read")
    path = canonical_table_uri(name).removeprefix("file:") if _SCHEME.match(name) else name
    return _LocalLog(Path(path).resolve(), folder, dict(options or {}))


def open_table(log: LogFolder, version: int | None = None) -> DeltaTable:
    """Open the table of a log with ``deltalake``, at ``version``, or at its newest version if that is None.

    Raises:
        LogAccessError: ``deltalake`` would read another folder, because it decodes ``%20`` in a location.
        DeltaError, OSError: ``deltalake`` cannot open the table.

    """
    from deltalake import DeltaTable  # noqa: PLC0415 (the import takes 0.2 s)

    if (escape := _ESCAPE.search(log.uri)) is not None:
        raise LogAccessError(
            f"{log.uri} cannot be checked: deltalake decodes {escape[0]} in a location as {unquote(escape[0])!r}, "
            "so it would read another folder than Spark; rename the folder to check the table"
        )
    return DeltaTable(log.uri, version=version, storage_options=log.options or None)


def column_values(table: DeltaTable, column: str) -> Iterator[Any]:
    """Yield a column of the table's ``add`` actions, such as ``path`` or ``num_records``, without a list of all."""
    for batch in table.get_add_actions().column(column).chunks:
        for start in range(0, len(batch), _ROWS_AT_ONCE):
            yield from batch.slice(start, min(_ROWS_AT_ONCE, len(batch) - start)).to_pylist()


def error_text(error: Exception) -> str:
    """Return the text of an error of ``deltalake`` as one line of at most 400 characters.

    Removes colours and the stack trace. Returns the error's class name if there is no text.
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
    message = takewhile(lambda line: not re.match(r"\s*(\d+: |stack backtrace)", line), lines)
    return " ".join(line.strip(" ↳") for line in message)[:400] or type(error).__name__


class _LocalLog:
    def __init__(self, table: Path, folder: str, options: dict[str, str]) -> None:
        self.uri = str(table)
        self.options = options
        self._table = table
        self._folder = table / folder

    def names(self, after: str = "") -> list[str]:
        try:
            return sorted(entry.name for entry in os.scandir(self._folder) if entry.name > after)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise LogAccessError(f"{self._folder} cannot be listed: {error.strerror}") from error

    def read(self, name: str) -> bytes:
        try:
            return (self._folder / name).read_bytes()
        except OSError as error:
            raise LogAccessError(f"{self._folder / name} cannot be read: {error.strerror}") from error

    def first_contents(self, names: Collection[str]) -> dict[str, bytes]:  # noqa: ARG002 (a disk keeps no versions)
        return {}

    def files_of_table(self) -> set[str]:
        return {path.relative_to(self._table).as_posix() for path in self._table.rglob("*") if path.is_file()}


def parse_s3(location: str) -> tuple[str, str] | None:
    """Return the bucket and the prefix (without outer slashes) of an S3 location; None for another location."""
    match = _S3.fullmatch(location)
    return (match["bucket"], (match["prefix"] or "").strip("/")) if match else None


def s3_endpoint(options: Mapping[str, str]) -> str | None:
    """Return the endpoint in ``deltalake``'s storage options or in the environment; None for AWS itself."""
    normalized = _normalized_options(options)
    return normalized.get("endpoint_url") or normalized.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL")


def s3_client(options: Mapping[str, str], **config: Any) -> Any:
    """Return a boto3 client that uses the same store as ``deltalake`` with these storage options.

    ``config`` has further options of botocore's ``Config``, such as time limits.
    """
    import boto3  # noqa: PLC0415 (the import takes 0.4 s)
    from botocore.config import Config  # noqa: PLC0415

    normalized, endpoint = _normalized_options(options), s3_endpoint(options)
    style = "virtual" if uses_virtual_hosts(options) else "path"
    region = normalized.get("region") or normalized.get("default_region")
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"),
        aws_access_key_id=normalized.get("access_key_id"),
        aws_secret_access_key=normalized.get("secret_access_key"),
        aws_session_token=normalized.get("session_token") or normalized.get("token"),
        config=Config(
            max_pool_connections=PARALLEL_READS, s3={"addressing_style": style} if endpoint else {}, **config
        ),
    )


def s3_errors() -> tuple[type[Exception], ...]:
    """Return the base classes of boto3's errors. Call it in an ``except`` clause: it imports them, which is slow."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 (the import takes 0.4 s)

    return BotoCoreError, ClientError


def s3_response(error: BaseException) -> tuple[int, str]:
    """Return HTTP status and error code of the S3 response of boto3's error, or of its cause; 0 and "" without one."""
    source = error if hasattr(error, "response") else error.__cause__
    response: dict[str, Any] = getattr(source, "response", None) or {}
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    return status, response.get("Error", {}).get("Code", "")


def uses_virtual_hosts(options: Mapping[str, str]) -> bool:
    """Return whether ``deltalake``'s storage options or the environment put the bucket into the host name."""
    option = _normalized_options(options).get("virtual_hosted_style_request")
    return (option or os.environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "")).lower() in ("true", "1", "yes", "on")


def _normalized_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by lower-case names without "aws_": deltalake ignores the case, and the prefix is optional."""
    return {key.lower().removeprefix("aws_"): value for key, value in options.items()}


class _S3Log:
    def __init__(self, bucket: str, prefix: str, folder: str, options: dict[str, str], client: Any) -> None:
        self.uri = f"s3://{bucket}/{prefix}".rstrip("/")
        self._bucket = bucket
        self._table = f"{prefix}/".lstrip("/")
        self._folder = folder
        self._prefix = f"{self._table}{folder}/" if folder else self._table
        self.options = dict(options)
        if (s3_endpoint(options) or "").startswith("http://") and "allow_http" not in _normalized_options(options):
            self.options["AWS_ALLOW_HTTP"] = "true"
        self._client = client or s3_client(options)

    def names(self, after: str = "") -> list[str]:
        start = {"StartAfter": self._prefix + after} if after else {}
        return sorted(self._list(self._prefix, Delimiter="/", **start))

    def first_contents(self, names: Collection[str]) -> dict[str, bytes]:
        originals = {}
        try:
            for name, versions in self._object_versions(names).items():
                oldest = self._get(name, VersionId=versions[-1])
                if self._get(name, VersionId=versions[0]) != oldest:
                    originals[name] = oldest
        except s3_errors():
            _logger.info("object versions below s3://%s/%s cannot be read", self._bucket, self._prefix, exc_info=True)
        return originals

    def _object_versions(self, names: Collection[str]) -> dict[str, list[str]]:
        """Return the object version ids, newest first, of each file that was overwritten since its last deletion."""
        objects: dict[str, list[dict[str, Any]]] = defaultdict(list)
        deleted_at: dict[str, datetime] = {}
        pages = self._client.get_paginator("list_object_versions")
        for page in pages.paginate(Bucket=self._bucket, Prefix=self._prefix, Delimiter="/"):
            for entry in page.get("Versions", ()):
                objects[entry["Key"].removeprefix(self._prefix)].append(entry)
            for entry in page.get("DeleteMarkers", ()):
                name = entry["Key"].removeprefix(self._prefix)
                deleted_at[name] = max(deleted_at.get(name, entry["LastModified"]), entry["LastModified"])
        overwritten = {}
        for name in objects.keys() & set(names):
            # S3's times are whole seconds, so a version of the same second as the deletion may be older than it.
            deletion = deleted_at.get(name)
            entries = [entry for entry in objects[name] if deletion is None or entry["LastModified"] > deletion]
            if len({entry["ETag"] for entry in entries}) > 1:
                overwritten[name] = [str(entry["VersionId"]) for entry in entries]
        return overwritten

    def _get(self, name: str, **options: str) -> bytes:
        response = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name, **options)
        content: bytes = response["Body"].read()
        return content

    def files_of_table(self) -> set[str]:
        return set(self._list(self._table))

    def _list(self, prefix: str, **options: str) -> Iterator[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=prefix, **options)
        try:
            for page in pages:
                yield from (entry["Key"].removeprefix(prefix) for entry in page.get("Contents", ()))
        except s3_errors() as error:
            raise LogAccessError(f"s3://{self._bucket}/{prefix} cannot be listed: {error}") from error

    def read(self, name: str) -> bytes:
        try:
            return self._get(name)
        except s3_errors() as error:
            raise LogAccessError(f"{self.uri}/{self._folder}/{name} cannot be read: {error}") from error
