"""Checks that a store refuses to overwrite, with scratch objects that are removed afterwards.

Promise 1 (docs/develop.md) depends on it: a version file is created only if it does not exist. The check also creates
objects concurrently (:mod:`sluice.doctor.rivals`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from sluice.doctor.finding import Finding, failed, note, ok
from sluice.doctor.rivals import run_contest
from sluice.doctor.scratch import ScratchObject
from sluice.errors import ScratchObjectError

_CHECK = "put-if-absent"
_FIRST, _SECOND = b"first", b"second"
_ADVICE = "Use a store that honours If-None-Match (AWS S3 does, MinIO and Ceph in recent releases)"


def store_findings(scratch: Callable[[], ScratchObject]) -> list[Finding]:
    """Create a scratch object twice in sequence, and others concurrently. Always remove all of them."""
    objects: list[ScratchObject] = []

    def next_object() -> ScratchObject:
        objects.append(scratch())
        return objects[-1]

    remaining: list[str] = []
    try:
        first = next_object()
        try:
            finding = _check_in_sequence(first) or _check_concurrently(first.location, next_object)
        except ScratchObjectError as error:
            finding = failed(_CHECK, f"could not be checked at {objects[-1].location}: {error}")
            # The object may exist despite the error. A failed removal is not a second finding.
            with suppress(ScratchObjectError):
                objects.pop().remove()
    finally:
        for scratch_object in objects:
            try:
                scratch_object.remove()
            except ScratchObjectError as error:
                remaining.append(f"{scratch_object.location} ({error})")
    if not remaining:
        return [finding]
    return [finding, failed("scratch object", f"could not be removed, remove it yourself: {', '.join(remaining)}")]


def _check_in_sequence(scratch_object: ScratchObject) -> Finding | None:
    location = scratch_object.location
    if not scratch_object.put(_FIRST):
        return failed(_CHECK, f"the store refused to create {location}, which does not exist: do not use this store")
    if scratch_object.put(_SECOND) or scratch_object.read() != _FIRST:
        return failed(
            _CHECK,
            f"the store overwrote {location} instead of refusing: two writers can both win one version there. "
            f"{_ADVICE}",
        )
    return None


def _check_concurrently(location: str, next_object: Callable[[], ScratchObject]) -> Finding:
    """Let rivals create one object at the same moment, in several rounds."""
    contest = run_contest(next_object)
    if contest.violation:
        return failed(
            _CHECK,
            f"{contest.violation}, though the store refuses the second of two in sequence: two writers can both win "
            f"one version there, and one commit is lost. {_ADVICE}",
        )
    if contest.obstacle:
        return note(
            _CHECK,
            f"the store refuses the second of two writers in sequence, but {contest.obstacle} (checked at {location}): "
            "it is not known whether it accepts two concurrent writers; try again",
        )
    return ok(_CHECK, f"the store refuses to overwrite (checked at {location}: twice in sequence, and {contest})")
