"""The drawings of the error trees are complete: each class of ours is in the one of its package, at its place."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = [ROOT / package / "errors.py" for package in ("lock_manager", "writer_jobs", "sluice")]
BUILTIN = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}
#: Exceptions that change what our own code does next. Nobody is told of them as an error of this project.
CONTROL_FLOW = {
    "HelpShown": "a job's --help was asked for and answered; it ends with 0",
    "JobStopped": "a job was asked to stop; a BaseException, as KeyboardInterrupt is",
    "Interrupted": "a command was asked to stop; a KeyboardInterrupt that knows its exit code",
    "LinesError": "caught where the lines were checked: the error of the job names the table",
    "_PlanOutdatedError": "caught where it was planned: plan again",
    "_OtherPartitionsError": "caught where the partitions were locked: lock the partitions that are touched now",
}


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


def exceptions(texts: Iterable[str]) -> dict[str, list[str]]:
    """Return the classes of exceptions that these modules define, with the names of their bases.

    By their bases, whatever they are called: builtin exceptions, what other packages name as one, and each other.
    """
    bases = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ClassDef)
    }
    found: set[str] = set()
    while more := {
        name
        for name, above in bases.items()
        if name not in found
        and any(each in BUILTIN or each in found or each.endswith(("Error", "Exception")) for each in above)
    }:
        found |= more
    return {name: bases[name] for name in bases if name in found}


def texts_of(paths: Iterable[Path]) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in paths]


def all_modules() -> list[Path]:
    return [path for home in HOMES for path in home.parent.rglob("*.py")]


@pytest.mark.parametrize("home", HOMES, ids=lambda home: str(home.relative_to(ROOT)))
def test_each_class_is_drawn_below_its_base(home: Path) -> None:
    [text] = texts_of([home])
    drawing, classes = drawn(text), exceptions([text])
    assert {name: drawing.get(name) for name in classes} == {
        name: bases[0] if bases[0] != "Exception" else "" for name, bases in classes.items()
    }


def test_no_error_of_ours_is_defined_elsewhere() -> None:
    elsewhere = exceptions(texts_of(all_modules())).keys() - exceptions(texts_of(HOMES)).keys()
    assert elsewhere == CONTROL_FLOW.keys()


def test_every_error_of_ours_is_one_of_the_tree() -> None:
    found = exceptions(texts_of(all_modules()))

    def is_in_the_tree(name: str) -> bool:
        return name == "SluiceError" or any(is_in_the_tree(base) for base in found.get(name, ()))

    assert [name for name in found if name not in CONTROL_FLOW and not is_in_the_tree(name)] == []


def test_one_that_is_not_drawn_is_missed() -> None:
    text = '"""Errors.\n\n::\n\n    SluiceError\n    └── OneError (ValueError)   one\n"""\n'
    assert drawn(text) == {"SluiceError": "", "OneError": "SluiceError"}
    assert "OtherError" not in drawn(text)


def test_an_exception_is_found_whatever_it_is_called() -> None:
    """Negative control; the bases of one may be in another module, read later."""
    texts = [
        "class Below(Trouble): ...\nclass Stop(BaseException): ...\nclass Plain: ...\nclass Other(Plain): ...",
        "class Trouble(OSError): ...\nclass _Hidden(kazoo.exceptions.NoNodeError): ...",
        "def f():\n    class Inner(Stop): ...",
    ]
    assert exceptions(texts).keys() == {"Below", "Stop", "Trouble", "_Hidden", "Inner"}
