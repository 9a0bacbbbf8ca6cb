"""The plan of faults: the seed chooses single faults and pairs, their points, and the first fault's writer."""

from __future__ import annotations

import random
from collections.abc import Iterator

from soak.controls import Protection
from soak.engines import SPARK
from soak.fault_context import OFFERS, PUT
from soak.faults import CLASSES, FaultClass
from soak.options import SoakOptions
from soak.pairs import Pair, PairKind, pair_kinds
from soak.s3_faults import FaultGate

_ALONE_SHARE = 0.25


def plan_faults(options: SoakOptions, gate: FaultGate | None) -> Iterator[Pair]:
    """Yield an endless plan. Each round has all classes in a new random order, each alone or with a partner."""
    seeded_random = random.Random(f"{options.seed}/plan")  # noqa: S311 (a repeatable choice, no secret)
    # Without a gate in front of S3 no PUT can be held back.
    unreachable = {PUT} if gate is None else set()
    makes_groups = options.makes_groups and options.without != Protection.GUARD
    if not makes_groups:
        unreachable.add(OFFERS)
    if options.without == Protection.GUARD:
        # Without a guard no writer reaches `checked`, the point after the guard's answer, and a Spark writer reports
        # no version before its PUT.
        unreachable |= {"checked", PUT} if options.engine == SPARK.name else {"checked"}

    def points_of(fault: FaultClass) -> list[str]:
        return [point for point in fault.points if point not in unreachable]

    kinds = pair_kinds(options.faults, points_of, makes_groups=makes_groups)
    while True:
        classes = [CLASSES[name] for name in options.faults]
        seeded_random.shuffle(classes)
        for fault in classes:
            writer = f"writer-{seeded_random.randint(1, options.writers)}"
            kind = _choose_kind(fault, kinds, seeded_random)
            if kind is None:
                yield Pair(fault, writer, seeded_random.choice(points_of(fault)))
            else:
                points = seeded_random.choice(kind.points), seeded_random.choice(kind.second_points)
                yield Pair(kind.first, writer, points[0], kind.second, points[1], kind.meeting)


def _choose_kind(fault: FaultClass, kinds: list[PairKind], seeded_random: random.Random) -> PairKind | None:
    """Return a random kind of pair that contains the class; None if the class strikes alone.

    It chooses the combination of effects first, so that each combination is equally likely.
    """
    candidates = [kind for kind in kinds if fault in (kind.first, kind.second)]
    if not candidates or seeded_random.random() < _ALONE_SHARE:
        return None
    effects = seeded_random.choice(sorted({kind.effects for kind in candidates}))
    return seeded_random.choice([kind for kind in candidates if kind.effects == effects])
