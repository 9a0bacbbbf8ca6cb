"""Spans of puts: from the guard's permission until the log store knows the outcome."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from lock_manager import tracing

_MAX_OPEN = 1024


class PutSpans:
    """The spans of puts whose outcome is not reported yet, by id of the attempt to put."""

    def __init__(self) -> None:
        self._spans: OrderedDict[str, tracing.Span] = OrderedDict()

    def begin(self, attempt: str, version: int, parent: tracing.Span) -> None:
        """Start the span of a put that the guard has just allowed."""
        span = tracing.start("put", {"sluice.version": version}, parent=parent)
        if span is tracing.NO_SPAN:
            return
        self._spans[attempt] = span
        while len(self._spans) > _MAX_OPEN:
            self._spans.popitem(last=False)[1].end()

    def end(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """End the spans of puts that have an outcome in the log store's reports (``Attempts.java``)."""
        if not self._spans:
            return
        for report in reports:
            outcome, ended_us = report.get("outcome"), report.get("ended_us")
            if outcome != "pending" and (span := self._spans.pop(str(report.get("attempt")), None)) is not None:
                span.set({"sluice.put.outcome": outcome})
                span.end(at_ns=1000 * ended_us if isinstance(ended_us, int) else None)
