"""The result of a demo: a table for people, ``report.json`` for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sluice.demo.outcome import Outcome
from sluice.demo.records import Writer


def write_report(path: Path, facts: dict[str, Any], outcome: Outcome, writers: Sequence[Writer]) -> None:
    """Write the outcome's figures, ``facts`` about the run and every acknowledged commit."""
    commits = sorted((commit for writer in writers for commit in writer.commits), key=lambda commit: commit.released_at)
    report = {**outcome.to_json(), **facts, "commits": [asdict(commit) for commit in commits]}
    path.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def print_outcome(outcome: Outcome, console: Console) -> None:
    """Print the checks of a locked load, one per line, and what it took."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("check")
    table.add_column("found", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("")
    for name, found, wanted in _checks(outcome):
        verdict = Text("ok", style="green") if found == wanted else Text("FAILED", style="bold red")
        table.add_row(name, f"{found:,}", f"{wanted:,}", verdict)
    console.print(table)
    console.print(
        f"{outcome.writers} writers, {outcome.wall_seconds:.1f} s in all, {outcome.loading_seconds:.1f} s from the "
        f"first request to the last commit; a hold lasts {_seconds(outcome.hold_seconds_p50)}, a wait "
        f"{_seconds(outcome.wait_seconds_p50)} (medians)",
        soft_wrap=True,
    )
    print_problems(outcome.problems, console)


def print_comparison(locked: Outcome, rival: Outcome, console: Console) -> None:
    """Print a load with the lock beside one without."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("the same load")
    table.add_column("with the lock", justify="right")
    table.add_column("without", justify="right")
    for name, one, other in (
        ("wall time, s", locked.wall_seconds, rival.wall_seconds),
        ("from first request to last commit, s", locked.loading_seconds, rival.loading_seconds),
        ("commits acknowledged", locked.commits_acknowledged, rival.commits_acknowledged),
        ("acknowledged commits that are missing", locked.lost_commits, rival.lost_commits),
        ("rows missing", locked.missing_rows, rival.missing_rows),
        ("duplicate rows", locked.duplicate_rows, rival.duplicate_rows),
        # With the lock nothing is put before its turn.
        ("commits that lost a race (conflicts)", None, rival.conflicts),
        ("writes done again by the job (retries)", None, rival.retries),
        ("writers that failed", len(locked.failed_writers), len(rival.failed_writers)),
    ):
        bad = name not in _TIMES and other > (one or 0)
        table.add_row(name, "-" if one is None else f"{one:,}", Text(f"{other:,}", style="bold red" if bad else ""))
    console.print(table)


_TIMES = ("wall time, s", "from first request to last commit, s", "commits acknowledged")


def print_problems(problems: Sequence[str], console: Console, *, word: str = "problem") -> None:
    """Print what is wrong, a sentence per line."""
    for problem in problems:
        console.print(Text.assemble((f"{word}: ", "bold red"), problem), soft_wrap=True)


def print_last_words(writer: Writer, lines: Sequence[str], console: Console) -> None:
    """Print what a failed writer said last."""
    console.print(Text(f"writer {writer.number} ended with exit code {writer.exit_code}; it said:", style="bold red"))
    for line in lines or ["(nothing)"]:
        console.print(Text("  " + line, style="dim"), soft_wrap=True)


def _checks(outcome: Outcome) -> list[tuple[str, int, int]]:
    return [
        ("rows in the table", outcome.rows_found, outcome.rows_expected),
        ("rows missing", outcome.missing_rows, 0),
        ("duplicate rows", outcome.duplicate_rows, 0),
        ("rows that are not from the source", outcome.unexpected_rows, 0),
        ("columns whose sums differ from the source", len(outcome.checksum_mismatches), 0),
        ("commits in the log, as acknowledged", outcome.commits_in_log, outcome.commits_acknowledged),
        ("acknowledged commits that are missing", outcome.lost_commits, 0),
        ("versions missing from the log", outcome.missing_versions, 0),
        ("times that two held the lock at once", outcome.overlapping_holds, 0),
        ("writers that failed", len(outcome.failed_writers), 0),
    ]


def _seconds(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.2f} s"
