"""The drawing in the docstring of each ``errors.py``: it contains each error of the package, below its base."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ERROR_MODULES = [ROOT / package / "errors.py" for package in ("lock_manager", "writer_jobs", "sluice")]
BUILTIN = {
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, BaseException)
}
#: Exceptions of the control flow. They are caught inside the project, and no user catches them.
CONTROL_FLOW = {
    "HelpShown": "a job has printed its --help; it ends with 0",
    "JobStopped": "a job is stopped by a signal; a BaseException, as KeyboardInterrupt is",
    "Interrupted": "a command is stopped by a signal; a KeyboardInterrupt with an exit code",
    "LinesError": "caught where the lines are checked: the error of the job names the table",
    "_PlanOutdatedError": "caught by the planner: plan again",
    "_FasterWriterError": "caught where the write is repeated, because another writer has committed first",
    "_OtherPartitionsError": "caught where the partitions are locked: lock the partitions that are touched now",
    "NotModifiedError": "caught where a queue on S3 is read: it is the known one",
    "ConflictError": "caught where a queue on S3 is changed: read it and change it again",
    "UnansweredError": "caught where S3 is asked: ask again until the deadline",
    "_ForeignWriteError": "caught in sluice doctor: another client writes the same object",
    "_RefusedError": "caught in the store of locks on S3: a conflict, a missing object, or EnsembleRefusedError",
    "GoneError": "caught in the acquire and the hold on S3: join again, or LockLostError",
    "_EarlierLockLostError": "caught in the acquire on S3: begin again with the first table",
}


def drawn_errors(source: str) -> dict[str, str]:
    """Return the base of each class in the drawing of a module's docstring, "" for a root."""
    errors: dict[str, str] = {}
    bases: list[str] = []
    for line in (ast.get_docstring(ast.parse(source)) or "").splitlines():
        match = re.match(r"^( {4}[│├└ ─]*)(\w+Error)\b", line)
        if match:
            depth = (len(match[1]) - 4) // 4
            bases[depth:] = [match[2]]
            errors[match[2]] = bases[depth - 1] if depth else ""
    return errors


def exceptions(sources: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of the bases of each exception class that these modules define.

    A class is an exception if a base is a builtin exception, another exception of these modules, or is called
    ``…Error`` or ``…Exception``.
    """
    bases = {
        node.name: [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
    }
    names: set[str] = set()
    while new_names := {
        name
        for name, class_bases in bases.items()
        if name not in names
        and any(base in BUILTIN or base in names or base.endswith(("Error", "Exception")) for base in class_bases)
    }:
        names |= new_names
    return {name: bases[name] for name in bases if name in names}


def read_all(paths: Iterable[Path]) -> list[str]:
    return [path.read_text(encoding="utf-8") for path in paths]


@pytest.fixture(scope="module")
def all_exceptions() -> dict[str, list[str]]:
    return exceptions(read_all(path for module in ERROR_MODULES for path in module.parent.rglob("*.py")))


@pytest.mark.parametrize("module", ERROR_MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_each_class_is_drawn_below_its_base(module: Path) -> None:
    [source] = read_all([module])
    drawing, classes = drawn_errors(source), exceptions([source])
    assert {name: drawing.get(name) for name in classes} == {
        name: bases[0] if bases[0] != "Exception" else "" for name, bases in classes.items()
    }


def test_errors_are_defined_in_the_error_modules_only(all_exceptions: dict[str, list[str]]) -> None:
    assert all_exceptions.keys() - exceptions(read_all(ERROR_MODULES)).keys() == CONTROL_FLOW.keys()


def test_every_error_is_a_sluice_error(all_exceptions: dict[str, list[str]]) -> None:
    def is_in_the_tree(name: str) -> bool:
        return name == "SluiceError" or any(is_in_the_tree(base) for base in all_exceptions.get(name, ()))

    assert [name for name in all_exceptions if name not in CONTROL_FLOW and not is_in_the_tree(name)] == []


def test_negative_control_an_error_that_is_not_drawn_is_detected() -> None:
    drawing = '"""Errors.\n\n::\n\n    SluiceError\n    └── OneError (ValueError)   one\n"""\n'
    source = f"{drawing}class OneError(SluiceError, ValueError): ...\nclass OtherError(SluiceError): ...\n"
    assert drawn_errors(source) == {"SluiceError": "", "OneError": "SluiceError"}
    assert exceptions([source]).keys() - drawn_errors(source).keys() == {"OtherError"}


def test_negative_control_exceptions_with_any_name_are_detected() -> None:
    """The base of an exception may be in a module that is read later."""
    sources = [
        "class Below(Trouble): ...\nclass Stop(BaseException): ...\nclass Plain: ...\nclass Other(Plain): ...",
        "class Trouble(OSError): ...\nclass _Hidden(kazoo.exceptions.NoNodeError): ...",
        "def f():\n    class Inner(Stop): ...",
    ]
    assert exceptions(sources).keys() == {"Below", "Stop", "Trouble", "_Hidden", "Inner"}
