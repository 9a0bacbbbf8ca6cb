"""The error line of a job."""

from __future__ import annotations

import re
from typing import Any


def error_line(outcome: Any) -> str:
    """Return the one error line of a job. In the process of the tests, PySpark logs to the same stream."""
    (line,) = [line for line in outcome.error.splitlines() if re.match(r"\w+\.py: ", line)]
    return str(line)
