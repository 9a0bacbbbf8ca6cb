"""Lists of column names on a command line."""

from __future__ import annotations

import re

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]*))\s*(,|$)")


def split_column_names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of column names; backticks quote a name that contains a comma.

    Args:
        text: for example ``year,`a,b```. Two backticks within backticks are one.

    Returns:
        The names; an empty one where the list has nothing between two commas.

    Raises:
        ValueError: a backtick without its counterpart, or text next to a quoted name.

    """
    names: list[str] = []
    at = 0
    while True:
        match = _NAME.match(text, at)
        if match is None:
            raise ValueError(f"{text!r} has a backtick without its counterpart, or text next to a quoted name")
        names.append(match[1].replace("``", "`") if match[1] is not None else match[2].strip())
        at = match.end()
        if not match[3]:
            return tuple(names)
