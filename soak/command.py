"""The command ``python -m soak``, from its options to its result."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from sluice.console import plain_console
from soak.options import SoakOptions
from soak.progress_line import progress_line
from soak.report import print_verdict, summary, write_report
from soak.run import Progress, Soak
from soak.verdict import judge


def choose_faults(text: str, options: SoakOptions) -> tuple[str, ...]:
    """Return the classes of faults for the value of ``--faults``.

    Args:
        text: ``none``, ``all`` or a comma-separated list; :class:`SoakOptions` refuses unknown classes.
        options: Options of the run, which decide on the classes for ``all``.

    """
    if text == "none":
        return ()
    if text == "all":
        for service in dict.fromkeys(options.unavailable_faults.values()):
            names = ", ".join(name for name, needed in options.unavailable_faults.items() if needed == service)
            sys.stderr.write(f"left out: {names} (needs {service})\n")
        return options.available_faults() if options.writers > 1 else ()
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def run_soak(options: SoakOptions, *, as_json: bool, must_strike: bool = False) -> bool:
    """Run a soak and print the verdict.

    Args:
        options: Options of the run.
        as_json: Whether the verdict is printed as JSON.
        must_strike: Whether the soak fails if a class of faults never struck.

    Returns:
        Whether all invariants hold, and each class of faults that must strike has struck.

    """
    console = plain_console()
    stderr_console = plain_console(stderr=True)
    with stderr_console.status("starting …") as status, Soak(options) as soak:
        soak.start_writers()
        soak.run(_progress_callback(options, progress_line(stderr_console, status)))
        status.update("reading the tables …")
        evidence = soak.evidence()
        violations = judge(evidence)
        verdict = summary(options, soak.progress, evidence, violations)
    write_report(options, verdict, violations, evidence)
    if as_json:
        print(json.dumps(verdict, indent=2))
    else:
        print_verdict(verdict, violations, console)
        console.print(f"history, verdict and picture: {options.output}", soft_wrap=True)
    missing_faults = verdict["did_not_strike"] if must_strike else []
    if missing_faults:
        message = (
            f"{', '.join(missing_faults)} never struck, so this run does not test it: "
            "raise --commits or --minutes, or lower --gap"
        )
        stderr_console.print(message, style="bold red", soft_wrap=True)
    return not violations and not missing_faults


def _progress_callback(options: SoakOptions, show_line: Callable[[str], None]) -> Callable[[Progress], None]:
    started = time.monotonic()

    def show(progress: Progress) -> None:
        counts, elapsed = progress.counts, f"{time.monotonic() - started:,.0f} s"
        if options.minutes:
            line = f"{elapsed} of {options.minutes:g} min: {counts['acknowledged']:,} acknowledged"
        else:
            line = f"{elapsed}: {counts['acknowledged']:,} of {options.commits:,} acknowledged"
        line += f", {counts['refused']:,} refused, {counts['unknown']:,} unknown, {progress.faults.total():,} faults"
        show_line(line + (f"; now {progress.current_fault}" if progress.current_fault else ""))

    return show
