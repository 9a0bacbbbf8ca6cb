"""The object that identifies the coordinator, and the proof that its store keeps the conditions of requests."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable

from lock_manager.deadline import Deadline
from lock_manager.errors import S3, EnsembleFormatError, EnsembleRefusedError
from lock_manager.s3_lease.state import FORMAT
from lock_manager.s3_lease.store import ConflictError, ObjectStore, StoredObject, UnansweredError

KEY = "coordinator.json"
"""Key of the object, below the prefix."""

_OTHER_ETAG = f'"{"0" * 32}"'


def read_id(store: ObjectStore) -> str | None:
    """Return the UUID of the coordinator; None if no table was ever locked there.

    Raises:
        EnsembleFormatError: A newer release or another program wrote the object.
        UnansweredError, EnsembleRefusedError: See :class:`ObjectStore`.

    """
    stored = store.read(KEY)
    return None if stored is None else _parse(store, stored)


def ensure_id(store: ObjectStore, deadline: Deadline, stop: Callable[[], object] = lambda: None) -> str:
    """Return the UUID of the coordinator, and create it at the first use.

    Three more requests prove that the store keeps the conditions of requests (:func:`prove_conditions`).

    Args:
        store: The store.
        deadline: Time limit for the answers.
        stop: Called before each attempt; may raise an error.

    Raises:
        EnsembleUnavailableError: There was no answer in time.
        EnsembleRefusedError: S3 refused a request, or ignores conditions.
        EnsembleFormatError: See :func:`read_id`.

    """
    # After a conflict, another client has created or rewritten the object.
    return store.answered(
        lambda: _ensure_id(store), deadline, "connect", stop=stop, retried=(UnansweredError, ConflictError)
    )


def _ensure_id(store: ObjectStore) -> str:
    stored = store.read(KEY)
    if stored is None:
        data = json.dumps({"format": FORMAT, "id": str(uuid.uuid4())}).encode()
        stored = StoredObject(store.write(KEY, data, None), data)
    ensemble_id = _parse(store, stored)
    prove_conditions(store, KEY, stored)
    return ensemble_id


def prove_conditions(store: ObjectStore, key: str, stored: StoredObject) -> None:
    """Prove that the store refuses a PUT whose condition does not hold, and makes one whose condition holds.

    There are stores that accept the conditions and ignore them, and a lock on them excludes no client. The three
    requests do not prove that the store decides about PUTs at the same time one after the other: ``sluice doctor``
    tries that.

    Args:
        store: The store.
        key: Key of an object.
        stored: The object. It is written again with the same content, so that nothing changes if the store ignores the
            conditions.

    Raises:
        EnsembleRefusedError: S3 refused a request, or ignores conditions.
        ConflictError: Another client has written the object. Read it again, and repeat the proof.
        UnansweredError: See :class:`ObjectStore`.

    """
    if not all(_refuses(store, key, stored, etag) for etag in (None, _OTHER_ETAG)):
        raise EnsembleRefusedError(store.url, "conditional writes are ignored", service=S3)
    if _refuses(store, key, stored, stored.etag):
        current = store.read(key)
        if current is None or current.etag != stored.etag:
            # A store may give the same content a new ETag. Then another client has written it.
            raise ConflictError(is_decided=True)
        raise EnsembleRefusedError(store.url, "a write with the right ETag is refused", service=S3)


def _refuses(store: ObjectStore, key: str, stored: StoredObject, etag: str | None) -> bool:
    try:
        store.write(key, stored.data, etag)
    except ConflictError as error:
        if not error.is_decided:
            raise
        return True
    return False


def _parse(store: ObjectStore, stored: StoredObject) -> str:
    try:
        fields = json.loads(stored.data)
        ensemble_id, stored_format = str(uuid.UUID(fields["id"])), fields["format"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EnsembleFormatError(f"{store.url}: object {KEY} cannot be read: {error}") from None
    if stored_format != FORMAT:
        raise EnsembleFormatError(f"{store.url}: object {KEY} has the unknown format {stored_format!r}")
    return ensemble_id
