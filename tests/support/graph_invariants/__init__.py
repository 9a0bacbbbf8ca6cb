"""Invariants of every stack that no rule of the policy pack checks.

A rule cannot check a value of the program, the order in which the program creates resources, or the content of a file.
"""

from __future__ import annotations

from typing import Any

from tests.support.graph import Graph
from tests.support.graph_invariants import access, ensemble, network, storage
from tests.support.graph_invariants.registry import CHECKS

INVARIANTS = {
    name: check
    for module in (network, storage, ensemble, access)
    for name, check in CHECKS.items()
    if check.__module__ == module.__name__
}


def violated_invariants(graph: Graph) -> dict[str, list[str]]:
    """Return the violations of each invariant that does not hold."""
    return {name: violations for name, check in INVARIANTS.items() if (violations := list(check(graph)))}


def config_error(error: Any) -> str:
    """Return the message that a user sees for a refused configuration."""
    return str(error).partition(": ")[2]
