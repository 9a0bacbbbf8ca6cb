"""The drawings of the error trees are complete: each class of ours is in the one of its package, at its place."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = [ROOT / package / "errors.py" for package in ("lock_manager", "writer_jobs", "sluice")]
# Of the soak's writers alone: what a store answered, told to nobody as an error of this project.
ANSWERS_OF_A_STORE = {"VersionTakenError", "StoreError", "WriteError"}


def drawn(text: str) -> dict[str, str]:
    """Return the classes in the drawing of a module's docstring, with what each is drawn below."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in (ast.get_docstring(ast.parse(text)) or "").splitlines():
        match = re.match(r"^( {4}[│├└ ─]*)(\w+Error)\b", line)
        if match:
            depth = (len(match[1]) - 4) // 4
            above[depth:] = [match[2]]
            found[match[2]] = above[depth - 1] if depth else ""
    return found


def defined(text: str) -> dict[str, list[str]]:
    """Return the classes of errors that a module defines, with their bases."""
    return {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef) and node.name.endswith("Error") and not node.name.startswith("_")
        if any(isinstance(base, ast.Name) and base.id.endswith(("Error", "Exception")) for base in node.bases)
    }


@pytest.mark.parametrize("home", HOMES, ids=lambda home: str(home.relative_to(ROOT)))
def test_each_class_is_drawn_below_its_base(home: Path) -> None:
    text = home.read_text(encoding="utf-8")
    drawing, classes = drawn(text), defined(text)
    assert {name: drawing.get(name) for name in classes} == {
        name: bases[0] if bases[0] != "Exception" else "" for name, bases in classes.items()
    }


def test_no_error_of_ours_is_defined_elsewhere() -> None:
    elsewhere = {
        name
        for package in ("lock_manager", "writer_jobs", "sluice")
        for path in (ROOT / package).rglob("*.py")
        if path not in HOMES
        for name in defined(path.read_text(encoding="utf-8"))
    }
    assert elsewhere == ANSWERS_OF_A_STORE


def test_one_that_is_not_drawn_is_missed() -> None:
    text = '"""Errors.\n\n::\n\n    SluiceError\n    └── OneError (ValueError)   one\n"""\n'
    assert drawn(text) == {"SluiceError": "", "OneError": "SluiceError"}
    assert "OtherError" not in drawn(text)
