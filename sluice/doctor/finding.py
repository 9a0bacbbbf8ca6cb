"""The result of one check of ``sluice doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial


class Verdict(Enum):
    """The result of a check. The value is printed."""

    OK = "ok"
    #: Worth knowing, but not a fault.
    NOTE = "note"
    FAILED = "FAILED"


@dataclass(frozen=True)
class Finding:
    """One line of ``sluice doctor``.

    Attributes:
        message: Details of the result, and the next step if there is one.
        verdict: Result of the check.

    """

    check: str
    message: str
    verdict: Verdict

    @property
    def failed(self) -> bool:
        """Whether the check failed."""
        return self.verdict is Verdict.FAILED

    def to_json(self) -> dict[str, str]:
        """Return the object that ``sluice doctor --json`` prints."""
        return {"what": self.check, "verdict": self.verdict.value.lower(), "says": self.message}


#: Return the finding of a check that passed.
ok = partial(Finding, verdict=Verdict.OK)
#: Return a finding that is worth knowing, but not a fault.
note = partial(Finding, verdict=Verdict.NOTE)
#: Return the finding of a check that failed. The message contains the next step.
failed = partial(Finding, verdict=Verdict.FAILED)
