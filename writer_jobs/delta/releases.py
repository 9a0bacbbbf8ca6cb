"""The releases of a driver, and the calls of Delta that differ between them.

``DeltaApi.java`` has the calls of the log store.
"""

from __future__ import annotations

import json
import re
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError

from lock_manager.releases import Releases


def driver_releases(jvm: Any) -> Releases:
    """Return the software of a driver's JVM, whose class path has the log store."""
    return Releases(**json.loads(jvm.io.deltasluice.storage.DriverReleases.describe()))


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
    except Py4JError as error:
        if not _lacks_method(error, "getSnapshotAt"):
            raise
        return delta_log.getSnapshotAt(version, none, none)


def has_checkpoint(delta_log: Any, version: int) -> bool:
    """Return whether Delta's log has a complete checkpoint of a version."""
    try:
        return bool(delta_log.checkpointExistsAtVersion(version))
    except Py4JError as error:
        if not _lacks_method(error, "checkpointExistsAtVersion"):
            raise
        # Delta 4.0.
        checkpoint = delta_log.findLastCompleteCheckpointBefore(version + 1)
        return bool(checkpoint.isDefined() and checkpoint.get().version() == version)


def _lacks_method(error: Py4JError, method: str) -> bool:
    """Return whether py4j found no such method. A lost connection is also a Py4JError, and must not be retried."""
    # The text of an exception that Java threw may be anything, and reading it calls the JVM.
    return not isinstance(error, Py4JJavaError) and bool(re.search(rf"Method {method}\(.*does not exist", str(error)))
