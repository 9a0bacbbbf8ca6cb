"""docs/develop.md says where what is and which test keeps which promise; it must not rot."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "develop.md"
PROMISES = 10


def rows(text: str) -> list[list[str]]:
    table = text.partition("<!-- promises -->\n")[2].partition("<!-- end -->")[0]
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()[2:]]


def named(cell: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py::\w+)`", cell)


def exists(test: str) -> bool:
    file, _, name = test.partition("::")
    path = ROOT / "tests" / file
    if not path.exists():
        return False
    return any(
        isinstance(node, ast.FunctionDef) and node.name == name and name.startswith("test_")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )


def test_each_promise_has_tests_and_a_control_that_are_there() -> None:
    found = rows(PAGE.read_text(encoding="utf-8"))
    assert [row[0].partition(".")[0] for row in found] == [f"{number}" for number in range(1, PROMISES + 1)]
    for _, tests, control, seconds in found:
        assert int(seconds) > 0
        assert named(tests)
        assert named(control)
        assert not [each for each in named(tests) + named(control) if not exists(each)]


def of_ci(tests: Iterable[str]) -> set[str]:
    """Return those tests of which pytest takes at least one parameter without being asked for soaks."""
    files = sorted({f"tests/{test.partition('::')[0]}" for test in tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not full and not soak", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return {line.removeprefix("tests/").partition("[")[0] for line in done.stdout.splitlines() if "::" in line}


def test_what_it_names_is_part_of_ci() -> None:
    promised = {each for row in rows(PAGE.read_text(encoding="utf-8")) for cell in row[1:3] for each in named(cell)}
    soak = "faults/test_hot_merges.py::test_merges_of_many_drivers_are_serializable"
    assert exists(soak)
    assert {*promised, soak} - of_ci([*promised, soak]) == {soak}


@pytest.mark.parametrize("test", ["unit/test_develop.py::test_nothing_of_this_name", "unit/test_gone.py::test_x"])
def test_a_test_that_is_gone_is_missed(test: str) -> None:
    assert not exists(test)


def named_in_the_map() -> set[str]:
    """Return the paths that the map names: a line's folder is the last one above it that is less indented."""
    tree = PAGE.read_text(encoding="utf-8").partition("## Map\n\n```\n")[2].partition("```")[0]
    found: set[str] = set()
    above: dict[int, str] = {}
    for line in tree.splitlines():
        depth = len(line) - len(line.lstrip())
        folder = "".join(name for level, name in sorted(above.items()) if level < depth)
        names = re.findall(r"(?:^|[\s,])([\w]+(?:\.py|/))(?=[\s,]|$)", line)
        first = line.split()[0]
        # Beside a folder are others, or what is in it.
        found |= {
            inner if first.endswith("/") and (ROOT / (inner := folder + first + name)).exists() else folder + name
            for name in names
        }
        above = {level: name for level, name in above.items() if level < depth}
        if first.endswith("/"):
            above[depth] = first
    return found


def test_the_map_names_what_is_there() -> None:
    assert [name for name in named_in_the_map() if not (ROOT / name).exists()] == []


def test_every_package_is_in_the_map() -> None:
    packages = {
        f"{path.parent.relative_to(ROOT)}/"
        for package in ("lock_manager", "writer_jobs", "sluice", "soak")
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert packages - named_in_the_map() == set()


def headings(page: Path) -> set[str]:
    """Return the anchors of a page as GitHub names them, and those that it sets itself."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return anchors | set(re.findall(r'<a id="([^"]+)">', text))


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", text):
            linked = page.parent / target if target else page
            if not linked.exists() or (anchor and anchor not in headings(linked)):
                broken.append(f"{page.name}: {target}#{anchor}")
    assert broken == []
