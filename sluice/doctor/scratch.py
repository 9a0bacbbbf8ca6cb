"""Scratch objects in a store. They are created as the log store creates a version: only if there is none.

On S3 that is a PUT with ``If-None-Match: *``, on a disk a hard link.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from lock_manager.resources import canonical_table_uri
from sluice.audit.log_folder import parse_s3, s3_client, s3_errors
from sluice.errors import LogAccessError, ScratchObjectError

# 412: the object exists; 409: a concurrent request writes it (ConditionalRequestConflict).
_EXISTS = (409, 412)
_NOT_FOUND = 404


class ScratchObject(Protocol):
    """A scratch object that does not exist yet.

    Attributes:
        where: Its location, for people.

    """

    where: str

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        """Create the object if it does not exist. Several threads may call this at the same time.

        Args:
            content: Content of the object.
            ready: Called right before the request is sent.

        Returns:
            Whether the object was created.

        Raises:
            ScratchObjectError: The store refuses for another reason, or does not answer.

        """

    def read(self) -> bytes | None:
        """Return the content; None if the object does not exist.

        Raises:
            ScratchObjectError: See :meth:`put`.

        """

    def remove(self) -> None:
        """Delete the object if it exists.

        Raises:
            ScratchObjectError: See :meth:`put`.

        """


def scratch_objects(location: str, options: Mapping[str, str]) -> Callable[[], ScratchObject]:
    """Return a function that returns another scratch object of a store at each call. It sends no request.

    Args:
        location: ``s3://BUCKET[/PREFIX]``, ``file:…`` or a path.
        options: Options of ``deltalake``.

    Raises:
        LogAccessError: The store is of another kind.
        ResourceError: The location is malformed.

    """
    if (bucket_and_prefix := parse_s3(location)) is not None:
        bucket, prefix = bucket_and_prefix
        client = _S3Client(options)
        return lambda: _S3Object(client, bucket, f"{prefix}/_sluice/doctor-{uuid.uuid4().hex}".lstrip("/"))
    uri = canonical_table_uri(location)
    if not uri.startswith("file:"):
        raise LogAccessError(
            f"{location!r}: only s3://, s3a://, file: and local paths can be checked; elsewhere the log store relies "
            "on Delta's own store for that scheme (HDFS, ABFS, GCS)"
        )
    return lambda: _LocalObject(Path(uri.removeprefix("file:")))


class _S3Client:
    """A client that calls a function of the thread when its request is signed, before it is sent."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.boto: Any = s3_client(options)
        self._thread_local = threading.local()
        self.boto.meta.events.register("before-send.s3.PutObject", self._before_send)

    def put(self, ready: Callable[[], object], **arguments: Any) -> None:
        self._thread_local.ready = ready
        self.boto.put_object(**arguments)

    def _before_send(self, **_: Any) -> None:
        # Only once: a repeated request must not wait for rivals.
        vars(self._thread_local).pop("ready", lambda: None)()


class _S3Object:
    def __init__(self, client: _S3Client, bucket: str, key: str) -> None:
        self.where = f"s3://{bucket}/{key}"
        self._object = {"Bucket": bucket, "Key": key}
        self._client = client

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        try:
            self._request(lambda **key: self._client.put(ready, **key, Body=content, IfNoneMatch="*"))
        except ScratchObjectError as error:
            if _status(error) in _EXISTS:
                return False
            raise
        return True

    def read(self) -> bytes | None:
        try:
            content: bytes = self._request(lambda **key: self._client.boto.get_object(**key)["Body"].read())
        except ScratchObjectError as error:
            if _status(error) == _NOT_FOUND:
                return None
            raise
        return content

    def remove(self) -> None:
        self._request(self._client.boto.delete_object)

    def _request(self, operation: Callable[..., Any]) -> Any:
        try:
            return operation(**self._object)
        except s3_errors() as error:
            raise ScratchObjectError(f"{error}") from error


def _status(error: ScratchObjectError) -> int:
    """Return the HTTP status of S3's response, 0 if there was none."""
    response: dict[str, Any] = getattr(error.__cause__, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


class _LocalObject:
    def __init__(self, folder: Path) -> None:
        self._file = folder / f".sluice-doctor-{uuid.uuid4().hex}"
        self.where = str(self._file)

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        part = self._file.with_name(f"{self._file.name}.{uuid.uuid4().hex}.part")
        try:
            try:
                part.write_bytes(content)
                ready()
                os.link(part, self._file)
            except FileExistsError:
                return False
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise ScratchObjectError(f"{error.strerror}: the folder must be there, and support hard links") from error
        return True

    def read(self) -> bytes | None:
        try:
            return self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ScratchObjectError(str(error.strerror)) from error

    def remove(self) -> None:
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise ScratchObjectError(str(error.strerror)) from error
