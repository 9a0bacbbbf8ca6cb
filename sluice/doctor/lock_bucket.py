"""Checks a bucket for locks (``s3-lease://``): access, conditional PUTs, latency, and rules that touch its objects."""

from __future__ import annotations

import json
import statistics
import time
import uuid
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleFormatError, EnsembleRefusedError, EnsembleUnavailableError
from lock_manager.s3_lease import root
from lock_manager.s3_lease.queue_object import FOLDER
from lock_manager.s3_lease.store import ConflictError, ObjectStore, StoredObject, UnansweredError
from lock_manager.settings import LockSettings, bucket_and_prefix
from sluice.audit.log_folder import s3_errors, s3_response
from sluice.doctor.finding import Finding, failed, note, ok
from sluice.doctor.rivals import run_contest
from sluice.doctor.scratch import PutNotice

#: Key of the object that the check writes, below the prefix. It stays: clients of locks may not delete objects.
KEY = "doctor.json"
# Seconds for the answers of one check.
_ANSWER_SECONDS = 10.0
_REQUESTS = 5
_SLOW_MS = 500.0
# No object of a lock is so large.
_LARGE_BYTES = 1 << 20
_CONDITIONS = "conditional PUT"
_KEY_ADVICE = (
    "Allow s3:GetObject and s3:PutObject there; with SSE-KMS also kms:GenerateDataKey and kms:Decrypt for the key"
)
_ADVICE = "Use a store that honours If-Match and If-None-Match, such as AWS S3"
# Codes of an answer without a permission.
_DENIALS = frozenset({"AccessDenied", "403"})
# Storage classes whose objects cannot be read until they are restored.
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})


def lock_bucket_findings(settings: LockSettings) -> list[Finding]:
    """Check a bucket with a client like a writer's. Only :data:`KEY` is written.

    Raises:
        SettingsError: boto3 is not installed.

    """
    bucket, prefix = bucket_and_prefix(settings.lock_url)
    store = ObjectStore(settings.lock_url, bucket, prefix)
    try:
        # First an object that does not exist: without s3:ListBucket, S3 refuses to read it.
        permission = _permission_finding(store)
        if permission.failed:
            return [permission]
        coordinator = _coordinator_finding(store)
    except (EnsembleRefusedError, EnsembleUnavailableError, EnsembleFormatError) as error:
        return [failed("locks", str(error))]
    location = f"s3://{bucket}/{prefix}{KEY}"
    return [
        coordinator,
        permission,
        _conditions_finding(store, location),
        _latency_finding(store),
        _versions_finding(store, bucket),
        _lifecycle_finding(store, bucket, prefix),
    ]


def _answered(store: ObjectStore, request: Callable[[], Any], request_name: str) -> Any:
    return store.answered(request, Deadline(_ANSWER_SECONDS), request_name, retried=(UnansweredError, ConflictError))


def _coordinator_finding(store: ObjectStore) -> Finding:
    coordinator = _answered(store, lambda: root.read_id(store), "read an object")
    place = f"{store.url} at {store.client.meta.endpoint_url}"
    if coordinator is None:
        return note("locks", f"{place}: there is no coordinator yet; the first lock creates it")
    return ok("locks", f"{place}, coordinator {coordinator}")


def _permission_finding(store: ObjectStore) -> Finding:
    """Read an object that does not exist."""
    check = "permission"
    try:
        _answered(store, lambda: store.read(f"missing-{uuid.uuid4().hex}"), "read an object")
    except EnsembleRefusedError as error:
        if error.refusal not in _DENIALS:
            raise
        return failed(
            check,
            f"{store.url}: a GET of an object that does not exist was refused ({error.refusal}): allow s3:GetObject "
            "and s3:PutObject below the prefix, and s3:ListBucket on the bucket without a condition on s3:prefix",
        )
    return ok(check, "may read objects, and learns which ones do not exist")


class _LockObject:
    """The object of a round: a rival writes it if it is still the one that this object has read.

    Args:
        run: Id of the run, to detect that another client writes the object.

    """

    def __init__(self, store: ObjectStore, notice: PutNotice, location: str, run: str) -> None:
        self.location = location
        self._store, self._notice = store, notice
        self._marks = {"run": run, "round": uuid.uuid4().hex}
        stored = _answered(store, lambda: store.read(KEY), "read an object")
        self._etag = None if stored is None else stored.etag

    def put(self, content: bytes, ready: Callable[[], object] = lambda: None) -> bool:
        # No two PUTs have the same content: a store may compute the ETag from it.
        data = json.dumps({**self._marks, "content": content.decode()}).encode()
        try:
            self._notice.call(ready, lambda: self._store.write(KEY, data, self._etag))
        except (ConflictError, UnansweredError):
            # An object that was written without an answer is one that no rival has won.
            return False
        return True

    def read(self) -> bytes | None:
        stored = _answered(self._store, lambda: self._store.read(KEY), "read an object")
        if stored is not None and stored.etag == self._etag:
            return b""  # no rival has written it
        fields = {} if stored is None else json.loads(stored.data)
        if fields.get("run") != self._marks["run"]:
            raise _ForeignWriteError(self.location)
        return fields["content"].encode() if fields["round"] == self._marks["round"] else b""


class _ForeignWriteError(Exception):
    pass


def _conditions_finding(store: ObjectStore, location: str) -> Finding:
    """Write the object with conditions, by rivals at the same moment, and then in sequence."""
    run, notice = uuid.uuid4().hex, PutNotice(store.client)
    try:
        contest = run_contest(lambda: _LockObject(store, notice, location, run))
        if contest.violation:
            return failed(
                _CONDITIONS,
                f"{contest.violation}, under the same condition: two clients can both hold one lock. {_ADVICE}",
            )
        _answered(store, lambda: _prove(store), "write an object")
    except EnsembleRefusedError as error:
        advice = _KEY_ADVICE if error.refusal in _DENIALS else _ADVICE
        return failed(_CONDITIONS, f"{location}: {error}. {advice}")
    except EnsembleUnavailableError as error:
        return failed(_CONDITIONS, f"could not be checked at {location}: {error}; try again")
    except (_ForeignWriteError, ValueError, KeyError, TypeError, AttributeError):
        return note(_CONDITIONS, f"could not be checked: another client writes {location} at the same time; try again")
    if contest.obstacle:
        return note(
            _CONDITIONS,
            f"the store keeps conditions in sequence, but {contest.obstacle} (checked at {location}): it is not known "
            "whether two concurrent clients can hold one lock; try again",
        )
    return ok(_CONDITIONS, f"the store keeps conditions (checked at {location}: in sequence, and {contest})")


def _prove(store: ObjectStore) -> None:
    stored = store.read(KEY)
    if stored is None:
        raise ConflictError(is_decided=True)
    root.prove_conditions(store, KEY, stored)


def _latency_finding(store: ObjectStore) -> Finding:
    check = "latency"
    milliseconds = []
    try:
        stored = _answered(store, lambda: store.read(KEY), "read an object") or StoredObject("", b"{}")
        etag = stored.etag or None
        for _ in range(_REQUESTS):
            began = time.perf_counter()
            etag = store.write(KEY, stored.data, etag)
            milliseconds.append(1000 * (time.perf_counter() - began))
    except (ConflictError, UnansweredError, EnsembleRefusedError, EnsembleUnavailableError) as error:
        return note(check, f"not measured: {error}")
    median, slowest = statistics.median(milliseconds), max(milliseconds)
    text = f"{median:.1f} ms for a conditional PUT (median of {len(milliseconds)}, slowest {slowest:.1f} ms)"
    if median > _SLOW_MS:
        return note(check, f"{text}, and a commit needs three or four requests: use a bucket in the writers' region")
    return ok(check, text)


def _versions_finding(store: ObjectStore, bucket: str) -> Finding:
    check = "versioning"
    try:
        status = store.client.get_bucket_versioning(Bucket=bucket).get("Status")
    except s3_errors() as error:
        return _unreadable(check, "s3:GetBucketVersioning", error)
    if status == "Enabled":
        return note(
            check,
            "the bucket keeps old versions of its objects. A lock writes its object several times for each commit, and "
            "S3 slows down requests for an object with millions of versions: use a bucket without versioning",
        )
    return ok(check, "the bucket keeps no old versions")


def _lifecycle_finding(store: ObjectStore, bucket: str, prefix: str) -> Finding:
    check = "lifecycle"
    try:
        rules = store.client.get_bucket_lifecycle_configuration(Bucket=bucket)["Rules"]
    except s3_errors() as error:
        if s3_response(error)[1] == "NoSuchLifecycleConfiguration":
            return ok(check, "the bucket has no lifecycle rules")
        return _unreadable(check, "s3:GetLifecycleConfiguration", error)
    harmful = [rule for rule in rules if _may_remove(rule, prefix)]
    if harmful:
        name = harmful[0].get("ID") or "without an ID"
        return failed(
            check,
            f"rule {name} deletes or archives objects below {store.url}: with the object of a table, its holds and its "
            "unfinished intents are lost. Use a prefix that no rule includes",
        )
    return ok(check, "no lifecycle rule deletes or archives the locks")


def _may_remove(rule: Mapping[str, Any], prefix: str) -> bool:
    """Return whether a lifecycle rule may delete or archive objects below a prefix.

    See "Lifecycle configuration elements" in the S3 User Guide.
    """
    condition = rule.get("Filter") or {}
    condition = {**condition, **condition.get("And", {})}
    rule_prefix = condition.get("Prefix") or rule.get("Prefix") or ""
    keys = (prefix + root.KEY, prefix + FOLDER)
    is_included = any(rule_prefix.startswith(key) or key.startswith(rule_prefix) for key in keys)
    # The objects of locks have no tags.
    is_other = "Tag" in condition or condition.get("Tags") or condition.get("ObjectSizeGreaterThan", 0) >= _LARGE_BYTES
    if rule.get("Status") != "Enabled" or not is_included or is_other:
        return False
    transitions = {transition.get("StorageClass") for transition in rule.get("Transitions", ())}
    return bool({"Days", "Date"} & rule.get("Expiration", {}).keys() or transitions & _ARCHIVES)


def _unreadable(check: str, action: str, error: Exception) -> Finding:
    status, code = s3_response(error)
    if 400 <= status < 500 or status == HTTPStatus.NOT_IMPLEMENTED:  # noqa: PLR2004 (errors of the client)
        return note(check, f"cannot be read ({code}): allow {action} for this check")
    return failed(check, f"cannot be read: {error}")
