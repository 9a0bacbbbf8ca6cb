"""The HTTP server of `sluice ui`. It only reads, and by default only this machine can connect."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from types import FrameType
from urllib.parse import urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from lock_manager.errors import SettingsError
from sluice.errors import CommandError
from sluice.ui.live_state import LiveState
from sluice.ui.pages import Pages

#: Variable with the secret that requests need.
TOKEN_VARIABLE = "SLUICE_UI_TOKEN"  # noqa: S105 (the name of a variable)

_OTHER_NAME = "This server answers only to the names of this machine. Behind a proxy, set SLUICE_UI_TOKEN.\n"
_REFRESH_SECONDS = 15.0
"""Time after which a page is rendered again although nothing has changed, in seconds."""
_PAUSE_SECONDS = 0.5
"""Minimum time between two changes of a page, in seconds."""
_STOP_SECONDS = 5
"""Time for the answers that are under way when the server is stopped, in seconds."""
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def parse_address(text: str) -> tuple[str, int]:
    """Parse ``PORT`` or ``HOST:PORT``.

    Raises:
        SettingsError: The text has neither of these forms.

    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):  # noqa: PLR2004 (the largest port)
        raise SettingsError(f"--listen={text!r}: must be PORT or HOST:PORT")
    return host.strip("[]") or "127.0.0.1", int(port)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_token(host: str, environment: Mapping[str, str]) -> str | None:
    """Return the secret that requests for an address need: that of the environment, else a new one.

    None for an address of this machine alone, if the environment has none.
    """
    return environment.get(TOKEN_VARIABLE) or (None if is_loopback(host) else secrets.token_urlsafe(24))


def open_socket(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address.

    Raises:
        CommandError: The address cannot be used, for example because the port is taken.

    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except OSError as error:
        # The text of Python's own error has the address once more. Errors of the resolver have negative numbers.
        problem = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
        raise CommandError(f"{host}:{port} cannot be used: {problem}; choose another --listen") from error


def page_address(host: str, listener: socket.socket, token: str | None) -> str:
    """Return the address of the first page, with the token if there is one.

    ``host`` is the one of :func:`open_socket`. The result has the machine's name instead of a host that means all
    addresses of the machine, which other machines cannot use.
    """
    address, port = listener.getsockname()[:2]
    name = socket.gethostname() if ipaddress.ip_address(address).is_unspecified else host
    query = f"?{urlencode({'token': token})}" if token else ""
    return f"http://[{name}]:{port}/{query}" if ":" in name else f"http://{name}:{port}/{query}"


def make_app(state: LiveState, pages: Pages, *, token: str | None) -> Starlette:
    """Return the application.

    Args:
        state: The tables.
        pages: Makes the pages.
        token: Secret that every request must have. None: no secret, and every request for another host name than this
            machine's is refused, because a page of another site could make a browser here send it (DNS rebinding).

    """
    changes = _Changes()

    @asynccontextmanager
    async def listen(_: Starlette) -> AsyncIterator[None]:
        changes.start()
        state.add_listener(changes.announce)
        yield

    async def show(request: Request) -> Response:
        page = await run_in_threadpool(pages.page, _table_of(request))
        if page is None:
            return PlainTextResponse("This table was never locked, and is not among the arguments of sluice ui.\n", 404)
        return HTMLResponse(await run_in_threadpool(page.html, f"/live?{request.url.query}"))

    async def live(request: Request) -> Response:
        # Every site could make a browser ask for an answer that has no end.
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return PlainTextResponse("only for the pages of this server\n", 403)
        if state.version(_table_of(request)) is None:
            return PlainTextResponse("no such table\n", 404)
        return StreamingResponse(_parts(state, pages, changes, request), media_type="text/event-stream")

    async def script(_: Request) -> Response:
        return Response(files("sluice.ui").joinpath("page.js").read_bytes(), media_type="text/javascript")

    def checked(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def check_and_answer(request: Request) -> Response:
            response = _refusal(request, token) or await answer(request)
            response.headers.update(_HEADERS)
            return response

        return check_and_answer

    answers = {"/": show, "/table": show, "/live": live, "/page.js": script}
    return Starlette(routes=[Route(path, checked(answer)) for path, answer in answers.items()], lifespan=listen)


def _table_of(request: Request) -> str | None:
    return request.query_params.get("uri")


def _refusal(request: Request, token: str | None) -> Response | None:
    """Return the answer to a request that is refused, or that brings the token in its address; None to go on."""
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return PlainTextResponse("The header Host is malformed.\n", 403)
    if token is None:
        return None if is_loopback(host) else PlainTextResponse(_OTHER_NAME, 403)
    # The cookies of a host are those of all its ports, so each server has its own name.
    cookie = f"sluice_token_{hashlib.sha256(token.encode()).hexdigest()[:8]}"
    token_in_address = request.query_params.get("token")
    if token_in_address is not None and hmac.compare_digest(token_in_address.encode(), token.encode()):
        # The address without the secret, which would stay in the browser's history.
        query = urlencode([(name, value) for name, value in request.query_params.multi_items() if name != "token"])
        response = RedirectResponse(f"{request.url.path}?{query}" if query else request.url.path, 303)
        is_secure = request.headers.get("x-forwarded-proto", request.url.scheme) == "https"
        # A browser that follows a link of another site sends no strict cookie, and no answer here changes anything.
        response.set_cookie(cookie, token, httponly=True, samesite="lax", secure=is_secure)
        return response
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    secret = request.cookies.get(cookie) or bearer
    if hmac.compare_digest(secret.encode(), token.encode()):
        return None
    return PlainTextResponse("Open the address that sluice ui has printed; it has the token.\n", 401)


class _Changes:
    """Wakes the open pages after a change of the state, which happens in another thread."""

    def start(self) -> None:
        """Begin, in the event loop of the server."""
        self._loop = asyncio.get_running_loop()
        #: Set at the next change, and then replaced.
        self.next_change = asyncio.Event()

    def announce(self) -> None:
        """Wake all pages; may be called in any thread."""
        with suppress(RuntimeError):  # the server has ended
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        change, self.next_change = self.next_change, asyncio.Event()
        change.set()


async def _parts(state: LiveState, pages: Pages, changes: _Changes, request: Request) -> AsyncIterator[str]:
    """Yield the changed parts of a page, as server-sent events; all parts first."""
    table, sent = _table_of(request), dict[str, int]()
    while not await request.is_disconnected():
        version = state.version(table)
        page = await run_in_threadpool(pages.page, table)
        if page is None or state.is_stopped:
            return
        # Also without changes: the event shows that the server answers.
        yield f"data: {json.dumps(page.changes(sent))}\n\n"
        await asyncio.sleep(_PAUSE_SECONDS)
        with suppress(TimeoutError):
            async with asyncio.timeout(_REFRESH_SECONDS):
                change = changes.next_change
                while not state.is_stopped and state.version(table) == version:
                    await change.wait()
                    # Before the look at the version, so that no change is missed.
                    change = changes.next_change


def serve(app: Starlette, listener: socket.socket, on_stop: Callable[[], None]) -> None:
    """Answer requests until a signal asks the process to stop; ``on_stop`` ends the answers that go on."""

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            on_stop()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=_STOP_SECONDS
    )
    Server(config).run(sockets=[listener])
