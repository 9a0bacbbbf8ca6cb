"""Public module variables are documented: a docstring below, or a comment above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("lock_manager", "writer_jobs", "sluice")
#: Names that need no documentation.
CONVENTIONS = {
    "log": "the module's logger",
    "app": "a typer object; its help documents it",
    "config": "a typer object",
    "ensemble": "a typer object",
}


def undocumented_names(text: str) -> Iterator[str]:
    """Yield the public names that a module assigns without a docstring below or a comment directly above."""
    tree, lines = ast.parse(text), text.splitlines()
    for node, next_node in zip(tree.body, [*tree.body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names = [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        has_comment = node.lineno > 1 and lines[node.lineno - 2].startswith("#")
        if not has_comment and not _is_text(next_node):
            yield from (name for name in names if not name.startswith("_"))


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_each_public_variable_is_documented() -> None:
    assert not {
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name in undocumented_names(path.read_text(encoding="utf-8"))
        if name not in CONVENTIONS
    }


def test_negative_control_undocumented_names_are_found() -> None:
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
    # below it
    "x"
)
'''
    assert list(undocumented_names(text)) == ["FIRST", "FOURTH", "SEVENTH"]
