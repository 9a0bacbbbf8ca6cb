"""Draw the figures of ``benchmarks/contention.py``: commits per second by writers, with a panel for each kind of work.

python benchmarks/contention_plot.py build/bench/contention.json docs/images/contention.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

# The palette of Okabe and Ito, which is safe for colour-blind readers.
STYLES = {
    "gate": ("#0072B2", "o", "the gate: lock for the commit"),
    "s3-lease": ("#56B4E9", "D", "the gate, locks on S3"),
    "whole write": ("#E69F00", "s", "lock over the whole write"),
    "optimistic": ("#009E73", "^", "no lock, Delta's retries"),
    "stock": ("#CC79A7", "v", "stock store (loses commits)"),
}
WORK = {0.0: "no work", 2.0: "2 s of waiting", "cpu": "sums over flights"}


def draw(rows: Sequence[dict[str, Any]], output: Path) -> None:
    """Write the figure.

    Args:
        rows: Rows of ``contention.json``.
        output: Path of a PNG file.

    """
    works = list(dict.fromkeys(row["work_s"] for row in rows if row["mode"] in STYLES))
    figure = Figure(figsize=(3.6 * len(works), 3.2), dpi=120)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    limit = max((row["commits_per_s"] for row in rows if row["mode"] == "limit"), default=None)
    panels = figure.subplots(1, len(works), squeeze=False)[0]
    for panel, work in zip(panels, works, strict=True):
        for mode, (colour, marker, label) in STYLES.items():
            points = sorted(
                (row["writers"], row["commits_per_s"]) for row in rows if (row["mode"], row["work_s"]) == (mode, work)
            )
            panel.plot(*zip(*points, strict=True), color=colour, marker=marker, label=label)
        rate_of_one = [
            row["commits_per_s"] for row in rows if (row["mode"], row["work_s"], row["writers"]) == ("gate", work, 1)
        ]
        writers = sorted({row["writers"] for row in rows if row["mode"] in STYLES})
        if rate_of_one and work != 0:
            panel.plot(
                writers, [rate_of_one[0] * count for count in writers], ":", color="#999999", label="perfect scaling"
            )
        if limit and work == 0:
            panel.axhline(limit, color="#999999", linestyle="--", label="one driver, ready-made commits")
        panel.set_title(WORK.get(work, f"{work} s"), fontsize=10)
        panel.set_xticks(writers)
        panel.set_xlabel("writers")
        panel.set_ylim(bottom=0)
    panels[0].set_ylabel("commits/s")
    labels = {label: line for panel in panels for line, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(labels.values(), labels, loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(output)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    draw(json.loads(source.read_text())["contention"], target)
