"""Checks that a store refuses to overwrite, with scratch objects that are removed afterwards.

Promise 1 (docs/develop.md) depends on it: a version file is created only if it does not exist. Some gateways to S3
refuse the second of two writers in sequence, but accept two concurrent ones. So the check also creates objects
concurrently.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sluice.doctor.finding import Finding, failed, note, ok
from sluice.doctor.scratch import ScratchObject
from sluice.errors import ScratchObjectError

_CHECK = "put-if-absent"
_FIRST, _SECOND = b"first", b"second"
_RIVALS, _ROUNDS = 8, 8
# Seconds after which no further round of rivals starts.
_SECONDS = 2.0
# Seconds that a rival waits for the others before it sends its request.
_BARRIER_SECONDS = 5.0
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
    complete_rounds = won_rounds = 0
    end = time.monotonic() + _SECONDS
    with ThreadPoolExecutor(_RIVALS) as pool:
        for number in range(1, _ROUNDS + 1):
            scratch_object = next_object()
            barrier = threading.Barrier(_RIVALS)
            puts = {
                content: pool.submit(_put_together, scratch_object, content, barrier)
                for content in (f"rival {rival}".encode() for rival in range(_RIVALS))
            }
            results = {content: put.result() for content, put in puts.items()}
            winners = [content for content, (created, _) in results.items() if created]
            if len(winners) > 1:
                return failed(
                    _CHECK,
                    f"{len(winners)} of {_RIVALS} rivals created {scratch_object.location} at the same moment (round "
                    f"{number}), though the store refuses the second of two in sequence: two writers can both win one "
                    f"version there, and one commit is lost. {_ADVICE}",
                )
            if winners and scratch_object.read() != winners[0]:
                return failed(
                    _CHECK,
                    f"{scratch_object.location} does not have the content of the rival that created it (round {number}"
                    f"): a refused commit can replace an acknowledged one. {_ADVICE}",
                )
            if all(sent_together for _, sent_together in results.values()):
                complete_rounds += 1
                won_rounds += len(winners)
            if time.monotonic() > end:
                break
    if not won_rounds:
        obstacle = (
            f"it refused all of {_RIVALS} concurrent ones, {complete_rounds} times"
            if complete_rounds
            else f"{_RIVALS} rivals never sent their requests together, in {number} rounds"
        )
        return note(
            _CHECK,
            f"the store refuses the second of two writers in sequence, but {obstacle} (checked at {location}): "
            "it is not known whether it accepts two concurrent writers; try again",
        )
    return ok(
        _CHECK,
        f"the store refuses to overwrite (checked at {location}: twice in sequence, and by {_RIVALS} concurrent "
        f"rivals, with one winner in {won_rounds} of {complete_rounds} rounds)",
    )


def _put_together(scratch_object: ScratchObject, content: bytes, barrier: threading.Barrier) -> tuple[bool, bool]:
    """Return whether this rival created the object, and whether it sent its request together with all others."""
    sent_together = False

    def ready() -> None:
        nonlocal sent_together
        with suppress(threading.BrokenBarrierError):  # a rival failed before its request; the others continue
            barrier.wait(_BARRIER_SECONDS)
            sent_together = True

    return scratch_object.put(content, ready), sent_together
