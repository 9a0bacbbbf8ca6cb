"""The end of somebody's session, by the hand of another client, as in kazoo's own harness (``expire_session``)."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

_TRIES = 8
_SECONDS = 5


def end_session(hosts: str, session: tuple[int, bytes]) -> None:
    """Take a session over and close it, until it is not there any more.

    Its own client may take it back before the server reads the close.

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
            # Whoever asks for a session that has ended is given another one.
            ended = thief.client_id[0] != session[0]
            thief.stop()
            thief.close()
            if ended:
                return
    raise AssertionError(f"session {session[0]:#x} does not end")
