"""The Python of docs/python-writers.md runs with replaced addresses. Its statements about late writers are true."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
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
    with lake() as server:
        yield server


def page_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def run_page(zookeeper: Any) -> Callable[[str], None]:
    """Run the blocks with ZooKeeper in order, with the addresses of this test."""

    def run(table: str) -> None:
        names: dict[str, Any] = {}
        for block in page_blocks()[:-1]:
            assert "zk1:2181,zk2:2181,zk3:2181" in block
            code = block.replace("zk1:2181,zk2:2181,zk3:2181", zookeeper.hosts).replace("s3://lake/prices", table)
            exec(compile(code, str(PAGE), "exec"), names)  # noqa: S102 (our own page)

    return run


@pytest.mark.s3
def test_the_page_s_python_locks_on_s3(s3: S3) -> None:
    block, table = page_blocks()[-1], f"s3://{s3.root}/lease-prices"
    assert "s3-lease://lake-locks/sluice" in block
    names = {
        "TABLE": table,
        "prices": pa.table({"item": ["pen", "ink"], "price": [1.5, 7.0]}),
        "write_deltalake": write_deltalake,
        "CommitProperties": CommitProperties,
    }
    for _ in range(2):
        exec(block.replace("s3-lease://lake-locks/sluice", f"s3-lease://{s3.root}/locks"), names)  # noqa: S102 (our own page)
    stamps = [json.loads(commit["sluice"]) for commit in DeltaTable(table).history()]
    assert len({stamp["hold"] for stamp in stamps}) == 2
    assert len({stamp["ensemble"] for stamp in stamps}) == 1


@pytest.mark.parametrize("store", [pytest.param("s3", marks=pytest.mark.s3), "local"])
def test_verify_reads_the_stamps_of_the_page_s_python(
    s3: S3, tmp_path: Path, run_page: Callable[[str], None], store: str
) -> None:
    table = str(tmp_path / "prices") if store == "local" else f"s3://{s3.root}/prices"
    run_page(table)
    report = verify_table(table, key=["item"])
    assert report.problems == ()
    assert (report.commits, report.locked_commits, report.unfenced_commits, report.unlocked_commits) == (2, 2, 2, 0)
    rows = DeltaTable(table).to_pandas().sort_values("item")
    assert rows["price"].round(2).tolist() == [7.7, 1.65]

    output = CliRunner().invoke(app, ["verify", table]).stdout
    assert re.search(r"stamped by the writer, not fenced by the guard +2", output)
    newest, oldest = json.loads(CliRunner().invoke(app, ["log", table, "--json"]).stdout)["commits"]
    assert [(commit["job"], commit["locked"], commit["fenced"]) for commit in (oldest, newest)] == [
        ("prices", True, False),
        ("raise", True, False),
    ]
    assert newest["hold"] != oldest["hold"]
    (newest_token,), (oldest_token,) = newest["tokens"].values(), oldest["tokens"].values()
    assert newest_token > oldest_token


def test_the_page_refuses_another_ensemble_or_table_name(tmp_path: Path, run_page: Callable[[str], None]) -> None:
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


def test_a_late_writer_that_calls_check_is_stopped(zookeeper: Any, tmp_path: Path) -> None:
    """The lock orders the writer but does not fence it: ``verify`` reports a late commit without ``check``."""
    table = str(tmp_path / "t")
    settings = LockSettings(zk_hosts=zookeeper.hosts, timeout_seconds=60)
    with ZookeeperLockManager(settings) as manager, RivalManager(settings) as rival:
        late_hold = manager.acquire(table)
        late_hold.check()
        append(table, late_hold)
        with LockInspector(settings) as inspector:
            locks = inspector.table(TableResource.of(table))
            assert inspector.remove(locks, locks.holders[0])
        with rival.acquire(table) as hold:
            append(table, hold)
        with pytest.raises(LockLostError):
            late_hold.check()
        assert verify_table(table).problems == ()
        append(table, late_hold)
        (problem,) = [problem for problem in verify_table(table).problems if "token" in problem]
        assert problem.startswith("version 2 carries fencing token")
        with pytest.raises(LockLostError):
            late_hold.release()
