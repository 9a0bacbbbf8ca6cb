"""Jars of Maven that only tests need."""

from __future__ import annotations

from pathlib import Path

from sluice.local.jars import download_jars, jars_folder, read_lock

_LOCKS = Path(__file__).parents[1] / "data"


def locked_jars(name: str) -> list[Path]:
    """Return the jars of the lock file ``tests/data/NAME.lock``, downloaded if they are missing."""
    lock = read_lock((_LOCKS / f"{name}.lock").read_text(encoding="utf-8"))
    return download_jars(lock, jars_folder().parent / "tests")
