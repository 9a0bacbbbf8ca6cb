"""Spans without Spark: nothing without a provider, the variables of OpenTelemetry, and what commits record."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from lock_manager import tracing
from lock_manager.coordinator import Hold
from lock_manager.guard.group_commit import OfferedAppend
from lock_manager.guard.guarded_block import GuardedBlock
from lock_manager.guard.write_attempt import WriteAttempt
from lock_manager.table_records.commit_stamp import parse_stamp, stamp_of
from tests.support.recorded_spans import RecordedSpans, trace_id_of
from tests.unit.test_group_commit import STAGED

ROOT = Path(__file__).parents[2]
TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
ANY_ID = "[0-9a-f]{32}"
HOLD = cast(
    "Hold",
    SimpleNamespace(
        hold_id="h",
        ensemble_id="e",
        tokens={"t": 1},
        exclusive_keys=("t",),
        requested_at=0.5,
        acquired_at=1.0,
        scope={"t": 1},
    ),
)


@pytest.fixture
def spans() -> Iterator[RecordedSpans]:
    with RecordedSpans().installed() as recorded:
        yield recorded


def output_of(program: str, **variables: str) -> tuple[str, str]:
    """Run a program with no other variables of OpenTelemetry; return its output and its standard error."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    process = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, env={**inherited, **variables}
    )
    return process.stdout.strip(), process.stderr


def test_without_a_provider_opentelemetry_is_not_imported() -> None:
    program = (
        "import sys, writer_jobs\n"
        "from lock_manager import tracing\n"
        "tracing.start_sdk()\n"
        "with tracing.span('append') as span:\n"
        "    print(span.trace_id, tracing.current().trace_id, [name for name in sys.modules if 'opentel' in name])\n"
    )
    assert output_of(program)[0] == "None None []"


PRINT_TRACE_ID = (
    "import logging\n"
    "from lock_manager import tracing\n"
    "logging.basicConfig()\n"
    "tracing.start_sdk()\n"
    "with tracing.span('job', parent=tracing.parent_of_process()) as span:\n"
    "    print(span.trace_id)\n"
)


@pytest.mark.parametrize(
    ("variables", "trace_id"),
    [
        pytest.param({"OTEL_TRACES_EXPORTER": "console", "TRACEPARENT": TRACEPARENT}, TRACE_ID, id="parent"),
        pytest.param({"OTEL_TRACES_EXPORTER": "none"}, ANY_ID, id="no parent", marks=pytest.mark.full),
        pytest.param(
            {"OTEL_TRACES_EXPORTER": "none", "TRACEPARENT": f"{TRACEPARENT[:-1]}0"},
            "None", id="parent is not sampled", marks=pytest.mark.full,
        ),
        pytest.param(
            {"OTEL_TRACES_EXPORTER": "none", "TRACEPARENT": "nonsense"},
            ANY_ID, id="malformed parent", marks=pytest.mark.full,
        ),
        pytest.param({"OTEL_TRACES_EXPORTER": "nonsense"}, "None", id="wrong exporter", marks=pytest.mark.full),
        pytest.param({"OTEL_SDK_DISABLED": "true"}, "None", id="disabled", marks=pytest.mark.full),
        pytest.param({"TRACEPARENT": TRACEPARENT}, "None", id="not configured"),
    ],
)  # fmt: skip
def test_the_environment_configures_traces(variables: dict[str, str], trace_id: str) -> None:
    metrics = {"OTEL_METRICS_EXPORTER": "none"} if any(name.startswith("OTEL_") for name in variables) else {}
    output, _ = output_of(PRINT_TRACE_ID, **metrics, **variables)
    assert re.fullmatch(trace_id, output.splitlines()[0]), output


def test_missing_packages_are_a_warning() -> None:
    hide = "import sys\nsys.modules['opentelemetry.instrumentation'] = None\n"
    output, error = output_of(hide + PRINT_TRACE_ID, OTEL_TRACES_EXPORTER="otlp")
    assert output == "None"
    assert "pip install '.[traces]'" in error


def test_a_span_ends_once_with_its_first_error(spans: RecordedSpans) -> None:
    span = tracing.start("work", {"sluice.attempt": 1, "sluice.rows": None})
    span.end(ValueError("first"))
    span.end()
    span.set({"sluice.rows": 1})
    recorded = spans.one("work")
    assert dict(recorded.attributes or {}) == {"sluice.attempt": 1, "error.type": "ValueError"}
    assert recorded.status.description == "first"


def test_a_provider_that_cannot_be_loaded_ends_no_write(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise StopIteration

    # As with OTEL_PYTHON_TRACER_PROVIDER, if it names a provider that is not installed.
    monkeypatch.setattr("opentelemetry.trace.get_tracer_provider", fail)
    monkeypatch.setattr(tracing, "_logged_errors", set())
    assert tracing.current() is tracing.NO_SPAN
    with tracing.span("append", {"a": 1}) as span, span.current():
        assert span is tracing.NO_SPAN
    # One error, not one for each span.
    assert [record.levelname for record in caplog.records if record.levelno > logging.DEBUG] == ["ERROR"]


def test_a_span_that_fails_after_its_start_ends_no_write(
    spans: RecordedSpans, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a failing span")

    monkeypatch.setattr(tracing, "_logged_errors", set())
    with tracing.span("append") as span:
        for method in ("is_recording", "get_span_context", "end"):
            monkeypatch.setattr(f"opentelemetry.sdk.trace.Span.{method}", fail)
        span.set({"sluice.rows": 1})
        span.link([TRACEPARENT])
        assert tracing.current() is tracing.NO_SPAN
        assert tracing.parent_of_process() is None
        assert span.traceparent is not None
    assert spans.all() == []
    # Each of the five calls has logged its error, the first one as an error.
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_an_sdk_that_cannot_be_started_is_logged() -> None:
    program = "from lock_manager import tracing\ntracing.start_sdk()\nprint('goes on')"
    output, errors = output_of(program, OTEL_PROPAGATORS="tracecontext,no_such_propagator")
    assert output == "goes on"
    assert "no_such_propagator" in errors


def test_a_link_that_is_malformed_is_left_out(spans: RecordedSpans) -> None:
    with tracing.span("guard") as span:
        span.link([None, "", "nonsense", TRACEPARENT])
    (link,) = spans.one("guard").links
    assert (f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") == (TRACE_ID, SPAN_ID)


def test_a_stamp_has_the_trace_but_not_that_of_an_empty_commit(spans: RecordedSpans) -> None:
    with tracing.span("locked"):
        block = GuardedBlock(HOLD, {"job": "nightly"})
    trace_id = trace_id_of(spans.one("locked"))
    stamp = parse_stamp({"sluice": {**block.stamp(), "attempt": "a"}})
    assert stamp is not None
    assert stamp.trace_id == trace_id
    assert "trace_id" not in block.for_empty_commit(["h"]).stamp()


def test_metadata_of_a_caller_sets_no_trace() -> None:
    assert "trace_id" not in stamp_of(HOLD, {"trace_id": TRACE_ID})


def test_an_offer_has_the_trace_of_its_append(spans: RecordedSpans) -> None:
    without_trace = OfferedAppend.of(STAGED, WriteAttempt.of({}), {"job": "j"})
    with tracing.span("append") as span:
        offered = OfferedAppend.parse(OfferedAppend.of(STAGED, WriteAttempt.of({}), {"job": "j"}).data())
    assert offered.stamp == {"job": "j", "trace_id": span.trace_id}
    assert offered.traceparent == span.traceparent
    # As an offer of an earlier release.
    earlier = {name: value for name, value in without_trace.data().items() if name != "traceparent"}
    assert OfferedAppend.parse(earlier) == without_trace
    assert (without_trace.stamp, without_trace.traceparent) == ({"job": "j"}, None)


def test_the_documentation_has_a_row_for_each_span() -> None:
    texts = [path.read_text() for package in ("lock_manager", "writer_jobs") for path in (ROOT / package).rglob("*.py")]
    names = {name for text in texts for name in re.findall(r'tracing\.(?:span|start)\(\s*"(\w+)"', text)}
    writer = (ROOT / "writer_jobs" / "writer.py").read_text()
    methods = set(re.findall(r'self\._(?:run|run_where|rewrite)\(\s*"(\w+)"', writer))
    page = (ROOT / "docs" / "operate.md").read_text()
    rows = page.partition("<!-- spans -->")[2].partition("<!-- end -->")[0].strip().splitlines()[2:]
    documented_names = {
        name.removeprefix("sluice.") for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1])
    }
    assert len(methods) == 8
    assert documented_names == names | methods
