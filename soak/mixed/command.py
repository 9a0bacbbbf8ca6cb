"""The command ``python -m soak --jobs mixed``, from its options to its result."""

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
from sluice.console import plain_console
from soak.mixed.jobs import MAINTAIN, Workspace, locked_job, stock_job
from soak.mixed.run import Command, MixedRun, Outcome
from soak.progress_line import progress_line

_LOCKED, _STOCK = "under the lock", "stock Delta, no lock"


@dataclass(frozen=True, kw_only=True)
class MixedOptions:
    """The options of a mixed soak.

    Attributes:
        minutes: Minutes to feed and disturb the jobs.
        seed: Seed of the data and of the kills.
        zookeeper: Connection string of an ensemble; None for an embedded one.
        output: Folder for the verdict, the picture and the output of the jobs.

    """

    minutes: float
    seed: int
    zookeeper: str | None
    output: Path


def run_mixed(options: MixedOptions, *, as_json: bool) -> bool:
    """Run a mixed soak and print the verdict.

    Args:
        options: Options of the soak.
        as_json: Whether the verdict is printed as JSON.

    Returns:
        Whether the run under the lock is good; see :func:`is_good`.

    """
    console, stderr_console = plain_console(), plain_console(stderr=True)
    outcomes: dict[str, Outcome] = {}
    options.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluice-mixed-")))
        hosts = options.zookeeper or stack.enter_context(EmbeddedZooKeeper()).hosts
        status = stack.enter_context(stderr_console.status("starting …"))
        commands: dict[str, Command] = {_LOCKED: locked_job, _STOCK: stock_job}
        for number, (name, command) in enumerate(commands.items()):
            run_folder = folder / str(number)
            workspace = Workspace(
                hosts=hosts,
                table=run_folder / "table",
                landing=run_folder / "landing",
                checkpoints=run_folder / "checkpoints",
                changes=run_folder / "changes",
            )
            # A plain MERGE does not remember deletes, so a late change would bring a row back. The control gets its
            # messages in order, so that only conflicts between its jobs can cause missing or surplus rows.
            output, is_control = options.output / str(number), command is stock_job
            run = MixedRun(command, workspace, output, options.seed, is_control=is_control)
            outcomes[name] = run.run(options.minutes * 60, _with_prefix(name, progress_line(stderr_console, status)))
    verdict = {name: summary(outcome) for name, outcome in outcomes.items()}
    (options.output / "verdict.json").write_text(json.dumps(verdict, indent=2) + "\n", encoding="utf-8")
    draw_lag(options.output / "lag.png", outcomes)
    if as_json:
        print(json.dumps(verdict, indent=2))
    else:
        _print_verdict(verdict, console)
        console.print(f"verdict, picture of the lag, and output of the jobs: {options.output}", soft_wrap=True)
    return is_good(outcomes[_LOCKED])


def is_good(outcome: Outcome) -> bool:
    """Return whether the table has the expected rows, maintenance made no error, and no job failed by itself."""
    has_expected_rows = outcome.drained and not (outcome.missing or outcome.surplus)
    is_maintained = outcome.retention is None or outcome.retention.is_good
    return has_expected_rows and is_maintained and not any(job.failures for job in outcome.jobs)


def summary(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome of a run as JSON values."""
    events = [event for job in outcome.jobs if job.name == MAINTAIN for event in (*job.commits, *job.done_events)]
    vacuums = [event for event in events if event.get("action") == "vacuum"]
    compactions = [event for event in events if event.get("action") == "compact"]
    committed = [event for event in compactions if event["version"] is not None]
    ages = sorted(age for _, age in outcome.lag)
    return {
        "rows": outcome.rows,
        "missing": outcome.missing,
        "surplus": outcome.surplus,
        "all_applied": outcome.drained,
        "versions": outcome.versions,
        "compactions": len(committed),
        "compactions_given_up": sum(event["problem"] is not None for event in compactions),
        "compacted_files": sum(event["files_removed"] - event["files_added"] for event in committed),
        "compaction_held_max_s": max((event["held_seconds"] for event in committed), default=None),
        "vacuumed": sum(event["files_removed"] for event in vacuums),
        "kept_for_pins": max((event["kept_for_pins"] for event in vacuums), default=0),
        "kept_for_streams": max((event["kept_for_streams"] for event in vacuums), default=0),
        "retention_errors": None if outcome.retention is None else asdict(outcome.retention),
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
    """Draw the lag of the change feed over time as a PNG."""
    figure = Figure(figsize=(10, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for (name, outcome), colour in zip(outcomes.items(), ("#0072B2", "#D55E00"), strict=False):
        times, ages = zip(*outcome.lag, strict=True) if outcome.lag else ((), ())
        axes.plot(times, ages, color=colour, label=name)
    axes.set_xlabel("seconds since the start")
    axes.set_ylabel("age of the oldest\nunapplied change, s")
    axes.set_title("Lag of the change feed, with all other jobs and maintenance")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def _print_verdict(verdict: dict[str, dict[str, Any]], console: Console) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name in verdict:
        table.add_column(name, justify="right")
    rows = {
        "expected rows": "rows",
        "missing rows at the end": "missing",
        "surplus rows at the end": "surplus",
        "all applied in time": "all_applied",
        "versions": "versions",
        "compactions of a partition": "compactions",
        "compactions given up": "compactions_given_up",
        "files saved by compactions": "compacted_files",
        "longest lock of a compaction, s": "compaction_held_max_s",
        "files removed by VACUUM": "vacuumed",
        "files kept for the pin, at most": "kept_for_pins",
        "files kept for the slow reader, at most": "kept_for_streams",
        "jobs killed by the soak": "killed",
        "jobs failed by themselves": "failed",
        "lag of the change feed, p50, s": "lag_p50_s",
        "lag of the change feed, p99, s": "lag_p99_s",
        "lag of the change feed, longest, s": "lag_max_s",
    }
    for title, key in rows.items():
        table.add_row(title, *(_format(run[key]) for run in verdict.values()))
    retention_rows = {
        "wrong rows in the pinned version": "pinned",
        "wrong rows in the slow reader": "read",
        "planted orphans that remain": "orphans",
    }
    for title, key in retention_rows.items():
        table.add_row(title, *(_format((run["retention_errors"] or {}).get(key)) for run in verdict.values()))
    console.print(table)
    for name, run in verdict.items():
        for job, counts in run["jobs"].items():
            line = f"{name}: {job}: started {counts['started']} times, killed {counts['killed']} times, "
            line += f"{counts['commits']} commits"
            if failures := counts["failures"]:
                line += f"; {len(failures)} failures, first: {failures[0]}"
            console.print(line, soft_wrap=True)


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if value is None:
        return "–"  # noqa: RUF001 (a dash)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _with_prefix(name: str, show: Callable[[str], None]) -> Callable[[str], None]:
    return lambda line: show(f"{name}: {line}")
