"""Whether a store refuses to overwrite what is there: tried, with a scratch object that is removed again.

Promise 1 rests on it: a version file is created only if there is none. On S3 by ``If-None-Match: *``, on a disk by a
hard link.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from lock_manager.errors import SluiceError
from lock_manager.resources import canonical_table_uri
from sluice.finding import Finding, failed, ok
from sluice.log_folder import LogAccessError, parse_s3, s3_client

_WHAT = "put-if-absent"
_FIRST, _SECOND = b"first", b"second"
_PRECONDITION_FAILED = 412


class TrialError(SluiceError, RuntimeError):
    """The store refuses, or does not answer."""


class Trial(Protocol):
    """A scratch object that does not exist yet.

    Attributes:
        where: its location, for people.

    """

    where: str

    def put(self, content: bytes) -> bool:
        """Create it if there is none; tell whether it was created.

        Raises:
            TrialError: the store refuses for another reason, or does not answer.

        """

    def read(self) -> bytes:
        """Return its content.

        Raises:
            TrialError: see :meth:`put`.

        """

    def remove(self) -> None:
        """Remove it.

        Raises:
            TrialError: see :meth:`put`.

        """


def open_trial(location: str, options: Mapping[str, str]) -> Trial:
    """Return the scratch object to try a store with.

    Args:
        location: ``s3://BUCKET[/PREFIX]``, ``file:…`` or a path.
        options: as ``deltalake`` takes them.

    Raises:
        LogAccessError: a store of another kind.
        ResourceError: no usable location.

    """
    if (found := parse_s3(location)) is not None:
        bucket, prefix = found
        return _S3Trial(bucket, f"{prefix}/_sluice/doctor-{uuid.uuid4().hex}".lstrip("/"), options)
    uri = canonical_table_uri(location)
    if not uri.startswith("file:"):
        raise LogAccessError(
            f"{location!r}: only s3://, s3a://, file: and local paths can be tried; elsewhere the log store relies on "
            "Delta's own store for that scheme (HDFS, ABFS, GCS)"
        )
    return _FolderTrial(Path(uri.removeprefix("file:")))


def store_findings(trial: Trial) -> list[Finding]:
    """Put the scratch object twice, and remove it."""
    try:
        found = _tried(trial)
    except TrialError as error:
        with suppress(TrialError):  # it may have been stored all the same
            trial.remove()
        return [failed(_WHAT, f"could not be tried at {trial.where}: {error}")]
    try:
        trial.remove()
    except TrialError as error:
        return [found, failed("scratch object", f"{trial.where} could not be removed, remove it yourself: {error}")]
    return [found]


def _tried(trial: Trial) -> Finding:
    if not trial.put(_FIRST):
        return failed(_WHAT, f"{trial.where} was refused although it is not there: the store is not to be trusted")
    if trial.put(_SECOND) or trial.read() != _FIRST:
        return failed(
            _WHAT,
            f"the store overwrote {trial.where} although it was told not to: two writers can both win one version "
            "there. Use a store that honours If-None-Match (AWS S3 does, MinIO and Ceph in recent releases)",
        )
    return ok(_WHAT, f"the store refuses to overwrite (tried at {trial.where})")


class _S3Trial:
    def __init__(self, bucket: str, key: str, options: Mapping[str, str]) -> None:
        self.where = f"s3://{bucket}/{key}"
        self._object = {"Bucket": bucket, "Key": key}
        self._client = s3_client(options)

    def put(self, content: bytes) -> bool:
        from botocore.exceptions import ClientError  # noqa: PLC0415 (0.4 s that local tables need not pay)

        try:
            self._ask("put_object", Body=content, IfNoneMatch="*")
        except TrialError as error:
            cause = error.__cause__
            if isinstance(cause, ClientError) and _status(cause) == _PRECONDITION_FAILED:
                return False
            raise
        return True

    def read(self) -> bytes:
        content: bytes = self._ask("get_object")["Body"].read()
        return content

    def remove(self) -> None:
        self._ask("delete_object")

    def _ask(self, operation: str, **arguments: Any) -> Any:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        try:
            return getattr(self._client, operation)(**self._object, **arguments)
        except (BotoCoreError, ClientError) as error:
            raise TrialError(f"{error}") from error


def _status(error: Any) -> int:
    return int(error.response["ResponseMetadata"]["HTTPStatusCode"])


class _FolderTrial:
    def __init__(self, folder: Path) -> None:
        self._file = folder / f".sluice-doctor-{uuid.uuid4().hex}"
        self.where = str(self._file)

    def put(self, content: bytes) -> bool:
        part = self._file.with_name(f"{self._file.name}.part")
        try:
            try:
                part.write_bytes(content)
                os.link(part, self._file)
            except FileExistsError:
                return False
            finally:
                part.unlink(missing_ok=True)
        except OSError as error:
            raise TrialError(f"{error.strerror}: the folder must be there, and take hard links") from error
        return True

    def read(self) -> bytes:
        try:
            return self._file.read_bytes()
        except OSError as error:
            raise TrialError(str(error.strerror)) from error

    def remove(self) -> None:
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise TrialError(str(error.strerror)) from error
