"""``sluice break``: finds the holders to remove, and reports what became of them."""

from __future__ import annotations

import re

from lock_manager.queue_entry import QueueEntry, TableLocks
from sluice.errors import BreakError, PartitionNameError, TokenError
from sluice.locks.status import describe

_PARTITION = re.compile(r"[^=/]+=[^=/]+(/[^=/]+=[^=/]+)*")


def check_partition(name: str) -> str:
    """Return the name of a partition, as ``year=2013/month=1``, without slashes around it.

    Raises:
        PartitionNameError: it is not of that form.

    """
    partition = name.strip("/")
    if not _PARTITION.fullmatch(partition):
        raise PartitionNameError(
            f"{name!r} is no partition: write COLUMN=VALUE/COLUMN=VALUE in the table's order, as `sluice status` shows"
        )
    return partition


def parse_token(text: str) -> int:
    """Parse a fencing token: decimal as every command prints it, or ``0x…`` as ZooKeeper's tools print a czxid.

    Raises:
        TokenError: ``text`` is neither.

    """
    try:
        return int(text, 0)
    except ValueError:
        raise TokenError(
            f"{text!r} is not a fencing token: write the decimal number of `sluice status`, or 0x and a czxid"
        ) from None


def holders_of(locks: TableLocks, partition: str | None, token: int | None) -> list[QueueEntry]:
    """Return the holders that are to be shown and broken, first come first.

    Args:
        locks: of the table.
        partition: only those that hold it, or partitions within it; by default every holder.
        token: only the one with this fencing token.

    Raises:
        BreakError: somebody holds the table, but nobody what was asked for.

    """
    holders = list(locks.holders)
    if partition is not None:
        holders = [entry for entry in holders if _holds_within(entry, partition)]
    if token is not None:
        holders = [entry for entry in holders if entry.token == token]
    if holders or not locks.holders:
        return holders
    others = "; ".join(map(describe, locks.holders))
    conditions = [f"partition {partition}"] if partition is not None else []
    conditions += [f"token {token}"] if token is not None else []
    raise BreakError(f"{locks.name}: nobody holds it with {' and '.join(conditions)}; what is held: {others}")


def _holds_within(entry: QueueEntry, partition: str) -> bool:
    return any(each == partition or each.startswith(partition + "/") for each in entry.partitions)
