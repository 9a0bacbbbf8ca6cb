"""The report of a soak: the printed verdict, ``verdict.json`` and ``timeline.png``."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from soak.engines import SPARK
from soak.evidence import Event, Evidence
from soak.groups import group_figures
from soak.liveness import takeovers
from soak.options import SoakOptions
from soak.pairs import effects_of
from soak.run import Progress
from soak.steps import steps_of
from soak.verdict import INVARIANTS
from soak.violation import Violation

_MAX_SHOWN = 5
_HIDDEN_FIELDS = frozenset({"event", "wall", "ids", "message", "table", "incarnation"})
# Okabe and Ito's colours, which are distinguishable with any colour vision, and two of tab10 for more writers.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C564B", "#7F7F7F")


def summary(
    options: SoakOptions, progress: Progress, evidence: Evidence, violations: Sequence[Violation]
) -> dict[str, Any]:
    """Return the verdict as JSON values.

    ``groups`` has the figures of :func:`soak.groups.group_figures`; None if the writers make no group commits.
    ``acknowledged``, ``refused`` and ``unknown`` count transactions by the outcome that the writer
    reports; ``filled`` counts empty commits for unfinished intents. In ``fault_shares``, ``step_shares`` and
    ``pair_shares``, ``chances`` counts how often a fault or pair was tried, or a step could be taken, and ``times`` how
    often it occurred. ``shown`` has the first five violations, each with the part of the history that shows it.
    """
    counts = progress.counts
    takeover_seconds = [
        successor["monotonic"] - death["monotonic"] for death, successor in takeovers(evidence) if successor is not None
    ]
    return {
        "engine": options.engine,
        "hold": options.lock_during if options.engine == SPARK.name else None,
        "coordinator": options.coordinator,
        "seed": options.seed,
        "writers": options.writers,
        "without": options.without,
        "acknowledged": counts["acknowledged"],
        "refused": counts["refused"],
        "unknown": counts["unknown"],
        "filled": counts["filled"],
        "lost_holds": counts["lost"],
        "versions": sum(len(state.versions) for state in evidence.tables.values()),
        "tables": len(evidence.tables),
        "rows": sum(len(state.row_ids) for state in evidence.tables.values()),
        "takeovers": len(takeover_seconds),
        "slowest_takeover_seconds": round(max(takeover_seconds, default=0.0), 2),
        "faults": dict(sorted(progress.faults.items())),
        "fault_shares": {
            name: _share(progress.faults[name], progress.chances[name]) for name in sorted(options.faults)
        },
        "groups": group_figures(evidence) if options.makes_groups else None,
        "step_shares": _step_shares(options, evidence),
        "pair_shares": _pair_shares(evidence),
        "pairs_by_effect": _pairs_by_effect(evidence),
        "did_not_strike": sorted(set(options.faults) - progress.faults.keys()),
        "violations": len(violations),
        "violations_by_invariant": dict(sorted(Counter(violation.invariant for violation in violations).items())),
        "shown": [violation.to_json() for violation in violations[:_MAX_SHOWN]],
    }


def _share(times: int, chances: int) -> dict[str, Any]:
    return {"times": times, "chances": chances, "share": round(times / chances, 3) if chances else None}


def _step_shares(options: SoakOptions, evidence: Evidence) -> dict[str, Any]:
    """Return how often each kind of step was taken, and its chances."""
    steps = Counter(event["kind"] for event in evidence.history if event["event"] == "step")
    # The second thread of a writer takes no steps.
    chances = Counter(event["event"] for event in evidence.history if "thread" not in event)
    return {
        name: _share(steps[name], chances[step.moment])
        for name, step in steps_of(options.engine, has_lease=options.has_lease).items()
    }


def _pair_shares(evidence: Evidence) -> list[dict[str, Any]]:
    """Return how often each pair of faults met, and how often it was tried; ``second`` is null for a single fault."""
    names = ("first", "second", "meeting")
    pairs = [event for event in evidence.history if event["event"] == "pair"]
    chances = Counter(tuple(event[name] for name in names) for event in pairs)
    met = Counter(tuple(event[name] for name in names) for event in pairs if event["met"])
    ordered = sorted(chances, key=lambda pair: tuple(map(str, pair)))
    return [dict(zip(names, pair, strict=True)) | _share(met[pair], chances[pair]) for pair in ordered]


def _pairs_by_effect(evidence: Evidence) -> dict[str, int]:
    """Return, by the effects of a pair of faults, how often such a pair met; see :func:`soak.pairs.effects_of`."""
    pairs = [event for event in evidence.history if event["event"] == "pair" and event["met"]]
    return dict(sorted(Counter(map(effects_of, pairs)).items()))


def print_verdict(verdict: Mapping[str, Any], violations: Sequence[Violation], console: Console) -> None:
    """Print the counts and, for each violated invariant, the shortest part of the history that shows it."""
    console.print(_counts_table(verdict))
    if unplanned := [name for name in verdict["did_not_strike"] if not verdict["fault_shares"][name]["chances"]]:
        console.print(f"these faults had no turn in this run: {', '.join(unplanned)}", soft_wrap=True)
    for invariant, function in INVARIANTS.items():
        broken = [violation for violation in violations if violation.invariant == invariant]
        if not broken:
            continue
        promise = (function.__doc__ or "").partition("\n")[0]
        console.print(Text(f"{promise} Violations: {len(broken)}.", style="bold red"), soft_wrap=True)
        shortest = min(broken, key=lambda violation: (not violation.piece, len(violation.piece)))
        console.print(Text("  " + shortest.sentence), soft_wrap=True)
        for event in shortest.piece:
            fields = " ".join(f"{key}={value}" for key, value in event.items() if key not in _HIDDEN_FIELDS)
            console.print(Text(f"    {event['event']:<12} {fields}"), soft_wrap=True)
    if violations:
        console.print(Text(f"{len(violations)} VIOLATIONS", style="bold red"))
    else:
        console.print(Text("all invariants hold", style="bold green"))


def _counts_table(verdict: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column("name")
    table.add_column("count", justify="right")
    for name in ("acknowledged", "refused", "unknown", "filled", "lost_holds", "versions", "rows"):
        table.add_row(name.replace("_", " "), f"{verdict[name]:,}")
    shares = {
        f"{kind} {name}": share for kind in ("fault", "step") for name, share in verdict[f"{kind}_shares"].items()
    }
    for pair in verdict["pair_shares"]:
        second = f", {pair['second']}" if pair["second"] else ""
        shares[f"pair {pair['first']}{second} ({pair['meeting']})"] = pair
    for name, share in shares.items():
        if share["chances"]:
            table.add_row(f"  {name}", f"{share['times']:,} of {share['chances']:,} ({share['share']:.0%})")
    if groups := verdict["groups"]:
        table.add_row("versions of several writers", f"{groups['versions']:,}")
        table.add_row("  members", f"{groups['members']:,} of {groups['offers']:,} offers")
        table.add_row("light commits", f"{groups['light']:,}")
        for name, times in groups["faults"].items():
            table.add_row(
                f"  {name}", f"{times['queued']:,} with an offer in the queue, {times['named']:,} with members"
            )
    for effects, times in verdict["pairs_by_effect"].items():
        table.add_row(f"  {effects}", f"{times:,}")
    return table


def write_report(
    options: SoakOptions, verdict: Mapping[str, Any], violations: Sequence[Violation], evidence: Evidence
) -> None:
    """Write ``verdict.json``, which has all violations, and ``timeline.png`` to the folder of the history."""
    full_verdict = {**verdict, "shown": [violation.to_json() for violation in violations]}
    (options.output / "verdict.json").write_text(json.dumps(full_verdict, indent=2) + "\n", encoding="utf-8")
    _draw(options, evidence)


def _draw(options: SoakOptions, evidence: Evidence) -> None:
    """Draw a lane for each writer with its holds and faults, and the number of acknowledged commits."""
    history = [event for event in evidence.history if "monotonic" in event]
    start = min((event["monotonic"] for event in history), default=0.0)
    names = sorted({event["worker"] for event in history if event.get("worker")})
    figure = Figure(figsize=(11, 2.6 + 0.45 * len(names)), dpi=130)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    lanes, counts = figure.subplots(2, 1, sharex=True, height_ratios=[len(names) + 1, 3])
    for lane, name in enumerate(names):
        events = [event for event in history if event.get("worker") == name]
        lanes.broken_barh(_hold_spans(events, start), (lane - 0.3, 0.6), facecolor=_COLOURS[lane % len(_COLOURS)])
        faults = [event["monotonic"] - start for event in events if event["event"] == "fault"]
        lanes.plot(faults, [lane] * len(faults), linestyle="", marker="v", color="#D1242F", markersize=5)
    lanes.set_yticks(range(len(names)), names)
    lanes.set_title("holding the lock, and faults (triangles)", loc="left", fontsize=10)
    times = [event["monotonic"] - start for event in history if event["event"] == "acknowledged"]
    counts.plot(times, range(1, len(times) + 1), color=_COLOURS[0])
    counts.set_ylabel("acknowledged")
    counts.set_xlabel("seconds")
    for axes in (lanes, counts):
        axes.grid(axis="x", color="#E4E9ED")
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    figure.savefig(options.output / "timeline.png", facecolor="white")


def _hold_spans(events: Sequence[Event], start: float) -> list[tuple[float, float]]:
    """Return start and length of each hold, in seconds."""
    spans, acquired_at = [], None
    for event in events:
        if event["event"] == "holding":
            acquired_at = event["monotonic"]
        elif acquired_at is not None and event["event"] in ("released", "lost", "ended", "killed"):
            spans.append((acquired_at - start, event["monotonic"] - acquired_at))
            acquired_at = None
    return spans
