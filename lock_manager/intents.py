"""Intents: records of the versions that a hold was about to put, stored so that they outlive the hold.

Just before a version file is put, the request that confirms the hold also writes its intent. The release removes the
intent if the outcome of every put is known. So an intent that a new holder finds is unfinished: its writer was killed,
paused or cut off, and its put may still arrive. Before the new holder reads anything, it fills that version with an
empty commit, unless the version exists already. Then the late put can only fail.

An attempt to put a version belongs to its hold and table, not to the block of code that made it. The attempt stays open
until its outcome is known, however many blocks begin and end under the hold in between.

This module has the rule only; the coordinator stores the intents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

NO_VERSION = -1
"""The newest version of a table that does not exist."""

UNREADABLE = 2**63 - 1
"""The version of an intent that cannot be read, for example one of another release. It may be any version."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """A version that a hold was about to put.

    Attributes:
        hold_id: Id of the hold; the znode's name begins with it.
        txn: Delta's id of the transaction; None if the commit has none.
        attempt: Unique id of this attempt to put.
        token: Fencing token of the hold.
        members: Write ids of the appends of waiting contenders that the version also contains.

    """

    hold_id: str
    version: int
    txn: str | None
    attempt: str
    token: int
    members: tuple[str, ...] = ()

    def data(self) -> bytes:
        """Return the content of its znode."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> Intent:
        """Parse the content of a znode that :meth:`data` wrote.

        Raises:
            ValueError: The content is malformed.

        """
        try:
            record = json.loads(data)
            return cls(
                hold_id=str(record["hold_id"]),
                version=int(record["version"]),
                txn=None if record["txn"] is None else str(record["txn"]),
                attempt=str(record["attempt"]),
                token=int(record["token"]),
                members=tuple(map(str, record.get("members", ()))),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"not an intent: {data[:100]!r}") from error


def version_to_fill(intents: Iterable[Intent], newest: int) -> int | None:
    """Return the version that must be filled before a new holder reads; None if every intended version exists.

    That is always the version after ``newest``, because a writer puts no later one. An intent may name a later version
    than its put: it may be unreadable, or its hold may have dropped the table and created it again. If no put is on its
    way, the empty commit costs little.

    ``newest`` is the newest version. If it is ``NO_VERSION``, fill nothing: an empty commit creates no table.
    """
    return newest + 1 if any(intent.version > newest for intent in intents) else None
