"""Scratch objects with which a store is tried: created only if there is none, as the log store creates a version.

On S3 by ``If-None-Match: *``, on a disk by a hard link.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from lock_manager.resources import canonical_table_uri
from sluice.audit.log_folder import parse_s3, s3_client
from sluice.errors import LogAccessError, TrialError

# 412: there is one; 409: another one is being written (ConditionalRequestConflict).
_REFUSED = (409, 412)
_NOT_FOUND = 404


class Trial(Protocol):
    """A scratch object that does not exist yet.

    Attributes:
        where: its location, for people.

    """

    where: str

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        """Create it if there is none; tell whether it was created. Threads may do it at once.

        Args:
            content: of the object.
            ready: called when everything is prepared, right before the store is asked.

        Raises:
            TrialError: the store refuses for another reason, or does not answer.

        """

    def read(self) -> bytes | None:
        """Return its content; None if there is none.

        Raises:
            TrialError: see :meth:`put`.

        """

    def remove(self) -> None:
        """Remove it, if there is one.

        Raises:
            TrialError: see :meth:`put`.

        """


def scratch_objects(location: str, options: Mapping[str, str]) -> Callable[[], Trial]:
    """Return a function that names a new scratch object of a store each time it is called.

    Args:
        location: ``s3://BUCKET[/PREFIX]``, ``file:…`` or a path.
        options: as ``deltalake`` takes them.

    Raises:
        LogAccessError: a store of another kind.
        ResourceError: no usable location.

    """
    if (found := parse_s3(location)) is not None:
        bucket, prefix = found
        client = _S3Client(options)
        return lambda: _S3Trial(client, bucket, f"{prefix}/_sluice/doctor-{uuid.uuid4().hex}".lstrip("/"))
    uri = canonical_table_uri(location)
    if not uri.startswith("file:"):
        raise LogAccessError(
            f"{location!r}: only s3://, s3a://, file: and local paths can be tried; elsewhere the log store relies on "
            "Delta's own store for that scheme (HDFS, ABFS, GCS)"
        )
    return lambda: _FolderTrial(Path(uri.removeprefix("file:")))


class _S3Client:
    """A client whose threads can be held when their requests are signed, and not sent yet."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.boto: Any = s3_client(options)
        self._of_thread = threading.local()
        self.boto.meta.events.register("before-send.s3.PutObject", self._before_send)

    def put(self, ready: Callable[[], object], **arguments: Any) -> None:
        self._of_thread.ready = ready
        self.boto.put_object(**arguments)

    def _before_send(self, **_: Any) -> None:
        # Once: a request that is repeated has no rivals to wait for.
        vars(self._of_thread).pop("ready", lambda: None)()


class _S3Trial:
    def __init__(self, client: _S3Client, bucket: str, key: str) -> None:
        self.where = f"s3://{bucket}/{key}"
        self._object = {"Bucket": bucket, "Key": key}
        self._client = client

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        try:
            self._ask(lambda **place: self._client.put(ready, **place, Body=content, IfNoneMatch="*"))
        except TrialError as error:
            if _status(error) in _REFUSED:
                return False
            raise
        return True

    def read(self) -> bytes | None:
        try:
            content: bytes = self._ask(lambda **place: self._client.boto.get_object(**place)["Body"].read())
        except TrialError as error:
            if _status(error) == _NOT_FOUND:
                return None
            raise
        return content

    def remove(self) -> None:
        self._ask(self._client.boto.delete_object)

    def _ask(self, operation: Callable[..., Any]) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 (0.4 s that local tables need not pay)

        try:
            return operation(**self._object)
        except (BotoCoreError, ClientError) as error:
            raise TrialError(f"{error}") from error


def _status(error: TrialError) -> int:
    """Return the HTTP status that S3 answered with, 0 if there was no answer."""
    response: dict[str, Any] = getattr(error.__cause__, "response", None) or {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


class _FolderTrial:
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
            raise TrialError(f"{error.strerror}: the folder must be there, and take hard links") from error
        return True

    def read(self) -> bytes | None:
        try:
            return self._file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise TrialError(str(error.strerror)) from error

    def remove(self) -> None:
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise TrialError(str(error.strerror)) from error
