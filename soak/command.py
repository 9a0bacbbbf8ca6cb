"""``python -m soak``, from its options to its exit code."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from rich.console import Console

from lock_manager import SettingsError
from soak.faults import CLASSES
from soak.options import SoakOptions
from soak.progress_line import progress_line
from soak.report import print_verdict, summary, write_report
from soak.run import Progress, Soak
from soak.verdict import judge


def choose_faults(given: str, options: SoakOptions) -> tuple[str, ...]:
    """Return the classes that ``--faults`` means.

    Raises:
        SettingsError: an unknown class.

    """
    if given == "none":
        return ()
    if given == "all":
        for need in dict.fromkeys(options.unavailable_faults.values()):
            left_out = ", ".join(name for name, what in options.unavailable_faults.items() if what == need)
            sys.stderr.write(f"left out: {left_out} (needs {need})\n")
        return options.available_faults() if options.writers > 1 else ()
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if unknown := sorted(set(names) - set(CLASSES)):
        raise SettingsError(f"--faults {unknown[0]}: choose none, all, or among {', '.join(CLASSES)}")
    return names


def run_soak(options: SoakOptions, *, as_json: bool, must_strike: bool = False) -> bool:
    """Soak, print the verdict, and tell whether all invariants hold.

    Args:
        options: what to do.
        as_json: print the verdict as JSON.
        must_strike: whether it is a failure if a class of faults did not come up.

    """
    console = Console(highlight=False)
    notes = Console(highlight=False, stderr=True)
    with notes.status("starting …") as status, Soak(options) as soak:
        soak.start_writers()
        soak.run(_shower(options, progress_line(notes, status)))
        status.update("reading what is there …")
        evidence = soak.evidence()
        violations = judge(evidence)
        found = summary(options, soak.progress, evidence, violations)
    write_report(options, found, violations, evidence)
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        print_verdict(found, violations, console)
        console.print(f"history, verdict and picture: {options.output}", soft_wrap=True)
    missed = found["did_not_strike"] if must_strike else []
    if missed:
        notes.print(
            f"{', '.join(missed)} never struck, and so nothing is known about it: ask for more --commits or a "
            "smaller --gap",
            style="bold red",
            soft_wrap=True,
        )
    return not violations and not missed


def _shower(options: SoakOptions, show_line: Callable[[str], None]) -> Callable[[Progress], None]:
    started = time.monotonic()

    def show(progress: Progress) -> None:
        goal = f"{options.minutes:g} min" if options.minutes else f"{options.commits:,}"
        seconds = time.monotonic() - started
        counts = progress.counts
        line = (
            f"{seconds:,.0f} s: {counts['acknowledged']:,} of {goal} acknowledged, {counts['refused']:,} refused, "
            f"{counts['unknown']:,} unknown, {progress.faults.total():,} faults"
        ) if not options.minutes else (
            f"{seconds:,.0f} s of {goal}: {counts['acknowledged']:,} acknowledged, {counts['refused']:,} refused, "
            f"{counts['unknown']:,} unknown, {progress.faults.total():,} faults"
        )  # fmt: skip
        if progress.now:
            line += f"; now {progress.now}"
        show_line(line)

    return show
