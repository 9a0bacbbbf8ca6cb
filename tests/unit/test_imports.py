"""Who may import whom: the rules of docs/develop.md, over every import statement, those for types alone included."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: In this order: each imports itself and what stands before it.
PACKAGES = ("lock_manager", "writer_jobs", "sluice", "soak")
KAZOO = ("lock_manager.zookeeper", "lock_manager.testing")
#: Of the commands and the jobs, the only modules that import ZooKeeper's part of the lock, and why each does.
ASKS_ZOOKEEPER = {
    "sluice.commands.operate": "makes the inspector of status and break",
    "sluice.doctor.acl": "ACLs are ZooKeeper's",
    "sluice.doctor.adoption": "asks an ensemble for its id without a lock manager",
    "sluice.doctor.ensemble": "examines the servers of an ensemble",
    "sluice.ensemble.members": "asks each server of an ensemble",
    "sluice.ensemble.ready": "asks each server of an ensemble whether it follows",
    "soak.stalls": "delays the queue of a contender",
    "soak.unprotected": "replaces the queue's registry",
}
JOBS = ("append", "overwrite", "upsert", "cdc", "stream", "snapshot", "maintain")
#: Packages that nobody else of the same top package imports, with the modules that may.
ENTRY_PACKAGES = {
    "writer_jobs.job": {f"writer_jobs.{job}" for job in JOBS},
    "sluice.commands": {"sluice.cli"},
}
Imports = Mapping[str, set[str]]


def imports_of(sources: Mapping[str, str]) -> Imports:
    """Return what each module imports: one of these modules, or the name of a package of others."""
    return {name: set(_imported(ast.parse(text), sources)) for name, text in sources.items()}


def _imported(tree: ast.AST, known: Mapping[str, str]) -> Iterator[str]:
    """Yield what is imported; a relative import as it is written, with its dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def relative(imports: Imports) -> list[tuple[str, str]]:
    """Return what is imported by dots: the other rules do not see it."""
    return [(name, each) for name, found in imports.items() for each in sorted(found) if each.startswith(".")]


def knows_zookeeper(imports: Imports) -> list[str]:
    """Return the modules of the rest of ``lock_manager`` that import the packages which may import kazoo."""
    return [
        name
        for name, found in imports.items()
        if is_in(name, PACKAGES[0]) and not any(is_in(name, each) for each in KAZOO)
        if any(is_in(each, place) for each in found for place in KAZOO)
    ]


def asks_zookeeper(imports: Imports) -> set[str]:
    """Return the modules outside ``lock_manager`` that import a module below ``lock_manager.zookeeper``, or it."""
    return {
        name
        for name, found in imports.items()
        if not is_in(name, PACKAGES[0]) and any(is_in(each, KAZOO[0]) for each in found)
    }


def kazoo_outside(imports: Imports) -> list[str]:
    return [
        name
        for name, found in imports.items()
        if any(is_in(each, "kazoo") for each in found) and not any(is_in(name, each) for each in KAZOO)
    ]


def backwards(imports: Imports) -> list[tuple[str, str]]:
    rank = {package: number for number, package in enumerate(PACKAGES)}
    return [
        (name, each)
        for name, found in imports.items()
        for each in found
        if rank.get(each.split(".")[0], -1) > rank[name.split(".")[0]] or is_in(each, "tests")
    ]


def of_entry_packages(imports: Imports) -> list[tuple[str, str]]:
    """Return imports of entry packages by modules outside them, but of the same top package."""
    return [
        (name, imported)
        for name, names in imports.items()
        for imported in sorted(names)
        for package, importers in ENTRY_PACKAGES.items()
        if is_in(imported, package) and is_in(name, package.split(".")[0])
        if not is_in(name, package) and name not in importers
    ]


def circles(imports: Imports) -> list[list[str]]:
    """Return the modules that import themselves by way of others; by Kosaraju's two passes."""
    order: list[str] = []
    seen: set[str] = set()

    def visit(start: str, graph: Imports, done: list[str]) -> None:
        stack = [(start, iter(sorted(graph.get(start, ()))))]
        seen.add(start)
        while stack:
            name, others = stack[-1]
            following = next((each for each in others if each not in seen and each in graph), None)
            if following is None:
                stack.pop()
                done.append(name)
            else:
                seen.add(following)
                stack.append((following, iter(sorted(graph[following]))))

    for name in imports:
        if name not in seen:
            visit(name, imports, order)
    back = {name: {other for other, found in imports.items() if name in found and other != name} for name in imports}
    seen.clear()
    found = []
    for name in reversed(order):
        if name not in seen:
            group: list[str] = []
            visit(name, back, group)
            if len(group) > 1:
                found.append(sorted(group))
    return found


@pytest.fixture(scope="module")
def imports() -> Imports:
    sources = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            sources[name] = path.read_text(encoding="utf-8")
    assert len(sources) > 100
    return imports_of(sources)


def test_every_import_says_the_whole_name(imports: Imports) -> None:
    assert relative(imports) == []


def test_kazoo_is_zookeeper_s_alone(imports: Imports) -> None:
    assert kazoo_outside(imports) == []


def test_imports_point_one_way(imports: Imports) -> None:
    assert backwards(imports) == []


def test_entry_packages_are_imported_by_entry_points_alone(imports: Imports) -> None:
    assert of_entry_packages(imports) == []


def test_the_rest_of_the_lock_manager_does_not_know_zookeeper(imports: Imports) -> None:
    """But for the package's own face, which names what programs use."""
    assert knows_zookeeper(imports) == ["lock_manager"]


def test_only_what_is_about_zookeeper_asks_zookeeper(imports: Imports) -> None:
    assert asks_zookeeper(imports) == set(ASKS_ZOOKEEPER)
    assert not any(is_in(name, "writer_jobs") for name in ASKS_ZOOKEEPER)
    control = {
        "lock_manager.a": "import lock_manager.zookeeper.queue",
        "lock_manager.zookeeper.queue": "",
        "sluice.a": "from lock_manager import zookeeper",
        "sluice.b": "def f():\n    from lock_manager.zookeeper import queue",
        "sluice.c": "from lock_manager import ZookeeperLockManager",
        "writer_jobs.a": "if TYPE_CHECKING:\n    from lock_manager.zookeeper.queue import Acquisition",
        "lock_manager.zookeeper": "",
    }
    assert asks_zookeeper(imports_of(control)) == {"sluice.a", "sluice.b", "writer_jobs.a"}


def test_there_is_no_circle(imports: Imports) -> None:
    assert circles(imports) == []


def test_each_rule_finds_what_breaks_it() -> None:
    """Negative controls."""
    broken = imports_of(
        {
            "lock_manager.a": "from kazoo.client import KazooClient\nfrom writer_jobs import b",
            "lock_manager.zookeeper.c": "import kazoo\nfrom lock_manager.testing import f",
            "lock_manager.f": "def g():\n    from lock_manager.zookeeper import c",
            "lock_manager.h": "import lock_manager.testing.embedded",
            "lock_manager.i": "from . import a\nfrom .zookeeper.c import C\nfrom .. import sluice",
            "writer_jobs.b": "if TYPE_CHECKING:\n    from sluice.d import D",
            "sluice.d": "def f():\n    from sluice import e",
            "sluice.e": "if TYPE_CHECKING:\n    from sluice.d import D",
            "sluice.f": "from sluice.commands import g",
            "sluice.commands.g": "",
        }
    )
    assert knows_zookeeper(broken) == ["lock_manager.f", "lock_manager.h"]
    assert of_entry_packages(broken) == [("sluice.f", "sluice.commands.g")]
    assert relative(broken) == [("lock_manager.i", each) for each in (".", "..", ".zookeeper.c")]
    assert kazoo_outside(broken) == ["lock_manager.a"]
    assert sorted(backwards(broken)) == [("lock_manager.a", "writer_jobs.b"), ("writer_jobs.b", "sluice.d")]
    assert circles(broken) == [["sluice.d", "sluice.e"]]
