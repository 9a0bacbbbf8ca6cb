"""Lists of column names on a command line."""

from __future__ import annotations

import re

_NAME = re.compile(r"\s*(?:`((?:[^`]|``)+)`|([^`,]*))\s*(,|$)")


def split_column_names(text: str) -> tuple[str, ...]:
    """Split a comma-separated list of column names, for example ``year,`a,b```.

    Backticks quote a name that contains a comma. Two backticks within backticks stand for one. A name is empty where
    the list has nothing between two commas.

    Raises:
        ValueError: A backtick has no counterpart, or a quoted name has text next to it.

    """
    names: list[str] = []
    position = 0
    while True:
        match = _NAME.match(text, position)
        if match is None:
            raise ValueError(f"{text!r} has a backtick without its counterpart, or text next to a quoted name")
        names.append(match[1].replace("``", "`") if match[1] is not None else match[2].strip())
        position = match.end()
        if not match[3]:
            return tuple(names)
