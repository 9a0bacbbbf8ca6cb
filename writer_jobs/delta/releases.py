"""Calls of Delta that differ between the supported releases. ``DeltaApi.java`` has those of the log store."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError


def snapshot_at(delta_log: Any, version: int, none: Any) -> Any:
    """Return Delta's snapshot of a version, also of one beyond the table's retention.

    Args:
        delta_log: Delta's ``DeltaLog``.
        version: The version.
        none: Scala's ``None``.

    """
    try:
        # False: do not refuse a version beyond the table's retention. Delta 4.0 has no such argument.
        return delta_log.getSnapshotAt(version, none, none, False)  # noqa: FBT003
    except Py4JJavaError:
        raise
    except Py4JError:
        return delta_log.getSnapshotAt(version, none, none)


def has_checkpoint(delta_log: Any, version: int) -> bool:
    """Return whether Delta's log has a complete checkpoint of a version."""
    try:
        return bool(delta_log.checkpointExistsAtVersion(version))
    except Py4JJavaError:
        raise
    except Py4JError:
        # Delta 4.0.
        checkpoint = delta_log.findLastCompleteCheckpointBefore(version + 1)
        return bool(checkpoint.isDefined() and checkpoint.get().version() == version)
