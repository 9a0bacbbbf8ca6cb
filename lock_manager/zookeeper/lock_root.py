"""The lock root: the parent znode of all tables. It stores the lock format and the ensemble's id."""

from __future__ import annotations

import json
import uuid
from contextlib import suppress
from typing import Any, Protocol

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from lock_manager.deadline import Deadline
from lock_manager.errors import EnsembleFormatError
from lock_manager.settings import LockSettings

_LOCK_FORMAT = 1


class RootSession(Protocol):
    """The part of a session that this module uses."""

    settings: LockSettings

    @property
    def client(self) -> Any:
        """The kazoo client."""

    def wait(self, result: Any, deadline: Deadline) -> Any:
        """Wait for a kazoo AsyncResult."""


def ensure_ensemble_id(session: RootSession, deadline: Deadline) -> str:
    """Return the UUID of the ensemble, which the lock root stores; create the lock root if it does not exist.

    The lock root contains ``{"format": 1}``, because programs of another release may use the same ensemble.

    Raises:
        EnsembleFormatError: An unknown release or another program wrote the lock root.
        KazooException, KazooTimeoutError: The ensemble did not respond, see ``session.UNANSWERED``.

    """
    root = session.settings.lock_root
    new_data = json.dumps({"format": _LOCK_FORMAT, "ensemble": str(uuid.uuid4())}).encode()
    while True:
        try:
            data, stat = session.wait(session.client.get_async(root), deadline)
        except NoNodeError:
            with suppress(NodeExistsError):
                session.wait(session.client.create_async(root, new_data, makepath=True), deadline)
            continue
        if data:
            return _parse_ensemble_id(root, data)
        # A program with kazoo's own locks below the same root created it without data.
        with suppress(BadVersionError, NoNodeError):
            session.wait(session.client.set_async(root, new_data, version=stat.version), deadline)


def read_ensemble_id(session: RootSession, deadline: Deadline) -> str | None:
    """Return the UUID of the ensemble; None if no lock manager has used this lock root yet. Create nothing.

    Raises:
        EnsembleFormatError, KazooException, KazooTimeoutError: As :func:`ensure_ensemble_id`.

    """
    root = session.settings.lock_root
    try:
        data, _ = session.wait(session.client.get_async(root), deadline)
    except NoNodeError:
        return None
    return _parse_ensemble_id(root, data) if data else None


def _parse_ensemble_id(root: str, data: bytes) -> str:
    try:
        content = json.loads(data)
        lock_format, ensemble = content["format"], str(content["ensemble"])
    except (ValueError, KeyError, TypeError):
        raise EnsembleFormatError(
            f"znode {root} contains {data[:80]!r}, which is not a lock root of this tool: use another lock_root"
        ) from None
    if lock_format != _LOCK_FORMAT:
        raise EnsembleFormatError(
            f"znode {root} has lock format {lock_format!r}, and this release supports {_LOCK_FORMAT}: use the release "
            "that created it"
        )
    return ensemble
