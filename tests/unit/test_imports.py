"""The import rules of docs/develop.md, for every import statement, including those for types."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: A package imports only itself and the packages before it in this list.
PACKAGES = ("lock_manager", "writer_jobs", "sluice", "soak")
#: The only packages that import kazoo.
KAZOO_PACKAGES = ("lock_manager.zookeeper", "lock_manager.testing")
#: The only modules outside ``lock_manager`` that import ``lock_manager.zookeeper``, with the reason.
ZOOKEEPER_IMPORTERS = {
    "sluice.doctor.ensemble": "examines the servers of an ensemble",
    "sluice.ensemble.members": "asks each server of an ensemble",
    "sluice.ensemble.ready": "writes a node through one server and reads it through the others",
    "soak.group_controls": "replaces parts of holds and of their requests",
    "soak.stalls": "stalls a listing of queues, and checks an intent",
    "soak.unprotected": "replaces parts of the lock manager and of a hold's intents",
}
JOBS = ("append", "overwrite", "upsert", "cdc", "stream", "snapshot", "maintain")
#: Packages that only these modules of the same top package import.
ENTRY_PACKAGES = {
    "writer_jobs.job": {f"writer_jobs.{job}" for job in JOBS},
    "sluice.commands": {"sluice.cli"},
}
Imports = Mapping[str, set[str]]


def imports_of(sources: Mapping[str, str]) -> Imports:
    """Return the imports of each module: modules of these sources, and packages of other projects."""
    return {name: set(_imported_names(ast.parse(text), sources)) for name, text in sources.items()}


def _imported_names(tree: ast.AST, sources: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of imports; a relative import keeps its dots."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level:
            yield "." * node.level + (node.module or "")
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                module = f"{node.module}.{alias.name}"
                yield module if module in sources else node.module


def is_in(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def edges(imports: Imports) -> list[tuple[str, str]]:
    """Return pairs of an importing module and an imported one."""
    return [(module, imported) for module, names in imports.items() for imported in sorted(names)]


def relative_imports(imports: Imports) -> list[tuple[str, str]]:
    """Return relative imports, which the other rules do not resolve."""
    return [edge for edge in edges(imports) if edge[1].startswith(".")]


def kazoo_package_importers(imports: Imports) -> set[str]:
    """Return the modules of ``lock_manager`` outside the kazoo packages that import one of these packages."""
    return {
        module
        for module, imported in edges(imports)
        if is_in(module, PACKAGES[0]) and not is_in(module, *KAZOO_PACKAGES) and is_in(imported, *KAZOO_PACKAGES)
    }


def zookeeper_importers(imports: Imports) -> set[str]:
    """Return the modules outside ``lock_manager`` that import ``lock_manager.zookeeper``."""
    return {
        module
        for module, imported in edges(imports)
        if not is_in(module, PACKAGES[0]) and is_in(imported, KAZOO_PACKAGES[0])
    }


def kazoo_importers(imports: Imports) -> set[str]:
    """Return the modules outside the kazoo packages that import kazoo."""
    return {
        module for module, imported in edges(imports) if is_in(imported, "kazoo") and not is_in(module, *KAZOO_PACKAGES)
    }


def backward_imports(imports: Imports) -> list[tuple[str, str]]:
    """Return imports of tests, and of packages that come later in ``PACKAGES``."""
    rank = {package: number for number, package in enumerate(PACKAGES)}
    return [
        (module, imported)
        for module, imported in edges(imports)
        if rank.get(imported.split(".")[0], -1) > rank[module.split(".")[0]] or is_in(imported, "tests")
    ]


def entry_package_imports(imports: Imports) -> list[tuple[str, str]]:
    """Return imports of entry packages by other modules of the same top package."""
    return [
        (module, imported)
        for module, imported in edges(imports)
        for package, importers in ENTRY_PACKAGES.items()
        if is_in(imported, package) and is_in(module, package.split(".")[0])
        if not is_in(module, package) and module not in importers
    ]


def import_cycles(imports: Imports) -> list[list[str]]:
    """Return the modules of each import cycle: modules that import each other, directly or through others."""

    def reachable(start: str) -> set[str]:
        modules: set[str] = set()
        pending = [start]
        while pending:
            unvisited = (imports.get(pending.pop(), set()) & imports.keys()) - modules
            modules |= unvisited
            pending += unvisited
        return modules

    targets = {module: reachable(module) for module in imports}
    groups = {tuple(sorted(name for name in targets[module] if module in targets[name])) for module in imports}
    return [list(group) for group in sorted(groups) if len(group) > 1]


@pytest.fixture(scope="module")
def imports() -> Imports:
    sources = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            sources[name] = path.read_text(encoding="utf-8")
    assert len(sources) > 100
    return imports_of(sources)


def test_no_import_is_relative(imports: Imports) -> None:
    assert relative_imports(imports) == []


def test_only_the_kazoo_packages_import_kazoo(imports: Imports) -> None:
    assert kazoo_importers(imports) == set()


def test_only_the_modules_of_traces_and_metrics_import_opentelemetry(imports: Imports) -> None:
    assert {module for module, imported in edges(imports) if is_in(imported, "opentelemetry")} == {
        "lock_manager.tracing", "lock_manager.opentelemetry_metrics", "writer_jobs.job.metrics",
    }  # fmt: skip


def test_imports_point_one_way(imports: Imports) -> None:
    assert backward_imports(imports) == []


def test_only_entry_points_import_entry_packages(imports: Imports) -> None:
    assert entry_package_imports(imports) == []


def test_the_lock_manager_does_not_import_its_kazoo_packages(imports: Imports) -> None:
    """Only two modules import them: one exports the public names, and one creates managers."""
    assert kazoo_package_importers(imports) == {"lock_manager", "lock_manager.managers"}


def test_only_listed_modules_import_the_zookeeper_package(imports: Imports) -> None:
    assert zookeeper_importers(imports) == set(ZOOKEEPER_IMPORTERS)
    assert not any(is_in(module, "writer_jobs") for module in ZOOKEEPER_IMPORTERS)


def test_negative_control_a_zookeeper_importer_is_found() -> None:
    sources = {
        "lock_manager.a": "import lock_manager.zookeeper.queue",
        "lock_manager.zookeeper.queue": "",
        "sluice.a": "from lock_manager import zookeeper",
        "sluice.b": "def f():\n    from lock_manager.zookeeper import queue",
        "sluice.c": "from lock_manager import ZookeeperLockManager",
        "writer_jobs.a": "if TYPE_CHECKING:\n    from lock_manager.zookeeper.queue import Acquisition",
        "lock_manager.zookeeper": "",
    }
    assert zookeeper_importers(imports_of(sources)) == {"sluice.a", "sluice.b", "writer_jobs.a"}


def test_there_is_no_import_cycle(imports: Imports) -> None:
    assert import_cycles(imports) == []


def test_negative_control_each_rule_finds_a_violation() -> None:
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
    assert kazoo_package_importers(broken) == {"lock_manager.f", "lock_manager.h"}
    assert entry_package_imports(broken) == [("sluice.f", "sluice.commands.g")]
    assert relative_imports(broken) == [("lock_manager.i", name) for name in (".", "..", ".zookeeper.c")]
    assert kazoo_importers(broken) == {"lock_manager.a"}
    assert sorted(backward_imports(broken)) == [("lock_manager.a", "writer_jobs.b"), ("writer_jobs.b", "sluice.d")]
    assert import_cycles(broken) == [["sluice.d", "sluice.e"]]
