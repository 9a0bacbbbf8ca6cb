"""Draw the trace of one append that ``benchmarks/tracing.py`` has recorded: a bar for each span, over its duration.

python benchmarks/trace_plot.py build/bench/tracing.json docs/images/trace.svg
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

# The palette of Okabe and Ito, which is safe for colour-blind readers.
COLOURS = {"sluice.queue": "#E69F00", "sluice.hold": "#0072B2"}
UNDER_THE_LOCK, OTHERS = "#56B4E9", "#999999"


def draw(spans: Sequence[dict[str, Any]], output: Path) -> None:
    """Write the figure.

    Args:
        spans: Spans of ``tracing.json``, by their start.
        output: Path of an SVG file.

    """
    parents = {span["name"]: span["parent"] for span in spans}
    began = min(span["start_ns"] for span in spans)
    total = max(span["end_ns"] for span in spans) - began
    # The same figures give the same file, and its text stays text.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "trace"})
    figure = Figure(figsize=(8, 0.32 * len(spans) + 0.7))
    FigureCanvasSVG(figure)
    figure.set_layout_engine("constrained")
    axes = figure.subplots()
    for row, span in enumerate(spans):
        name, start_ms = span["name"], (span["start_ns"] - began) / 1e6
        milliseconds = (span["end_ns"] - span["start_ns"]) / 1e6
        is_locked = span["parent"] == "sluice.hold"
        axes.barh(row, milliseconds, left=start_ms, color=COLOURS.get(name, UNDER_THE_LOCK if is_locked else OTHERS))
        is_late = start_ms > total / 1e6 * 0.8
        position = start_ms if is_late else start_ms + milliseconds
        axes.text(position, row, f" {milliseconds:.1f} ms ", va="center", ha="right" if is_late else "left", fontsize=8)
    labels = ["    " * depth_of(span["name"], parents) + span["name"].removeprefix("sluice.") for span in spans]
    axes.set_yticks(range(len(spans)), labels, ha="left", fontsize=9)
    axes.tick_params(axis="y", length=0, pad=70)
    axes.invert_yaxis()
    axes.set_xlim(0, total / 1e6 * 1.1)
    axes.set_xlabel("milliseconds", fontsize=9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output, metadata={"Date": None})


def depth_of(name: str, parents: dict[str, str | None]) -> int:
    parent = parents[name]
    return 0 if parent is None else 1 + depth_of(parent, parents)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    draw(json.loads(source.read_text())["trace"], target)
