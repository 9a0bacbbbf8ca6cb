"""Negative controls of a holder's terms for the members of its version: their marks, and the table's metadata."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Self

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from lock_manager import Hold, ZookeeperLockManager
from lock_manager.guard import ticket
from lock_manager.guard.group_commit import GroupTerms, OfferedAppend
from tests.integration.test_group_commits import SETTING, Table
from writer_jobs import LockedDeltaWriter, WriteFailedError

pytestmark = [pytest.mark.spark, pytest.mark.full]

WAIT = 60.0


@pytest.fixture
def table(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Table]:
    """A table with this driver's append as its version 1; the driver makes group commits."""
    conf: Any = spark.sparkContext._jsc.sc().conf()
    conf.set(SETTING, "true")
    table = Table.create(request, "CREATE TABLE {t} (id LONG, part LONG) USING delta")
    table.append(0)
    yield table
    conf.remove(SETTING)


class NoMarks(set[str]):
    """Marks that stay empty."""

    def __ior__(self, _: object) -> Self:  # type: ignore[override,misc]
        return self


@pytest.mark.parametrize("compares", [True, False])
def test_a_repeated_load_is_there_twice_if_marks_are_not_compared(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, compares: bool
) -> None:
    if not compares:
        terms_of = GroupTerms.of
        monkeypatch.setattr(
            GroupTerms, "of", staticmethod(lambda request: replace(terms_of(request), transactions=NoMarks()))
        )
    with table.queued(*(lambda number=number: table.append(number, txn=("loads", 1)) for number in (1, 2))):
        pass
    assert table.ids() == ([0, 1] if compares else [0, 1, 2])


class LateManager(ZookeeperLockManager):
    """A lock manager whose requests wait for :attr:`go`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asks, self.go = threading.Event(), threading.Event()

    def acquire_all(self, *tables: Any, **options: Any) -> Hold:
        self.asks.set()
        assert self.go.wait(WAIT)
        return super().acquire_all(*tables, **options)


@pytest.mark.parametrize("compares", [True, False])
def test_a_row_violates_a_constraint_if_metadata_is_not_compared(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, compares: bool
) -> None:
    """The member has prepared its append before the constraint was added, and requests the lock afterwards."""
    if not compares:
        choose = GroupTerms.choose

        def choose_any(terms: GroupTerms, offers: Mapping[str, Mapping[str, Any]]) -> dict[str, OfferedAppend]:
            return choose(terms, {name: {**offer, "state": terms.state} for name, offer in offers.items()})

        monkeypatch.setattr(GroupTerms, "choose", choose_any)
    with LateManager(table.manager.settings) as manager, ThreadPoolExecutor(1) as pool:
        rows = table.spark.createDataFrame([(5, 1)], "id long, part long").coalesce(1)
        member = LockedDeltaWriter(table.spark, manager, str(table.path))
        with monkeypatch.context() as patch:
            # The commit does not look for conflicts before its turn.
            patch.setattr(ticket, "TURN_SECONDS", WAIT)
            late = pool.submit(member.append, rows)
            assert manager.asks.wait(WAIT)
        DeltaTable(str(table.path)).alter.add_constraint({"small": "id < 5"})
        table.append(1)
        with table.queued(lambda: table.append(2)):
            manager.go.set()
            table.eventually(lambda: table.queue_length() == 3, within=WAIT)
        error = late.exception(WAIT)
    assert (type(error), table.ids()) == ((WriteFailedError, [0, 1, 2]) if compares else (type(None), [0, 1, 2, 5]))
