"""``sluice break``: parses its options, and selects the holders to remove."""

from __future__ import annotations

import re

from lock_manager.queue_entry import QueueEntry, TableLocks
from sluice.errors import BreakError, PartitionNameError, TokenError
from sluice.locks.status import describe

_PARTITION = re.compile(r"[^=/]+=[^=/]+(/[^=/]+=[^=/]+)*")


def parse_partition(name: str) -> str:
    """Return a partition's name, such as ``year=2013/month=1``, without leading and trailing slashes.

    Raises:
        PartitionNameError: The name is not of that form.

    """
    partition = name.strip("/")
    if not _PARTITION.fullmatch(partition):
        raise PartitionNameError(
            f"{name!r} is not a partition; write COLUMN=VALUE/COLUMN=VALUE in the table's order, as `sluice status` "
            "shows it"
        )
    return partition


def parse_token(text: str) -> int:
    """Parse a fencing token: decimal, as the commands print it, or ``0x…``, as ZooKeeper's tools print a czxid.

    Raises:
        TokenError: ``text`` is neither a decimal number nor ``0x…``.

    """
    try:
        return int(text, 0)
    except ValueError:
        raise TokenError(
            f"{text!r} is not a fencing token: write the decimal number that `sluice status` shows, or 0x and a czxid"
        ) from None


def select_holders(locks: TableLocks, partition: str | None, token: int | None) -> list[QueueEntry]:
    """Return the holders to break, in the order in which they queued up.

    A partition selects its holders and those of partitions within it, and a fencing token selects one holder.

    Raises:
        BreakError: The table has holders, but none of them matches.

    """
    holders = list(locks.holders)
    if partition is not None:
        holders = [
            entry for entry in holders if any(f"{name}/".startswith(f"{partition}/") for name in entry.partitions)
        ]
    if token is not None:
        holders = [entry for entry in holders if entry.token == token]
    if holders or not locks.holders:
        return holders
    conditions = [f"partition {partition}"] if partition is not None else []
    conditions += [f"token {token}"] if token is not None else []
    raise BreakError(
        f"{locks.name}: no holder has {' and '.join(conditions)}; the holders are: "
        f"{'; '.join(map(describe, locks.holders))}"
    )
