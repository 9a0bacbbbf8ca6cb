"""A table after the loss of its ensemble.

An ensemble that is rebuilt from one member keeps its id, and the table needs no change. An ensemble without the old
data has a new id, and each table is moved to it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from lock_manager import EnsembleMismatchError, LockLostError, LockSettings, ZookeeperLockManager
from lock_manager.testing.embedded import EmbeddedZooKeeper
from sluice.adopt import AdoptResult, adopt_table
from sluice.audit.commit_list import read_commit_list
from sluice.audit.verify import verify_table
from soak.tcp_proxy import Link
from tests.support.ensemble_members import Members, recover
from writer_jobs import locked

pytestmark = pytest.mark.spark

TRIO = (1, 2, 3)
WAIT_SECONDS = 60


def append(rows: DataFrame, table: str) -> None:
    rows.write.format("delta").mode("append").save(table)


def adopt(spark: SparkSession, table: str, hosts: str, *, move: bool = False) -> AdoptResult:
    return adopt_table(spark, table, LockSettings(zk_hosts=hosts, timeout_seconds=WAIT_SECONDS), move=move)


@pytest.mark.full
def test_a_rebuilt_ensemble_still_owns_its_tables(
    spark: SparkSession,
    tmp_path: Path,
    versions: Callable[[Path], list[str]],
    rows_of: Callable[..., list[tuple[Any, ...]]],
) -> None:
    table = str(tmp_path / "flights")
    with Members(tmp_path / "ensemble", TRIO) as members:
        members.initialize(*TRIO)
        members.start(*TRIO, of=TRIO)
        survivor = members.wait_until_in_sync()
        lost = [member for member in TRIO if member != survivor]
        hosts = members.hosts(*TRIO)
        with ZookeeperLockManager(hosts, WAIT_SECONDS) as manager, locked(spark, table, manager=manager):
            append(spark.range(3), table)
        adopt(spark, table, hosts)
        with Link(hosts) as link:
            with ZookeeperLockManager(link.hosts, WAIT_SECONDS, session_timeout_seconds=6) as cut_off:
                with pytest.raises(LockLostError), locked(spark, table, manager=cut_off) as hold:
                    # The PUT of this intent never arrives.
                    hold.intend(2, txn="lost", attempt="lost")
                    link.refused = True
                    link.drop()
                    members.stop(survivor)
                    members.lose(*lost)
                    recover(members, survivor, lost)
                    link.refused = False
                    append(spark.range(3, 4), table)
        assert len(versions(Path(table))) == 2
        with ZookeeperLockManager(hosts, WAIT_SECONDS) as manager, locked(spark, table, manager=manager) as next_hold:
            append(spark.range(4, 5), table)
        assert next_hold.token > hold.token
    _, (newest, empty_commit, *_) = read_commit_list(table, limit=2)
    assert not isinstance(newest, str)
    assert not isinstance(empty_commit, str)
    assert (newest.version, empty_commit.version) == (3, 2)
    assert verify_table(table).problems == ()
    assert rows_of(table) == [(0,), (1,), (2,), (4,)]


def test_a_new_ensemble_gets_its_tables_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    flights, weather = str(tmp_path / "flights"), str(tmp_path / "weather")
    with EmbeddedZooKeeper() as old:
        with ZookeeperLockManager(old.hosts, WAIT_SECONDS) as manager:
            for table in (flights, weather):
                with locked(spark, table, manager=manager):
                    append(spark.range(3), table)
                adopted = adopt(spark, table, old.hosts)
    with EmbeddedZooKeeper() as new, ZookeeperLockManager(new.hosts, WAIT_SECONDS) as manager:
        for table in (flights, weather):
            with pytest.raises(EnsembleMismatchError, match="--move"), locked(spark, table, manager=manager):
                raise AssertionError("the block must not be entered")
        with pytest.raises(EnsembleMismatchError):
            adopt(spark, flights, new.hosts)
        moved = adopt(spark, flights, new.hosts, move=True)
        assert (moved.moved_from, moved.version) == (adopted.ensemble, 2)
        with locked(spark, flights, manager=manager):
            append(spark.range(3, 4), flights)
        with pytest.raises(EnsembleMismatchError), locked(spark, weather, manager=manager):
            raise AssertionError("the block must not be entered")
        adopt(spark, weather, new.hosts, move=True)
        with locked(spark, weather, manager=manager):
            append(spark.range(3, 4), weather)
    for table in (flights, weather):
        result = verify_table(table)
        assert result.problems == ()
        assert result.ensemble == moved.ensemble
