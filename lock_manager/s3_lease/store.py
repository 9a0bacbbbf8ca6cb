"""Objects on S3, read and written with conditional requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

from lock_manager.deadline import Deadline
from lock_manager.errors import S3, EnsembleRefusedError, EnsembleUnavailableError, SettingsError

_R = TypeVar("_R")

REQUEST_SECONDS = 4.0
"""Time limit for the answer to a request, in seconds."""

RETRY_SECONDS, MAX_RETRY_SECONDS = 0.1, 2.0
"""Shortest and longest pause before an unanswered request is repeated, in seconds."""

_CONNECT_SECONDS = 2.0
_CONNECTIONS = 32
#: Errors of S3 that mean that the condition of a PUT does not hold: another client has written or deleted the object.
_CONFLICT_STATUS = frozenset({HTTPStatus.CONFLICT, HTTPStatus.PRECONDITION_FAILED})
#: Errors of S3 that mean that an object does not exist.
_MISSING = frozenset({"NoSuchKey", "404"})
_NOT_MODIFIED = frozenset({"304", "NotModified"})
#: Answers after which a request may be repeated; see :class:`UnansweredError`.
_RETRIABLE_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_RETRIABLE_CODES = frozenset({"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"})


class NotModifiedError(Exception):
    """The object is the one that the caller knows."""


class ConflictError(Exception):
    """The object is not the one that the condition of a PUT names.

    Attributes:
        is_decided: Whether S3 has compared them. It has not if another PUT was on its way (409).

    """

    def __init__(self, *, is_decided: bool) -> None:
        super().__init__("another client changed the object")
        self.is_decided = is_decided


class UnansweredError(Exception):
    """S3 gave no answer, or one of an error that may pass. A change may be made, or may still be made."""


class _RefusedError(Exception):
    """S3 answered with an error of the request."""

    def __init__(self, code: str, status: int) -> None:
        super().__init__(code)
        self.code, self.status = code, status


@dataclass(frozen=True)
class StoredObject:
    """An object and its ETag."""

    etag: str
    data: bytes


class ObjectStore:
    """The objects below ``s3-lease://BUCKET/PREFIX``; thread-safe.

    Requests are not repeated here, because the outcome of an unanswered PUT has to be looked up. The first one creates
    the client: boto3 finds endpoint, region and credentials by its own rules.

    Every request raises :class:`UnansweredError`, or :class:`EnsembleRefusedError` if S3 refuses it.
    """

    def __init__(self, url: str, bucket: str, prefix: str) -> None:
        self.url = url
        self._bucket, self._prefix = bucket, prefix
        self._lock = threading.Lock()
        self._boto_client: Any = None

    def answered(
        self,
        request: Callable[[], _R],
        deadline: Deadline,
        request_name: str,
        *,
        stop: Callable[[], object] = lambda: None,
        retried: tuple[type[Exception], ...] = (UnansweredError,),
    ) -> _R:
        """Return the result of a request that may be repeated until it is answered.

        Args:
            request: Sends the request.
            deadline: Time limit for an answer.
            request_name: Name of the request, for the message of the error.
            stop: Called before each attempt; may raise an error.
            retried: Errors after which the request is repeated.

        Raises:
            EnsembleUnavailableError: There was no answer in time.

        """
        pause = RETRY_SECONDS
        while True:
            stop()
            try:
                return request()
            except retried as error:
                self.pause(pause, deadline, request_name, str(error))
                pause = min(2 * pause, MAX_RETRY_SECONDS)

    def pause(self, seconds: float, deadline: Deadline, request_name: str, problem: str) -> None:
        """Wait before a repetition; raise EnsembleUnavailableError if there is no time for it."""
        if deadline.remaining() <= seconds:
            raise EnsembleUnavailableError(
                self.url, deadline.elapsed(), request_name, problem=problem, service=S3
            ) from None
        time.sleep(seconds)

    def read(self, key: str, *, known_etag: str | None = None) -> StoredObject | None:
        """Return an object; None if it does not exist.

        Raises:
            NotModifiedError: The object has the ETag that the caller knows.

        """
        condition = {} if known_etag is None else {"IfNoneMatch": known_etag}
        try:
            response = self._call("get_object", Key=self._prefix + key, **condition)
        except _RefusedError as error:
            if error.code in _NOT_MODIFIED:
                raise NotModifiedError from None
            if error.code in _MISSING:
                return None
            raise self._refusal(error) from None
        with response["Body"] as body:
            return StoredObject(response["ETag"], self._answer(body.read))

    def write(self, key: str, data: bytes, etag: str | None) -> str:
        """Create an object, or replace the one with an ETag; return the new ETag.

        Raises:
            ConflictError: The object exists, or has another ETag.

        """
        condition = {"IfNoneMatch": "*"} if etag is None else {"IfMatch": etag}
        try:
            response = self._call("put_object", Key=self._prefix + key, Body=data, **condition)
        except _RefusedError as error:
            # An object that was deleted is missing.
            if error.status in _CONFLICT_STATUS or error.code in _MISSING:
                raise ConflictError(is_decided=error.status != HTTPStatus.CONFLICT) from None
            raise self._refusal(error) from None
        return str(response["ETag"])

    def etags(self, folder: str) -> dict[str, str]:
        """Return the ETags of all objects below a folder, by key."""
        etags: dict[str, str] = {}
        page: dict[str, Any] = {"NextContinuationToken": None}
        while "NextContinuationToken" in page:
            token = page["NextContinuationToken"]
            continued = {} if token is None else {"ContinuationToken": token}
            try:
                page = self._call("list_objects_v2", Prefix=self._prefix + folder, **continued)
            except _RefusedError as error:
                raise self._refusal(error) from None
            etags |= {item["Key"].removeprefix(self._prefix): item["ETag"] for item in page.get("Contents", ())}
        return etags

    def _call(self, name: str, **arguments: Any) -> Any:
        exceptions = _botocore_exceptions()
        try:
            return self._answer(lambda: getattr(self.client, name)(Bucket=self._bucket, **arguments))
        except exceptions.ClientError as error:
            status = int(error.response["ResponseMetadata"]["HTTPStatusCode"])
            code = str(error.response["Error"].get("Code") or status)
            if status in _RETRIABLE_STATUS or code in _RETRIABLE_CODES:
                raise UnansweredError(code) from None
            raise _RefusedError(code, status) from None

    def _answer(self, request: Callable[[], Any]) -> Any:
        exceptions = _botocore_exceptions()
        try:
            return request()
        except (
            exceptions.HTTPClientError,
            exceptions.EndpointConnectionError,
            exceptions.ConnectTimeoutError,
            exceptions.ProxyConnectionError,
            exceptions.IncompleteReadError,
            exceptions.CredentialRetrievalError,
            exceptions.MetadataRetrievalError,
        ) as error:
            raise UnansweredError(str(error)) from None
        except exceptions.BotoCoreError as error:
            # The configuration of boto3, its credentials, or a boto3 that does not know the conditions.
            raise EnsembleRefusedError(self.url, f"{type(error).__name__}: {error}", service=S3) from None

    def _refusal(self, error: _RefusedError) -> EnsembleRefusedError:
        return EnsembleRefusedError(self.url, error.code, service=S3)

    @property
    def client(self) -> Any:
        """The boto3 client; the first use creates it.

        Raises:
            EnsembleRefusedError: The configuration of boto3 is malformed or incomplete.
            SettingsError: boto3 is not installed.

        """
        with self._lock:
            if self._boto_client is None:
                self._boto_client = _new_client()
            return self._boto_client


def _botocore_exceptions() -> Any:
    try:
        from botocore import exceptions  # noqa: PLC0415 (optional; the import takes half a second)
    except ImportError:
        raise SettingsError("s3-lease:// needs the package boto3: pip install '.[aws]' in a clone of Sluice") from None
    return exceptions


def _new_client() -> Any:
    import boto3  # noqa: PLC0415 (optional)
    from botocore.config import Config  # noqa: PLC0415

    config = Config(
        connect_timeout=_CONNECT_SECONDS,
        read_timeout=REQUEST_SECONDS,
        max_pool_connections=_CONNECTIONS,
        retries={"total_max_attempts": 1},
        # Stores other than AWS may not know the newer checksums.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    # A session of its own: boto3's default session is not thread-safe.
    return boto3.session.Session().client("s3", config=config)
