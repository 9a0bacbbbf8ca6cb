"""scripts/matrix.py tests each pair of Spark and Delta Lake, and reports failures and skipped tests."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from lock_manager.releases import TESTED
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "compatibility.md"


def load_matrix() -> ModuleType:
    spec = importlib.util.spec_from_file_location("matrix", ROOT / "scripts" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks up its module.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


matrix = load_matrix()


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(matrix, "BUILD", tmp_path)
    pair = matrix.Pair("4.1", "4.2.0")
    pair.folder.mkdir()
    return pair


def rows_of_table(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def run_tests(pair: Any, monkeypatch: pytest.MonkeyPatch, output: str, tests: tuple[str, ...], *, quick: bool) -> None:
    monkeypatch.setattr(matrix.Pair, "run", lambda *_, **__: output)
    matrix.core_tests(pair, tests, 1, quick=quick)


def is_ended(process_id: str) -> bool:
    """Return whether a process is gone or a zombie."""
    status = subprocess.run(["ps", "-o", "stat=", "-p", process_id], capture_output=True, text=True, check=False)
    return status.stdout.strip()[:1] in ("", "Z")


def test_the_table_shows_failed_steps_and_steps_that_did_not_run() -> None:
    passed = {"hadoop": "3.4.2", "java": "17", "python": "3.11", "append": "90 rows", "demo": "0 lost commits"}
    pairs = [
        matrix.Pair("4.2", "4.4.0", seconds={"tests": 2.4}, results={**passed, "tests": "3 passed, 1 skipped"}),
        matrix.Pair("4.1", "4.2.0", seconds={"install": 1, "append": 2, "demo": 3, "tests": 4}, results=passed),
        matrix.Pair("4.0", "4.0.1", seconds={"install": 1}),
        matrix.Pair("4.0", "4.0.0"),
    ]
    header, _, *rows = rows_of_table(matrix.table(pairs))
    assert [header.index(column) for column in ("append", "core tests", "seconds")] == [5, 6, 8]
    assert rows == [
        ["4.2.0", "4.4.0", "3.4.2", "17", "3.11", "90 rows", "3 passed, 1 skipped", "0 lost commits", "2"],
        ["4.1.1", "4.2.0", "3.4.2", "17", "3.11", "90 rows", "**failed**", "0 lost commits", "10"],
        ["4.0.2", "4.0.1", *["**failed**"] * 3, *["not run"] * 3, "1"],
        ["4.0.2", "4.0.0", *["not run"] * 6, "0"],
    ]
    assert "tests of CI" in matrix.table(pairs, quick=True)
    assert matrix.durations(pairs[1]) == "4.1/4.2.0: install 1 s, append 2 s, demo 3 s, tests 4 s"


@pytest.mark.parametrize(
    ("output", "counts"),
    [
        ("12 passed, 2 skipped, 1 warning in 31.20s\n", {"passed": 12, "skipped": 2}),
        ("=== 12 passed, 3 xfailed, 4 deselected in 131.20s (0:02:11) ===\n", {"passed": 12, "xfailed": 3}),
        ("no tests ran in 0.01s\n", {}),
    ],
)
def test_outcomes_are_read_from_the_last_line_of_pytest(output: str, counts: dict[str, int]) -> None:
    assert matrix.outcomes(f"2.4s setup    test_a\n{output}") == counts


@pytest.mark.parametrize("output", ["1 passed, 1 skipped in 3.00s", "1 passed in 3.00s", "no tests ran in 0.01s"])
def test_ci_accepts_no_skipped_test(pair: Any, monkeypatch: pytest.MonkeyPatch, output: str) -> None:
    with pytest.raises(matrix.StepError, match="each test of CI must pass"):
        run_tests(pair, monkeypatch, output, ("a", "b"), quick=True)
    assert pair.results == {}


def test_skipped_core_tests_are_counted(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run_tests(pair, monkeypatch, "5 passed, 1 skipped in 3.00s", ("a", "b"), quick=False)
    assert pair.results == {"tests": "5 passed, 1 skipped"}


def test_excluded_tests_are_deselected_and_counted(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = []
    monkeypatch.setattr(matrix.Pair, "run", lambda *arguments, **_: commands.append(arguments) or "5 passed in 3.00s")
    monkeypatch.setattr(matrix, "EXCLUDED", {"a::b": ("4.1/4.2.0",), "a::c": ("4.0/4.0.0",)})
    matrix.core_tests(pair, ("a",), 1, quick=False)
    assert commands[0][-3:] == ("a", "--deselect", "a::b")
    assert pair.results == {"tests": "5 passed, 1 excluded"}


@pytest.mark.parametrize(("test", "pairs"), matrix.EXCLUDED.items())
def test_excluded_tests_are_core_tests_of_known_pairs(test: str, pairs: tuple[str, ...]) -> None:
    assert {test, test.partition("::")[0]} & {*matrix.CORE}
    assert {*pairs} <= {f"{line}/{delta}" for line, deltas in TESTED.items() for delta in deltas}


def test_any_error_of_a_step_is_an_error_of_its_pair_only(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(failing_pair: Any, wheel: Path) -> None:
        raise IndexError("list index out of range")

    monkeypatch.setattr(matrix, "install", fail)
    other = matrix.Pair("4.0", "4.0.0")
    first_error, other_error = matrix.examine_all([pair, other], Path(), 1, quick=True)
    assert first_error.startswith("4.1/4.2.0: install: IndexError: list index out of range")
    assert other_error.startswith("4.0/4.0.0: install: IndexError")
    assert "**failed**" in matrix.table([pair, other])


def test_a_step_that_takes_too_long_is_stopped(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(matrix.LIMITS, "demo", 0.1)
    with pytest.raises(matrix.StepError, match=r"demo took more than 0.1 s, see .*demo.log"):
        pair.run("demo", "sleep", "600")
    assert pair.processes == set()


def test_a_server_and_its_children_are_stopped_after_an_error(pair: Any) -> None:
    log = pair.folder / "server.log"
    with pytest.raises(matrix.StepError, match="append ended with 3"):
        with pair.start(log, "bash", "-c", "sleep 600 & echo $!; wait", folder=pair.folder) as server:
            eventually(log.read_text)
            pair.run("append", "bash", "-c", "exit 3")
    eventually(lambda: is_ended(log.read_text().strip()))
    assert (server.returncode, pair.processes) == (-15, set())


@pytest.mark.parametrize("test", [*matrix.CORE, *matrix.QUICK, *matrix.EXCLUDED])
def test_each_test_of_a_pair_exists(test: str) -> None:
    file, _, name = test.partition("::")
    functions = {
        node.name for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body if hasattr(node, "name")
    }
    assert not name or name in functions


def test_the_page_has_a_row_for_each_tested_pair() -> None:
    tables = re.findall(r"(?:^\|.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    rows = next(rows for rows in map(rows_of_table, tables) if rows[0][:2] == ["Spark", "Delta Lake"])
    pairs = [(matrix.PYSPARK[line], delta) for line, deltas in TESTED.items() for delta in deltas]
    assert sorted((row[0], row[1]) for row in rows[2:]) == sorted(pairs)
    assert not [cell for row in rows for cell in row if cell in ("**failed**", "not run")]


def test_an_unclosed_socket_is_an_error() -> None:
    """Also with Spark 4.0 and 4.1: ``tests/conftest.py`` closes PySpark's sockets and does not ignore the warning."""
    with pytest.raises(ResourceWarning):
        warnings.warn(
            "unclosed <socket.socket fd=9, laddr=('127.0.0.1', 2), raddr=('127.0.0.1', 3)>", ResourceWarning,
            stacklevel=1,
        )  # fmt: skip
