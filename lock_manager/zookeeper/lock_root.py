"""The lock root, the znode below which tables are locked: its format, and the ensemble's id."""

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


class Asking(Protocol):
    """A session, as far as it is used here."""

    settings: LockSettings

    @property
    def client(self) -> Any:
        """The kazoo client."""

    def wait(self, result: Any, deadline: Deadline) -> Any:
        """Wait for a kazoo AsyncResult."""


def ensemble_id(session: Asking, deadline: Deadline) -> str:
    """Return the UUID of the ensemble, kept at the lock root; make the root if it is not there.

    Other programs may speak to the same ensemble in another release, so the root says ``{"format": 1}``.

    Raises:
        EnsembleFormatError: the root was written by a release that this one does not know, or by something else.
        KazooException: the ensemble did not answer, see ``session.NO_ANSWER``.

    """
    root = session.settings.lock_root
    fresh = json.dumps({"format": _LOCK_FORMAT, "ensemble": str(uuid.uuid4())}).encode()
    while True:
        try:
            data, stat = session.wait(session.client.get_async(root), deadline)
        except NoNodeError:
            with suppress(NodeExistsError):
                session.wait(session.client.create_async(root, fresh, makepath=True), deadline)
            continue
        if data:
            return _parsed(root, data)
        # Made by a program that uses kazoo's own locks below the same root: ours to describe.
        with suppress(BadVersionError, NoNodeError):
            session.wait(session.client.set_async(root, fresh, version=stat.version), deadline)


def known_ensemble(session: Asking, deadline: Deadline) -> str | None:
    """Return the UUID of the ensemble, None if nobody has used this lock root yet; make nothing.

    Raises:
        EnsembleFormatError, KazooException: as :func:`ensemble_id`.

    """
    root = session.settings.lock_root
    try:
        data, _ = session.wait(session.client.get_async(root), deadline)
    except NoNodeError:
        return None
    return _parsed(root, data) if data else None


def _parsed(root: str, data: bytes) -> str:
    try:
        described = json.loads(data)
        found, ensemble = described["format"], str(described["ensemble"])
    except (ValueError, KeyError, TypeError):
        raise EnsembleFormatError(
            f"znode {root} holds {data[:80]!r}, which is no lock root of this tool: use another lock_root"
        ) from None
    if found != _LOCK_FORMAT:
        raise EnsembleFormatError(
            f"znode {root} has lock format {found!r}; this release knows {_LOCK_FORMAT}: use the one that made it"
        )
    return ensemble
