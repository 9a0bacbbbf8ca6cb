"""docs/develop.md is correct: its map names every package, and its promises name tests of `make test`.

The public reports in docs/reliability.md name existing tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.test_names import exists

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "develop.md"
PROMISES = 10


def promises() -> list[list[str]]:
    """Return the rows of the table of promises."""
    return rows_of_table(PAGE, "promises")


def rows_of_table(page: Path, name: str) -> list[list[str]]:
    """Return the rows of a table between ``<!-- NAME -->`` and ``<!-- end -->``."""
    table = page.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")[2].partition("<!-- end -->")[0]
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()[2:]]


def named_tests(cell: str) -> list[str]:
    return re.findall(r"`([\w/]+\.py::\w+)`", cell)


def test_each_promise_names_existing_tests_and_a_control() -> None:
    rows = promises()
    assert [row[0].partition(".")[0] for row in rows] == [f"{number}" for number in range(1, PROMISES + 1)]
    for _, tests, control, seconds in rows:
        assert int(seconds) > 0
        assert named_tests(tests)
        assert named_tests(control)
        assert not [test for test in named_tests(tests) + named_tests(control) if not exists(test)]


def test_each_public_report_names_an_existing_test() -> None:
    rows = rows_of_table(PAGE.with_name("reliability.md"), "reports")
    assert rows
    for *_, tests in rows:
        assert named_tests(tests)
        assert not [test for test in named_tests(tests) if not exists(test)]


def find_in_make_test(tests: Iterable[str]) -> set[str]:
    """Return the tests that have a case in `make test`."""
    files = sorted({f"tests/{test.partition('::')[0]}" for test in tests})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", "not full and not soak", *files]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120)
    return {line.removeprefix("tests/").partition("[")[0] for line in process.stdout.splitlines() if "::" in line}


def test_the_tests_of_promises_are_part_of_make_test() -> None:
    tests = {test for row in promises() for cell in row[1:3] for test in named_tests(cell)}
    # The control: `make test` does not contain a soak.
    soak = "faults/test_hot_merges.py::test_merges_of_many_drivers_are_serializable"
    assert exists(soak)
    assert {*tests, soak} - find_in_make_test([*tests, soak]) == {soak}


@pytest.mark.parametrize("test", ["unit/test_develop.py::test_nothing_of_this_name", "unit/test_gone.py::test_x"])
def test_negative_control_a_missing_test_is_detected(test: str) -> None:
    assert not exists(test)


def paths_in_map() -> set[str]:
    """Return the paths in the map. The folder of a line is the last line above it with a smaller indentation."""
    tree = PAGE.read_text(encoding="utf-8").partition("## Map\n\n```\n")[2].partition("```")[0]
    paths: set[str] = set()
    parents: dict[int, str] = {}
    for line in tree.splitlines():
        depth = len(line) - len(line.lstrip())
        folder = "".join(name for level, name in sorted(parents.items()) if level < depth)
        names = re.findall(r"(?:^|[\s,])([\w]+(?:\.py|/))(?=[\s,]|$)", line)
        first_word = line.split()[0]
        # A line that begins with a folder lists the folder's siblings or its contents.
        paths |= {
            inner_path
            if first_word.endswith("/") and (ROOT / (inner_path := folder + first_word + name)).exists()
            else folder + name
            for name in names
        }
        parents = {level: name for level, name in parents.items() if level < depth}
        if first_word.endswith("/"):
            parents[depth] = first_word
    return paths


def test_the_paths_in_the_map_exist() -> None:
    assert [path for path in paths_in_map() if not (ROOT / path).exists()] == []


def test_every_package_is_in_the_map() -> None:
    packages = {
        f"{path.parent.relative_to(ROOT)}/"
        for package in ("lock_manager", "writer_jobs", "sluice", "soak")
        for path in (ROOT / package).rglob("__init__.py")
    }
    assert packages - paths_in_map() == set()


def anchors_of(page: Path) -> set[str]:
    """Return the anchors that GitHub creates for the headings of a page, and the page's own anchors."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return anchors | set(re.findall(r'<a id="([^"]+)">', text))


def test_links_between_pages_have_a_target() -> None:
    broken_links = []
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)", text):
            linked_page = page.parent / target if target else page
            if not linked_page.exists() or (anchor and anchor not in anchors_of(linked_page)):
                broken_links.append(f"{page.name}: {target}#{anchor}")
    assert broken_links == []
