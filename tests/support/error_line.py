"""The error line of a job."""

from __future__ import annotations

import re
from typing import Any


def error_line(outcome: Any) -> str:
    """Return the only error line of a job. The error text may also contain PySpark's log."""
    (line,) = [line for line in outcome.error.splitlines() if re.match(r"\w+\.py: ", line)]
    return str(line)
