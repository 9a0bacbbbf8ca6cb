"""Names of tests in documentation and in tables: ``integration/test_gate.py::test_x``, relative to ``tests``."""

from __future__ import annotations

import ast
from pathlib import Path

_TESTS = Path(__file__).parents[1]


def exists(test: str) -> bool:
    """Return whether a file defines a test of this name."""
    file, _, name = test.partition("::")
    path = _TESTS / file
    return path.exists() and any(
        isinstance(node, ast.FunctionDef) and node.name == name and name.startswith("test_")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )
