"""A collector of traces for ``benchmarks/tracing.py``: it prints its port, and counts the spans that are posted to it.

``GET /`` returns the number of spans. They are counted then, so that counting does not disturb the measurement.
"""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

BODIES: list[bytes] = []


class Handler(BaseHTTPRequestHandler):
    """Keeps the bodies of requests."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        BODIES.append(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"")

    def do_GET(self) -> None:
        requests = map(ExportTraceServiceRequest.FromString, BODIES)
        spans = sum(
            len(scope.spans) for request in requests for part in request.resource_spans for scope in part.scope_spans
        )
        self._answer(str(spans).encode())

    def _answer(self, content: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
