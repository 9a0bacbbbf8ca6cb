"""The plan of faults: the seed decides which fault strikes which writer at which point."""

from __future__ import annotations

import random
from collections.abc import Iterator

from sluice.soak.controls import Protection
from sluice.soak.engines import SPARK
from sluice.soak.fault_context import PUT
from sluice.soak.faults import CLASSES, FaultClass
from sluice.soak.options import SoakOptions
from sluice.soak.s3_faults import FaultGate


def plan_of(options: SoakOptions, gate: FaultGate | None) -> Iterator[tuple[FaultClass, str, str]]:
    """Yield class, writer and point of one fault after the other: all classes in a new order, over and over."""
    chance = random.Random(f"{options.seed}/plan")  # noqa: S311 (to be repeated, not to be secret)
    left_out: set[str] = set()
    if options.without == Protection.GUARD:
        # Where no guard is asked, nobody comes by the point after its answer, and Spark says no version before its put.
        left_out = {"checked", PUT} if options.engine == SPARK.name else {"checked"}
    while True:
        classes = [CLASSES[name] for name in options.faults]
        chance.shuffle(classes)
        for each in classes:
            points = [point for point in each.points_with(gate) if point not in left_out]
            yield each, f"writer-{chance.randint(1, options.writers)}", chance.choice(points)
