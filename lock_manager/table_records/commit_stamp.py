"""What a commit records of us, written and read here: its stamp, and the note of its writer.

The stamp tells of the hold under which the commit was made. It is the key ``sluice`` of the commit's ``commitInfo``.
The commit guard has the log store write it as an object. A writer that the guard does not see (delta-rs) writes it as
text, and then it is the writer's own word.

The note is what the write says of itself: commit id, run, what its caller gave. It is the key ``sluice`` in the JSON of
Delta's ``userMetadata``.

The commit id is the write id of one attempt of one operation. The stamp contains it only if the thread that executed
the attempt made the commit (:func:`is_commit_of`). An empty commit that fills a version has neither a commit id nor a
record of a write; readers ignore those keys in it.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lock_manager.coordinator import Hold

_STAMP = "sluice"
# Keys of the stamp, of the note, or of both. Tables have them, so they keep their names.
_COMMIT_ID, _ATTEMPT, _FILLS = "commit_id", "attempt", "occupies"
_EXCLUSIVE, _SHARED = "exclusive", "shared"
_OBSERVED = "observed"
# A caller's metadata cannot set these keys of the stamp.
_RESERVED = frozenset({_COMMIT_ID, _FILLS, _OBSERVED})
MAINTENANCE = "maintenance"
"""Key of the note of a commit of maintenance: which action, and of what."""
CHANGES = "changes"
"""Key of the note of a commit that applied a batch of changes; its value is the batch's id."""
_RUN = "run"
"""Key of the note of a commit of a run; its value has the run's id and the number of the commit."""
WATERMARK = "watermark"
"""Key of the note of a commit with rows of a stream: before which event time it has all rows that were in time.

Its value has the time in ISO 8601 (``at``) and the stream's id (``stream``; null if the rows came without one).
"""


@dataclass(frozen=True)
class CommitStamp:
    """What was noted of the hold under which a commit was made (``commitInfo.sluice``).

    Attributes:
        commit_id: unique name of the write, or of the attempt to commit it if it was given none.
        hold: id of the hold.
        ensemble: who handed out the tokens; tokens of different ensembles do not compare.
        tokens: fencing tokens of its exclusive locks, by key of the locked node.
        shared_tokens: of its shared locks.
        acquired_at: when the hold began, seconds since the epoch, by the writer's clock.
        job: what the writer called itself.
        fenced: whether the commit guard noted it, which had the hold confirmed before it let the commit pass. Else it
            is the writer's own word (see :func:`commit_metadata`).

    """

    commit_id: str
    hold: str
    ensemble: str
    tokens: Mapping[str, int]
    shared_tokens: Mapping[str, int]
    acquired_at: float
    job: str | None = None
    fenced: bool = True


def stamp_of(
    hold: Hold,
    metadata: Mapping[str, Any],
    *,
    write_id: str | None = None,
    fills: Collection[str] | None = None,
) -> dict[str, Any]:
    """Return what a commit under this hold records; :func:`parse_stamp` reads it.

    Args:
        hold: under which the commit is made.
        metadata: what it records beside the hold itself, such as ``job``; JSON values.
        write_id: id of the operation attempt to which the commit belongs; None if it belongs to none.
        fills: of an empty commit that fills a version: ids of the holds that left the intents for it unfinished.

    """
    return {
        **{key: value for key, value in metadata.items() if key not in _RESERVED},
        **({} if write_id is None else {_COMMIT_ID: write_id}),
        **({} if fills is None else {_FILLS: list(fills)}),
        "hold": hold.hold_id,
        "ensemble": hold.ensemble_id,
        "nodes": [
            {"key": key, "mode": _EXCLUSIVE if key in hold.exclusive_keys else _SHARED, "token": token}
            for key, token in hold.tokens.items()
        ],
        "acquired_at": hold.acquired_at,
    }


def parse_stamp(info: Mapping[str, Any]) -> CommitStamp | None:
    """Read the stamp in a ``commitInfo``; None if there is none, or none that this release understands."""
    try:
        said = info[_STAMP]
        # The guard writes an object; delta-rs lets a writer note nothing but text.
        fenced = not isinstance(said, str)
        said = said if fenced else json.loads(said)
        nodes = [(str(node["key"]), str(node["mode"]), int(node["token"])) for node in said["nodes"]]
        return CommitStamp(
            commit_id=next(iter(commit_ids_of(info)), None) or str(said[_ATTEMPT]),
            hold=str(said["hold"]),
            ensemble=str(said["ensemble"]),
            tokens={key: token for key, mode, token in nodes if mode == _EXCLUSIVE},
            shared_tokens={key: token for key, mode, token in nodes if mode == _SHARED},
            acquired_at=float(said["acquired_at"]),
            job=said.get("job"),
            fenced=fenced,
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def stamped_info(info: Mapping[str, Any], stamp: Mapping[str, Any], attempt: str) -> dict[str, Any]:
    """Return a ``commitInfo`` with a stamp, as the guarded log store writes it (``CommitBody.java``).

    Args:
        info: as Delta writes it.
        stamp: see :func:`stamp_of`.
        attempt: id of the attempt to commit.

    """
    return {_STAMP: {**stamp, _ATTEMPT: attempt}, **info}


def note_of_write(metadata: Mapping[str, Any], commit_id: str) -> dict[str, Any]:
    """Return the note of a write.

    Args:
        metadata: what the caller has noted; JSON values.
        commit_id: unique name of the write, by which its commit is found.

    """
    return {**metadata, _COMMIT_ID: commit_id}


def note_as_user_metadata(note: Mapping[str, Any], user: str | None = None) -> str:
    """Return a write's note as Delta's ``userMetadata``; :func:`note_of` reads it.

    Args:
        note: JSON values.
        user: the caller's own ``userMetadata``, which is kept beside it.

    """
    own = {} if user is None else {"user": user}
    return json.dumps({_STAMP: note, **own}, separators=(",", ":"))


def is_empty_commit(info: Mapping[str, Any]) -> bool:
    """Return whether a commit only fills a version that an earlier hold may still put."""
    return _FILLS in _object(info.get(_STAMP))


def is_commit_of(info: Mapping[str, Any], write_id: str, *, guarded: bool) -> bool:
    """Return whether a commit belongs to this attempt of an operation.

    Args:
        info: ``commitInfo`` of the commit.
        write_id: id of the attempt.
        guarded: whether the guard refuses every commit that it does not allow. Then only its stamp is proof. Otherwise
            the note in ``userMetadata`` is.

    """
    if is_empty_commit(info):
        return False
    record = _object(info.get(_STAMP)) if guarded else note_of(info)
    return record.get(_COMMIT_ID) == write_id


def note_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note in a ``commitInfo``; empty if it has none or is an empty commit."""
    if is_empty_commit(info):
        return {}
    try:
        metadata = json.loads(info.get("userMetadata") or "null")
    except (ValueError, TypeError):
        return {}
    return _object(metadata.get(_STAMP)) if isinstance(metadata, dict) else {}


def commit_ids_of(info: Mapping[str, Any]) -> list[str]:
    """Return the ids of the write in a ``commitInfo``: the one in the stamp, then the one in the note.

    They differ if a session gives all its commits the ``userMetadata`` of another one.
    """
    ids = dict.fromkeys((_stamp_record(info).get(_COMMIT_ID), note_of(info).get(_COMMIT_ID)))
    return [str(commit_id) for commit_id in ids if commit_id is not None]


def batch_of(info: Mapping[str, Any]) -> str | None:
    """Return the id of the batch of changes that a commit applied, by its stamp or its note; None if it is of none."""
    batch = _record_of(info, CHANGES)
    return None if batch is None else str(batch)


def maintenance_of(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a commit of maintenance notes of itself, by its stamp or its note; None if it is none."""
    return _object(_record_of(info, MAINTENANCE)) or None


def run_note(run_id: str, commit: int, commits: int, **more: Any) -> dict[str, Any]:
    """Return the metadata of a commit of a run; :func:`run_of` reads it.

    Args:
        run_id: Id of the run.
        commit: Number of the commit, from 1.
        commits: Number of commits of the run.
        more: What else the commit records of its run; JSON values.

    """
    return {_RUN: {"id": run_id, "commit": commit, "commits": commits, **more}}


def run_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note of a run in a commit, from its stamp or its note; empty if there is none."""
    return _object(_record_of(info, _RUN))


def watermark_of(info: Mapping[str, Any]) -> tuple[datetime, str | None] | None:
    """Return the watermark that a commit notes, and the stream whose it is; None if it notes none."""
    watermark = _object(_record_of(info, WATERMARK))
    try:
        at, stream = datetime.fromisoformat(watermark["at"]), watermark.get("stream")
    except (KeyError, TypeError, ValueError):
        return None
    return at, None if stream is None else str(stream)


def _record_of(info: Mapping[str, Any], key: str) -> object:
    """Return a record of the write from the stamp, or from the note if the stamp has none."""
    return _stamp_record(info).get(key) or note_of(info).get(key)


def _stamp_record(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the guard's stamp; empty if there is none, or if it is of an empty commit."""
    return {} if is_empty_commit(info) else _object(info.get(_STAMP))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def observed_refusal(info: Mapping[str, Any]) -> str | None:
    """Return the name of the error with which the guard would have refused a commit that it only observed."""
    reason = _object(info.get(_STAMP)).get(_OBSERVED)
    return None if reason is None else str(reason)


def commit_metadata(hold: Hold, *, job: str | None = None) -> dict[str, str]:
    """Return what a writer without the guard notes in its commit, so that ``sluice verify`` can check the order.

    For delta-rs: ``CommitProperties(custom_metadata=commit_metadata(hold))``. To be made anew for every commit, right
    after :meth:`HeldLock.check`: it names hold, fencing token and ensemble, and this one attempt. It is the writer's
    own word: nobody refuses the commit if the hold is lost by then. See docs/python-writers.md.

    Args:
        hold: under which the commit is made.
        job: what the writer calls itself.

    Returns:
        One key, ``sluice``, with a JSON object as text.

    """
    said = stamp_of(hold, {_ATTEMPT: uuid.uuid4().hex, **({} if job is None else {"job": job})})
    return {_STAMP: json.dumps(said, separators=(",", ":"))}
