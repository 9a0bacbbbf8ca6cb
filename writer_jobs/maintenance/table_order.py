"""The order of the tables in a run: within a budget, the table with the most valuable work first."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Sequence

from pyspark.sql import SparkSession

from writer_jobs.maintenance.measure import Measurement, measure, with_zorder
from writer_jobs.maintenance.plan import plan
from writer_jobs.maintenance.policy import Action

log = logging.getLogger(__name__)

# Share of the budget that measuring all tables may take.
_MEASURING_SHARE = 0.5


def order_by_worth(
    spark: SparkSession,
    tables: Sequence[str],
    actions: Collection[Action] | None,
    *,
    budget_seconds: float | None,
    zorder_by: tuple[str, ...] = (),
) -> list[tuple[str, Measurement | None]]:
    """Return tables in the order of their maintenance, each with its measurement if there is one.

    With a budget all tables are measured first, for half of the budget at most, and sorted by the descending worth of
    their work. Tables are measured in random order. Tables that were not measured in time come last.

    Args:
        tables: Locations or names in the catalog.
        actions: Actions to execute; None: those that the findings name.
        budget_seconds: Seconds for all tables; None: no limit, and the tables keep their order.
        zorder_by: Columns of the Z-order in place of each table's policy.

    """
    if budget_seconds is None or len(tables) == 1:
        return [(table, None) for table in tables]
    end = time.monotonic() + budget_seconds * _MEASURING_SHARE
    measured: list[tuple[float, str, Measurement]] = []
    for table in random.sample(tables, len(tables)):
        if time.monotonic() >= end:
            break
        try:
            measurement = measure(spark, table)
            planned = with_zorder(measurement, zorder_by) if zorder_by else measurement
        except Exception as error:  # noqa: BLE001 (the executor reports the error)
            log.info("%s is maintained last: %s", table, error)
            continue
        worth = sum(unit.worth for unit in plan(planned.health, planned.policy, actions))
        measured.append((worth, table, measurement))
    measured.sort(key=lambda entry: -entry[0])
    measured_tables = {table for _, table, _ in measured}
    return [
        *((table, measurement) for _, table, measurement in measured),
        *((table, None) for table in tables if table not in measured_tables),
    ]
