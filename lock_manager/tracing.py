"""Spans of locks and writes for OpenTelemetry, through its API package alone; docs/operate.md lists them.

This module imports nothing of OpenTelemetry. A program that records traces has imported the API to set its tracer
provider. In other programs each function returns at once. An error of the program's tracer provider is logged, and
changes nothing else.
"""

from __future__ import annotations

import _thread
import functools
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from opentelemetry import trace
    from opentelemetry.context import Context

log = logging.getLogger(__name__)

_NAME = "sluice"
_logged_errors: set[type[Exception]] = set()
# Maximum length of an error's message. That of an error of the JVM may have a stack trace.
_MAX_MESSAGE = 1000
#: Attributes of spans; those with the value None are left out.
Attributes = Mapping[str, "str | bool | int | float | Sequence[str] | None"]


class Span:
    """A span of this process, or of the process that started this one; without a tracer provider, nothing.

    Also a context manager: the span ends at the end of the block, and an exception of the block is its error. The span
    is not current in the block, see :meth:`current`.

    Args:
        span: Span of OpenTelemetry; None for nothing.

    Attributes:
        context: Context of OpenTelemetry that contains the span; None for nothing.
        trace_id: Id of the trace, 32 hexadecimal digits; None if the span is not recorded.
        traceparent: The span's identity as the W3C header ``traceparent``; None if the span is not recorded.

    """

    def __init__(self, span: trace.Span | None = None, context: Context | None = None) -> None:
        self.trace_id: str | None = None
        self.traceparent: str | None = None
        self._span = span
        self.context = context
        self._end_lock = _thread.allocate_lock()
        if span is not None and span.is_recording():
            identity = span.get_span_context()
            self.trace_id = f"{identity.trace_id:032x}"
            self.traceparent = f"00-{self.trace_id}-{identity.span_id:016x}-{identity.trace_flags:02x}"

    def set(self, attributes: Attributes) -> None:
        """Set attributes."""
        if self._span is None:
            return
        with _errors_logged():
            if self._span.is_recording():
                self._span.set_attributes(_without_none(attributes))

    def link(self, traceparents: Iterable[str | None]) -> None:
        """Link the span to other spans, as :attr:`traceparent`; None and malformed texts are left out."""
        if self._span is None:
            return
        with _errors_logged():
            if self._span.is_recording():
                for identity in map(_parse, filter(None, traceparents)):
                    if identity.is_valid:
                        self._span.add_link(identity)

    def end(self, error: BaseException | None = None, *, at_ns: int | None = None) -> None:
        """End the span, unless it has ended; may be called in any thread.

        Args:
            error: Exception that ended the work of the span; None if it succeeded.
            at_ns: Time of the end in nanoseconds since the epoch; by default now.

        """
        span = self._span
        if span is None or not self._end_lock.acquire(blocking=False):
            return
        with _errors_logged():
            if error is not None:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(_api("trace").StatusCode.ERROR, str(error)[:_MAX_MESSAGE])
            span.end(at_ns)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make the span the parent of the spans that this thread starts in the block."""
        token = self.attach()
        try:
            yield
        finally:
            detach(token)

    def attach(self) -> Any:
        """Make the span the parent of the spans that this thread starts; :func:`detach` needs the result."""
        return None if self.context is None else _api("context").attach(self.context)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.end(error)


#: No span, for a program without a tracer provider.
NO_SPAN = Span()


def detach(token: Any) -> None:
    """Undo :meth:`Span.attach`."""
    if token is not None:
        _api("context").detach(token)


def current() -> Span:
    """Return the current span of this thread, which may be the program's own."""
    if _tracer() is None:
        return NO_SPAN
    with _errors_logged():
        context = _api("context").get_current()
        return Span(_api("trace").get_current_span(context), context)
    return NO_SPAN


def start(name: str, attributes: Attributes | None = None, *, parent: Span | None = None) -> Span:
    """Start a span.

    Args:
        name: Name of the span, without ``sluice.``.
        attributes: See :data:`Attributes`.
        parent: By default the current span of this thread; without one, a new trace begins.

    """
    tracer = _tracer()
    if tracer is None:
        return NO_SPAN
    with _errors_logged():
        context = _api("context").get_current() if parent is None or parent.context is None else parent.context
        span = tracer.start_span(f"{_NAME}.{name}", context, attributes=_without_none(attributes or {}))
        return Span(span, _api("trace").set_span_in_context(span, context))
    return NO_SPAN


@contextmanager
def span(name: str, attributes: Attributes | None = None, *, parent: Span | None = None) -> Iterator[Span]:
    """Start a span that is current in the block, and ends with it; see :func:`start`."""
    with start(name, attributes, parent=parent) as started, started.current():
        yield started


def parent_of_process() -> Span | None:
    """Return the span that started this process, from the W3C variable ``TRACEPARENT``.

    The result is None if there is no such variable, or if this thread has a current span.
    """
    if _tracer() is None:
        return None
    with _errors_logged():
        if _api("trace").get_current_span().get_span_context().is_valid:
            return None
        identity = _parse(os.environ.get("TRACEPARENT", ""), os.environ.get("TRACESTATE", ""))
        if not identity.is_valid:
            return None
        parent = _api("trace").NonRecordingSpan(identity)
        return Span(parent, _api("trace").set_span_in_context(parent))
    return None


def start_sdk() -> None:
    """Set up the SDK as ``opentelemetry-instrument`` does, if it is installed and the environment configures it.

    At the end of the process, the SDK sends the remaining spans.
    """
    if _tracer() is not None or not any(name.startswith("OTEL_") for name in os.environ):
        return
    try:
        from opentelemetry.instrumentation.auto_instrumentation import initialize  # noqa: PLC0415 (optional)

        initialize()
    except ImportError as error:
        log.warning(
            "there are variables OTEL_…, but no traces: pip install '.[traces]' in a clone of Sluice (%s)", error
        )
    except Exception:  # any error of the SDK, of an exporter or of an instrumentation
        log.exception("OpenTelemetry was not set up, so there may be no traces")


def _tracer() -> trace.Tracer | None:
    """Return the tracer of this program's provider; None if it has set no provider."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    with _errors_logged():
        provider = api.get_tracer_provider()
        return None if isinstance(provider, api.ProxyTracerProvider) else _tracer_of(provider)
    return None


@functools.lru_cache(maxsize=1)
def _tracer_of(provider: trace.TracerProvider) -> trace.Tracer:
    """Return the tracer of a provider; the SDK takes longer to create it than to create a span."""
    return provider.get_tracer(_NAME)


def _api(name: str) -> Any:
    """Return a module of the API, which a program with a tracer provider has imported."""
    return sys.modules[f"opentelemetry.{name}"]


def _parse(traceparent: str, tracestate: str = "") -> trace.SpanContext:
    """Return the identity of a span in another process; it is not valid if the text is malformed."""
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 (optional)

    carrier = {"traceparent": traceparent, "tracestate": tracestate}
    context = TraceContextTextMapPropagator().extract(carrier, _api("context").Context())
    identity: trace.SpanContext = _api("trace").get_current_span(context).get_span_context()
    return identity


def _without_none(attributes: Attributes) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}


@contextmanager
def _errors_logged() -> Iterator[None]:
    """Log errors of a provider, a sampler or a span processor, once for each class: they must not end a write."""
    try:
        yield
    except Exception as error:
        level = logging.DEBUG if type(error) in _logged_errors else logging.ERROR
        _logged_errors.add(type(error))
        log.log(level, "spans are not recorded", exc_info=True)
