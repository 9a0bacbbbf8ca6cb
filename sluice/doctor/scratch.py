"""Scratch objects in a store. An object is created only if it does not exist, as the log store creates a version.

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
from sluice.audit.log_folder import parse_s3, s3_client, s3_errors, s3_response
from sluice.doctor.rivals import ContestedObject
from sluice.errors import LogAccessError, ScratchObjectError

# 412: the object exists; 409: a concurrent request writes it (ConditionalRequestConflict).
_EXISTS = (409, 412)
_NOT_FOUND = 404


class ScratchObject(ContestedObject, Protocol):
    """A scratch object that does not exist yet. ``put`` creates it.

    Methods raise ScratchObjectError if the store refuses for another reason than documented, or does not answer.
    """

    def remove(self) -> None:
        """Delete the object if it exists."""


def scratch_objects(location: str, options: Mapping[str, str]) -> Callable[[], ScratchObject]:
    """Return a function that makes a new scratch object of a store at each call. Neither function sends a request.

    The location is ``s3://BUCKET[/PREFIX]``, ``file:…`` or a path.

    Raises:
        LogAccessError: The store is of another kind.
        ResourceError: The location is malformed.

    """
    if (bucket_and_prefix := parse_s3(location)) is not None:
        bucket, prefix = bucket_and_prefix
        client = s3_client(options)
        notice = PutNotice(client)
        return lambda: _S3Object(client, notice, bucket, f"{prefix}/_sluice/doctor-{uuid.uuid4().hex}".lstrip("/"))
    uri = canonical_table_uri(location)
    if not uri.startswith("file:"):
        raise LogAccessError(
            f"{location!r}: only s3://, s3a://, file: and local paths can be checked; elsewhere the log store relies "
            "on the store's own create or rename (HDFS, ABFS, GCS)"
        )
    return lambda: _LocalObject(Path(uri.removeprefix("file:")))


class PutNotice:
    """Calls a function right before an S3 client sends a PUT, once for each PUT."""

    def __init__(self, client: Any) -> None:
        self._thread_local = threading.local()
        client.meta.events.register("before-send.s3.PutObject", self._before_send)

    def call(self, ready: Callable[[], object], put: Callable[[], object]) -> None:
        """Run ``put``, which sends a PUT in this thread, and call ``ready`` right before the request is sent."""
        self._thread_local.ready = ready
        put()

    def _before_send(self, **_: Any) -> None:
        # A retry of the request must not wait for rivals, so the function is removed.
        vars(self._thread_local).pop("ready", lambda: None)()


class _S3Object:
    def __init__(self, client: Any, notice: PutNotice, bucket: str, key: str) -> None:
        self.location = f"s3://{bucket}/{key}"
        self._object = {"Bucket": bucket, "Key": key}
        self._client, self._notice = client, notice

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        def put(**key: str) -> None:
            self._notice.call(ready, lambda: self._client.put_object(**key, Body=content, IfNoneMatch="*"))

        try:
            self._request(put)
        except ScratchObjectError as error:
            if s3_response(error)[0] in _EXISTS:
                return False
            raise
        return True

    def read(self) -> bytes | None:
        try:
            content: bytes = self._request(lambda **key: self._client.get_object(**key)["Body"].read())
        except ScratchObjectError as error:
            if s3_response(error)[0] == _NOT_FOUND:
                return None
            raise
        return content

    def remove(self) -> None:
        self._request(self._client.delete_object)

    def _request(self, operation: Callable[..., Any]) -> Any:
        try:
            return operation(**self._object)
        except s3_errors() as error:
            raise ScratchObjectError(str(error)) from error


class _LocalObject:
    def __init__(self, folder: Path) -> None:
        self._file = folder / f".sluice-doctor-{uuid.uuid4().hex}"
        self.location = str(self._file)

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
            raise ScratchObjectError(
                f"{error.strerror}: the folder must exist, and its file system must support hard links"
            ) from error
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
