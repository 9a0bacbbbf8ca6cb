"""The invariants by name; each returns what is wrong, and nothing if all is well."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from tests.support.graph import Graph, Resource

FOUND: dict[str, Callable[[Graph], Iterator[str]]] = {}
CLIENT, QUORUM, ELECTION = 2281, 2888, 3888


def invariant(check: Callable[[Graph], Iterator[str]]) -> Callable[[Graph], Iterator[str]]:
    FOUND[check.__name__.replace("_", " ")] = check
    return check


def node_variable(instance: Resource, name: str) -> str:
    """Return a variable that the user data of a node sets."""
    found = re.search(rf"^SLUICE_{name}=(?:'([^']*)'|(\S*))$", instance.inputs["userData"], re.MULTILINE)
    assert found, f"{instance}: no SLUICE_{name}"
    return found[1] if found[1] is not None else found[2]
