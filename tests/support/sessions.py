"""The end of somebody's session, by the hand of another client, as in kazoo's own harness (``expire_session``)."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

_TRIES = 8
_SECONDS = 5


def end_session(hosts: str, session: tuple[int, bytes]) -> None:
    """Take a session over and close it.

    Args:
        hosts: of the ensemble.
        session: id and password.

    """
    for number in range(1, _TRIES + 1):
        thief = KazooClient(hosts, client_id=session)
        try:
            # A server leaves a session that returns at a bad moment without any answer, now and then.
            thief.start(timeout=_SECONDS)
        except KazooTimeoutError:
            if number == _TRIES:
                raise
        else:
            thief.stop()
            thief.close()
            return
