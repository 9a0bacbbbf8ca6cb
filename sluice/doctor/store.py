"""Tries whether a store refuses to overwrite, with scratch objects that are removed afterwards.

Promise 1 rests on it: a version file is created only if there is none. Some gateways to S3 refuse the second of two
writers in a row, and let two at once pass: so rivals are tried, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sluice.doctor.finding import Finding, failed, note, ok
from sluice.doctor.scratch import Trial
from sluice.errors import TrialError

_WHAT = "put-if-absent"
_FIRST, _SECOND = b"first", b"second"
_RIVALS, _ROUNDS = 8, 8
_SECONDS = 2.0
"""After which no further round of rivals begins."""
_BARRIER_SECONDS = 5.0
_ADVICE = "Use a store that honours If-None-Match (AWS S3 does, MinIO and Ceph in recent releases)"


def store_findings(scratch: Callable[[], Trial]) -> list[Finding]:
    """Put a scratch object twice, and others by rivals; remove all, however this ends."""
    made: list[Trial] = []

    def make() -> Trial:
        made.append(scratch())
        return made[-1]

    left: list[str] = []
    try:
        first = make()
        try:
            found = _tried_in_a_row(first) or _tried_at_once(first.where, make)
        except TrialError as error:
            found = failed(_WHAT, f"could not be tried at {made[-1].where}: {error}")
            # It may have been stored all the same; and a store that refuses everything has nothing of ours.
            with suppress(TrialError):
                made.pop().remove()
    finally:
        for trial in made:
            try:
                trial.remove()
            except TrialError as error:
                left.append(f"{trial.where} ({error})")
    if not left:
        return [found]
    return [found, failed("scratch object", f"could not be removed, remove it yourself: {', '.join(left)}")]


def _tried_in_a_row(trial: Trial) -> Finding | None:
    if not trial.put(_FIRST):
        return failed(_WHAT, f"{trial.where} was refused although it is not there: the store is not to be trusted")
    if trial.put(_SECOND) or trial.read() != _FIRST:
        return failed(
            _WHAT, f"the store overwrote {trial.where} although it was told not to: two writers can both win one "
            f"version there. {_ADVICE}",
        )  # fmt: skip
    return None


def _tried_at_once(where: str, make: Callable[[], Trial]) -> Finding:
    """Have rivals create one object at the same moment, round by round."""
    rounds = decided = 0
    end = time.monotonic() + _SECONDS
    with ThreadPoolExecutor(_RIVALS) as pool:
        for number in range(1, _ROUNDS + 1):
            trial = make()
            barrier = threading.Barrier(_RIVALS)
            puts = {
                content: pool.submit(_put_together, trial, content, barrier)
                for content in (f"rival {rival}".encode() for rival in range(_RIVALS))
            }
            answers = {content: put.result() for content, put in puts.items()}
            winners = [content for content, (created, _) in answers.items() if created]
            if len(winners) > 1:
                return failed(
                    _WHAT,
                    f"{len(winners)} of {_RIVALS} rivals who created {trial.where} at the same moment were all told "
                    f"that they had (round {number}), though the store refuses the second of two in a row: two writers "
                    f"can both win one version there, and one commit is lost. {_ADVICE}",
                )
            if winners and trial.read() != winners[0]:
                return failed(
                    _WHAT,
                    f"{trial.where} does not have the content of the rival that was told that it had created it "
                    f"(round {number}): a commit that was refused can replace one that was not. {_ADVICE}",
                )
            if all(together for _, together in answers.values()):
                rounds += 1
                decided += len(winners)
            if time.monotonic() > end:
                break
    if not decided:
        seen = (
            f"of {_RIVALS} at once it refused all, {rounds} times"
            if rounds
            else f"{_RIVALS} rivals never asked at once in {number} rounds"
        )
        return note(
            _WHAT,
            f"the store refuses the second of two writers in a row, but {seen} (tried at {where}): "
            "whether it lets two at once pass is not known, so try again",
        )
    return ok(
        _WHAT,
        f"the store refuses to overwrite (tried at {where}: twice in a row, and by {_RIVALS} rivals at once, with one "
        f"winner each time, in {decided} of {rounds} rounds)",
    )


def _put_together(trial: Trial, content: bytes, barrier: threading.Barrier) -> tuple[bool, bool]:
    """Return whether this rival created the object, and whether it asked at the moment when all others did."""
    together = False

    def ready() -> None:
        nonlocal together
        with suppress(threading.BrokenBarrierError):  # a rival could not even ask: the others still do
            barrier.wait(_BARRIER_SECONDS)
            together = True

    return trial.put(content, ready), together
