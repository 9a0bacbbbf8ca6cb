"""The plan of faults: the seed decides which faults strike which writer at which point, alone or in pairs."""

from __future__ import annotations

import random
from collections.abc import Iterator

from soak.controls import Protection
from soak.engines import SPARK
from soak.fault_context import PUT
from soak.faults import CLASSES, FaultClass
from soak.options import SoakOptions
from soak.pairs import Pair, PairKind, pair_kinds
from soak.s3_faults import FaultGate

_ALONE_SHARE = 0.25


def plan_of(options: SoakOptions, gate: FaultGate | None) -> Iterator[Pair]:
    """Yield one pair after the other: all classes in a new order, over and over, each with a partner or alone."""
    chance = random.Random(f"{options.seed}/plan")  # noqa: S311 (to be repeated, not to be secret)
    left_out: set[str] = set()
    if options.without == Protection.GUARD:
        # Where no guard is asked, nobody comes by the point after its answer, and Spark says no version before its put.
        left_out = {"checked", PUT} if options.engine == SPARK.name else {"checked"}

    def points_of(fault: FaultClass) -> list[str]:
        return [point for point in fault.points_with(gate) if point not in left_out]

    kinds = pair_kinds(options.faults, points_of)
    while True:
        classes = [CLASSES[name] for name in options.faults]
        chance.shuffle(classes)
        for fault in classes:
            writer = f"writer-{chance.randint(1, options.writers)}"
            kind = _kind_with(fault, kinds, chance)
            if kind is None:
                yield Pair(fault, writer, chance.choice(points_of(fault)))
            else:
                points = chance.choice(kind.points), chance.choice(kind.second_points)
                yield Pair(kind.first, writer, points[0], kind.second, points[1], kind.meeting)


def _kind_with(fault: FaultClass, kinds: list[PairKind], chance: random.Random) -> PairKind | None:
    """Choose a pair that contains a class: first the effects, then the partner; None to have it strike alone."""
    with_it = [kind for kind in kinds if fault in (kind.first, kind.second)]
    if not with_it or chance.random() < _ALONE_SHARE:
        return None
    effects = chance.choice(sorted({kind.effects for kind in with_it}))
    return chance.choice([kind for kind in with_it if kind.effects == effects])
