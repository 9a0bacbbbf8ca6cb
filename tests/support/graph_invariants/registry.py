"""Register the invariants by name. An invariant is a function that yields its violations in a graph."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.support.graph import Graph, Resource

CHECKS: dict[str, Callable[[Graph], Iterator[str]]] = {}
CLIENT_PORT, QUORUM_PORT, ELECTION_PORT = 2281, 2888, 3888


def invariant(check: Callable[[Graph], Iterator[str]]) -> Callable[[Graph], Iterator[str]]:
    """Register a function under its name, with spaces in place of underscores."""
    CHECKS[check.__name__.replace("_", " ")] = check
    return check


def node_variable(instance: Resource, name: str) -> str:
    """Return the value of a variable in the user data of a node."""
    match = re.search(rf"^SLUICE_{name}=(?:'([^']*)'|(\S*))$", instance.inputs["userData"], re.MULTILINE)
    assert match, f"the user data of {instance} does not set SLUICE_{name}"
    return match[2] if match[1] is None else match[1]
