"""docs/develop.md says where what is and which test keeps which promise; it must not rot."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "develop.md"
PROMISES = 6


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
    assert [row[0][:2] for row in found] == [f"{number}." for number in range(1, PROMISES + 1)]
    for _, tests, control, _ in found:
        assert named(tests)
        assert named(control)
        assert not [each for each in named(tests) + named(control) if not exists(each)]
        # Soaks are not part of CI.
        assert not [each for each in named(tests) + named(control) if "hot_merges" in each]


@pytest.mark.parametrize("test", ["unit/test_develop.py::test_nothing_of_this_name", "unit/test_gone.py::test_x"])
def test_a_test_that_is_gone_is_missed(test: str) -> None:
    assert not exists(test)


def test_the_map_names_what_is_there() -> None:
    tree = PAGE.read_text(encoding="utf-8").partition("## The map of the house\n\n```\n")[2].partition("```")[0]
    missing, folder, within = [], ROOT, ""
    for line in tree.splitlines():
        depth = len(line) - len(line.lstrip())
        name = line.split()[0]
        if depth == 0:
            folder = ROOT / name.rstrip("/")
            within = ""
            missing += [] if folder.exists() else [name]
            continue
        if depth == 2:
            within = ""
        for each in re.findall(r"(?:^|[\s,])([\w]+(?:\.py|/))(?=[\s,]|$)", line):
            path = folder / within / each.rstrip("/")
            missing += [] if path.exists() else [str(path.relative_to(ROOT))]
        if depth == 2 and name.endswith("/"):
            within = name.rstrip("/")
    assert missing == []


def test_links_between_pages_lead_somewhere() -> None:
    broken = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text)
        broken += [f"{page.name}: {target}" for target in targets if not (page.parent / target).exists()]
    assert broken == []
