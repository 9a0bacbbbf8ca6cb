"""The embedded S3's own process: moto behind a gate that lets requests for one key through one at a time.

A script, started by file name: ``python _s3_server.py``. It prints its port on 127.0.0.1 and serves until its
standard input ends, which happens when the parent closes it, exits or is killed.

Why the gate: moto's conditional PUT (``If-None-Match: *``) looks whether the key exists, and then stores, in
a server with a thread per request. Two rivals may both be told that they were first, which S3 never does.
Besides, moto closes the buffer of an object that is overwritten while another thread may be reading it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_HOST = "127.0.0.1"
#: A web application as WSGI has it (PEP 3333): environment and ``start_response`` in, body out.
WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OneAtATimePerKey:
    """WSGI middleware: one path, one request at a time; requests for different paths run side by side.

    Listings and other requests for a whole bucket pass freely. A bulk delete (``POST /bucket?delete``) is one
    of them: it can make a key vacant beside a conditional PUT, but never lets two of them win.
    """

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self._guard = threading.Lock()
        self._turns: dict[str, _Turn] = {}  # by path; an entry lives as long as a request holds or awaits it

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        bucket, _, key = path.lstrip("/").partition("/")
        if not bucket or not key:
            return self._application(environ, start_response)
        with self._turn(path):
            # When the call returns, moto has read the body and done its work; what is left are bytes.
            return self._application(environ, start_response)

    @contextmanager
    def _turn(self, path: str) -> Iterator[None]:
        with self._guard:
            turn = self._turns.setdefault(path, _Turn())
            turn.users += 1
        try:
            with turn.lock:
                yield
        finally:
            with self._guard:
                turn.users -= 1
                if not turn.users:
                    del self._turns[path]


@dataclass
class _Turn:
    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


def moto_application() -> WsgiApplication:
    """Return moto's server-mode application, without the gate."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 (only the server's process pays for this import)
        DomainDispatcherApplication,
        create_backend_app,
    )

    application: WsgiApplication = DomainDispatcherApplication(create_backend_app)
    return application


def make_s3_server(application: WsgiApplication) -> Any:
    """Bind ``application`` to a free port of 127.0.0.1; return a werkzeug server (``serve_forever()``)."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler  # noqa: PLC0415
    from werkzeug.serving import make_server  # noqa: PLC0415

    return make_server(_HOST, 0, application, threaded=True, request_handler=MotoRequestHandler)


def main() -> None:
    """Serve until standard input ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else one line per request
    server = make_s3_server(OneAtATimePerKey(moto_application()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(1, b"%d\n" % server.server_port)
    os.dup2(2, 1)  # moto prints now and then, and nobody reads on
    while os.read(0, 4096):
        pass
    os._exit(0)  # requests that are still running have nobody left to answer


if __name__ == "__main__":
    main()
