"""A table after the loss of its ensemble.

An ensemble that is rebuilt from one member keeps its id, and the table needs no change. An ensemble without the old
data has a new id, and each table is moved to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lock_manager import EnsembleMismatchError, Hold, LockLostError, LockSettings, ZookeeperLockManager
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


@dataclass
class Table:
    """A table that Spark writes under locks of several ensembles."""

    spark: SparkSession
    path: str

    def write(self, *bounds: int) -> None:
        self.spark.range(*bounds).write.format("delta").mode("append").save(self.path)

    def append(self, manager: ZookeeperLockManager, *bounds: int) -> Hold:
        with locked(self.spark, self.path, manager=manager) as hold:
            self.write(*bounds)
        return hold

    def assert_refused(self, manager: ZookeeperLockManager) -> None:
        """Assert that a lock of another ensemble is refused."""
        with pytest.raises(EnsembleMismatchError, match="--move"), locked(self.spark, self.path, manager=manager):
            raise AssertionError("the block was entered")

    def adopt(self, hosts: str, *, move: bool = False) -> AdoptResult:
        settings = LockSettings(zk_hosts=hosts, timeout_seconds=WAIT_SECONDS)
        return adopt_table(self.spark, self.path, settings, move=move)


@pytest.mark.full
def test_a_rebuilt_ensemble_still_owns_its_tables(
    spark: SparkSession,
    tmp_path: Path,
    versions: Callable[[Path], list[str]],
    rows_of: Callable[..., list[tuple[Any, ...]]],
) -> None:
    table = Table(spark, str(tmp_path / "flights"))
    with Members(tmp_path / "ensemble", TRIO) as members:
        members.initialize(*TRIO)
        members.start(*TRIO, server_list=TRIO)
        survivor = members.wait_until_in_sync()
        lost_members = [member for member in TRIO if member != survivor]
        hosts = members.hosts(*TRIO)
        with ZookeeperLockManager(hosts, WAIT_SECONDS) as manager:
            table.append(manager, 3)
        table.adopt(hosts)
        with (
            Link(hosts) as link,
            ZookeeperLockManager(link.hosts, WAIT_SECONDS, session_timeout_seconds=6) as cut_off_manager,
            pytest.raises(LockLostError),
            locked(spark, table.path, manager=cut_off_manager) as hold,
        ):
            # The PUT of this intent never arrives.
            hold.intend(2, txn="lost", attempt="lost")
            link.refuses_connections = True
            link.drop()
            members.stop(survivor)
            members.lose(*lost_members)
            recover(members, survivor, lost_members)
            link.refuses_connections = False
            table.write(3, 4)
        assert len(versions(Path(table.path))) == 2
        with ZookeeperLockManager(hosts, WAIT_SECONDS) as manager:
            assert table.append(manager, 4, 5).token > hold.token
    _, (newest, empty_commit, *_) = read_commit_list(table.path, limit=2)
    assert not isinstance(newest, str)
    assert not isinstance(empty_commit, str)
    assert (newest.version, empty_commit.version) == (3, 2)
    assert verify_table(table.path).problems == ()
    assert rows_of(table.path) == [(0,), (1,), (2,), (4,)]


def test_a_new_ensemble_gets_its_tables_one_by_one(spark: SparkSession, tmp_path: Path) -> None:
    flights, weather = (Table(spark, str(tmp_path / name)) for name in ("flights", "weather"))
    with EmbeddedZooKeeper() as old, ZookeeperLockManager(old.hosts, WAIT_SECONDS) as manager:
        for table in (flights, weather):
            table.append(manager, 3)
            adoption = table.adopt(old.hosts)
    with EmbeddedZooKeeper() as new, ZookeeperLockManager(new.hosts, WAIT_SECONDS) as manager:
        for table in (flights, weather):
            table.assert_refused(manager)
        with pytest.raises(EnsembleMismatchError):
            flights.adopt(new.hosts)
        move = flights.adopt(new.hosts, move=True)
        assert (move.moved_from, move.version) == (adoption.ensemble, 2)
        flights.append(manager, 3, 4)
        weather.assert_refused(manager)
        weather.adopt(new.hosts, move=True)
        weather.append(manager, 3, 4)
    for table in (flights, weather):
        result = verify_table(table.path)
        assert result.problems == ()
        assert result.ensemble == move.ensemble
