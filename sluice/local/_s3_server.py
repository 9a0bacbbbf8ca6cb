"""The process of the embedded S3: moto behind a middleware that serves requests for one key one at a time.

A script, started by file name: ``python _s3_server.py``. It prints its port on 127.0.0.1 and serves until its
standard input ends: the parent closes it, exits or is killed.

The middleware is necessary because moto's conditional PUT (``If-None-Match: *``) first checks whether the key exists,
and then stores, in a server with a thread per request. Two concurrent PUTs may both succeed, which S3 rules out. Moto
also closes the buffer of an overwritten object while another thread may read it.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakValueDictionary

#: A WSGI application (PEP 3333): it takes the environment and ``start_response``, and returns the body.
WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class OneAtATimePerKey:
    """WSGI middleware that serves one request per path at a time. Requests for different paths run in parallel.

    Requests for a whole bucket are not delayed, such as listings and bulk deletes (``POST /bucket?delete``). A bulk
    delete may remove a key during a conditional PUT, but cannot make two of them succeed.
    """

    def __init__(self, application: WsgiApplication) -> None:
        self._application = application
        self._locks_mutex = threading.Lock()
        # By path. A lock exists while a request holds or awaits it.
        self._locks: WeakValueDictionary[str, threading.Lock] = WeakValueDictionary()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        bucket, _, key = path.lstrip("/").partition("/")
        if not bucket or not key:
            return self._application(environ, start_response)
        with self._locks_mutex:
            lock = self._locks.setdefault(path, threading.Lock())
        with lock:
            # When the call returns, moto has read the body and completed the request.
            return self._application(environ, start_response)


def moto_application() -> WsgiApplication:
    """Return moto's server-mode application, without the middleware."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 (slow; only the server's process needs it)
        DomainDispatcherApplication,
        create_backend_app,
    )

    application: WsgiApplication = DomainDispatcherApplication(create_backend_app)
    return application


def make_s3_server(application: WsgiApplication) -> Any:
    """Return a werkzeug server (``serve_forever()``) of ``application`` on a free port of 127.0.0.1."""
    from moto.moto_server.werkzeug_app import MotoRequestHandler  # noqa: PLC0415
    from werkzeug.serving import make_server  # noqa: PLC0415

    return make_server("127.0.0.1", 0, application, threaded=True, request_handler=MotoRequestHandler)


def main() -> None:
    """Serve until standard input ends."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request at INFO
    server = make_s3_server(OneAtATimePerKey(moto_application()))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.write(1, b"%d\n" % server.server_port)
    os.dup2(2, 1)  # moto prints to standard output, which the parent reads only once
    while os.read(0, 4096):
        pass
    os._exit(0)  # do not wait for running requests: the parent has gone


if __name__ == "__main__":
    main()
