"""Whether a process runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def is_running(pid: int) -> bool:
    """Tell whether there is such a process; one that has ended, and was not waited for, does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        # Either, if it ends between the opening and the reading.
        return False


def pythons_of(pid: int) -> list[int]:
    """Return the Python processes that a process has started; Hadoop starts others for what Java cannot do."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            about, _, rest = entry.read_text().rpartition(")")
            if int(rest.split()[1]) == pid and "(python" in about:
                found.append(int(entry.parent.name))
    return found
