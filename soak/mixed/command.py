"""``python -m soak --jobs mixed``, from its options to its exit code."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from lock_manager.testing.embedded import EmbeddedZooKeeper
from soak.mixed.jobs import MAINTAIN, Places, our_job, stock_job
from soak.mixed.run import Command, MixedRun, Outcome
from soak.progress_line import progress_line

_OURS, _STOCK = "under the lock", "stock Delta, no lock"


@dataclass(frozen=True, kw_only=True)
class MixedOptions:
    """What to soak.

    Attributes:
        minutes: how long the jobs are fed and disturbed.
        seed: of the data, and of who is killed.
        zookeeper: connection string of an ensemble; None: an embedded one.
        compare: whether the same is done with stock Delta afterwards.
        output: folder for the verdict, the picture, and what the jobs say.

    """

    minutes: float = 10.0
    seed: int = 1
    zookeeper: str | None = None
    compare: bool = True
    output: Path = Path("build/soak-mixed")


def run_mixed(options: MixedOptions, *, as_json: bool) -> bool:
    """Soak, print the verdict, and tell whether ours is as it should be.

    That is: the table has what was fed, row by row, and no job ended otherwise than by its own will or the soak's.

    Args:
        options: what to do.
        as_json: print the verdict as JSON.

    """
    console, notes = Console(highlight=False), Console(highlight=False, stderr=True)
    outcomes: dict[str, Outcome] = {}
    options.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-mixed-")))
        hosts = options.zookeeper or stack.enter_context(EmbeddedZooKeeper()).hosts
        status = stack.enter_context(notes.status("starting …"))
        ways: list[tuple[str, Command]] = [(_OURS, our_job)]
        if options.compare:
            ways.append((_STOCK, stock_job))
        for number, (name, command) in enumerate(ways):
            here = folder / str(number)
            places = Places(
                hosts=hosts,
                table=here / "table",
                landing=here / "landing",
                checkpoints=here / "checkpoints",
                changes=here / "changes",
            )
            # A plain MERGE has no memory of a delete: a change that comes late would bring its row back. The control
            # gets its changes in order, so what it loses or has too much comes from rivals and from nothing else.
            run = MixedRun(
                command, places, options.output / str(number), {}, options.seed, is_control=command is stock_job
            )
            outcomes[name] = run.run(options.minutes * 60, _named(name, progress_line(notes, status)))
    found = {name: summary(outcome) for name, outcome in outcomes.items()}
    (options.output / "verdict.json").write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    draw_lag(options.output / "lag.png", outcomes)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        _print(found, console)
        console.print(f"verdict, picture of the lag, and what the jobs said: {options.output}", soft_wrap=True)
    return is_good(outcomes[_OURS])


def is_good(outcome: Outcome) -> bool:
    """Tell whether the table has what was fed, care spared what it must, and no job failed."""
    is_right = outcome.drained and not (outcome.missing or outcome.surplus)
    is_spared = outcome.spared is None or outcome.spared.is_good
    return is_right and is_spared and not any(job.failures for job in outcome.jobs)


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return what became of a run as JSON values."""
    cared = [line for job in outcome.jobs if job.name == MAINTAIN for line in (*job.commits, *job.done)]
    vacuums = [line for line in cared if line.get("action") == "vacuum"]
    compactions = [line for line in cared if line.get("action") == "compact"]
    compacted = [line for line in compactions if line["version"] is not None]
    ages = sorted(age for _, age in outcome.lag)
    return {
        "rows": outcome.rows,
        "missing": outcome.missing,
        "surplus": outcome.surplus,
        "all_applied": outcome.drained,
        "versions": outcome.versions,
        "compactions": len(compacted),
        "compactions_given_up": sum(line["problem"] is not None for line in compactions),
        "compacted_files": sum(line["files_removed"] - line["files_added"] for line in compacted),
        "compaction_held_max_s": max((line["held_seconds"] for line in compacted), default=None),
        "vacuumed": sum(line["files_removed"] for line in vacuums),
        "kept_for_pins": max((line["kept_for_pins"] for line in vacuums), default=0),
        "kept_for_streams": max((line["kept_for_streams"] for line in vacuums), default=0),
        "spared": None if outcome.spared is None else asdict(outcome.spared),
        "commits": sum(len(job.commits) for job in outcome.jobs),
        "killed": sum(job.killed for job in outcome.jobs),
        "failed": sum(len(job.failures) for job in outcome.jobs),
        "lag_p50_s": ages[len(ages) // 2] if ages else None,
        "lag_p99_s": ages[min(len(ages) - 1, int(len(ages) * 0.99))] if ages else None,
        "lag_max_s": ages[-1] if ages else None,
        "jobs": {
            job.name: {
                "started": job.started,
                "killed": job.killed,
                "commits": len(job.commits),
                "failures": job.failures,
            }
            for job in outcome.jobs
        },
    }


def draw_lag(path: Path, outcomes: dict[str, Outcome]) -> None:
    """Write a PNG: how far behind the change feed was, over time."""
    figure = Figure(figsize=(10, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (name, outcome), colour in zip(outcomes.items(), ("#0072B2", "#D55E00"), strict=False):
        times, ages = zip(*outcome.lag, strict=True) if outcome.lag else ((), ())
        axes.plot(times, ages, color=colour, label=name)
    axes.set_xlabel("seconds since the begin")
    axes.set_ylabel("age of its oldest\nunapplied change, s")
    axes.set_title("Lag of the change feed, beside all other jobs and a maintainer")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _print(found: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in found:
        table.add_column(name, justify="right")
    rows = {
        "rows that were fed": "rows",
        "missing in the end": "missing",
        "surplus in the end": "surplus",
        "everything applied in time": "all_applied",
        "versions": "versions",
        "compactions of a partition": "compactions",
        "that were given up": "compactions_given_up",
        "files fewer by them": "compacted_files",
        "held the lock at most, s": "compaction_held_max_s",
        "files that VACUUM removed": "vacuumed",
        "that it kept for the pin, at most": "kept_for_pins",
        "for the slow reader, at most": "kept_for_streams",
        "killed by the soak": "killed",
        "failed by themselves": "failed",
        "lag of the change feed, p50, s": "lag_p50_s",
        "p99, s": "lag_p99_s",
        "longest, s": "lag_max_s",
    }
    for title, key in rows.items():
        table.add_row(title, *(_said(each[key]) for each in found.values()))
    spared = {
        "wrong rows in the pinned version": "pinned",
        "rows that the slow reader has wrong": "read",
        "planted orphans that are left": "orphans",
    }
    for title, key in spared.items():
        table.add_row(title, *(_said((each["spared"] or {}).get(key)) for each in found.values()))
    console.print(table)
    for name, each in found.items():
        for job, said in each["jobs"].items():
            failures = f"; {len(said['failures'])} failures, such as: {said['failures'][0]}" if said["failures"] else ""
            console.print(
                f"{name}: {job}: started {said['started']} times, killed {said['killed']} times, "
                f"{said['commits']} commits{failures}",
                soft_wrap=True,
            )


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if value is None:
        return "–"  # noqa: RUF001 (a dash)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _named(name: str, show: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: show(f"{name}: {line}")
