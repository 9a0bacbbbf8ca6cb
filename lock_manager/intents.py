"""Intents: what a hold was about to put into a table's log, kept where it outlives the hold.

Just before a version file is put, the request that confirms the hold also writes its intent. The release removes the
intent once the outcome of every put is known. So an intent that a new holder finds is unfinished: its writer was
killed, paused or cut off, and its put may still arrive. Before the new holder reads anything it fills that version with
an empty commit, unless the version is there already. Then the late put can only fail.

An attempt belongs to its hold and table, not to the block of code that made it: it stays open until its outcome is
known, however many blocks begin and end under the hold in between.

Pure: the coordinator keeps the intents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

NO_VERSION = -1
"""The newest version of a table that is not there."""

UNREADABLE = 2**63 - 1
"""The version of an intent that cannot be read: of another release, say. It may be any."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """What a hold was about to put.

    Attributes:
        hold_id: of the hold; the znode's name begins with it.
        version: of the table.
        txn: Delta's name of the transaction, None if it has none.
        attempt: unique name of this attempt.
        token: fencing token of the hold.

    """

    hold_id: str
    version: int
    txn: str | None
    attempt: str
    token: int

    def data(self) -> bytes:
        """Return what its znode holds."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def parse(cls, data: bytes) -> Intent:
        """Read what :meth:`data` wrote.

        Raises:
            ValueError: something else is there.

        """
        try:
            said = json.loads(data)
            return cls(
                hold_id=str(said["hold_id"]),
                version=int(said["version"]),
                txn=None if said["txn"] is None else str(said["txn"]),
                attempt=str(said["attempt"]),
                token=int(said["token"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"no intent: {data[:100]!r}") from error


def version_to_fill(intents: Iterable[Intent], newest: int) -> int | None:
    """Return the version that a new holder has to see filled before it reads, None if there is none.

    Any intent of a version that is not there yet asks for the next one: also if another does not fit, because it cannot
    be read, or because the table was dropped and made again under that hold. An empty commit costs little.

    Args:
        intents: that holds before left behind.
        newest: version of the table, which must exist: an empty commit would make none.

    """
    return newest + 1 if any(intent.version > newest for intent in intents) else None
