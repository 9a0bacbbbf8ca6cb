"""The spans of a test, recorded by the SDK of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class RecordedSpans:
    """A tracer provider and the spans that have ended. ``processor`` is one more processor of spans."""

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        if processor is not None:
            self.provider.add_span_processor(processor)

    @contextmanager
    def installed(self) -> Iterator[RecordedSpans]:
        """Make the provider that of the process. The API lets a program set it only once."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(trace, "_TRACER_PROVIDER", self.provider)
            yield self

    def all(self) -> list[ReadableSpan]:
        """Return all spans, by their start."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time)

    def named(self, name: str) -> list[ReadableSpan]:
        """Return the spans of a name without ``sluice.``, by their start."""
        return [span for span in self.all() if span.name.removeprefix("sluice.") == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def roots(self) -> list[ReadableSpan]:
        return [span for span in self.all() if span.parent is None]

    def children(self, parent: ReadableSpan) -> list[ReadableSpan]:
        """Return the children of a span, by their start."""
        return [
            span for span in self.all() if span.parent is not None and span.parent.span_id == parent.context.span_id
        ]

    def outline(self, root: ReadableSpan) -> list[str]:
        """Return a line for each span of a tree, in the order of starts: its name, indented by its depth."""
        lines = [root.name.removeprefix("sluice.")]
        for child in self.children(root):
            lines += [f"  {line}" for line in self.outline(child)]
        return lines


def trace_id_of(span: ReadableSpan) -> str:
    return f"{span.context.trace_id:032x}"
