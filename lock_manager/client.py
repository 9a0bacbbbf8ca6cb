"""Kazoo's client, with two things mended that a lock must be able to rely on.

This is the one module that touches what kazoo keeps to itself; pyproject.toml bounds kazoo's version accordingly, and
tests against a real server hold both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's threads, with a bound on one TCP connect: kazoo gives a dead host the whole session time-out."""

    def __init__(self, connect_seconds: float) -> None:
        super().__init__()
        self._connect_seconds = connect_seconds

    def create_connection(self, *args: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        bound = self._connect_seconds if timeout is None else min(timeout, self._connect_seconds)
        return super().create_connection(*args, timeout=bound, **kwargs)


class Client(KazooClient):  # type: ignore[misc]
    """A kazoo client of one ensemble.

    * One unreachable server of several takes a part of the session's time, not all of it.
    * The session time-out that the server *granted* is told: kazoo keeps only the one that it asked for.

    Args:
        hosts: ``host:port,host:port[/chroot]``.
        session_timeout_seconds: to ask for.
        granted: called with what the server granted, in seconds, before the state becomes CONNECTED.

    """

    def __init__(self, hosts: str, session_timeout_seconds: float, granted: Callable[[float], None]) -> None:
        servers = hosts.partition("/")[0].count(",") + 1
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_seconds,
            handler=_Handler(connect_seconds=max(0.5, session_timeout_seconds / (3 * servers))),
            # Kazoo would wait up to a minute between attempts: longer than most sessions live.
            connection_retry={
                "max_tries": -1,
                "delay": 0.05,
                "backoff": 2,
                "max_delay": min(1.0, session_timeout_seconds / 6),
            },
        )
        invoke = self._connection._invoke  # noqa: SLF001

        def invoke_and_tell(*args: Any, **kwargs: Any) -> Any:
            # The granted time-out is a local variable of ConnectionHandler._connect; the server's reply passes here.
            reply = invoke(*args, **kwargs)
            if isinstance(reply, tuple) and (milliseconds := getattr(reply[0], "time_out", 0)) > 0:
                granted(milliseconds / 1000)
            return reply

        self._connection._invoke = invoke_and_tell  # noqa: SLF001

    @property
    def dead(self) -> bool:
        """Whether kazoo's connection thread has ended, by an error of its own: nothing will ever answer again."""
        thread = self._connection._connection_routine  # noqa: SLF001
        return thread is not None and not thread.is_alive()
