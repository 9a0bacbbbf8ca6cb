"""docs/python-writers.md: its Python runs as it stands, and what it says of late writers is so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from typer.testing import CliRunner

from lock_manager import (
    EnsembleMismatchError,
    LockLostError,
    LockSettings,
    TableNameMismatchError,
    TableResource,
    ZookeeperLockManager,
    commit_metadata,
)
from lock_manager.zookeeper.inspector import LockInspector
from sluice.audit.verify import verify_table
from sluice.commands.app import app
from tests.support.lake import S3, lake
from tests.support.rivals import RivalManager

PAGE = Path(__file__).parents[2] / "docs" / "python-writers.md"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with lake() as running:
        yield running


@pytest.fixture
def run_page(zookeeper: Any) -> Callable[[str], None]:
    """Run the page's blocks one after the other, with the addresses of here."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)

    def run(table: str) -> None:
        names: dict[str, Any] = {}
        for block in blocks:
            assert "zk1:2181,zk2:2181,zk3:2181" in block
            here = block.replace("zk1:2181,zk2:2181,zk3:2181", zookeeper.hosts).replace("s3://lake/prices", table)
            exec(compile(here, str(PAGE), "exec"), names)  # noqa: S102 (our own page)

    assert len(blocks) == 2
    return run


@pytest.mark.parametrize("place", [pytest.param("s3", marks=pytest.mark.s3), "local"])
def test_the_page_s_python_runs_and_verify_sees_what_it_notes(
    s3: S3, tmp_path: Path, run_page: Callable[[str], None], place: str
) -> None:
    table = str(tmp_path / "prices") if place == "local" else f"s3://{s3.root}/prices"
    run_page(table)
    found = verify_table(table, key=["item"])
    assert found.problems == ()
    assert (found.commits, found.locked_commits, found.unfenced_commits, found.unlocked_commits) == (2, 2, 2, 0)
    rows = DeltaTable(table).to_pandas().sort_values("item")
    assert rows["price"].round(2).tolist() == [7.7, 1.65]

    told = CliRunner().invoke(app, ["verify", table])
    assert re.search(r"stamped by the writer, not fenced by the guard +2", told.stdout)
    newest, oldest = json.loads(CliRunner().invoke(app, ["log", table, "--json"]).stdout)["commits"]
    assert [(each["job"], each["locked"], each["fenced"]) for each in (oldest, newest)] == [
        ("prices", True, False),
        ("raise", True, False),
    ]
    assert newest["hold"] != oldest["hold"]
    (newer,), (older,) = newest["tokens"].values(), oldest["tokens"].values()
    assert newer > older


def test_another_ensemble_or_name_than_the_table_s_own_is_refused_by_the_page(
    tmp_path: Path, run_page: Callable[[str], None]
) -> None:
    table = str(tmp_path / "prices")
    run_page(table)
    DeltaTable(table).alter.set_table_properties({"sluice.ensemble": "another"}, raise_if_not_exists=False)
    with pytest.raises(EnsembleMismatchError, match="is adopted by ensemble another"):
        run_page(table)
    DeltaTable(table).alter.set_table_properties({"sluice.table": "s3://elsewhere/t"}, raise_if_not_exists=False)
    with pytest.raises(TableNameMismatchError, match="is adopted under the name s3://elsewhere/t"):
        run_page(table)


def append(table: str, hold: Any) -> None:
    import pandas as pd

    metadata = CommitProperties(custom_metadata=commit_metadata(hold))
    write_deltalake(table, pd.DataFrame({"id": [1]}), mode="append", commit_properties=metadata)


def test_check_stops_a_writer_that_asks_and_verify_finds_one_that_does_not(zookeeper: Any, tmp_path: Path) -> None:
    """The sentence "this orders such a writer; it does not fence it", both halves of it."""
    table = str(tmp_path / "t")
    settings = LockSettings(zk_hosts=zookeeper.hosts, timeout_seconds=60)
    with ZookeeperLockManager(settings) as one, RivalManager(settings) as other:
        late = one.acquire(table)
        late.check()
        append(table, late)
        with LockInspector(settings) as inspector:
            locks = inspector.table(TableResource.of(table))
            assert inspector.remove(locks, locks.holders[0])
        with other.acquire(table) as hold:
            append(table, hold)
        with pytest.raises(LockLostError):
            late.check()
        assert verify_table(table).problems == ()
        append(table, late)
        (problem,) = [each for each in verify_table(table).problems if "token" in each]
        assert problem.startswith("version 2 carries fencing token")
        with pytest.raises(LockLostError):
            late.release()
