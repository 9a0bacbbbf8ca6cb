"""Whether a process runs."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int) -> bool:
    """Tell whether there is such a process; one that has ended, and was not waited for, does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        # Either, if it ends between the opening and the reading.
        return False
