"""Draws a load over time: one lane per writer with its waits and holds, and a lane for the lock below them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sluice.demo.records import Writer

# Okabe and Ito's colours, which are distinct for any colour vision (jfly.uni-koeln.de/color), and two of tab10 for more
# writers.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C564B", "#7F7F7F")
_INK, _FAINT, _PALE, _ALARM = "#22303C", "#8A97A3", "#E4E9ED", "#D1242F"
_LANE_INCHES, _WIDTH_INCHES, _DPI = 0.46, 11.0, 150
_HOLD_HEIGHT, _WAIT_HEIGHT = 0.62, 0.16
_MARK_POINTS = {"x": 4, "|": 9}
# Minimum width of a bar, as a fraction of the time axis: about three pixels, one of them for the white edge.
_MIN_BAR = 3 / (_WIDTH_INCHES * _DPI)


@dataclass(frozen=True)
class Lanes:
    """The lanes of one load: one for each writer, and one for the lock.

    Attributes:
        title: Title of the panel, one line.
        writers: The writers with their commits.
        locked: Whether the writers took the lock. Without it the load has no lane for the lock.
        lost: Ids of acknowledged commits that are not in the table.
        in_conflict: Ids of commits that lost a race for a version.

    """

    title: str
    writers: Sequence[Writer]
    locked: bool
    lost: Collection[str] = ()
    in_conflict: Collection[str] = ()

    @property
    def start(self) -> float:
        """Time at which the first writer was started."""
        return min(writer.started_at for writer in self.writers)

    @property
    def names(self) -> list[str]:
        """Names of the lanes."""
        return [f"writer {writer.number}" for writer in self.writers] + ["the lock"] * self.locked

    @property
    def seconds(self) -> float:
        """Seconds from the start of the first writer to the end of the last."""
        ends = [writer.ended_at or writer.started_at for writer in self.writers]
        ends += [commit.released_at for writer in self.writers for commit in writer.commits]
        return max(ends) - self.start


def draw_timeline(path: Path, loads: Sequence[Lanes]) -> None:
    """Write a PNG with one panel per load. All panels have the same time axis."""
    timeline_figure(loads).savefig(path, facecolor="white")


def timeline_figure(loads: Sequence[Lanes]) -> Figure:
    """Return the figure that :func:`draw_timeline` writes."""
    lane_counts = [len(load.names) for load in loads]
    figure = Figure(figsize=(_WIDTH_INCHES, _LANE_INCHES * sum(lane_counts) + 1.4 * len(loads)), dpi=_DPI)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained", h_pad=0.14, w_pad=0.12)
    panels = figure.subplots(len(loads), sharex=True, squeeze=False, height_ratios=lane_counts)[:, 0]
    seconds = max(load.seconds for load in loads) * 1.01
    for axes, load in zip(panels, loads, strict=True):
        _draw_load(axes, load, seconds * _MIN_BAR)
    panels[-1].set_xlabel("seconds since the start of the first process", color=_FAINT, fontsize=9)
    panels[-1].set_xlim(0, seconds)
    return figure


def _draw_load(axes: Axes, load: Lanes, min_seconds: float) -> None:
    _style(axes, load)
    for lane, writer in enumerate(load.writers):
        colour = _COLOURS[lane % len(_COLOURS)]
        request_times = [commit.requested_at for commit in writer.commits] or [writer.ended_at or writer.started_at]
        axes.plot(
            [writer.started_at - load.start, min(request_times) - load.start], [lane, lane],
            color=_FAINT, linewidth=1, linestyle=(0, (1, 2.5)), zorder=1,
        )  # fmt: skip
        for previous, commit in pairwise(writer.commits):
            axes.plot(
                [previous.released_at - load.start, commit.requested_at - load.start], [lane, lane],
                color=colour, linewidth=1, alpha=0.6, zorder=1,
            )  # fmt: skip
        waits: list[tuple[float, float]] = []
        holds: list[tuple[float, float]] = []
        lost_commits: list[tuple[float, float]] = []
        for commit in writer.commits:
            start = commit.requested_at if commit.acquired_at is None else commit.acquired_at
            waits.append((commit.requested_at - load.start, start - commit.requested_at))
            bar = (start - load.start, max(commit.released_at - start, min_seconds))
            (lost_commits if commit.commit_id in load.lost else holds).append(bar)
        _bars(axes, waits, lane, _WAIT_HEIGHT, colour, alpha=0.30)
        _bars(axes, holds, lane, _HOLD_HEIGHT, colour)
        _bars(axes, lost_commits, lane, _HOLD_HEIGHT, _ALARM)
        conflicts = [commit for commit in writer.commits if commit.commit_id in load.in_conflict]
        _marks(axes, "x", lane, [commit.released_at - load.start for commit in conflicts])
        _marks(axes, "|", lane, [retried_at - load.start for retried_at in writer.retried_at])
        if load.locked:
            _bars(axes, holds + lost_commits, len(load.writers), _HOLD_HEIGHT, colour)
    if load.locked:
        axes.axhline(len(load.writers) - 0.5, color=_PALE, linewidth=1, zorder=0)
    axes.legend(
        handles=_legend(load), loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=5, frameon=False,
        fontsize=8.5, labelcolor=_INK, handlelength=1.6, columnspacing=1.6, borderaxespad=0.1, borderpad=0,
    )  # fmt: skip


def _marks(axes: Axes, marker: str, lane: int, seconds: list[float]) -> None:
    axes.plot(
        seconds, [lane] * len(seconds), linestyle="", marker=marker, color=_INK, markersize=_MARK_POINTS[marker],
        zorder=4,
    )  # fmt: skip


def _bars(
    axes: Axes, spans: list[tuple[float, float]], lane: int, height: float, colour: str, alpha: float = 1.0
) -> None:
    # A thin white edge separates adjacent bars without hiding bars of a few pixels.
    axes.broken_barh(
        spans, (lane - height / 2, height), facecolor=colour, alpha=alpha, edgecolor="white", linewidth=0.3, zorder=2
    )


def _style(axes: Axes, load: Lanes) -> None:
    axes.set_title(load.title, loc="left", color=_INK, fontsize=11.5, fontweight="bold", pad=24)
    axes.set_yticks(range(len(load.names)), load.names, color=_INK, fontsize=9.5)
    axes.set_ylim(len(load.names) - 0.4, -0.6)  # the first writer on top
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", length=0, labelcolor=_FAINT, labelsize=9, labelbottom=True)
    axes.grid(axis="x", color=_PALE, linewidth=0.8)
    axes.set_axisbelow(True)
    for side in axes.spines.values():
        side.set_visible(False)


def _legend(load: Lanes) -> list[Patch | Line2D]:
    starting = Line2D([], [], color=_FAINT, linewidth=1, linestyle=(0, (1, 2.5)), label="starting Spark")
    if load.locked:
        return [
            starting,
            Line2D([], [], color=_COLOURS[0], linewidth=1, alpha=0.6, label="reading and writing"),
            Patch(facecolor=_COLOURS[0], alpha=0.30, label="waiting for the lock"),
            Patch(facecolor=_COLOURS[0], label="holding the lock"),
        ]
    return [
        starting,
        Patch(facecolor=_COLOURS[0], label="writing, no lock"),
        *(
            Line2D([], [], linestyle="", marker=marker, color=_INK, markersize=_MARK_POINTS[marker], label=label)
            for marker, label in (("x", "lost a race for its version"), ("|", "written again by the job"))
        ),
        Patch(facecolor=_ALARM, label="acknowledged, and lost"),
    ]
