"""One line of ``sluice doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Verdict(Enum):
    """What a finding means; the value is the word for people and programs."""

    OK = "ok"
    #: Worth knowing, but nothing that breaks a promise.
    NOTE = "note"
    FAILED = "FAILED"


@dataclass(frozen=True)
class Finding:
    """What a question was answered with.

    Attributes:
        what: was asked about.
        verdict: what the answer means.
        says: the answer; where it is not ok, also what to do.

    """

    what: str
    verdict: Verdict
    says: str

    @property
    def failed(self) -> bool:
        """Whether something is wrong."""
        return self.verdict is Verdict.FAILED

    def to_json(self) -> dict[str, str]:
        """Return what ``sluice doctor --json`` prints of it."""
        return {"what": self.what, "verdict": self.verdict.value.lower(), "says": self.says}


def ok(what: str, says: str) -> Finding:
    """Return a finding that is as it should be."""
    return Finding(what, Verdict.OK, says)


def note(what: str, says: str) -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(what, Verdict.NOTE, says)


def failed(what: str, says: str) -> Finding:
    """Return a finding that is wrong, and says what to do."""
    return Finding(what, Verdict.FAILED, says)
