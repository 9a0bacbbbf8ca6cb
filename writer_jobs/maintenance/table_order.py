"""In which order tables are looked after within a budget: the one where most is to be gained first."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Sequence

from pyspark.sql import SparkSession

from writer_jobs.maintenance.measure import Measured, measure, ordered_by
from writer_jobs.maintenance.plan import plan
from writer_jobs.maintenance.policy import Action

log = logging.getLogger(__name__)

#: To look at the tables takes no more than this share of the budget.
_LOOKING = 0.5


def most_valuable_first(
    spark: SparkSession,
    tables: Sequence[str],
    actions: Collection[Action] | None,
    *,
    budget_seconds: float | None,
    zorder_by: tuple[str, ...] = (),
) -> list[tuple[str, Measured | None]]:
    """Return tables in the order in which they are looked after, with what is known of each.

    With a budget, all are looked at before anything is done, for half of it at most, and the one where what is to be
    done is worth most comes first. Those for which that time does not suffice are chosen at random, and come last.

    Args:
        spark: the session.
        tables: locations or names.
        actions: what is to be done; None: what the findings say.
        budget_seconds: for all tables; None: as long as it takes, so that their order does not matter.
        zorder_by: columns, instead of those of each table's policy.

    """
    if budget_seconds is None or len(tables) == 1:
        return [(table, None) for table in tables]
    end = time.monotonic() + budget_seconds * _LOOKING
    known: list[tuple[float, str, Measured]] = []
    for table in random.sample(tables, len(tables)):
        if time.monotonic() >= end:
            break
        try:
            found = measure(spark, table)
            wanted = ordered_by(found, zorder_by) if zorder_by else found
        except Exception as error:  # noqa: BLE001 (whoever looks after it says what is wrong)
            log.info("%s comes last: %s", table, error)
            continue
        known.append((sum(unit.worth for unit in plan(wanted.health, wanted.policy, actions)), table, found))
    known.sort(key=lambda each: -each[0])
    looked_at = {table for _, table, _ in known}
    return [
        *((table, found) for _, table, found in known),
        *((table, None) for table in tables if table not in looked_at),
    ]
