"""Invariants of every stack that no rule of the policy pack checks.

A rule does not know the program: it cannot require one of its values, the order in which it creates resources, or the
content of a file.
"""

from __future__ import annotations

from typing import Any

from tests.support.graph import Graph
from tests.support.graph_invariants import access, ensemble, network, storage
from tests.support.graph_invariants.registry import FOUND

INVARIANTS = {
    name: check
    for module in (network, storage, ensemble, access)
    for name, check in FOUND.items()
    if check.__module__ == module.__name__
}


def broken(graph: Graph) -> dict[str, list[str]]:
    """Return the invariants that do not hold, with what is wrong."""
    return {name: found for name, check in INVARIANTS.items() if (found := list(check(graph)))}


def config_error(error: Any) -> str:
    """Return what a user sees of a refused configuration."""
    return str(error).partition(": ")[2]
