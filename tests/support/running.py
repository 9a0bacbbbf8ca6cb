"""Check whether a process runs."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Return whether a process runs. A zombie does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        # The process can end before or after /proc is opened.
        return False
