"""Group commits: a holder commits the appends of waiting contenders (members) together with its append, in one version.

A waiting append offers its actions in its contender (:class:`OfferedAppend`). Just before the holder puts its version,
it reads the offers behind it in the queue, and takes those that fit its commit (:class:`GroupTerms`). The request that
confirms its hold also requires that each member still waits, and stores an intent that names the members. So a member
whose wait ends for any reason learns the truth from the intents and then from the log: as long as an intent names it,
it may still be committed.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from lock_manager import tracing
from lock_manager.guard.write_attempt import WriteAttempt, too_old_reason
from lock_manager.table_records.commit_stamp import TRACE_ID

# Maximum total size of the members of a version, in characters.
_MAX_SIZE = 1_000_000
# Names of the actions of a member. Any other action may depend on the version that contains it.
_ACTIONS = frozenset({"add", "txn"})
# Delta names the new files of an append by relative paths. A colon before the first slash would be a URI's.
_RELATIVE_PATH = re.compile(r"(?!/)(?![^/]*:)(?!(.*/)?\.\.(/|$)).+", re.DOTALL)


@dataclass(frozen=True)
class OfferedAppend:
    """The content of an offer, as the holder reads it.

    Attributes:
        state: Hash of the protocol and the metadata of the table that the append was prepared for.
        read_version: Version up to which the append was checked for conflicts.
        begun_at: When the append began, seconds since the epoch.
        lines: Lines of the version file, without ``commitInfo``.
        info: Its ``commitInfo``.
        stamp: Further fields of its part of the commit stamp, such as ``job``.
        traceparent: Span of the append (:attr:`.tracing.Span.traceparent`); None if none is recorded.

    """

    write_id: str
    state: str
    read_version: int
    begun_at: float
    lines: tuple[str, ...]
    info: Mapping[str, Any]
    stamp: Mapping[str, Any]
    traceparent: str | None = None

    @classmethod
    def of(cls, staged: Mapping[str, Any], attempt: WriteAttempt, note: Mapping[str, Any]) -> OfferedAppend:
        """Return the append of an attempt, with the current span.

        Args:
            staged: The log store's description (``LightTransaction.java``).
            note: Further fields of the stamp, such as ``job``.

        """
        fields = {**staged, "write_id": attempt.write_id, "begun_at": attempt.begun_at}
        span = tracing.current()
        stamp = note if span.trace_id is None else {**note, TRACE_ID: span.trace_id}
        return cls.parse({**fields, "stamp": stamp, "traceparent": span.traceparent})

    def data(self) -> dict[str, Any]:
        """Return JSON values that :meth:`parse` parses."""
        return vars(self) | {"lines": list(self.lines)}

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> OfferedAppend:
        """Parse the values of :meth:`data`.

        Raises:
            ValueError, TypeError, KeyError: The values are malformed.

        """
        return cls(
            write_id=str(data["write_id"]),
            state=str(data["state"]),
            read_version=int(data["read_version"]),
            begun_at=float(data["begun_at"]),
            lines=tuple(map(str, data["lines"])),
            info=dict(data["info"]),
            stamp=dict(data["stamp"]),
            traceparent=str(data["traceparent"]) if data.get("traceparent") else None,
        )

    @property
    def size(self) -> int:
        """Size of the actions and the ``commitInfo``, in characters."""
        return sum(map(len, self.lines)) + len(json.dumps(self.info))

    def actions(self) -> list[dict[str, Any]]:
        """Return the actions in the lines.

        Raises:
            ValueError: A line is no JSON object.

        """
        actions = [json.loads(line) for line in self.lines]
        if not all(isinstance(action, dict) for action in actions):
            raise ValueError("a line is no JSON object")
        return actions


@dataclass
class GroupTerms:
    """The requirements of a holder's commit for its members, from the log store's request (``LightTransaction.java``).

    Attributes:
        state: Hash of the protocol and the metadata of the version that the holder has read. No later version before
            its commit has changed them.
        read_version: That version.
        retention_seconds: Age at which VACUUM deletes files that belong to no commit.
        transactions: Application ids of the ``txn`` actions of the later versions and of the commit itself.
        write_ids: Write ids of the later versions. An earlier holder may have committed an offer, and may not have
            removed it from the queue.

    """

    state: str
    read_version: int
    retention_seconds: float
    transactions: set[str]
    write_ids: set[str]
    _size: int = 0

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> GroupTerms:
        """Parse the log store's request."""
        return cls(
            state=str(request["state"]),
            read_version=int(request["read_version"]),
            retention_seconds=float(request["retention_ms"]) / 1000,
            transactions=set(map(str, request["transactions"])),
            write_ids=set(map(str, request["committed"])),
        )

    def choose(self, offers: Mapping[str, Mapping[str, Any]]) -> dict[str, OfferedAppend]:
        """Return the offers that fit, in queue order, by contender.

        An offer that does not fit has its turn later. The ``txn`` actions of one application stay in order: after such
        an offer, the holder takes no other one of the same application.
        """
        chosen = {}
        for contender, data in offers.items():
            try:
                append = OfferedAppend.parse(data)
                actions = append.actions()
                applications = {str(action["txn"]["appId"]) for action in actions if "txn" in action}
            except (ValueError, TypeError, KeyError, AttributeError):
                break
            if all(map(_is_plain, actions)) and self._fits(append, applications):
                chosen[contender] = append
                self.write_ids.add(append.write_id)
                self._size += append.size
            self.transactions |= applications
        return chosen

    def _fits(self, append: OfferedAppend, applications: set[str]) -> bool:
        # The holder knows no txn action that was committed before the version that it has read.
        has_unknown_transactions = bool(applications) and append.read_version < self.read_version
        age_seconds = max(0.0, time.time() - append.begun_at)
        return (
            append.state == self.state
            and append.write_id not in self.write_ids
            and not has_unknown_transactions
            and not applications & self.transactions
            and self._size + append.size <= _MAX_SIZE
            and too_old_reason("", age_seconds, self.retention_seconds) is None
        )


def _is_plain(action: Mapping[str, Any]) -> bool:
    """Return whether a version may contain an action of a member: a mark, or a new file of the table."""
    if len(action) != 1 or not _ACTIONS.issuperset(action):
        return False
    file = action.get("add", {"path": "-"})
    return isinstance(file, dict) and _RELATIVE_PATH.fullmatch(unquote(str(file.get("path", "")))) is not None


def members_of(appends: Iterable[OfferedAppend]) -> list[dict[str, Any]]:
    """Return the members of a commit for the log store: ``lines``, ``info`` and ``stamp`` of each."""
    return [
        {"lines": list(append.lines), "info": append.info, "stamp": {**append.stamp, "commit_id": append.write_id}}
        for append in appends
    ]
