"""Prints the result of a demo for people, and writes ``report.json`` for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from sluice.audit.checks import count_text
from sluice.console import make_table, print_problems
from sluice.demo.outcome import Outcome
from sluice.demo.records import Writer

# Figures of the comparison that are not marked if they are larger without the lock.
_NEUTRAL_FIGURES = ("wall time, s", "from first request to last commit, s", "commits acknowledged")


def write_report(path: Path, facts: dict[str, Any], outcome: Outcome, writers: Sequence[Writer]) -> None:
    """Write the outcome's figures, ``facts`` about the run, and every acknowledged commit."""
    commits = sorted((commit for writer in writers for commit in writer.commits), key=lambda commit: commit.released_at)
    report = {**outcome.to_json(), **facts, "commits": [asdict(commit) for commit in commits]}
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print the checks of a load with the lock, one per line, and its times."""
    table = make_table(("check", "actual", "expected", ""), right=("actual", "expected"))
    for name, actual, expected in (
        ("rows in the table", outcome.rows_found, outcome.rows_expected),
        ("rows missing", outcome.missing_rows, 0),
        ("duplicate rows", outcome.duplicate_rows, 0),
        ("rows that are not from the source", outcome.unexpected_rows, 0),
        ("columns whose sums differ from the source", len(outcome.checksum_mismatches), 0),
        ("commits in the log", outcome.commits_in_log, outcome.commits_acknowledged),
        ("acknowledged commits that are missing", outcome.lost_commits, 0),
        ("versions missing from the log", outcome.missing_versions, 0),
        ("overlapping holds", outcome.overlapping_holds, 0),
        ("writers that failed", len(outcome.failed_writers), 0),
    ):
        verdict = Text("ok", style="green") if actual == expected else Text("FAILED", style="bold red")
        table.add_row(name, f"{actual:,}", f"{expected:,}", verdict)
    console.print(table)
    console.print(
        f"{count_text(outcome.writers, 'writer')}, {outcome.wall_seconds:.1f} s in total, "
        f"{outcome.loading_seconds:.1f} s from the first request to the last commit; medians: hold "
        f"{_seconds_text(outcome.hold_seconds_p50)}, wait {_seconds_text(outcome.wait_seconds_p50)}",
        soft_wrap=True,
    )
    print_problems(outcome.problems, console)


def print_comparison(locked: Outcome, rival: Outcome, console: Console) -> None:
    """Print the figures of a load with the lock next to those of a load without it."""
    table = make_table(("the same load", "with the lock", "without"), right=("with the lock", "without"))
    for name, with_lock, without_lock in (
        ("wall time, s", locked.wall_seconds, rival.wall_seconds),
        ("from first request to last commit, s", locked.loading_seconds, rival.loading_seconds),
        ("commits acknowledged", locked.commits_acknowledged, rival.commits_acknowledged),
        ("acknowledged commits that are missing", locked.lost_commits, rival.lost_commits),
        ("rows missing", locked.missing_rows, rival.missing_rows),
        ("duplicate rows", locked.duplicate_rows, rival.duplicate_rows),
        ("commits that lost a race (conflicts)", None, rival.conflicts),
        ("writes repeated by the job (retries)", None, rival.retries),
        ("writers that failed", len(locked.failed_writers), len(rival.failed_writers)),
    ):
        is_worse = name not in _NEUTRAL_FIGURES and without_lock > (with_lock or 0)
        table.add_row(
            name,
            "-" if with_lock is None else f"{with_lock:,}",
            Text(f"{without_lock:,}", style="bold red" if is_worse else ""),
        )
    console.print(table)


def print_stderr_tail(writer: Writer, lines: Sequence[str], console: Console) -> None:
    """Print the last lines of a failed writer's standard error."""
    title = f"writer {writer.number} ended with exit code {writer.exit_code}; its last lines:"
    console.print(Text(title, style="bold red"))
    for line in lines or ["(none)"]:
        console.print(Text("  " + line, style="dim"), soft_wrap=True)


def _seconds_text(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f} s"
