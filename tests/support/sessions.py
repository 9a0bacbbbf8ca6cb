"""End the session of another client, as kazoo's test harness does (``expire_session``)."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

_ATTEMPTS = 8
_START_SECONDS = 5


def end_session(hosts: str, session: tuple[int, bytes]) -> None:
    """Take over a session and close it, until the session has ended.

    The client of the session may reconnect before the server reads the close request.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        client = KazooClient(hosts, client_id=session)
        try:
            # Sometimes a server does not answer a session that reconnects.
            client.start(timeout=_START_SECONDS)
        except KazooTimeoutError:
            if attempt == _ATTEMPTS:
                raise
        else:
            # A request for a session that has ended gets a new session.
            has_ended = client.client_id[0] != session[0]
            client.stop()
            client.close()
            if has_ended:
                return
    raise AssertionError(f"session {session[0]:#x} has not ended after {_ATTEMPTS} attempts")
