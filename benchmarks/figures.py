"""Statistics and tables of benchmarks. The module needs no packages, because Iceberg's environment has only PySpark."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESAMPLES = 2000
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(jvm: int) -> float:
    """Return the processor time that this process, its JVM and the agent of that JVM have used so far, in seconds."""
    command = ["ps", "-o", "pid=", "--ppid", str(jvm)]
    children = subprocess.run(command, check=False, capture_output=True, text=True).stdout.split()
    total = 0
    for pid in (os.getpid(), jvm, *children):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def percentile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]


def named(name: str, values: dict[str, float]) -> dict[str, float]:
    return {f"{name}_{kind}": value for kind, value in values.items()}


def ratio(values: list[float], plain: list[float], figure: Callable[[Iterable[float]], float]) -> dict[str, float]:
    """Return the ratio of a figure of two lists of the same rounds, and its interval."""
    generator = random.Random(1)  # noqa: S311 (reproducible, not secret)
    ratios = []
    for _ in range(RESAMPLES):
        sample = [generator.randrange(len(values)) for _ in values]
        ratios.append(figure(values[i] for i in sample) / max(figure(plain[i] for i in sample), 1 / TICKS))
    return {
        "ratio": figure(values) / max(figure(plain), 1 / TICKS),
        "low": percentile(ratios, 0.025),
        "high": percentile(ratios, 0.975),
    }


def save(output: Path, figures: Any) -> None:
    """Write figures as JSON, and create the folder of the file if it does not exist."""
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


def print_table(rows: list[dict[str, Any]]) -> None:
    names = list(rows[0])
    cells = [names] + [
        [f"{row[name]:.2f}" if isinstance(row[name], float) else str(row[name]) for name in names] for row in rows
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(len(names))]
    for number, line in enumerate(cells):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    print()
