"""A collector of traces and metrics: a server for OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


class TraceCollector(ThreadingHTTPServer):
    """The spans and the names of metrics that were sent to this server, on any free port."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.spans: list[Any] = []
        self.metrics: set[str] = set()
        self.services: set[str] = set()

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that sends its traces to this server."""
        return {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "none",
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self.server_port}",
            "OTEL_SERVICE_NAME": "nightly",
        }

    def add(self, request: ExportTraceServiceRequest) -> None:
        for resource_spans in request.resource_spans:
            attributes = resource_spans.resource.attributes
            self.services |= {field.value.string_value for field in attributes if field.key == "service.name"}
            for scope_spans in resource_spans.scope_spans:
                self.spans += scope_spans.spans

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == f"sluice.{name}"]

    def children(self, parent: bytes) -> list[str]:
        """Return the names of the children of a span, by their start."""
        spans = sorted(self.spans, key=lambda span: int(span.start_time_unix_nano))
        return [span.name.removeprefix("sluice.") for span in spans if span.parent_span_id == parent]


class _Handler(BaseHTTPRequestHandler):
    server: TraceCollector

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/v1/metrics":
            request = ExportMetricsServiceRequest.FromString(content)
            scopes = [scope for resource in request.resource_metrics for scope in resource.scope_metrics]
            self.server.metrics |= {metric.name for scope in scopes for metric in scope.metrics}
        else:
            self.server.add(ExportTraceServiceRequest.FromString(content))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@contextmanager
def trace_collector() -> Iterator[TraceCollector]:
    with TraceCollector() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
