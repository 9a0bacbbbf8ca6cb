"""What errors of ``deltalake`` say, for people."""

from __future__ import annotations

import re
from itertools import takewhile


def reason_of(error: Exception) -> str:
    """Return what an error of ``deltalake`` says, as one line without colours and backtrace."""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).splitlines()
    told = list(takewhile(lambda line: not re.match(r"\s*(\d+: |stack backtrace)", line), lines))
    return " ".join(line.strip(" ↳") for line in told)[:400] or type(error).__name__
