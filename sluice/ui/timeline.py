"""A picture of a table's last hour: for each writer its work, its waits, its holds and its commits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import count

from sluice.locks.status import format_duration
from sluice.ui.history import HISTORY_SECONDS, Operation
from writer_jobs.page.elements import Html, element, join

#: Style of the pictures, for the page that has them.
STYLE = """
.timeline { max-width: none; } .timeline .work { fill: var(--work); } .timeline .wait { fill: var(--wait); }
.timeline .hold { fill: var(--bar); } .timeline line.commit { stroke: var(--after); stroke-width: 1.5; }
.timeline path { stroke-width: 12; } .timeline path.work { stroke: var(--work); }
.timeline path.wait { stroke: var(--wait); } .timeline path.hold { stroke: var(--bar); }
.timeline path.commit { stroke: var(--after); stroke-width: 4; }
.timeline .axis { stroke: var(--line); } .strip { width: 10rem; height: 1rem; }
.legend span { display: inline-block; margin-right: 1.2rem; } .legend i { display: inline-block; width: .9rem;
  height: .7rem; margin-right: .3rem; }
.legend .work { background: var(--work); } .legend .wait { background: var(--wait); }
.legend .hold { background: var(--bar); } .legend .commit { background: var(--after); width: 3px; }
"""

_WIDTH = 960
_LABEL_WIDTH = 230
_LANE_HEIGHT = 22
_BAR_HEIGHT = 12
_MAX_LANES = 40
# More bars than this are too narrow.
_MAX_OPERATIONS = 600
_STRIP_WIDTH = 160
_LABEL_LENGTH = 36
_TICKS = 6
_MIN_BAR_WIDTH = 1.0


def timeline(operations: Sequence[Operation], now: float) -> Html:
    """Return the picture with a lane for each writer, the latest first."""
    lanes: dict[str, list[Operation]] = {}
    shown_operations = operations[-_MAX_OPERATIONS:]
    for operation in reversed(shown_operations):
        # The log has a writer's job alone.
        lanes.setdefault(operation.job or operation.writer, []).append(operation)
    shown_lanes = list(lanes.items())[:_MAX_LANES]
    parts: list[Html] = []
    for index, (writer, lane) in enumerate(shown_lanes):
        y = index * _LANE_HEIGHT
        label = writer if len(writer) <= _LABEL_LENGTH else f"{writer[: _LABEL_LENGTH - 1]}…"
        parts.append(element("text", label, element("title", writer), x=0, y=y + 15))
        for operation in lane:
            parts += _bars(operation, now, _LABEL_WIDTH, _WIDTH - _LABEL_WIDTH, y + 5, _BAR_HEIGHT)
    height = len(shown_lanes) * _LANE_HEIGHT
    for number in range(_TICKS + 1):
        seconds = HISTORY_SECONDS * (1 - number / _TICKS)
        x = _x(now - seconds, now, _LABEL_WIDTH, _WIDTH - _LABEL_WIDTH)
        anchor = "start" if not number else "end" if number == _TICKS else "middle"
        text = datetime.fromtimestamp(now - seconds, UTC).strftime("%H:%M UTC" if number == _TICKS else "%H:%M")
        parts.append(element("line", class_="axis", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=0, y2=height))
        parts.append(element("text", text, class_="quiet", x=f"{x:.1f}", y=height + 16, text_anchor=anchor))
    title = element("title", f"{len(shown_operations):,} operations of {len(lanes):,} writers in the last hour")
    picture = element(
        "svg", title, *parts, class_="timeline", role="img", viewBox=f"0 0 {_WIDTH} {height + 20}"
    )  # fmt: skip
    notes = [f"and {len(lanes) - _MAX_LANES:,} more writers"] if len(lanes) > _MAX_LANES else []
    if len(operations) > _MAX_OPERATIONS:
        notes.append(f"the newest {_MAX_OPERATIONS:,} of {len(operations):,} operations")
    return join(picture, element("p", "; ".join(notes)) if notes else None)


def legend() -> Html:
    """Return the legend of :func:`timeline`."""
    names = {"work": "writes files", "wait": "waits for the lock", "hold": "holds the lock", "commit": "commit"}
    return element(
        "p", *(element("span", element("i", class_=style), name) for style, name in names.items()), class_="legend"
    )


def strip(operations: Sequence[Operation], now: float) -> Html | None:
    """Return the last hour of all writers in one small picture; None if there was nothing.

    It has one path for each style, however many operations there are.
    """
    if not operations:
        return None
    pixels: dict[str, set[int]] = {"work": set(), "wait": set(), "hold": set(), "commit": set()}
    for operation in operations:
        for style, _, start, stop in _spans(operation, now):
            first, last = (int(_x(moment, now, 0, _STRIP_WIDTH - 1)) for moment in (start, stop))
            pixels[style].update(range(first, last + 1))
        if operation.versions and operation.ended_at is not None:
            pixels["commit"].add(int(_x(operation.ended_at, now, 0, _STRIP_WIDTH - 1)))
    heights = {"work": 8, "wait": 8, "hold": 8, "commit": 2}
    paths = (element("path", class_=style, d=_runs(pixels[style], y)) for style, y in heights.items() if pixels[style])
    title = element("title", f"{len(operations):,} operations in the last hour")
    return element("svg", title, *paths, class_="timeline strip", role="img", viewBox=f"0 0 {_STRIP_WIDTH} 16")


def _runs(pixels: set[int], y: int) -> str:
    """Return the path of horizontal lines through these pixels."""
    lines = []
    for x in sorted(pixels):
        if x - 1 not in pixels:
            end = next(end for end in count(x + 1) if end not in pixels)
            lines.append(f"M{x} {y}h{end - x}")
    return "".join(lines)


def _spans(operation: Operation, now: float) -> Iterator[tuple[str, str, float, float]]:
    """Yield style, verb, start and end of each span of an operation within the last hour."""
    end = now if operation.ended_at is None else operation.ended_at
    requested, acquired = operation.requested_at, operation.acquired_at
    spans = [
        ("work", "wrote files", operation.begun_at, requested if requested is not None else acquired),
        ("wait", "waited for the lock", requested, end if acquired is None else acquired),
        ("hold", "held the lock", acquired, end),
    ]
    for style, verb, start, stop in spans:
        if start is not None and stop is not None and stop >= now - HISTORY_SECONDS and stop >= start:
            yield style, verb, start, stop


def _bars(operation: Operation, now: float, start_x: float, width: float, y: float, height: float) -> Iterator[Html]:
    for style, verb, start, stop in _spans(operation, now):
        x, x_end = _x(start, now, start_x, width), _x(stop, now, start_x, width)
        title = element("title", f"{operation.writer} {verb} for {format_duration(stop - start)}")
        yield element(
            "rect", title, class_=style, x=f"{x:.1f}", y=y, width=f"{max(_MIN_BAR_WIDTH, x_end - x):.1f}", height=height
        )
    if operation.versions and operation.ended_at is not None:
        x = _x(operation.ended_at, now, start_x, width)
        versions = ", ".join(map(str, operation.versions))
        title = element("title", f"{operation.writer} committed version {versions}")
        yield element("line", title, class_="commit", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=y - 2, y2=y + height)


def _x(time: float, now: float, start_x: float, width: float) -> float:
    share = (time - now + HISTORY_SECONDS) / HISTORY_SECONDS
    return start_x + width * min(1.0, max(0.0, share))
