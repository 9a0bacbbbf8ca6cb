"""An HTTP gateway in front of an S3. Subclasses imitate stores with faults."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import urlsplit


class Gateway(BaseHTTPRequestHandler):
    """Forwards requests to an S3, without the conditions of PUTs."""

    protocol_version = "HTTP/1.1"
    backend = ""

    def forward_unconditionally(self, command: str, body: bytes = b"") -> tuple[int, bytes, Sequence[tuple[str, str]]]:
        """Forward the request without its condition, as if the store ignored the condition; return the response."""
        removed_headers = (
            "if-none-match",
            "if-match",
            "content-length",
            "expect",
            "x-amz-checksum",
            "x-amz-sdk-checksum",
        )
        headers = {name: value for name, value in self.headers.items() if not name.lower().startswith(removed_headers)}
        connection = HTTPConnection(self.backend, timeout=30)
        try:
            connection.request(command, self.path, body or None, headers)
            response = connection.getresponse()
            return response.status, response.read(), response.getheaders()
        finally:
            connection.close()

    def respond(self, status: int, content: bytes = b"", headers: Sequence[tuple[str, str]] = ()) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "connection", "transfer-encoding", "server", "date"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def refuse(self, status: int, code: str) -> None:
        self.respond(status, f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode())

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.respond(*self.forward_unconditionally(self.command, body))

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = forward  # noqa: N815 (the base class's names)

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def serve_gateway(gateway_class: type[Gateway], endpoint: str) -> Iterator[str]:
    """Run a gateway in front of the S3 at ``endpoint``; yield the endpoint of the gateway."""
    handler = type("Handler", (gateway_class,), {"backend": urlsplit(endpoint).netloc})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
