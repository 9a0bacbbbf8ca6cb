"""The two records of Sluice in a commit: the stamp of its hold, and the note of its writer.

The stamp describes the hold under which the commit was made. It is the key ``sluice`` of the commit's ``commitInfo``.
The log store writes it as an object, which it gets from the commit guard. A writer without the guard (delta-rs) writes
it as text; then it is the writer's claim, which the guard has not checked.

The note describes the write: commit id, run, the caller's metadata. It is the key ``sluice`` in the JSON of Delta's
``userMetadata``.

The commit id is the write id of one attempt of one operation. The stamp contains it only if the thread that executed
the attempt made the commit (:func:`is_commit_of`). An empty commit that fills a version has neither a commit id nor a
record of a write; readers ignore those keys in it.

A version may contain the appends of several writers: a group commit. Then the stamp has the key ``group``, a list with
an object for each writer, the holder first. Each object contains the writer's part of the ``commitInfo``:
:func:`writer_infos` returns the complete ``commitInfo`` of each writer, for the other functions of this module.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lock_manager import tracing
from lock_manager.coordinator import Hold
from lock_manager.times import time_of

RECORDS = "sluice"
"""Key of the stamp in ``commitInfo``, and of the note in ``userMetadata``."""
# Keys of the stamp, of the note, or of both. They are stored in tables, so their names must not change.
_COMMIT_ID, _ATTEMPT, _BEGUN_AT, _REQUESTED_AT = "commit_id", "attempt", "begun_at", "requested_at"
EMPTY_COMMIT = "occupies"
"""Key of the stamp of an empty commit; its value has the ids of the holds whose unfinished intents the commit fills."""
_EXCLUSIVE, _SHARED = "exclusive", "shared"
_OBSERVED = "observed"
GROUP = "group"
"""Key of the stamp of a group commit; its value is a list with an object for each writer."""
_LIGHT = "light"
"""Key of the stamp of a light commit (docs/gate.md).

Its value is ``known`` if the commit began with a version that the driver knew, and ``listed`` if it listed the log.
"""
# Keys of the stamp that describe the hold and the put. They are the same for all writers of a group commit.
_HOLD_KEYS = ("hold", "ensemble", "nodes", _REQUESTED_AT, "acquired_at", _ATTEMPT)
TRACE_ID = "trace_id"
"""Key of the stamp with the id of the OpenTelemetry trace of the commit; absent without a trace."""
# A caller's metadata cannot set these keys of the stamp.
_RESERVED = frozenset({_COMMIT_ID, EMPTY_COMMIT, _OBSERVED, GROUP, _LIGHT, _REQUESTED_AT, TRACE_ID})
MAINTENANCE = "maintenance"
"""Key of the record of a commit of maintenance: the action and its subject."""
CHANGES = "changes"
"""Key of the record of a commit that applied a batch of changes; its value is the batch's id."""
_RUN = "run"
"""Key of the record of a commit of a run; its value has the run's id and the number of the commit."""
_LINEAGE_RUN = "lineage_run"
WATERMARK = "watermark"
"""Key of the record of a commit with rows of a stream: the event time up to which no timely row is missing.

Its value has the time in ISO 8601 (``at``) and the stream's id (``stream``; null if the rows came without a stream).
"""


@dataclass(frozen=True)
class CommitStamp:
    """The record of the hold under which a commit was made (``commitInfo.sluice``).

    Attributes:
        commit_id: Unique id of the write, or of the attempt to commit if the write has none.
        ensemble: UUID of the ensemble that granted the tokens. Tokens of different ensembles do not compare.
        tokens: Fencing tokens of the exclusive locks, by key of the locked node.
        shared_tokens: Fencing tokens of the shared locks, by key of the locked node.
        acquired_at: When the hold began, seconds since the epoch, by the writer's clock.
        requested_at: When the lock was requested, by the same clock; None in commits of earlier releases.
        fenced: Whether the commit guard confirmed the hold before it allowed the commit. Otherwise the stamp is the
            writer's claim (see :func:`commit_metadata`).
        trace_id: Id of the OpenTelemetry trace of the commit; None if none was recorded.

    """

    commit_id: str
    hold: str
    ensemble: str
    tokens: Mapping[str, int]
    shared_tokens: Mapping[str, int]
    acquired_at: float
    job: str | None = None
    fenced: bool = True
    requested_at: float | None = None
    trace_id: str | None = None


def stamp_of(
    hold: Hold,
    metadata: Mapping[str, Any],
    *,
    write_id: str | None = None,
    fills: Collection[str] | None = None,
    trace_id: str | None = None,
) -> dict[str, Any]:
    """Return the stamp of a commit under this hold; :func:`parse_stamp` parses it.

    Args:
        metadata: Further fields, such as ``job``; JSON values.
        write_id: Id of the operation attempt to which the commit belongs; None if it belongs to none.
        fills: For an empty commit: ids of the holds whose unfinished intents it fills.
        trace_id: Id of the trace of the commit; None if none is recorded.

    """
    return {
        **{key: value for key, value in metadata.items() if key not in _RESERVED},
        **({} if write_id is None else {_COMMIT_ID: write_id}),
        **({} if fills is None else {EMPTY_COMMIT: list(fills)}),
        **({} if trace_id is None else {TRACE_ID: trace_id}),
        "hold": hold.hold_id,
        "ensemble": hold.ensemble_id,
        "nodes": [
            {"key": key, "mode": _EXCLUSIVE if key in hold.exclusive_keys else _SHARED, "token": token}
            for key, token in hold.tokens.items()
        ],
        _REQUESTED_AT: hold.requested_at,
        "acquired_at": hold.acquired_at,
    }


def parse_stamp(info: Mapping[str, Any]) -> CommitStamp | None:
    """Parse the stamp in a ``commitInfo``; None if it has none, or one that this release cannot parse."""
    try:
        record = info[RECORDS]
        # The guard writes an object; delta-rs writes text only.
        fenced = not isinstance(record, str)
        record = record if fenced else json.loads(record)
        nodes = [(str(node["key"]), str(node["mode"]), int(node["token"])) for node in record["nodes"]]
        return CommitStamp(
            commit_id=next(iter(commit_ids_of(info)), None) or str(record[_ATTEMPT]),
            hold=str(record["hold"]),
            ensemble=str(record["ensemble"]),
            tokens={key: token for key, mode, token in nodes if mode == _EXCLUSIVE},
            shared_tokens={key: token for key, mode, token in nodes if mode == _SHARED},
            acquired_at=float(record["acquired_at"]),
            job=record.get("job"),
            fenced=fenced,
            requested_at=time_of(record.get(_REQUESTED_AT)),
            trace_id=None if TRACE_ID not in record else str(record[TRACE_ID]),
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def note_of_write(metadata: Mapping[str, Any], commit_id: str, begun_at: float) -> dict[str, Any]:
    """Return the note of a write.

    Args:
        metadata: The caller's metadata; JSON values.
        commit_id: The unique id that finds the commit.
        begun_at: When the write began, seconds since the epoch.

    """
    return {**metadata, _COMMIT_ID: commit_id, _BEGUN_AT: round(begun_at, 3)}


def note_as_user_metadata(note: Mapping[str, Any], user: str | None = None) -> str:
    """Return a note, with the caller's own ``userMetadata``, as Delta's ``userMetadata``; :func:`note_of` parses it."""
    user_field = {} if user is None else {"user": user}
    return json.dumps({RECORDS: note, **user_field}, separators=(",", ":"))


def is_empty_commit(info: Mapping[str, Any]) -> bool:
    """Return whether a commit only fills a version that an earlier hold may still put."""
    return EMPTY_COMMIT in _object(info.get(RECORDS))


def writer_infos(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return a ``commitInfo`` for each writer of a version: the holder's, then those of the members, in queue order.

    A writer's object in the stamp's ``group`` overrides keys of the version's ``commitInfo``, such as
    ``operationMetrics`` and ``userMetadata``. Its stamp consists of its own ``sluice`` and the version's hold.

    Returns:
        Only ``info`` for an ordinary commit, and if the list of writers cannot be parsed.

    """
    stamp = _object(info.get(RECORDS))
    writers = [] if is_empty_commit(info) else stamp.get(GROUP)
    if not isinstance(writers, list) or not writers:
        return [info]
    if not all(isinstance(_object(writer).get(RECORDS), dict) for writer in writers):
        return [info]
    hold = {key: stamp[key] for key in _HOLD_KEYS if key in stamp}
    return [{**info, **writer, RECORDS: {**hold, **writer[RECORDS]}} for writer in writers]


def is_commit_of(info: Mapping[str, Any], write_id: str, *, guarded: bool) -> bool:
    """Return whether a commit belongs to this attempt of an operation.

    In ``required`` mode (``guarded``) the id in the stamp counts, else the id in the note.
    """
    if is_empty_commit(info):
        return False
    record = _object(info.get(RECORDS)) if guarded else note_of(info)
    return record.get(_COMMIT_ID) == write_id


def note_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note in a ``commitInfo``; empty if it has none or is an empty commit."""
    if is_empty_commit(info):
        return {}
    try:
        metadata = json.loads(info.get("userMetadata") or "null")
    except (ValueError, TypeError):
        return {}
    return _object(metadata.get(RECORDS)) if isinstance(metadata, dict) else {}


def commit_ids_of(info: Mapping[str, Any]) -> list[str]:
    """Return the ids of the write in a ``commitInfo``: the one in the stamp, then the one in the note.

    They differ if a session gives all its commits the ``userMetadata`` of one commit.
    """
    ids = dict.fromkeys((_stamp_record(info).get(_COMMIT_ID), note_of(info).get(_COMMIT_ID)))
    return [str(commit_id) for commit_id in ids if commit_id is not None]


def begun_at_of(info: Mapping[str, Any]) -> float | None:
    """Return when the write of a commit began, seconds since the epoch; None if the commit does not record it."""
    return time_of(_record_of(info, _BEGUN_AT))


def batch_of(info: Mapping[str, Any]) -> str | None:
    """Return the id of the batch of changes that a commit applied, from its stamp or its note; None if it has none."""
    batch = _record_of(info, CHANGES)
    return None if batch is None else str(batch)


def maintenance_of(info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the record of a commit of maintenance, from its stamp or its note; None for other commits."""
    return _object(_record_of(info, MAINTENANCE)) or None


def run_note(run_id: str, commit_number: int, commit_count: int, **fields: Any) -> dict[str, Any]:
    """Return the record of a run for the metadata of one of its commits; :func:`run_of` reads it.

    ``commit_number`` counts from 1. ``commit_count`` is the number of commits of the run. ``fields`` are further fields
    of the record (JSON values).
    """
    return {_RUN: {"id": run_id, "commit": commit_number, "commits": commit_count, **fields}}


def run_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of a run in a commit, from its stamp or its note; empty if it has none."""
    return _object(_record_of(info, _RUN))


def lineage_note(run_id: str) -> dict[str, Any]:
    """Return the record of a run of OpenLineage for the metadata of its commit; :func:`lineage_run_of` reads it."""
    return {_LINEAGE_RUN: run_id}


def lineage_run_of(info: Mapping[str, Any]) -> str | None:
    """Return the id of the OpenLineage run that made a commit, from its stamp or its note; None if it has none."""
    run_id = _record_of(info, _LINEAGE_RUN)
    return None if run_id is None else str(run_id)


def watermark_of(info: Mapping[str, Any]) -> tuple[datetime, str | None] | None:
    """Return the watermark in a commit, and the id of its stream; None if the commit has none."""
    watermark = _object(_record_of(info, WATERMARK))
    try:
        event_time, stream = datetime.fromisoformat(watermark["at"]), watermark.get("stream")
    except (KeyError, TypeError, ValueError):
        return None
    return event_time, None if stream is None else str(stream)


def _record_of(info: Mapping[str, Any], key: str) -> object:
    """Return one record of a write from the stamp, or from the note if the stamp has none."""
    return _stamp_record(info).get(key) or note_of(info).get(key)


def _stamp_record(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the guard's stamp; empty if the commit has none or is an empty commit."""
    return {} if is_empty_commit(info) else _object(info.get(RECORDS))


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def observed_refusal(info: Mapping[str, Any]) -> str | None:
    """Return the error's name for a commit that the guard would have refused, but only observed; else None."""
    reason = _object(info.get(RECORDS)).get(_OBSERVED)
    return None if reason is None else str(reason)


def commit_metadata(hold: Hold, *, job: str | None = None) -> dict[str, str]:
    """Return the stamp for a commit of a writer without the guard, so that ``sluice verify`` can check the order.

    For delta-rs: ``CommitProperties(custom_metadata=commit_metadata(hold))``. Call it for every commit, directly after
    :meth:`HeldLock.check`: the stamp contains the hold, its ensemble and fencing tokens, and an id of this one attempt.
    It is the writer's claim: the commit is not refused if the hold is lost meanwhile. See docs/python-writers.md.

    Args:
        hold: Hold of the commit.
        job: Name of the writer's job.

    Returns:
        One key, ``sluice``, with a JSON object as text.

    """
    fields = {_ATTEMPT: uuid.uuid4().hex, **({} if job is None else {"job": job})}
    stamp = stamp_of(hold, fields, trace_id=tracing.current().trace_id)
    return {RECORDS: json.dumps(stamp, separators=(",", ":"))}
