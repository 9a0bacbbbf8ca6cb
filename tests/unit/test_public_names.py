"""A name of a module without a leading underscore is public, and says what it is: one line, with its unit."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("lock_manager", "writer_jobs", "sluice")
#: Names that say it by themselves.
CONVENTIONS = {
    "log": "the module's logger, so named everywhere",
    "app": "typer's object, whose help is what it says",
    "config": "likewise",
    "ensemble": "likewise",
}


def undocumented(text: str) -> Iterator[str]:
    """Yield the public names that a module assigns without a docstring below or a comment directly above."""
    tree, lines = ast.parse(text), text.splitlines()
    for node, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        is_above = node.lineno > 1 and lines[node.lineno - 2].startswith("#")
        if not is_above and not _is_text(following):
            yield from (name for name in names if not name.startswith("_"))


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_each_public_name_is_documented() -> None:
    found = {
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in undocumented(path.read_text(encoding="utf-8"))
        if name not in CONVENTIONS
    }
    assert found == set()


def test_one_that_is_not_documented_is_found() -> None:
    """Negative control."""
    text = '''
import re

FIRST = 1
SECOND: int = 2
"""Seconds."""
#: Bytes.
THIRD = 3
FOURTH, _FIFTH = 4, 5
# Why.
_SIXTH = 6
SEVENTH = re.compile(
    # not above it
    "x"
)
'''
    assert list(undocumented(text)) == ["FIRST", "FOURTH", "SEVENTH"]
